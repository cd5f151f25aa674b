"""What changed between two checkpoints of a draft: epochs, parent and fine-tune, before and after a conversion."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from eagle3diag.checkpoints.tensors import dtype_name
from eagle3diag.weights.grid import Grid, grid
from eagle3diag.weights.opened import Opened
from eagle3diag.weights.pairs import pair_sums
from eagle3diag.weights.values import krylov, leading, wide

DIRECTIONS = 16


@dataclass(frozen=True)
class TensorChange:
    """One tensor here and there (``other``, the earlier or original checkpoint).

    Attributes
    ----------
    relative_change: ``|here - other| / |other|`` (Frobenius); infinite when the other is zero and this is not.
    scale: the factor of ``other`` that fits best; ``off_scale``: what is left of ``relative_change`` after it.
    equal: share of entries that are the same number; ``equal_rounded``: the same after rounding both to the coarser of the two dtypes.
    max_change: largest absolute difference.
    change_rank: stable rank of the difference, its energy over that of its first direction: an update of few steps has a few directions,
        rounding has none. None for vectors and when nothing changed.
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
    overlap: float | None = None
    overlap_by_chance: float | None = None
    grids: tuple[Grid | None, Grid | None] = (None, None)


@dataclass(frozen=True)
class Against:
    """This checkpoint held against ``other``: tensors of equal shape in ``changes``, the rest by name.

    ``map_changed`` counts the draft ids whose target id differs (None when one has no ``d2t``), of ``map_size``.
    """

    other: str
    changes: tuple[TensorChange, ...]
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]
    reshaped: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    map_changed: int | None
    map_size: int

    def change(self, name: str) -> TensorChange | None:
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
    return Against(
        other=other.label,
        changes=tuple(found),
        only_here=tuple(sorted(here.names.keys() - other.names.keys())),
        only_there=tuple(sorted(other.names.keys() - here.names.keys())),
        reshaped=tuple(reshaped),
        map_changed=None if mine is None or theirs is None or mine.shape != theirs.shape else int((mine.long() != theirs.long()).sum()),
        map_size=mine.numel() if mine is not None else 0,
    )


def change(name: str, a: Tensor, b: Tensor) -> TensorChange:
    """Measure ``a`` (here) against ``b`` (there), of one shape; entries that are not finite in either are left out, and without
    directions where there are any."""
    sums = pair_sums(a, b)
    moved = a.dim() == 2 and sums.dd > 0 and bool(a.isfinite().all()) and bool(b.isfinite().all())
    rank = overlap = chance = None
    if moved and min(a.shape) > 1 and sums.bb > 0:
        first = float(krylov(wide(a.float() - b.float()), 8, 6).values.values[0]) ** 2
        rank = sums.dd / first
        k = min(DIRECTIONS, min(a.shape))
        side = 0 if a.shape[0] <= a.shape[1] else 2
        overlap = float((leading(a, k)[side].T @ leading(b, k)[side]).square().sum()) / k
        chance = k / min(a.shape)
    return TensorChange(
        tensor=name,
        shapes=(tuple(a.shape), tuple(b.shape)),
        dtypes=(dtype_name(a), dtype_name(b)),
        relative_change=sums.relative,
        scale=sums.ab / sums.bb if sums.bb > 0 else math.nan,
        off_scale=math.sqrt(max(0.0, sums.aa - sums.ab**2 / sums.bb) / sums.bb) if sums.bb > 0 else math.nan,
        equal=sums.equal,
        equal_rounded=sums.equal_rounded,
        max_change=sums.largest,
        change_rank=rank,
        overlap=overlap,
        overlap_by_chance=chance,
        grids=(grid(a), grid(b)) if moved else (None, None),
    )
