"""One pass over a tensor: moments, norms and counts, accumulated in float64 so that a small mean is a number and not 0.000000."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1 << 19
"""Elements converted to float64 at a time (4 MB): a memory-mapped checkpoint of any size is measured in constant memory."""


@dataclass(frozen=True)
class Spread:
    """Smallest, median and largest of a set of norms, and their coefficient of variation (population std / mean)."""

    min: float
    median: float
    max: float
    cv: float


@dataclass(frozen=True)
class Moments:
    """What one pass over a tensor yields. Non-finite entries are counted, and left out of everything else.

    ``std`` is the population's (divided by ``size``), ``kurtosis`` is not in excess (uniform 1.8, normal 3),
    ``beyond[i]`` counts the entries whose absolute value is above ``bounds[i]``, ``square`` is the sum of squares,
    ``row_norms [R]`` and ``column_norms [C]`` are float64 tensors (None for tensors of less than two dimensions).
    """

    size: int
    mean: float
    std: float
    abs_mean: float
    max_abs: float
    kurtosis: float
    square: float
    nonfinite: int
    zeros: int
    ones: int
    constant: bool
    beyond: tuple[int, ...]
    zero_rows: int
    zero_columns: int
    row_norms: Tensor | None
    column_norms: Tensor | None


class _Central:
    """Central moment sums of a growing sample: chunks are centred on their own mean, then merged.

    Raw moments would cancel for a norm weight (mean 1, std 0.001). Merge formulas: Pebay, SAND2008-6212, eq. 3.1 (2008).
    """

    def __init__(self) -> None:
        self.n = 0
        self.mean = self.m2 = self.m3 = self.m4 = 0.0

    def add(self, values: Tensor) -> None:
        """Merge ``values [k]`` float64."""
        nb = values.numel()
        if nb == 0:
            return
        mean = float(values.mean())
        d = values - mean
        d2 = d * d
        m2, m3, m4 = float(d2.sum()), float((d2 * d).sum()), float((d2 * d2).sum())
        na, n, gap = self.n, self.n + nb, mean - self.mean
        self.m4 += (
            m4
            + gap**4 * na * nb * (na * na - na * nb + nb * nb) / n**3
            + 6 * gap**2 * (na * na * m2 + nb * nb * self.m2) / n**2
            + 4 * gap * (na * m3 - nb * self.m3) / n
        )
        self.m3 += m3 + gap**3 * na * nb * (na - nb) / n**2 + 3 * gap * (na * m2 - nb * self.m2) / n
        self.m2 += m2 + gap**2 * na * nb / n
        self.mean += gap * nb / n
        self.n = n


def moments(tensor: Tensor, bounds: Sequence[float] = ()) -> Moments:
    """Measure ``tensor`` (any shape, any floating dtype); tensors of more than two dimensions count as ``[shape[0], rest]``.

    >>> moments(torch.tensor([[1.0, -1.0], [0.0, 0.0]])).zero_rows
    1
    """
    rows = tensor.shape[0] if tensor.dim() >= 2 else 1
    columns = math.prod(tensor.shape[1:]) if tensor.dim() >= 2 else tensor.numel()
    matrix = tensor.detach().reshape(rows, columns)
    row_squares = torch.zeros(rows, dtype=torch.float64)
    column_squares = torch.zeros(columns, dtype=torch.float64)
    zero_columns = torch.ones(columns, dtype=torch.bool)
    central, beyond = _Central(), [0] * len(bounds)
    absolute = largest = 0.0
    lowest, highest = math.inf, -math.inf
    nonfinite = zeros = ones = zero_rows = 0
    step = max(1, CHUNK // max(1, columns))
    for start in range(0, rows if columns else 0, step):
        chunk = matrix[start : start + step].to(torch.float64)
        finite = chunk.isfinite()
        bad = chunk.numel() - int(finite.sum())
        values = chunk[finite] if bad else chunk.reshape(-1)
        empty = chunk == 0
        zero_rows += int(empty.all(1).sum())
        zero_columns &= empty.all(0)
        zeros += int(empty.sum())
        nonfinite += bad
        squares = (torch.where(finite, chunk, 0.0) if bad else chunk).square()
        row_squares[start : start + step] = squares.sum(1)
        column_squares += squares.sum(0)
        if values.numel() == 0:
            continue
        central.add(values)
        ones += int((values == 1).sum())
        lowest, highest = min(lowest, float(values.min())), max(highest, float(values.max()))
        values = values.abs()
        absolute += float(values.sum())
        largest = max(largest, float(values.max()))
        for i, bound in enumerate(bounds):
            beyond[i] += int((values > bound).sum())
    n = central.n
    nan = math.nan
    flat = tensor.dim() < 2
    return Moments(
        size=tensor.numel(),
        mean=central.mean if n else nan,
        std=math.sqrt(central.m2 / n) if n else nan,
        abs_mean=absolute / n if n else nan,
        max_abs=largest if n else nan,
        kurtosis=central.m4 * n / central.m2**2 if central.m2 > 0 else nan,
        square=float(row_squares.sum()),
        nonfinite=nonfinite,
        zeros=zeros,
        ones=ones,
        constant=n > 1 and lowest == highest and nonfinite == 0,
        beyond=tuple(beyond),
        zero_rows=0 if flat else zero_rows,
        zero_columns=0 if flat or rows == 0 else int(zero_columns.sum()),
        row_norms=None if flat else row_squares.sqrt(),
        column_norms=None if flat else column_squares.sqrt(),
    )


def spread(norms: Tensor | None) -> Spread | None:
    """Summary of ``norms [n]``; None when there are none. The cv is NaN when every norm is zero."""
    if norms is None or norms.numel() == 0:
        return None
    mean = float(norms.mean())
    cv = float(norms.std(correction=0)) / mean if mean > 0 else math.nan
    return Spread(float(norms.min()), float(norms.quantile(0.5)), float(norms.max()), cv)


def thin(values: Tensor | None, most: int) -> tuple[float, ...]:
    """At most ``most`` of ``values [n]``, evenly spaced and in order, both ends kept."""
    if values is None or values.numel() == 0:
        return ()
    n = values.numel()
    if n > most:
        values = values[torch.linspace(0, n - 1, most, dtype=torch.float64).round().long()]
    return tuple(float(v) for v in values)
