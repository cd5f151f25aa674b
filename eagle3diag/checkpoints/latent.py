"""Multi-head latent attention (MLA), as drafts for DeepSeek and Kimi targets have it: its five sizes, from the config or the tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eagle3diag.checkpoints.fields import Fields

_ATTENTION = "layers.0.self_attn."


@dataclass(frozen=True)
class LatentAttention:
    """Sizes of MLA, under DeepSeek's names. ``q_lora_rank`` None: queries are projected in one step (``q_proj``).

    Source: ``DeepseekV3Config`` of Transformers 5.24; SGLang ``kimi_k25_eagle3.py``.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def qk_head_dim(self) -> int:
        """Width of a query or key head: the part without rotation and the rotated one."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


def read_latent(fields: Fields, heads: int, axis: Callable[[str, int], int | None]) -> LatentAttention:
    """The sizes that the config names, and those that it leaves out from the tensors (``axis``: canonical name, axis -> length).

    Raises
    ------
    MissingPart: a size is neither in the config nor to be derived.
    """

    def size(name: str, derived: int | None, meaning: str) -> int:
        found = fields.integer(name)
        if found is not None:
            return found
        if derived is None or derived <= 0:
            raise fields.missing(name, meaning)
        fields.note(f"no {name}: {derived}, from the shapes of the projections")
        return derived

    def less(rows: int | None, *known: int) -> int | None:
        return None if rows is None else rows - sum(known)

    def per_head(name: str) -> int | None:
        rows = axis(_ATTENTION + name, 0)
        return rows // heads if rows and heads and rows % heads == 0 else None

    q = fields.integer("q_lora_rank") or axis(_ATTENTION + "q_a_proj.weight", 0)
    kv = size("kv_lora_rank", axis(_ATTENTION + "kv_a_layernorm.weight", 0), "the width of the compressed keys and values")
    rope = size("qk_rope_head_dim", less(axis(_ATTENTION + "kv_a_proj_with_mqa.weight", 0), kv), "the rotated width of a key head")
    queries = per_head("q_b_proj.weight" if q else "q_proj.weight")
    nope = size("qk_nope_head_dim", less(queries, rope), "the unrotated width of a key head")
    value = size("v_head_dim", less(per_head("kv_b_proj.weight"), nope), "the width of a value head")
    return LatentAttention(q, kv, nope, rope, value)


__all__ = ["LatentAttention", "read_latent"]
