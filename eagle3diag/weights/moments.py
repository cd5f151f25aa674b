"""One pass over a tensor: moments, norms and counts, accurate enough that a mean of a billionth is not taken for zero."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from eagle3diag.weights.entries import Entries, entries

CHUNK = 1 << 18
"""Entries widened at a time (1 MB of float32, which stays in the cache): a memory-mapped file of any size takes constant memory."""

TILES = (6, 12)
"""Bands of rows, and of columns, of the map that shows where a matrix is strong."""

_SMALL = 1 << 16

CANCELS = 1e-3
"""Variance over squared mean under which the difference of two float32 sums has lost digits that the entries themselves still tell."""


@dataclass(frozen=True)
class NormSpread:
    """Smallest, median and largest of a set of norms, and their coefficient of variation (population std / mean)."""

    min: float
    median: float
    max: float
    cv: float


@dataclass(frozen=True, eq=False)
class Moments:
    """What one pass over a tensor yields. Non-finite entries are counted, and left out of everything else.

    ``std`` is the population's (divided by ``size``; from the entries where all of them were counted, else from the sums), ``square`` the sum
    of squares. ``abs_mean`` and ``kurtosis`` (not in excess:
    uniform 1.8, normal 3) are those of ``entries``, which are all entries or, of a large tensor, evenly spaced rows.
    Sums within a chunk are float64 for float32 and wider entries and for small tensors, else float32 (the square of a 16-bit entry is exact
    there). ``band_squares [B, C]`` are the column sums of squares of up to 6 bands of rows, ``column_sums [C]`` those of the entries;
    ``row_norms [R]`` and ``column_norms [C]`` are float64 (all of these None for tensors of less than two dimensions).
    """

    size: int
    mean: float
    std: float
    max_abs: float
    square: float
    nonfinite: int
    zeros: int
    ones: int
    constant: bool
    zero_rows: int
    zero_columns: int
    row_norms: Tensor | None
    column_norms: Tensor | None
    column_sums: Tensor | None
    band_squares: Tensor | None
    entries: Entries

    @property
    def abs_mean(self) -> float:
        return self.entries.abs_mean

    @property
    def kurtosis(self) -> float:
        return math.nan if self.constant else self.entries.kurtosis


class _Pass:
    """The sums that grow over the chunks of a matrix of ``rows`` and ``columns``."""

    def __init__(self, rows: int, columns: int, work: torch.dtype) -> None:
        self.work = work
        self.row_squares = torch.zeros(rows, dtype=torch.float64)
        self.column_sums = torch.zeros(columns, dtype=torch.float64)
        self.bad_rows, self.bad_columns = torch.zeros(rows, dtype=torch.bool), torch.zeros(columns, dtype=torch.bool)
        self.nonfinite = self.zeros = self.ones = 0
        self.least, self.most = math.inf, 0.0

    def add(self, start: int, chunk: Tensor) -> Tensor:
        """Take in ``chunk [r, C]``, whose first row is ``start``; returns its column sums of squares."""
        x = chunk.to(self.work)
        s = x * x
        most = float(s.amax())
        if not math.isfinite(most):  # NaN, infinity, or a square that float32 cannot hold
            x = chunk.to(torch.float64)
            bad = ~x.isfinite()
            self.nonfinite += int(bad.sum())
            self.bad_rows[start : start + len(x)] |= bad.any(1)
            self.bad_columns |= bad.any(0)
            good = x[~bad]
            x = torch.where(bad, 0.0, x)
            s = x * x
            if not good.numel():
                return s.sum(0)
            most, least = float(s.amax()), float(good.square().amin())
            self.zeros -= int(bad.sum()) if least == 0 else 0  # taken in as zeros below
        else:
            least = float(s.amin())
        self.least, self.most = min(self.least, least), max(self.most, most)
        if least == 0:  # counting is the dearest step, and hardly ever needed
            self.zeros += int((x == 0).sum())
        if most >= 1:
            self.ones += int((x == 1).sum())
        self.row_squares[start : start + len(x)] = s.sum(1)
        self.column_sums += x.sum(0)
        return s.sum(0)


def moments(tensor: Tensor) -> Moments:
    """Measure ``tensor`` (any shape, any floating dtype); tensors of more than two dimensions count as ``[shape[0], rest]``.

    >>> moments(torch.tensor([[1.0, -1.0], [0.0, 0.0]])).zero_rows
    1
    """
    flat = tensor.dim() < 2
    rows = 1 if flat else tensor.shape[0]
    columns = tensor.numel() if flat else math.prod(tensor.shape[1:])
    matrix = tensor.detach().reshape(rows, columns)
    wide = tensor.dtype.itemsize > 2 or tensor.numel() <= _SMALL
    total = _Pass(rows, columns, torch.float64 if wide else torch.float32)
    bands = torch.zeros(min(TILES[0], rows), columns, dtype=torch.float64)
    step = max(1, CHUNK // max(1, columns))
    for band, squares in enumerate(bands if columns else ()):
        first, last = band * rows // len(bands), (band + 1) * rows // len(bands)
        for start in range(first, last, step):
            squares += total.add(start, matrix[start : min(start + step, last)])
    n = tensor.numel() - total.nonfinite
    square, nan = float(total.row_squares.sum()), math.nan
    mean = float(total.column_sums.sum()) / n if n else nan
    # a sum of equal entries differs from n times the entry by rounding only; one of both signs by much more
    constant = n > 1 and not total.nonfinite and total.least == total.most and abs(mean) > (1 - 1e-6) * math.sqrt(total.most) - 1e-300
    counted = entries(matrix)
    variance = max(0.0, square / n - mean * mean) if n else nan
    if counted.size == n or variance < CANCELS * mean * mean:
        variance = counted.variance
    variance = 0.0 if constant else variance
    column_squares = bands.sum(0)
    return Moments(
        size=tensor.numel(),
        mean=mean,
        std=math.sqrt(variance) if n else nan,
        max_abs=math.sqrt(total.most) if n else nan,
        square=square,
        nonfinite=total.nonfinite,
        zeros=total.zeros,
        ones=total.ones,
        constant=constant,
        zero_rows=0 if flat or not columns else int(((total.row_squares == 0) & ~total.bad_rows).sum()),
        zero_columns=0 if flat or not rows else int(((column_squares == 0) & ~total.bad_columns).sum()),
        row_norms=None if flat else total.row_squares.sqrt(),
        column_norms=None if flat else column_squares.sqrt(),
        column_sums=None if flat else total.column_sums,
        band_squares=None if flat else bands,
        entries=counted,
    )


def spread(norms: Tensor | None) -> NormSpread | None:
    """Summary of ``norms [n]``; None when there are none. The cv is NaN when every norm is zero."""
    if norms is None or norms.numel() == 0:
        return None
    mean = float(norms.mean())
    cv = float(norms.std(correction=0)) / mean if mean > 0 else math.nan
    return NormSpread(float(norms.min()), float(norms.quantile(0.5)), float(norms.max()), cv)


def thin(values: Tensor | None, most: int) -> tuple[float, ...]:
    """At most ``most`` of ``values [n]``, evenly spaced and in order, both ends kept."""
    if values is None or values.numel() == 0:
        return ()
    n = values.numel()
    if n > most:
        values = values[torch.linspace(0, n - 1, most, dtype=torch.float64).round().long()]
    return tuple(float(v) for v in values)


def tiles(m: Moments) -> tuple[tuple[float, ...], ...]:
    """Root mean square of the entries in a grid of up to 6 x 12 bands of rows and columns, over that of the whole matrix."""
    if m.band_squares is None or not m.square > 0:
        return ()
    rows, columns = m.row_norms.numel() if m.row_norms is not None else 0, m.band_squares.shape[1]
    bands, parts = len(m.band_squares), min(TILES[1], columns)
    whole = m.square / m.size
    grid = []
    for b, squares in enumerate(m.band_squares):
        height = (b + 1) * rows // bands - b * rows // bands
        edges = [c * columns // parts for c in range(parts + 1)]
        grid.append(tuple(math.sqrt(float(squares[i:j].sum()) / ((j - i) * height) / whole) for i, j in pairwise(edges)))
    return tuple(grid)
