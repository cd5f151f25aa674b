"""Whether a draft's parts fit each other: the shapes that its config promises, and its vocabulary map read both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from eagle3diag.checkpoints import Draft
from eagle3diag.checkpoints.shapes import Shape, expected_shapes
from eagle3diag.checkpoints.tensors import dtype_name

PADDING = 1024
"""Vocabularies that differ by less are one vocabulary, which one side padded to a multiple of 64 to 1024 (test C8)."""


def padded(size: int, other: int) -> bool:
    """Whether two sizes of a vocabulary differ by padding only."""
    return 0 < abs(size - other) < PADDING <= min(size, other)


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
    vocabulary. ``unique_*``: share of distinct target ids. ``marked``: how many ids ``t2d`` marks; ``marked_first``: these are the first
    ones, ``0`` to ``marked - 1``. ``first``: ``d2t`` names the ids ``0`` to ``length - 1``. ``dtype``: of ``d2t``.
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
    marked_first: bool = False
    first: bool = False
    dtype: str = "int64"


def shape_checks(draft: Draft, found: Mapping[str, Shape]) -> tuple[ShapeCheck, ...]:
    """Those of ``found`` (canonical name to shape) that differ from what the config promises. Packed codes of a quantised weight have
    shapes of their own and are left out."""
    names = draft.canonical()
    packed = {"uint8", "int8", "int32", "float4_e2m1fn_x2"}
    return tuple(
        ShapeCheck(name, shape, found[name])
        for name, shape in expected_shapes(draft.config).items()
        if name in found and found[name] != shape and (name in ("d2t", "t2d") or draft.tensors.info(names[name]).dtype not in packed)
    )


def map_check(draft: Draft) -> MapCheck | None:
    """The facts of the draft's ``d2t``; None where it has none."""
    vocabulary = draft.vocabulary
    if vocabulary is None:
        return None
    d2t, n = vocabulary.draft_ids - torch.arange(vocabulary.size), draft.config.vocab_size
    t2d = None if vocabulary.t2d is None else vocabulary.t2d.flatten().bool()
    place = torch.arange(len(d2t))

    def share(hits: torch.Tensor) -> float:
        return float(hits.double().mean()) if len(hits) else float("nan")

    def agree(ids: torch.Tensor) -> float | None:
        if t2d is None or not len(t2d):
            return None
        inside = (ids >= 0) & (ids < len(t2d))
        return share(inside & t2d[ids.clamp(0, len(t2d) - 1)])

    offset, absolute = vocabulary.draft_ids, d2t
    marked = None if t2d is None else int(t2d.sum())
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
        marked=marked,
        marked_first=bool(t2d is not None and marked and t2d[:marked].all()),
        first=bool(torch.equal(offset.sort().values, place)),
        dtype=dtype_name(vocabulary.d2t),
    )
