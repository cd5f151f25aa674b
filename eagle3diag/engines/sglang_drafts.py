"""SGLang's two EAGLE-3 draft classes: ``llama_eagle3.py`` (dense) and ``kimi_k25_eagle3.py`` (MLA), by version.

Read in the wheels 0.4.5 to 0.5.23; the versions named in ``tests/engines/test_loaders.py`` are also run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3diag.checkpoints.config import DraftConfig
from eagle3diag.engines.draftclass import HOT_TOKEN_ID, DraftClass, Field, Names, Reading, Refusal, Row, norm_before_residual, norm_output
from eagle3diag.engines.rules import ALWAYS, Span, Version, since

_STACKED = ((".q_proj", ".qkv_proj"), (".k_proj", ".qkv_proj"), (".v_proj", ".qkv_proj"))
_MLP = ((".gate_proj", ".gate_up_proj"), (".up_proj", ".gate_up_proj"))
_OWN_LOADER: dict[str, Any] = {"d2t": "d2t", "t2d": "t2d", "stacked": _STACKED + _MLP, "unknown": "dropped", "unknown_part": "dropped"}


def _layer(name: str, canonical: str, versions: Span) -> tuple[Row, ...]:
    """One decoder layer: attention over X columns, no q/k/v biases whatever the config says, no q/k norms."""
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    return (
        Row(
            f"{attention}.qkv_proj.weight", f"{canonical}.self_attn.{{part}}.weight", ("X",),
            parts=(("q_proj", "Q"), ("k_proj", "KV"), ("v_proj", "KV")), versions=versions,
        ),
        Row(f"{attention}.o_proj.weight", f"{canonical}.self_attn.o_proj.weight", ("H", "Q"), versions=versions),
        *(
            Row(f"{attention}.o_proj.bias", f"{canonical}.self_attn.o_proj.bias", ("H",), holds, when="attention_bias", versions=within)
            for holds, within in (("memory", versions & Span.of(before="0.5.9")), ("zeros", versions & Span.of("0.5.9")))
        ),
        Row(
            f"{mlp}.gate_up_proj.weight", f"{canonical}.mlp.{{part}}.weight", ("H",),
            parts=(("gate_proj", "I"), ("up_proj", "I")), versions=versions,
        ),
        Row(f"{mlp}.down_proj.weight", f"{canonical}.mlp.down_proj.weight", ("H", "I"), versions=versions),
        *(
            Row(f"{name}.{norm}.weight", f"{canonical}.{norm}.weight", ("H",), "ones", versions=versions)
            for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        ),
    )  # fmt: skip


_ROWS = (
    Row("model.embed_tokens.weight", "embed_tokens.weight", ("V", "H")),
    Row("model.fc.weight", "fc.weight", ("H", "A"), "random"),
    Row("model.fc.bias", "fc.bias", ("H",), "random", versions=Span.of(before="0.4.9")),
    Row("model.fc.bias", "fc.bias", ("H",), "random", when="bias", versions=Span.of("0.4.9")),
    Row("model.input_norm.weight", "input_norm.weight", ("A",), "ones", when="norm_before_fc", versions=Span.of("0.5.17")),
    Row("model.fc_norm.{k}.weight", "fc_norm.{k}.weight", ("Ht",), "ones", when="fc_norm", versions=Span.of("0.5.12")),
    *_layer("model.midlayer", "layers.0", Span.of(before="0.5.12")),
    *_layer("model.layers.{i}", "layers.{i}", Span.of("0.5.12")),
    Row("model.norm.weight", "norm.weight", ("H",), "ones"),
    Row("lm_head.weight", "lm_head.weight", ("Vd", "H"), when="!tied"),
    Row(HOT_TOKEN_ID, "d2t", ("Vd",), "unset", versions=Span.of(before="0.4.9")),
    Row(HOT_TOKEN_ID, "d2t", ("Vd",), "identity", versions=Span.of("0.4.9")),
)

_NAMES = (
    since(
        "0.4.5",
        Names(
            renames=(), d2t="d2t", t2d="t2d", stacked=_STACKED + _MLP, bare="lm_head", unknown="warned", unknown_part="raises",
            unknown_bias="dropped", skipped=r"rotary_emb\.(inv_freq|cos_cached|sin_cached)|projector",
            skipped_unless=((r"lm_head\.weight", "!tied"),),
        ),
        "0.4.5-0.4.8: every name but the head's goes as model.NAME to llama.py's loader, which warns of unknown names and raises a "
        "KeyError for unknown parts of stacked ones",
    ),
    since(
        "0.4.9",
        Names(renames=(), unknown_bias="dropped", **_OWN_LOADER),
        "0.4.9-0.5.11: its own loader, which skips unknown names in silence",
    ),
    since(
        "0.5.12",
        Names(
            renames=(("midlayer", "layers.0"), ("aux_norm_low", "fc_norm.0"), ("aux_norm_mid", "fc_norm.1"), ("aux_norm_high", "fc_norm.2")),
            unknown_bias="dropped", **_OWN_LOADER,
        ),
        "PR #24663, first in 0.5.12: midlayer is renamed to layers.0",
    ),
)  # fmt: skip


def _reading(config: DraftConfig, version: Version) -> Reading:
    raw = config.raw
    n_aux = _n_aux(raw) if version in Span.of("0.5.12") else 3
    return Reading(_sizes(config, n_aux, version), _flags(raw), config.num_layers, n_aux)


def _n_aux(raw: Mapping[str, Any]) -> int:
    """``num_aux_hidden_states``, else as many as nested ids, else three (``LlamaModel.__init__``, since 0.5.12)."""
    said = raw.get("num_aux_hidden_states")
    eagle = raw.get("eagle_config")
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, Mapping) else None
    return said if isinstance(said, int) else len(ids) if isinstance(ids, list) and ids else 3


def _sizes(config: DraftConfig, n_aux: int, version: Version) -> dict[str, int]:
    raw = config.raw
    inner = config.intermediate_size
    if raw.get("model_type") == "llama4_text" and version in Span.of("0.4.9"):
        inner = int(raw.get("intermediate_size_mlp") or inner)
    return {
        "H": config.hidden_size, "Ht": config.target_hidden_size, "A": n_aux * config.target_hidden_size, "D": config.head_dim,
        "Q": config.num_heads * config.head_dim, "KV": config.num_kv_heads * config.head_dim, "I": inner,
        "V": config.vocab_size, "Vd": config.draft_vocab_size if raw.get("draft_vocab_size") is not None else config.vocab_size,
    }  # fmt: skip


def _flags(raw: Mapping[str, Any]) -> frozenset[str]:
    eagle = raw.get("eagle_config")
    nested = eagle if isinstance(eagle, Mapping) else {}
    said = {
        "attention_bias": raw.get("attention_bias") or raw.get("bias"),
        "bias": raw.get("bias"),
        "norm_before_fc": nested.get("norm_before_fc", raw.get("norm_before_fc")),
        "fc_norm": raw.get("fc_norm") or raw.get("use_aux_norm"),
        "tied": raw.get("tie_word_embeddings"),
    }
    return frozenset(name for name, value in said.items() if value)


def _null(key: str) -> Refusal:
    return Refusal(
        ALWAYS,
        lambda raw: key in raw and raw[key] is None,
        f"{key} is null, and the class multiplies it: TypeError",
        "hasattr(config, 'target_hidden_size'), llama_eagle3.py",
    )


_RESIDUAL = Field(
    "norm_before_residual", norm_before_residual, None, "FM-47", "no line of SGLang up to 0.5.23 names it: the residual is the fused state"
)
_UNKNOWN_ACTIVATION = Refusal(
    ALWAYS, lambda raw: raw.get("hidden_act", "silu") != "silu", "hidden_act is not silu: ValueError", "models/llama.py::LlamaMLP"
)

DENSE = DraftClass(
    name="LlamaForCausalLMEagle3",
    architectures=(since("0.4.5", ("LlamaForCausalLMEagle3",), "models/llama_eagle3.py, EntryClass"),),
    names=_NAMES,
    rows=_ROWS,
    embedding=(since("0.4.5", "the target's unless widths differ", "eagle_worker.py: set_embed, llama.py::set_embed"),),
    head=(
        since("0.4.5", "own", "eagle_worker.py up to 0.4.10: set_embed only"),
        since("0.5.2", "the target's if draft_vocab_size is null", "load_lm_head_from_target, first seen in 0.5.2"),
    ),
    reading=_reading,
    refusals=(
        Refusal(
            Span.of(before="0.5.12"),
            lambda raw: raw.get("num_hidden_layers", 1) != 1,
            "num_hidden_layers is not 1: 'EAGLE3 currently only supports 1 layer'",
            "llama_eagle3.py before 0.5.12",
        ),
        Refusal(
            ALWAYS,
            lambda raw: "draft_vocab_size" not in raw and not raw.get("tie_word_embeddings"),
            "the config has no draft_vocab_size: AttributeError (null is read, absent is not)",
            "llama_eagle3.py: config.draft_vocab_size",
        ),
        Refusal(
            Span.of(before="0.5.2"),
            lambda raw: raw.get("draft_vocab_size", 0) is None and not raw.get("tie_word_embeddings"),
            "draft_vocab_size is null, which this version gives to the head's constructor: TypeError",
            "llama_eagle3.py up to 0.4.10",
        ),
        _null("target_hidden_size"),
        _UNKNOWN_ACTIVATION,
    ),
    fields=(Field("norm_output", norm_output, Span.of("0.5.12"), "FM-46", "PR #24663, first in 0.5.12"), _RESIDUAL),
)


def _mla_reading(config: DraftConfig, version: Version) -> Reading:
    raw = config.raw
    eagle = raw.get("eagle_config")
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, Mapping) else None
    ids = raw.get("eagle_aux_hidden_state_layer_ids") if ids is None else ids
    n_aux = len(ids) if isinstance(ids, list) else 3
    return Reading(_sizes(config, n_aux, version) | mla_sizes(config), _flags(raw) | low_rank(raw), 1, n_aux)


def low_rank(raw: Mapping[str, Any]) -> frozenset[str]:
    """The flag of a query that goes through a low rank, as DeepSeek-V3's and Kimi's does."""
    return frozenset() if raw.get("q_lora_rank") is None else frozenset({"low_rank"})


def mla_sizes(config: DraftConfig) -> dict[str, int]:
    """Sizes of multi-head latent attention, from DeepSeek's config fields; 0 where one is not there."""
    raw = config.raw
    fields = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    q, c, rope, nope, v = (value if isinstance(value := raw.get(field), int) else 0 for field in fields)
    heads = config.num_heads
    return {"qa": q, "c": c, "kva": c + rope, "qb": heads * (nope + rope), "kvb": heads * (nope + v), "vo": heads * v}


def mla_attention(name: str, canonical: str, fused: str, *, together: bool) -> tuple[Row, ...]:
    """The parameters of ``DeepseekV2AttentionMLA``; both engines use the same names but for the joined projection."""
    return (
        Row(
            f"{name}.{fused}.weight", f"{canonical}.{{part}}.weight", ("X",), when="low_rank",
            parts=(("q_a_proj", "qa"), ("kv_a_proj_with_mqa", "kva")), together=together,
        ),
        Row(f"{name}.q_a_layernorm.weight", f"{canonical}.q_a_layernorm.weight", ("qa",), "ones", when="low_rank"),
        Row(f"{name}.q_b_proj.weight", f"{canonical}.q_b_proj.weight", ("qb", "qa"), when="low_rank"),
        Row(f"{name}.q_proj.weight", f"{canonical}.q_proj.weight", ("qb", "X"), when="!low_rank"),
        Row(f"{name}.kv_a_proj_with_mqa.weight", f"{canonical}.kv_a_proj_with_mqa.weight", ("kva", "X"), when="!low_rank"),
        Row(f"{name}.kv_a_layernorm.weight", f"{canonical}.kv_a_layernorm.weight", ("c",), "ones"),
        Row(f"{name}.kv_b_proj.weight", f"{canonical}.kv_b_proj.weight", ("kvb", "c")),
        Row(f"{name}.o_proj.weight", f"{canonical}.o_proj.weight", ("H", "vo")),
    )  # fmt: skip


MLA = DraftClass(
    name="Eagle3DeepseekV2ForCausalLM",
    architectures=(since("0.5.12", ("Eagle3DeepseekV2ForCausalLM",), "models/kimi_k25_eagle3.py, first in 0.5.12"),),
    names=(
        since(
            "0.5.12",
            Names(
                renames=((r"^layers\.0\.", "midlayer."),), d2t=r"(^|\.)d2t$", t2d=r"(^|\.)t2d$", bare=r"^lm_head\.",
                stacked=(
                    *_MLP,
                    (".q_a_proj", ".fused_qkv_a_proj_with_mqa"),
                    (".kv_a_proj_with_mqa", ".fused_qkv_a_proj_with_mqa"),
                ),
                unknown="warned", unknown_part="dropped", unknown_bias="warned",
            ),
            "kimi_k25_eagle3.py::load_weights: model. goes before every name but the head's; unknown names are logged",
        ),
    ),
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight", ("V", "H")),
        Row("model.fc.weight", "fc.weight", ("H", "A"), "random", versions=Span.of(before="0.5.16")),
        Row("model.fc.weight", "fc.weight", ("H", "A"), versions=Span.of("0.5.16")),
        Row("model.fc.bias", "fc.bias", ("H",), "random", when="bias", versions=Span.of(before="0.5.16")),
        Row("model.fc.bias", "fc.bias", ("H",), when="bias", versions=Span.of("0.5.16")),
        Row("model.fc_norm.{k}.weight", "fc_norm.{k}.weight", ("Ht",), "ones", when="fc_norm", versions=Span.of("0.5.13")),
        *mla_attention("model.midlayer.self_attn", "layers.0.self_attn", "fused_qkv_a_proj_with_mqa", together=True),
        Row(
            "model.midlayer.mlp.gate_up_proj.weight", "layers.0.mlp.{part}.weight", ("H",), parts=(("gate_proj", "I"), ("up_proj", "I")),
        ),
        Row("model.midlayer.mlp.down_proj.weight", "layers.0.mlp.down_proj.weight", ("H", "I")),
        *(
            Row(f"model.midlayer.{norm}.weight", f"layers.0.{norm}.weight", ("H",), "ones")
            for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        ),
        Row("model.norm.weight", "norm.weight", ("H",), "ones"),
        Row("lm_head.weight", "lm_head.weight", ("Vd", "H"), when="!tied"),
        Row(HOT_TOKEN_ID, "d2t", ("Vd",), "identity"),
    ),
    embedding=(since("0.5.12", "the target's unless widths differ", "kimi_k25_eagle3.py::set_embed"),),
    head=(since("0.5.12", "the target's if draft_vocab_size is null", "kimi_k25_eagle3.py: null and absent alike"),),
    reading=_mla_reading,
    refusals=(
        Refusal(
            ALWAYS,
            lambda raw: raw.get("num_hidden_layers", 1) != 1,
            "num_hidden_layers is not 1: 'EAGLE3 currently only supports 1 layer'",
            "kimi_k25_eagle3.py::Eagle3MLAModel",
        ),
        Refusal(
            ALWAYS,
            lambda raw: raw.get("q_lora_rank") is None,
            "q_lora_rank is not in the config: ValueError",
            "kimi_k25_eagle3.py::Eagle3MLADecoderLayer",
        ),
    ),
    fields=(Field("norm_output", norm_output, Span.of("0.5.13"), "FM-46", "kimi_k25_eagle3.py 0.5.13"), _RESIDUAL),
)  # fmt: skip
