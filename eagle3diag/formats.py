"""A draft's config as each format writes it: flat, as SGLang and vLLM read it, and nested, as speculators has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3diag.checkpoints import DraftConfig
from eagle3diag.engines import Version, rules_of
from eagle3diag.engines.engine import type_fault
from eagle3diag.engines.vllm_config import TAKEN_FOR_MTP

#: What a flat config takes over from speculators' nested layer beside the normalised fields, where it is there.
_CARRIED = ("attention_bias", "mlp_bias", "layer_types", "sliding_window", "use_sliding_window", "attention_dropout", "initializer_range",
            "bos_token_id", "eos_token_id", "pad_token_id", "partial_rotary_factor")  # fmt: skip

#: Names of draft classes, the first that a version knows: those that both engines know first, then vLLM's own.
_DENSE = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_LATENT = ("Eagle3DeepseekV2ForCausalLM",)
#: vLLM's class for drafts with norms on queries and keys.
_QWEN3 = ("Eagle3Qwen3ForCausalLM",)
#: The model types of dense drafts, and of published MLA drafts, under which vLLM builds them (run in 0.32.0).
_DENSE_TYPE, _LATENT_TYPE = "llama", "kimi_k2"

_TOKENS = 5
"""Drafts a round that speculators writes where nothing is said (0.9, ``GreedyTokenProposalConfig``); a launch command goes before it."""

#: Why a field of the config changes, by its name.
FLAT_REASONS: Mapping[str, str] = {
    "architectures": "the class that the engine builds for such a draft",
    "model_type": "what Transformers reads the config as, or the start ends; vLLM takes DeepSeek's for a model of another kind",
    "rope_theta": "the base that was already in force, where engines before Transformers 5 look for it",
    "rope_scaling": "the scaling that was already in force, where engines before Transformers 5 look for it",
    "dtype": "Transformers 5's name of the dtype; without one SGLang takes float16",
    "torch_dtype": "Transformers 4's name of the dtype; without one SGLang takes float16",
    "head_dim": "stated, so that no engine has to divide",
    "num_key_value_heads": "stated, so that no engine has to assume",
    "eagle_aux_hidden_state_layer_ids": "the same boundaries, written where and as the engine reads them",
    "num_aux_hidden_states": "as many as fc takes; engines build three otherwise",
    "norm_before_fc": "at the top level, where every engine looks",
    "draft_vocab_size": "stated: SGLang reads it without a default",
    "num_hidden_layers": "as many as the file holds",
}


@dataclass(frozen=True)
class Layout:
    """A raw config, and what could not be written into it: (what, before, after, why)."""

    raw: dict[str, Any]
    left: tuple[tuple[str, str, str, str], ...]


def flat(c: DraftConfig, engine: str, version: Version) -> Layout:
    """The flat config of ``c`` for ``engine``; a flat source keeps every field that need not change."""
    raw: dict[str, Any] = dict(_unnested(c)) if c.style == "speculators" else dict(c.raw)
    left: list[tuple[str, str, str, str]] = []
    known = rules_of(engine).architectures(version)
    classes = _LATENT if c.latent else _QWEN3 if engine == "vllm" and _has_head_norms(c) else _DENSE
    if not (engine == "vllm" and c.architecture in known and c.style == "flat"):
        raw["architectures"] = [next((name for name in classes if name in known), classes[0])]
    if (
        raw.get("model_type") is None
        or type_fault(raw) is not None
        or (engine == "vllm" and c.latent and raw["model_type"] in TAKEN_FOR_MTP)
    ):
        raw["model_type"] = _LATENT_TYPE if c.latent else _DENSE_TYPE
    raw |= {"head_dim": c.head_dim} if c.latent is None else {}
    raw.setdefault("num_key_value_heads", c.num_kv_heads)
    raw.setdefault("num_hidden_layers", c.num_layers)
    raw.setdefault("intermediate_size", c.intermediate_size)
    raw.setdefault("draft_vocab_size", c.draft_vocab_size)
    raw |= _rope(c, raw)
    if c.dtype is not None:
        raw |= {"dtype": c.dtype, "torch_dtype": c.dtype}
    if c.norm_before_fc:
        raw["norm_before_fc"] = True
    if c.n_aux != 3:
        raw["num_aux_hidden_states"] = c.n_aux
    _ids(c, engine, raw, left)
    if c.norm_before_residual and engine == "sglang":
        left.append(("norm_before_residual", "true", "true", "SGLang does not know it: no config makes it serve this draft as trained"))
    return Layout(raw, tuple(left))


def _has_head_norms(c: DraftConfig) -> bool:
    layer = c.raw.get("transformer_layer_config")
    return isinstance(layer, Mapping) and str(layer.get("model_type", "")).startswith("qwen3")


def _ids(c: DraftConfig, engine: str, raw: dict[str, Any], left: list[tuple[str, str, str, str]]) -> None:
    """SGLang reads output ids in ``eagle_config``, vLLM state ids at the top level; each passes over the other's."""
    boundaries = c.aux_boundaries
    if boundaries is None:
        left.append(("aux layer ids", "absent", "absent", "no file says which layers the draft was trained on; engines take their default"))
        return
    if c.latent is not None:
        why = "targets with MLA read the ids in two ways, by version and by the first id; only the trainer knows which was meant"
        left.append(("aux layer ids", str(list(boundaries)), str(list(boundaries)), why))
        return
    if engine == "vllm":
        raw["eagle_aux_hidden_state_layer_ids"] = list(boundaries)
        if c.style == "flat":
            return
    if 0 in boundaries:
        left.append(("eagle_config", str(list(boundaries)), "absent", "the embedding's output is the output of no layer"))
        return
    inner = raw.get("eagle_config")
    ids = [b - 1 for b in boundaries]
    raw["eagle_config"] = {**(inner if isinstance(inner, Mapping) else {}), "eagle_aux_hidden_state_layer_ids": ids}


def _rope(c: DraftConfig, raw: Mapping[str, Any]) -> dict[str, Any]:
    """``rope_theta`` and ``rope_scaling`` beside ``rope_parameters``, with the same meaning; nothing where no base was ever stated."""
    inner = raw.get("rope_parameters")
    found: dict[str, Any] = {}
    if isinstance(inner, Mapping) and not any(isinstance(v, Mapping) for v in inner.values()):
        if raw.get("rope_theta") is None and inner.get("rope_theta") is not None:
            found["rope_theta"] = c.rope_theta
        if c.rope_scaling is not None and not raw.get("rope_scaling"):
            found["rope_scaling"] = dict(c.rope_scaling)
    return found


def _unnested(c: DraftConfig) -> dict[str, Any]:
    layer = c.raw["transformer_layer_config"]
    raw: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "num_hidden_layers": c.num_layers,
        "vocab_size": c.vocab_size,
        "draft_vocab_size": c.raw.get("draft_vocab_size", c.draft_vocab_size),
        "rms_norm_eps": c.rms_norm_eps,
        "hidden_act": c.hidden_act,
        "max_position_embeddings": c.max_position_embeddings,
        "tie_word_embeddings": c.tie_word_embeddings,
        "norm_before_residual": c.norm_before_residual,
        "norm_before_fc": c.norm_before_fc,
        "fc_norm": c.fc_norm,
        "norm_output": c.norm_output,
        "target_hidden_size": c.target_hidden_size if c.target_hidden_size != c.hidden_size else None,
        "rope_parameters": {"rope_theta": c.rope_theta, "rope_type": "default", **(c.rope_scaling or {})},
    }
    raw |= {name: layer[name] for name in _CARRIED if layer.get(name) is not None}
    return {name: value for name, value in raw.items() if value is not None or name == "draft_vocab_size"}


def nested(c: DraftConfig) -> Layout:
    """The config as speculators 0.9 writes it; a source in that format stays as it is."""
    if c.style == "speculators":
        return Layout(dict(c.raw), ())
    left: list[tuple[str, str, str, str]] = [
        ("speculators_config.verifier", "absent", "null", "no file of the draft names the target; give it to vllm serve"),
        ("speculative_tokens", "absent", f"{_TOKENS}", "speculators' default; the draft does not say for how many it was trained"),
    ]
    layer = {
        "model_type": "llama",
        "hidden_size": c.hidden_size,
        "head_dim": c.head_dim,
        "intermediate_size": c.intermediate_size,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "num_hidden_layers": c.num_layers,
        "vocab_size": c.vocab_size,
        "rms_norm_eps": c.rms_norm_eps,
        "hidden_act": c.hidden_act,
        "max_position_embeddings": c.max_position_embeddings,
        "rope_parameters": {"rope_theta": c.rope_theta, "rope_type": "default", **(c.rope_scaling or {})},
    }
    layer |= {name: c.raw[name] for name in _CARRIED if c.raw.get(name) is not None}
    raw: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": c.raw.get("draft_vocab_size", c.draft_vocab_size),
        "target_hidden_size": c.target_hidden_size if c.target_hidden_size != c.hidden_size else None,
        "norm_before_residual": c.norm_before_residual,
        "norm_before_fc": c.norm_before_fc,
        "fc_norm": c.fc_norm,
        "norm_output": c.norm_output,
        "tie_word_embeddings": c.tie_word_embeddings,
        "dtype": c.dtype,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": _TOKENS, "accept_tolerance": 0.0, "verifier_accept_k": 1}
            ],
            "verifier": {"name_or_path": None, "architectures": []},
        },
        "transformer_layer_config": {name: value for name, value in layer.items() if value is not None},
    }
    if c.aux_boundaries is not None:
        raw["eagle_aux_hidden_state_layer_ids"] = list(c.aux_boundaries)
    else:
        left.append(("aux layer ids", "absent", "absent", "no file says which layers the draft was trained on; engines take their default"))
    return Layout(raw, tuple(left))


__all__ = ["FLAT_REASONS", "Layout", "flat", "nested"]
