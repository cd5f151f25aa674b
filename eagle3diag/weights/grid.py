"""Is a weight quantised and back? How few values, mantissas or steps the entries of a row use, with what a smooth row would show."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 128
"""Entries side by side that are looked at together: no larger than the groups that int4 formats scale (32 to 128; 32 and 64 are tried too)."""

ROWS = 64
"""Evenly spaced rows that are looked at; every one of a quantised matrix shows it."""

_CODES = (7, 8, 127, 128, 31, 32)


@dataclass(frozen=True)
class Grid:
    """Medians over up to 64 rows (their first 128 entries for ``levels`` and ``mantissas``).

    Attributes
    ----------
    levels: distinct values among 32, 64 and 128 neighbours; 4-bit formats have at most 16.
    mantissas: distinct 7-bit mantissas among 128 neighbours: about 80 in a smooth row, 8 in float8 e4m3, 4 in e5m2, whatever the scale.
    steps: largest ``|w|`` of the row in units of the step of the best evenly spaced grid, tried for the usual codes (7, 8, 127, 128, ...) and
        for the smallest entry as the step.
    off_step: mean distance of the entries to that grid, in steps: 0.25 for a smooth row, near 0 on the grid. Only entries up to 40 steps
        count: beyond, rounding to bfloat16 alone moves them by a sixth of a step.
    """

    levels: tuple[int, int, int]
    mantissas: int
    steps: float
    off_step: float


def grid(matrix: Tensor) -> Grid | None:
    """Measure ``matrix [R, C]`` (finite entries); None when rows are shorter than 128 or everything is zero."""
    rows, columns = matrix.shape
    if columns < GROUP or rows < 1:
        return None
    at = torch.linspace(0, rows - 1, min(ROWS, rows), dtype=torch.float64).round().long().unique()
    picked = matrix[at].double()
    picked = picked[picked.abs().amax(1) > 0]
    if not len(picked):
        return None
    near = picked[:, :GROUP]
    levels = [int(_distinct(near[:, :width]).median()) for width in (32, 64, GROUP)]
    mantissa = torch.frexp(near).mantissa.abs().mul(256).round()
    best: list[tuple[float, float]] = [min(_fits(row), key=lambda fit: fit[0] - 0.002 / fit[1]) for row in picked]
    off, steps = (torch.tensor(column, dtype=torch.float64).median() for column in zip(*best, strict=True))
    return Grid((levels[0], levels[1], levels[2]), int(_distinct(mantissa).median()), float(steps), float(off))


def _distinct(values: Tensor) -> Tensor:
    """Distinct values per row of ``values [R, C]``."""
    return (values.sort(1).values.diff(dim=1) != 0).sum(1) + 1


def _fits(row: Tensor) -> list[tuple[float, float]]:
    """For each candidate step: mean distance to its multiples, in steps, and the row's reach in steps."""
    size = row.abs()
    top = float(size.max())
    least = float(size[size > 0].min())
    found = [(0.25, 1.0)]
    for step in dict.fromkeys([*(top / code for code in _CODES), least]):
        if step < top / 400:  # finer than any code in use; a smooth row's smallest entry
            continue
        x = size / step
        x = x[(x > 0.6) & (x < 40)]
        if len(x) >= 16:
            found.append((float((x - x.round()).abs().mean()), top / step))
    return found


def smooth_levels(width: int) -> float:
    """Distinct values that ``width`` entries of a smooth bfloat16 row have, for orientation: all but a few pairs."""
    return width * (1 - width / 4096) if width < 1024 else math.nan
