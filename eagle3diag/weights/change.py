"""What changed between two checkpoints of a draft: epochs, parent and fine-tune, before and after a conversion."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.weights.grid import Grid, grid
from eagle3diag.weights.opened import Opened
from eagle3diag.weights.values import krylov, leading, wide

_SLAB = 1 << 20
DIRECTIONS = 16


@dataclass(frozen=True)
class Change:
    """One tensor here and there (``other``, the earlier or original checkpoint).

    Attributes
    ----------
    relative_change: ``|here - other| / |other|`` (Frobenius); infinite when the other is zero and this is not.
    scale: the factor of ``other`` that fits best; ``off_scale``: what is left of ``relative_change`` after it.
    equal: share of entries that are the same number; ``equal_rounded``: the same after rounding both to the coarser of the two dtypes.
    max_change: largest absolute difference.
    change_rank: stable rank of the difference, and ``change_top``, the share of its energy in its first direction: an update of few steps
        has a few directions, rounding has none. None for vectors and when nothing changed.
    overlap: mean squared cosine between the 16 leading directions (of the shorter side) here and there, 16 / side by chance.
    grids: how the entries lie on a grid, here and there; see :class:`~eagle3diag.weights.grid.Grid`.
    shapes, dtypes: of here and there.
    """

    tensor: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    relative_change: float
    scale: float
    off_scale: float
    equal: float
    equal_rounded: float
    max_change: float
    change_rank: float | None = None
    change_top: float | None = None
    overlap: float | None = None
    overlap_by_chance: float | None = None
    grids: tuple[Grid | None, Grid | None] = (None, None)


@dataclass(frozen=True)
class Against:
    """This checkpoint held against ``other``: tensors of equal shape in ``changes``, the rest by name.

    ``map_changed`` counts the draft ids whose target id differs (None when one has no ``d2t``), of ``map_size``.
    """

    other: str
    changes: tuple[Change, ...]
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]
    reshaped: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    map_changed: int | None
    map_size: int

    def change(self, name: str) -> Change | None:
        """The change of the tensor of this canonical name; None when it is not in both."""
        return next((c for c in self.changes if c.tensor == name), None)


def changes(here: Opened, other: Opened) -> Against:
    """Hold every floating tensor of ``here`` against the one of the same canonical name."""
    found, reshaped = [], []
    shared = sorted(here.names.keys() & other.names.keys())
    for name in shared:
        a, b = here.weight(name), other.weight(name)
        assert a is not None and b is not None
        if not (a.is_floating_point() and b.is_floating_point()):
            continue
        if a.shape != b.shape:
            reshaped.append((name, tuple(a.shape), tuple(b.shape)))
        elif a.numel():
            found.append(change(name, a.detach(), b.detach()))
    mine, theirs = here.weight("d2t"), other.weight("d2t")
    comparable = mine is not None and theirs is not None and mine.shape == theirs.shape
    return Against(
        other=other.label,
        changes=tuple(found),
        only_here=tuple(sorted(here.names.keys() - other.names.keys())),
        only_there=tuple(sorted(other.names.keys() - here.names.keys())),
        reshaped=tuple(reshaped),
        map_changed=int((mine.long() != theirs.long()).sum()) if comparable and mine is not None and theirs is not None else None,
        map_size=mine.numel() if mine is not None else 0,
    )


def change(name: str, a: Tensor, b: Tensor) -> Change:
    """Measure ``a`` (here) against ``b`` (there), of one shape; entries that are not finite in either are left out."""
    coarser = max((a.dtype, b.dtype), key=lambda d: torch.finfo(d).eps)
    aa = ab = bb = dd = most = 0.0
    same = rounded = 0
    rows_a, rows_b = _rows(a), _rows(b)
    step = max(1, _SLAB // max(1, rows_a.shape[1]))
    for x, y in zip(rows_a.split(step), rows_b.split(step), strict=True):
        rounded += int((x.to(coarser) == y.to(coarser)).sum())
        x, y = x.double(), y.double()
        good = x.isfinite() & y.isfinite()
        if not good.all():
            x, y = torch.where(good, x, 0.0), torch.where(good, y, 0.0)
        d = x - y
        same += int(((d == 0) & good).sum())
        aa, ab, bb = aa + float(x.square().sum()), ab + float((x * y).sum()), bb + float(y.square().sum())
        dd, most = dd + float(d.square().sum()), max(most, float(d.abs().max()))
    scale = ab / bb if bb > 0 else math.nan
    rank = top = overlap = chance = None
    finite = math.isfinite(aa + bb)
    if a.dim() == 2 and min(a.shape) > 1 and dd > 0 and bb > 0 and finite:
        difference = (a.float() - b.float()).nan_to_num()
        first = float(krylov(wide(difference), 8, 6).values.values[0]) ** 2
        rank, top = dd / first, first / dd
        k = min(DIRECTIONS, min(a.shape))
        side = 0 if a.shape[0] <= a.shape[1] else 2
        overlap = float((leading(a, k)[side].T @ leading(b, k)[side]).square().sum()) / k
        chance = k / min(a.shape)
    return Change(
        tensor=name,
        shapes=(tuple(a.shape), tuple(b.shape)),
        dtypes=(str(a.dtype).removeprefix("torch."), str(b.dtype).removeprefix("torch.")),
        relative_change=math.sqrt(dd / bb) if bb > 0 else (math.inf if aa > 0 else 0.0),
        scale=scale,
        off_scale=math.sqrt(max(0.0, aa - ab * ab / bb) / bb) if bb > 0 else math.nan,
        equal=same / a.numel(),
        equal_rounded=rounded / a.numel(),
        max_change=most,
        change_rank=rank,
        change_top=top,
        overlap=overlap,
        overlap_by_chance=chance,
        grids=(grid(a), grid(b)) if a.dim() == 2 and finite and dd > 0 else (None, None),
    )


def _rows(t: Tensor) -> Tensor:
    return t.reshape(t.shape[0], -1) if t.dim() >= 2 else t.reshape(1, -1)
