"""The parameters that a config promises, each with its shape: what a trainer of this draft has in memory and an engine allocates."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3diag.checkpoints.config import DraftConfig

Shape = tuple[int, ...]


def expected_shapes(config: DraftConfig) -> dict[str, Shape]:
    """Canonical name to shape, for every parameter that a draft of this config may have; whether it must is :func:`required`'s to say."""
    return dict(_all(config))


def required(config: DraftConfig) -> tuple[str, ...]:
    """The parameters that only the draft's own file can give: neither borrowed from the target, nor optional."""
    optional = ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")
    return tuple(
        name
        for name in expected_shapes(config)
        if name not in optional
        and not name.endswith((".bias", "q_norm.weight", "k_norm.weight"))
        and (config.norm_before_fc or not name.startswith("input_norm."))
        and (config.fc_norm or not name.startswith("fc_norm."))
        and not (name.startswith("fc.") and not config.use_aux_hidden_state)
        and not (name.endswith(("input_layernorm.weight", "hidden_norm.weight")) and not name.startswith("layers.0."))
    )


def _all(c: DraftConfig) -> Iterator[tuple[str, Shape]]:
    h, wide = c.hidden_size, c.n_aux * c.target_hidden_size
    yield "embed_tokens.weight", (c.vocab_size, h)
    yield "fc.weight", (h, wide)
    yield "fc.bias", (h,)
    yield "input_norm.weight", (wide,)
    for i in range(c.n_aux):
        yield f"fc_norm.{i}.weight", (c.target_hidden_size,)
    for i in range(c.num_layers):
        place = f"layers.{i}."
        for name, shape in _attention(c, h if i else 2 * h):  # only the first layer reads the embedding beside the hidden state
            yield f"{place}self_attn.{name}", shape
        for name in ("gate_proj", "up_proj"):
            yield f"{place}mlp.{name}.weight", (c.intermediate_size, h)
        yield f"{place}mlp.down_proj.weight", (h, c.intermediate_size)
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            yield f"{place}{name}.weight", (h,)
    yield "norm.weight", (h,)
    yield "lm_head.weight", (c.draft_vocab_size, h)
    yield "d2t", (c.draft_vocab_size,)
    yield "t2d", (c.vocab_size,)


def _attention(c: DraftConfig, width: int) -> Iterator[tuple[str, Shape]]:
    """Projections of one layer's attention, dense or latent; ``width`` is what it reads."""
    if c.latent is None:
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            yield f"{name}.weight", (rows, width)
            yield f"{name}.bias", (rows,)
        yield "o_proj.weight", (c.hidden_size, q)
        yield "o_proj.bias", (c.hidden_size,)
        yield "q_norm.weight", (c.head_dim,)
        yield "k_norm.weight", (c.head_dim,)
        return
    m = c.latent
    queries = c.num_heads * m.qk_head_dim
    if m.q_lora_rank is None:
        yield "q_proj.weight", (queries, width)
    else:
        yield "q_a_proj.weight", (m.q_lora_rank, width)
        yield "q_a_layernorm.weight", (m.q_lora_rank,)
        yield "q_b_proj.weight", (queries, m.q_lora_rank)
    yield "kv_a_proj_with_mqa.weight", (m.kv_lora_rank + m.qk_rope_head_dim, width)
    yield "kv_a_layernorm.weight", (m.kv_lora_rank,)
    yield "kv_b_proj.weight", (c.num_heads * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank)
    yield "o_proj.weight", (c.hidden_size, c.num_heads * m.v_head_dim)


__all__ = ["expected_shapes", "required"]
