"""How vLLM sees a draft's config: which class it leads to, and which fields of speculators' format each version copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3diag.engines.engine import VLLM_TYPES, Unloadable, type_fault
from eagle3diag.engines.rules import Span, Version

#: ``update_eagle3`` in ``transformers_utils/configs/speculators/algos.py``: field to the versions that copy it, and its default there.
_COPIED: Mapping[str, tuple[Span, object]] = {
    "draft_vocab_size": (Span.of("0.10.0"), None),
    "norm_before_residual": (Span.of("0.10.2"), True),
    "norm_before_fc": (Span.of("0.19.0"), False),
    "fc_norm": (Span.of("0.25.0"), False),
    "norm_output": (Span.of("0.25.0"), False),
}
#: ``SpeculativeConfig.hf_config_override``, read in 0.18 to 0.33: the architectures of such drafts are overwritten. Run in 0.32.0.
TAKEN_FOR_MTP = ("deepseek_v3", "deepseek_v32", "glm_moe_dsa")
_FORMAT_READ = Span.of("0.10.0")
_IDS_COPIED = Span.of("0.11.1")
_QWEN3 = Span.of("0.24.0")


def is_speculators(raw: Mapping[str, object]) -> bool:
    """Whether the config is in speculators' format."""
    return "speculators_model_type" in raw


def view(raw: Mapping[str, Any], version: Version) -> Mapping[str, Any]:
    """The flat config that ``version`` builds the draft from: the file itself, or what it makes of speculators' format."""
    if not is_speculators(raw):
        return raw
    layer = raw.get("transformer_layer_config")
    seen = dict(layer) if isinstance(layer, Mapping) else {}
    seen |= {field: raw.get(field, default) for field, (versions, default) in _COPIED.items() if version in versions}
    if raw.get("target_hidden_size") is not None:
        seen["target_hidden_size"] = raw["target_hidden_size"]
    ids = raw.get("eagle_aux_hidden_state_layer_ids")
    if ids and version in _IDS_COPIED:
        seen["eagle_aux_hidden_state_layer_ids"] = ids
    return seen


def architecture(raw: Mapping[str, object], version: Version) -> str | Unloadable:
    """The class name that ``EAGLEConfig`` or ``SpeculatorsConfig`` makes of the config."""
    if is_speculators(raw):
        return _speculators(raw, version)
    if (fault := type_fault(raw, VLLM_TYPES)) is not None:
        return Unloadable(fault)
    names = raw.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        return Unloadable("the config names no architectures")
    if raw.get("model_type") in TAKEN_FOR_MTP:
        return Unloadable(
            f"model_type {raw['model_type']!r} is rewritten to deepseek_mtp, a model of another kind; published MLA drafts say kimi_k2"
        )
    name = names[0]
    kept = name.startswith("Eagle3") or (name.endswith("Eagle3") and version in Span.of("0.10.2"))
    return name if kept else f"Eagle3{name}"


def _speculators(raw: Mapping[str, object], version: Version) -> str | Unloadable:
    kind, layer = raw.get("speculators_model_type"), raw.get("transformer_layer_config")
    if version not in _FORMAT_READ:
        return Unloadable("speculators' format is read since vLLM 0.10")
    if kind != "eagle3":
        return Unloadable(f"speculators_model_type is {kind!r:.40}, not eagle3")
    if raw.get("speculators_config") is None and raw.get("model_type") is None:  # get_config; run in 0.32.0
        return Unloadable("the config has neither speculators_config, by which vLLM recognises the format, nor model_type")
    model_type = layer.get("model_type", "llama") if isinstance(layer, Mapping) else "llama"
    if version not in _QWEN3:
        return "Eagle3LlamaForCausalLM"
    known = {"llama": "Eagle3LlamaForCausalLM", "qwen3": "Eagle3Qwen3ForCausalLM"}
    if model_type not in known:
        return Unloadable(f"transformer_layer_config.model_type is {model_type!r:.40}: Unsupported model_type (llama and qwen3 are known)")
    return known[model_type]
