"""TensorRT-LLM's PyTorch flow, ``modeling_speculative.py``: one reading of its source, nothing of it run.

Read in single files of the public repository at several commits (2026), so that no release can be named: every version gets the same
rules, and none counts as known.
"""

from __future__ import annotations

from collections.abc import Mapping

from eagle3diag.checkpoints.config import DraftConfig
from eagle3diag.checkpoints.target import Target
from eagle3diag.engines.draftclass import HOT_TOKEN_ID, DraftClass, Field, Names, Reading, Row, norm_before_residual
from eagle3diag.engines.engine import Engine, plain_architecture
from eagle3diag.engines.layers import Capture, capture, llama_default
from eagle3diag.engines.rules import Since, Version
from eagle3diag.engines.sglang_drafts import DENSE

__all__ = ["ENGINE"]

_SOURCE = "_torch/models/modeling_speculative.py"
_QKV = (("q_proj", "Q"), ("k_proj", "KV"), ("v_proj", "KV"))
_GATE_UP = (("gate_proj", "I"), ("up_proj", "I"))


def _reading(config: DraftConfig, version: Version) -> Reading:
    """Sizes as SGLang's newest reads them; ``norm_before_fc`` from ``eagle_config`` alone, ``use_aux_norm`` not at all."""
    plain = DENSE.reading(config, Version.parse("0.5.23"))
    eagle = config.raw.get("eagle_config")
    nested = eagle if isinstance(eagle, Mapping) else {}
    flags = {
        "attention_bias": config.raw.get("attention_bias"),
        "norm_before_fc": nested.get("norm_before_fc"),
        "fc_norm": config.raw.get("fc_norm"),
    }
    return Reading(plain.sizes, frozenset(name for name, value in flags.items() if value), 1, plain.n_aux)


EAGLE3 = DraftClass(
    name="Eagle3ForCausalLM",
    architectures=(Since(Version(()), ("LlamaForCausalLMEagle3", "EAGLE3LlamaForCausalLM", "Eagle3ForCausalLM"), _SOURCE),),
    names=(
        Since(
            Version(()),
            Names(
                renames=((r"^layers\.0\.", "midlayer."), (r"^model\.", "")), d2t=r"(^|\.)d2t$", t2d=r"(^|\.)t2d$", bare=r"^lm_head\.",
                stacked=tuple((f".{part}", whole) for whole, parts in ((".qkv_proj", _QKV), (".gate_up_proj", _GATE_UP)) for part, _ in parts),
                unknown="dropped", unknown_part="dropped", unknown_bias="dropped",
            ),
            f"{_SOURCE}::Eagle3ForCausalLM.load_weights: layers.0. is renamed to midlayer., model. goes in front",
        ),
    ),
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight", ("V", "H")),
        Row("model.fc.weight", "fc.weight", ("H", "A")),
        Row("model.input_norm.weight", "input_norm.weight", ("A",), "ones", when="norm_before_fc"),
        Row("model.fc_norm.{k}.weight", "fc_norm.{k}.weight", ("Ht",), "ones", when="fc_norm"),
        Row("model.midlayer.self_attn.qkv_proj.weight", "layers.0.self_attn.{part}.weight", ("X",), parts=_QKV),
        Row("model.midlayer.self_attn.qkv_proj.bias", "layers.0.self_attn.{part}.bias", (), parts=_QKV, when="attention_bias"),
        Row("model.midlayer.self_attn.o_proj.weight", "layers.0.self_attn.o_proj.weight", ("H", "Q")),
        Row("model.midlayer.mlp.gate_up_proj.weight", "layers.0.mlp.{part}.weight", ("H",), parts=_GATE_UP),
        Row("model.midlayer.mlp.down_proj.weight", "layers.0.mlp.down_proj.weight", ("H", "I")),
        *(
            Row(f"model.midlayer.{norm}.weight", f"layers.0.{norm}.weight", ("H",), "ones")
            for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        ),
        Row("model.norm.weight", "norm.weight", ("H",), "ones"),
        Row("lm_head.weight", "lm_head.weight", ("Vd", "H")),
        Row(HOT_TOKEN_ID, "d2t", ("Vd",)),
    ),
    embedding=(Since(Version(()), "the target's unless widths differ", _SOURCE),),
    head=(Since(Version(()), "own if in the file", _SOURCE),),
    reading=_reading,
    fields=(Field("norm_before_residual", norm_before_residual, None, "FM-47", _SOURCE),),
)  # fmt: skip


def captured(raw: Mapping[str, object], version: Version, target: Target | None) -> tuple[Capture, ...]:
    """Configured ids are not read: ``eagle3_layers_to_capture`` of the LLM arguments decides, else outputs (1, n//2-1, n-4)."""
    n = None if target is None else target.n_layers
    return (capture(raw, keys=(), offset="as they are", default=llama_default, n=n, reach=(0, 0), read_from=_SOURCE),)


ENGINE = Engine(
    name="tensorrt-llm",
    first=Version(()),
    last=Version(()),
    classes=(EAGLE3,),
    architecture=plain_architecture,
    captured=captured,
    default=llama_default,
)
