"""Whether a draft's parts fit each other: the shapes that its config promises, and its vocabulary map read both ways."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eagle3diag.checkpoints import Draft


@dataclass(frozen=True)
class ShapeCheck:
    """One shape that the config promises, against what the file holds."""

    name: str
    expected: tuple[int, ...]
    found: tuple[int, ...]


@dataclass(frozen=True)
class MapCheck:
    """Facts of ``d2t``, counted under both readings: as offsets (the convention) and as absolute ids.

    ``agree_*``: share of the draft ids whose target id is marked in ``t2d`` (None without ``t2d``). ``in_range_*``: share inside the
    vocabulary. ``unique_*``: share of distinct target ids.
    """

    length: int
    declared: int
    in_range_offset: float
    in_range_absolute: float
    unique_offset: float
    unique_absolute: float
    agree_offset: float | None
    agree_absolute: float | None
    all_zero: bool
    arange: bool
    marked: int | None


def shape_checks(draft: Draft, found: dict[str, tuple[int, ...]]) -> tuple[ShapeCheck, ...]:
    """Those of ``found`` (canonical name to shape) that differ from what the config promises."""
    c = draft.config
    h, q, kv = c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    expected = {
        "layers.0.self_attn.q_proj.weight": (q, 2 * h),
        "layers.0.self_attn.k_proj.weight": (kv, 2 * h),
        "layers.0.self_attn.v_proj.weight": (kv, 2 * h),
        "layers.0.self_attn.o_proj.weight": (h, q),
        "layers.0.mlp.gate_proj.weight": (c.intermediate_size, h),
        "layers.0.mlp.up_proj.weight": (c.intermediate_size, h),
        "layers.0.mlp.down_proj.weight": (h, c.intermediate_size),
        "norm.weight": (h,),
        "lm_head.weight": (c.draft_vocab_size, h),
        "fc.weight": (h, c.n_aux * c.target_hidden_size),
        "d2t": (c.draft_vocab_size,),
        "t2d": (c.vocab_size,),
    }
    return tuple(ShapeCheck(name, shape, found[name]) for name, shape in expected.items() if name in found and found[name] != shape)


def map_check(draft: Draft) -> MapCheck | None:
    """The facts of the draft's ``d2t``; None where it has none."""
    vocabulary = draft.vocabulary
    if vocabulary is None:
        return None
    d2t, t2d, n = vocabulary.d2t.long().flatten(), vocabulary.t2d, draft.config.vocab_size
    place = torch.arange(len(d2t))

    def share(hits: torch.Tensor) -> float:
        return float(hits.double().mean()) if len(hits) else float("nan")

    def agree(ids: torch.Tensor) -> float | None:
        if t2d is None:
            return None
        inside = (ids >= 0) & (ids < len(t2d))
        return share(inside & t2d.bool()[ids.clamp(0, len(t2d) - 1)])

    offset, absolute = place + d2t, d2t
    return MapCheck(
        length=len(d2t),
        declared=draft.config.draft_vocab_size,
        in_range_offset=share((offset >= 0) & (offset < n)),
        in_range_absolute=share((absolute >= 0) & (absolute < n)),
        unique_offset=len(offset.unique()) / max(1, len(offset)),
        unique_absolute=len(absolute.unique()) / max(1, len(absolute)),
        agree_offset=agree(offset),
        agree_absolute=agree(absolute),
        all_zero=bool((d2t == 0).all()),
        arange=bool(len(d2t) > 1 and (d2t == place).all()),
        marked=None if t2d is None else int(t2d.bool().sum()),
    )
