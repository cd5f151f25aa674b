"""vLLM's three EAGLE-3 draft classes: ``llama_eagle3.py``, ``qwen3_eagle3.py`` and ``deepseek_eagle3.py``, by version.

Read in the wheels 0.9.2 to 0.33.0; 0.32.0 is also run (``tests/engines/test_loaders.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3diag.checkpoints.config import DraftConfig
from eagle3diag.engines.draftclass import DraftClass, Field, Names, Reading, Refusal, Row, norm_before_residual, norm_output
from eagle3diag.engines.rules import ALWAYS, Span, Version, since
from eagle3diag.engines.sglang_drafts import mla_attention, mla_sizes
from eagle3diag.engines.vllm_config import is_speculators, view

_QKV = ((".q_proj", ".qkv_proj"), (".k_proj", ".qkv_proj"), (".v_proj", ".qkv_proj"))
_MLP = ((".gate_proj", ".gate_up_proj"), (".up_proj", ".gate_up_proj"))
_MLA = ((".q_a_proj", ".fused_qkv_a_proj"), (".kv_a_proj_with_mqa", ".fused_qkv_a_proj"))
_ROTARY = r"rotary_pos_emb\.inv_freq|rotary_emb\.(inv_freq|cos_cached|sin_cached)"
_MASK = r"mask_hidden|" + _ROTARY
#: The maps are told from the head before ``model.`` is put in front, and ``midlayer.`` is renamed inside the model.
_COMMON: dict[str, Any] = {
    "renames": (("d2t", "draft_id_to_target_id"), (r"midlayer\.", "layers.0.")),
    "d2t": "draft_id_to_target_id", "t2d": "t2d", "bare": "lm_head|draft_id_to_target_id", "d2t_is_parameter": True,
}  # fmt: skip
_UNLESS = (("input_norm\\.", "norm_before_fc"), ("fc\\.", "use_aux"))

_OWN_EMBEDDING = (
    since("0.9.0", "the target's if shapes agree", "v1/spec_decode/eagle.py::load_model up to 0.11.0"),
    since("0.11.1", "own if in the file", "process_eagle_weight, first in 0.11.1; v1/spec_decode: _maybe_share_embeddings"),
)
_OWN_HEAD = (
    since("0.9.0", "own", "v1/spec_decode/eagle.py: the head is shared unless the method is eagle3"),
    since("0.11.0", "the target's if shapes agree", "v1/spec_decode/eagle.py 0.11.0"),
    since("0.11.1", "own if in the file", "_maybe_share_lm_head, first in 0.11.1"),
)


def _names(stacked: tuple[tuple[str, str], ...], *, first: str, bias_ignored: str = "0.25.0") -> tuple[Any, ...]:
    """The loader before and after it became a mapper over AutoWeightsLoader (0.25.0), which passes over biases without a parameter."""
    before: dict[str, Any] = {"stacked": stacked, "unknown": "raises", "unknown_part": "raises", "unknown_bias": "raises"}
    rows = [
        since("0.9.0", Names(**_COMMON, **before, skipped=_ROTARY), "params_dict[name] of the inner model: KeyError for unknown names"),
        since("0.12.0", Names(**_COMMON, **before, skipped=_ROTARY, skipped_unless=_UNLESS[1:]), "0.12.0: use_aux_hidden_state"),
        since("0.16.0", Names(**_COMMON, **before, skipped=_MASK, skipped_unless=_UNLESS[1:]), "0.16.0: mask_hidden is passed over"),
        since("0.18.0", Names(**_COMMON, **before, skipped=_MASK, skipped_unless=_UNLESS), "PR #36545, 0.18.0: input_norm"),
        since(
            bias_ignored,
            Names(**_COMMON, **(before | {"unknown_bias": "dropped"}), skipped=_MASK, skipped_unless=_UNLESS),
            "0.25.0: AutoWeightsLoader with a mapper, which raises for unknown names and passes over biases",
        ),
    ]
    return tuple(row for row in rows if row.version >= Version.parse(first)) or (rows[-1],)


def _layer(*, norms: bool) -> tuple[Row, ...]:
    """One decoder layer; ``norms``: Qwen3's attention, with norms of queries and keys, and no biases outside q, k and v."""
    name, canonical = "model.layers.{i}", "layers.{i}"
    attention, qkv = f"{name}.self_attn", (("q_proj", "Q"), ("k_proj", "KV"), ("v_proj", "KV"))
    gate_up = (("gate_proj", "I"), ("up_proj", "I"))
    rows = [
        Row(f"{attention}.qkv_proj.weight", f"{canonical}.self_attn.{{part}}.weight", ("X",), parts=qkv),
        Row(
            f"{attention}.qkv_proj.bias", f"{canonical}.self_attn.{{part}}.bias", (),
            parts=qkv, when="attention_bias", versions=Span.of("0.16.0"),
        ),
        Row(f"{attention}.o_proj.weight", f"{canonical}.self_attn.o_proj.weight", ("H", "Q")),
        Row(f"{name}.mlp.gate_up_proj.weight", f"{canonical}.mlp.{{part}}.weight", ("H",), parts=gate_up),
        Row(f"{name}.mlp.down_proj.weight", f"{canonical}.mlp.down_proj.weight", ("H", "I")),
        *(
            Row(f"{name}.{norm}.weight", f"{canonical}.{norm}.weight", ("H",), "ones")
            for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        ),
    ]  # fmt: skip
    if norms:
        return (*rows, *(Row(f"{attention}.{n}.weight", f"{canonical}.self_attn.{n}.weight", ("D",), "ones") for n in ("q_norm", "k_norm")))
    return (
        *rows,
        Row(f"{attention}.o_proj.bias", f"{canonical}.self_attn.o_proj.bias", ("H",), when="o_bias"),
        Row(f"{name}.mlp.gate_up_proj.bias", f"{canonical}.mlp.{{part}}.bias", (), parts=gate_up, when="mlp_bias"),
        Row(f"{name}.mlp.down_proj.bias", f"{canonical}.mlp.down_proj.bias", ("H",), when="mlp_bias"),
    )


_MAP = (
    Row("draft_id_to_target_id", "d2t", ("Vd",), "zeros", versions=Span.of(before="0.30.0")),
    Row("draft_id_to_target_id", "d2t", ("Vd",), "zeros", when="reduced", versions=Span.of("0.30.0")),
)
_ENDS = (
    Row("model.embed_tokens.weight", "embed_tokens.weight", ("V", "H")),
    Row("model.norm.weight", "norm.weight", ("H",), "ones"),
    Row("lm_head.weight", "lm_head.weight", ("Vd", "H")),
    *_MAP,
)
_FC = (
    Row("model.fc.weight", "fc.weight", ("H", "A"), "random", versions=Span.of(before="0.11.1")),
    Row("model.fc.weight", "fc.weight", ("H", "A"), when="use_aux", versions=Span.of("0.11.1")),
    Row("model.input_norm.weight", "input_norm.weight", ("A",), "ones", when="norm_before_fc", versions=Span.of("0.18.0")),
    Row("model.fc_norm.{k}.weight", "fc_norm.{k}.weight", ("Ht",), "ones", when="fc_norm", versions=Span.of("0.22.0")),
)


def _reading(config: DraftConfig, version: Version) -> Reading:
    """``Eagle3LlamaForCausalLM``: ids at the top level do not size fc (issue #54526)."""
    seen = view(config.raw, version)
    eagle = seen.get("eagle_config")
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, Mapping) else None
    return _read(config, version, seen, [seen.get("num_aux_hidden_states")], [ids])


def _qwen3_reading(config: DraftConfig, version: Version) -> Reading:
    seen = view(config.raw, version)
    eagle = seen.get("eagle_config")
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, Mapping) else None
    said = [seen.get("num_aux_layers"), seen.get("num_aux_hidden_states")]
    return _read(config, version, seen, said, [seen.get("eagle_aux_hidden_state_layer_ids"), ids])


def _deepseek_reading(config: DraftConfig, version: Version) -> Reading:
    plain = _reading(config, version)
    return Reading(dict(plain.sizes) | mla_sizes(config), plain.flags | {"use_aux"}, plain.layers, plain.n_aux)


def _read(config: DraftConfig, version: Version, seen: Mapping[str, Any], said: list[Any], ids: list[Any]) -> Reading:
    n_aux = next((n for n in said if isinstance(n, int)), None) or next((len(i) for i in ids if isinstance(i, list) and i), 3)
    if version not in Span.of("0.22.0"):
        n_aux = 3
    eagle = seen.get("eagle_config")
    nested = eagle if isinstance(eagle, Mapping) else {}
    draft_vocab = seen.get("draft_vocab_size")
    draft_vocab = draft_vocab if isinstance(draft_vocab, int) else config.vocab_size
    bias = seen.get("attention_bias") or seen.get("bias")
    flags = {
        "attention_bias": seen.get("attention_bias"),
        "o_bias": bias,
        "mlp_bias": seen.get("mlp_bias"),
        "norm_before_fc": nested.get("norm_before_fc", seen.get("norm_before_fc"))
        if version in Span.of("0.22.0")
        else seen.get("norm_before_fc"),
        "fc_norm": seen.get("fc_norm"),
        "use_aux": nested.get("use_aux_hidden_state", True) if version in Span.of("0.12.0") else True,
        "reduced": draft_vocab != config.vocab_size,
    }
    sizes = {
        "H": config.hidden_size, "Ht": config.target_hidden_size, "A": n_aux * config.target_hidden_size, "D": config.head_dim,
        "Q": config.num_heads * config.head_dim, "KV": config.num_kv_heads * config.head_dim, "I": config.intermediate_size,
        "V": config.vocab_size, "Vd": draft_vocab,
    }  # fmt: skip
    layers = config.num_layers if version in Span.of("0.11.1") else 1
    return Reading(sizes, frozenset(name for name, value in flags.items() if value), layers, n_aux)


_REFUSALS = (
    Refusal(
        Span.of(before="0.11.0"),
        lambda raw: raw.get("draft_vocab_size") is None,
        "no draft_vocab_size, which this version gives to the head's constructor: TypeError",
        "llama_eagle3.py up to 0.10.2",
    ),
    Refusal(
        ALWAYS,
        lambda raw: "target_hidden_size" in raw and raw["target_hidden_size"] is None and "speculators_model_type" not in raw,
        "target_hidden_size is null, and the class multiplies it: TypeError",
        "getattr(config, 'target_hidden_size', ...), llama_eagle3.py",
    ),
    Refusal(ALWAYS, lambda raw: raw.get("hidden_act", "silu") != "silu", "hidden_act is not silu: ValueError", "models/llama.py::LlamaMLP"),
)

_FIELDS = (
    Field(
        "norm_output", lambda raw: norm_output(raw) and not is_speculators(raw), Span.of("0.22.0"), "FM-46", "PR #42764, first in 0.22.0"
    ),
    Field(
        "norm_output (speculators)", lambda raw: norm_output(raw) and is_speculators(raw), Span.of("0.25.0"), "FM-46",
        "PR #46488: update_eagle3 copies it from speculators' format since 0.25.0",
    ),
    Field("norm_before_residual", norm_before_residual, Span.of("0.10.2"), "FM-47", "llama_eagle3.py, first in 0.10.2"),
)  # fmt: skip

LLAMA = DraftClass(
    name="Eagle3LlamaForCausalLM",
    architectures=(
        since("0.9.0", ("Eagle3LlamaForCausalLM",), "models/registry.py"),
        since("0.10.2", ("Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3"), "models/registry.py 0.10.2"),
        since(
            "0.11.1",
            ("Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3vlForCausalLM"),
            "models/registry.py 0.11.1, 0.12.0",
        ),
        since(
            "0.20.0",
            (
                "Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3vlForCausalLM",
                "Eagle3MiniMaxM2ForCausalLM",
            ),
            "models/registry.py 0.20.0",
        ),
    ),
    names=_names(_QKV + _MLP, first="0.9.0"),
    rows=(*_ENDS, *_FC, *_layer(norms=False)),
    embedding=_OWN_EMBEDDING,
    head=_OWN_HEAD,
    reading=_reading,
    refusals=_REFUSALS,
    fields=_FIELDS,
)  # fmt: skip

QWEN3 = DraftClass(
    name="Eagle3Qwen3ForCausalLM",
    architectures=(since("0.24.0", ("Eagle3Qwen3ForCausalLM",), "models/registry.py 0.24.0"),),
    names=_names(_QKV + _MLP, first="0.18.0"),
    rows=(*_ENDS, *_FC, *_layer(norms=True)),
    embedding=_OWN_EMBEDDING,
    head=_OWN_HEAD,
    reading=_qwen3_reading,
    refusals=_REFUSALS,
    fields=_FIELDS,
)


def _deepseek_names() -> tuple[Any, ...]:
    parts: dict[str, Any] = {"stacked": _MLP + _MLA, "unknown_part": "raises"}
    return (
        since(
            "0.18.0",
            Names(**_COMMON, **parts, unknown="dropped", unknown_bias="dropped", skipped=_ROTARY),
            "deepseek_eagle3.py 0.18-0.24: unknown plain names are passed over, unknown parts raise a KeyError",
        ),
        since(
            "0.25.0",
            Names(**_COMMON, **parts, unknown="raises", unknown_bias="dropped", skipped=_ROTARY),
            "0.25.0: AutoWeightsLoader with a mapper",
        ),
    )


DEEPSEEK = DraftClass(
    name="Eagle3DeepseekV2ForCausalLM",
    architectures=(since("0.18.0", ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"), "models/registry.py 0.18.0"),),
    names=_deepseek_names(),
    rows=(
        *_ENDS,
        Row("model.fc.weight", "fc.weight", ("H", "A")),
        Row("model.fc_norm.{k}.weight", "fc_norm.{k}.weight", ("Ht",), "ones", when="fc_norm", versions=Span.of("0.22.0")),
        *mla_attention("model.layers.{i}.self_attn", "layers.{i}.self_attn", "fused_qkv_a_proj", together=False),
        Row(
            "model.layers.{i}.mlp.gate_up_proj.weight", "layers.{i}.mlp.{part}.weight", ("H",), parts=(("gate_proj", "I"), ("up_proj", "I"))
        ),
        Row("model.layers.{i}.mlp.down_proj.weight", "layers.{i}.mlp.down_proj.weight", ("H", "I")),
        *(
            Row(f"model.layers.{{i}}.{norm}.weight", f"layers.{{i}}.{norm}.weight", ("H",), "ones")
            for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        ),
    ),
    embedding=_OWN_EMBEDDING,
    head=_OWN_HEAD,
    reading=_deepseek_reading,
    refusals=_REFUSALS,
    fields=_FIELDS,
)
