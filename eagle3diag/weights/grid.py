"""Was a weight quantised and widened again? How few values, mantissas or steps the entries of a row use, with what a smooth row would show."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 128
"""Entries side by side that are looked at together: no larger than the groups that int4 formats scale (32 to 128; 32 and 64 are tried too)."""

ROWS = 64
"""Evenly spaced rows that are looked at; every one of a quantised matrix shows it."""

CODES = (7, 8, 127, 128)
"""Largest codes of the symmetric formats: the largest entry of a row is one of these times the step."""


@dataclass(frozen=True)
class Grid:
    """Medians over up to 64 rows (their first 128 entries for ``levels`` and ``mantissas``).

    Attributes
    ----------
    levels: distinct values among 32, 64 and 128 neighbours; 4-bit formats have at most 16.
    mantissas: distinct 7-bit mantissas among 128 neighbours: about 80 in a smooth row, 8 in float8 e4m3, 4 in e5m2, whatever the scale.
    step_group: entries that share the step below: the row, or 128 where those fit an evenly spaced grid twice as well.
    steps: their largest ``|w|`` in units of the step of the best such grid, tried for the usual codes (7, 8, 127, 128) and for the smallest
        entry as the step.
    off_step: mean distance of the entries to that grid, in steps: 0.25 for a smooth row, near 0 on the grid. Only entries up to 40 steps
        count: beyond, rounding to bfloat16 alone moves them by a sixth of a step.
    """

    levels: tuple[int, int, int]
    mantissas: int
    step_group: int
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
    (off, steps), (near_off, near_steps) = ((float(a.median()), float(b.median())) for a, b in (_fit(picked.abs()), _fit(near.abs())))
    group = GROUP if near_off < off / 2 else columns
    return Grid(
        levels=(levels[0], levels[1], levels[2]),
        mantissas=int(_distinct(mantissa).median()),
        step_group=group,
        steps=near_steps if group == GROUP else steps,
        off_step=near_off if group == GROUP else off,
    )


def _distinct(values: Tensor) -> Tensor:
    """Distinct values per row of ``values [R, C]``."""
    return (values.sort(1).values.diff(dim=1) != 0).sum(1) + 1


def _fit(size: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row of absolute values, over the candidate steps: the least mean distance to multiples, in steps, and the reach in steps."""
    top = size.amax(1)
    least = torch.where(size > 0, size, math.inf).amin(1)
    off, reach = torch.full_like(top, 0.25), torch.ones_like(top)
    for step in (*(top / code for code in CODES), least):
        x = size / step[:, None]
        counted = (x > 0.6) & (x < 40)
        n = counted.sum(1)
        mean = torch.where(counted, (x - x.round()).abs(), 0.0).sum(1) / n
        better = (n >= 16) & (top / step < 400) & (mean < off)  # a smooth row's smallest entry is finer than any code in use
        off, reach = torch.where(better, mean, off), torch.where(better, top / step, reach)
    return off, reach
