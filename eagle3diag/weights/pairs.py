"""Two tensors of one shape, held against each other entry by entry: the sums from which every comparison of them follows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_SLAB = 1 << 20
"""Entries widened to float64 at a time: memory-mapped tensors of any size take constant memory."""


@dataclass(frozen=True)
class PairSums:
    """Sums over the entries that are finite in both, float64: squares ``aa`` and ``bb``, products ``ab``, squared differences ``dd``.

    ``largest``: the largest absolute difference. ``equal``: share of entries that are the same number; ``equal_rounded``: the same after
    rounding both to the coarser of the two dtypes.
    """

    aa: float
    ab: float
    bb: float
    dd: float
    largest: float
    equal: float
    equal_rounded: float

    @property
    def relative(self) -> float:
        """``|a - b| / |b|``; infinite where only ``b`` is zero, 0 where both are."""
        return math.sqrt(self.dd / self.bb) if self.bb > 0 else (math.inf if self.aa > 0 else 0.0)

    @property
    def cosine(self) -> float:
        """Of the two as flat vectors; 0 where one is zero."""
        product = math.sqrt(self.aa) * math.sqrt(self.bb)
        return self.ab / product if product > 0 else 0.0


def pair_sums(a: Tensor, b: Tensor) -> PairSums:
    """Measure ``a`` against ``b``, of one shape and any floating dtypes, a slab of rows at a time."""
    coarser = max((a.dtype, b.dtype), key=lambda d: torch.finfo(d).eps)
    rows_a, rows_b = (t.detach().reshape(t.shape[0] if t.dim() > 1 else 1, -1) for t in (a, b))
    aa = ab = bb = dd = largest = 0.0
    same = rounded = 0
    step = max(1, _SLAB // max(1, rows_a.shape[1]))
    for x, y in zip(rows_a.split(step), rows_b.split(step), strict=True):
        if a.dtype != b.dtype:
            rounded += int((x.to(coarser) == y.to(coarser)).sum())
        x, y = x.double(), y.double()
        good = x.isfinite() & y.isfinite()
        if not good.all():
            x, y = torch.where(good, x, 0.0), torch.where(good, y, 0.0)
        d = x - y
        same += int(((d == 0) & good).sum())
        aa, ab, bb = aa + float(x.square().sum()), ab + float((x * y).sum()), bb + float(y.square().sum())
        dd, largest = dd + float(d.square().sum()), max(largest, float(d.abs().max()))
    return PairSums(aa, ab, bb, dd, largest, same / a.numel(), (rounded if a.dtype != b.dtype else same) / a.numel())
