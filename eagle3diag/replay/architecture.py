"""What a draft's config says about the shape of its layers, each thing once, whichever trainer wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3diag.checkpoints import Draft
from eagle3diag.checkpoints.fields import Fields
from eagle3diag.replay.attention import Grouped, Latent
from eagle3diag.replay.rope import Rope


def fields_of(draft: Draft) -> Fields:
    """The config that describes the layer: nested in speculators' format, the whole file elsewhere."""
    raw = draft.config.raw
    nested = raw.get("transformer_layer_config")
    return Fields(nested if isinstance(nested, Mapping) else raw, draft.path)


def attention_of(draft: Draft) -> Grouped | Latent:
    """Latent (MLA) or grouped, with the sizes that were read from config and tensors."""
    config, m = draft.config, draft.config.latent
    if m is None:
        return Grouped(config.num_heads, config.num_kv_heads, config.head_dim)
    return Latent(config.num_heads, m.q_lora_rank, m.kv_lora_rank, m.qk_nope_head_dim, m.qk_rope_head_dim, m.v_head_dim)


def rope_of(draft: Draft) -> Rope:
    """The rotation that the config describes.

    ``partial_rotary_factor`` may lie beside the scaling or in it, the original length at the top (Phi-3) or in it; M-RoPE is known by its
    ``mrope_section``, whatever type is written beside it (SGLang ``llama_eagle3.py`` sets the type to default).
    """
    config, fields = draft.config, fields_of(draft)
    scaling: dict[str, Any] | None = dict(config.rope_scaling) if config.rope_scaling else None
    part = fields.number("rope_scaling.partial_rotary_factor", "rope_parameters.partial_rotary_factor", "partial_rotary_factor") or 1.0
    if part > 1:
        raise fields.wrong("partial_rotary_factor", part, "a share of a head, at most 1")
    context = config.max_position_embeddings or 2048
    if scaling and "mrope_section" in scaling:
        scaling = None
    if scaling:
        original = fields.integer("rope_scaling.original_max_position_embeddings", "original_max_position_embeddings")
        scaling.setdefault("original_max_position_embeddings", original or context)
    turned = config.latent.qk_rope_head_dim if config.latent else None
    return Rope(
        width=turned or int(config.head_dim * part),
        theta=config.rope_theta,
        scaling=scaling,
        context=context,
        # vLLM and SGLang build DeepSeek's rotation with neighbouring pairs and every Llama-like one with halves, unless told otherwise.
        interleaved=not fields.flag("rope_is_neox_style", default=turned is None),
    )


def windows_of(draft: Draft) -> tuple[int | None, ...]:
    """How far back each layer sees, itself counted; None: everything. A window holds only where ``layer_types`` names the layer.

    Source: vLLM ``llama.py`` and ``qwen3_eagle3.py``; SGLang ignores both fields.
    """
    fields = fields_of(draft)
    kinds, window = fields.value("layer_types"), fields.integer("sliding_window")
    named = kinds if isinstance(kinds, list) else []
    count = draft.config.num_layers
    return tuple(window if i < len(named) and named[i] == "sliding_attention" else None for i in range(count))
