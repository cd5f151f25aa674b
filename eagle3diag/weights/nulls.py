"""How far a weight is from each way of initialising it, and from having no structure at all: effect sizes first, z beside them.

Two questions are kept apart. *Which law do the entries follow?* is answered by :func:`distance` for each :class:`Null`.
*Are the entries arranged at random?* is answered by :func:`structure`, whatever their law and scale: training arranges them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.weights.laws import Null, edge, rounded_std
from eagle3diag.weights.moments import Moments

OVERHANG = 1 / math.sqrt(6 * math.pi)
"""Share of entries beyond the bound of a uniform start, per std of an independent normal change (both in stds of the start): at each of
the two edges, of density ``1 / (2 sqrt(3))``, the change lets out ``E max(change, 0) = 1 / sqrt(2 pi)`` of its std."""


@dataclass(frozen=True)
class NullDistance:
    """How far the measured entries are from one null. z are in standard errors of the null; None where the null has no such quantity.

    Attributes
    ----------
    std_ratio: std / the null's; ``ratio_error`` its standard error if the null holds.
    implied_update: ``sqrt(std_ratio^2 - 1)``, the size of an independent change, relative to the start, that would explain it (None
        when the ratio is not above 1); ``update_error`` its standard error.
    edge_update: the same from the share of entries beyond a uniform start's bound, which weight decay hardly touches; None for others.
    abs_mean_gap: ``mean |w| / std`` minus the null's (uniform 0.8660, normal 0.7979).
    kurtosis_gap: kurtosis minus the null's (uniform 1.8, normal 3).
    law_gap: largest distance between the distribution functions of the entries and the null (Kolmogorov and Smirnov), scale included.
    max_over_bound: largest ``|w|`` / the bound after rounding, or / the level that one entry of a normal null exceeds on average.
    beyond: entries above that level; ``beyond_share`` of those looked at. Under a bounded null exactly none; under a normal one about one.
    off_value: root mean square of ``w - value`` for a constant null; ``at_value``: share of entries equal to it.
    distance: ``hypot(log std_ratio, log kurtosis ratio)``, used only to name the nearest null; infinite for a constant that is not met.
    """

    name: str
    null_std: float
    std_ratio: float | None = None
    ratio_error: float | None = None
    z_std: float | None = None
    implied_update: float | None = None
    update_error: float | None = None
    edge_update: float | None = None
    abs_mean_gap: float | None = None
    z_abs_mean: float | None = None
    kurtosis_gap: float | None = None
    z_kurtosis: float | None = None
    law_gap: float | None = None
    z_law: float | None = None
    bound: float | None = None
    max_over_bound: float | None = None
    beyond: int | None = None
    beyond_share: float | None = None
    off_value: float | None = None
    at_value: float | None = None
    distance: float = math.inf


def implied_update(ratio: float) -> float | None:
    """Relative size of an independent update that takes the std to ``ratio`` times the start's; None when ratio <= 1."""
    return math.sqrt(ratio * ratio - 1) if ratio > 1 else None


def distance(null: Null, m: Moments, dtype: torch.dtype) -> NullDistance:
    """Compare measured moments and entries of a tensor of ``dtype`` with a null."""
    n = m.size - m.nonfinite
    if null.value is not None:
        off = math.sqrt(m.std**2 + (m.mean - null.value) ** 2) if n else math.nan
        at = (m.zeros if null.value == 0 else m.ones) / n if n else math.nan
        return NullDistance(null.name, 0.0, off_value=off, at_value=at, distance=0.0 if at == 1 else math.inf)
    assert null.law is not None  # a null is a constant or a law
    law, std, reach, seen = null.law, rounded_std(null, dtype), edge(null, m.size, dtype), m.entries.size
    if not n or not m.std > 0:
        return NullDistance(null.name, std, bound=reach)
    ratio, error, root = m.std / std, math.sqrt((law.kurtosis - 1) / (4 * n)), math.sqrt(seen)
    update, beyond, gap = implied_update(ratio), m.entries.beyond(reach), m.entries.gap(null)
    first = m.abs_mean / m.std - law.first
    return NullDistance(
        name=null.name,
        null_std=std,
        std_ratio=ratio,
        ratio_error=error,
        z_std=(ratio - 1) / error,
        implied_update=update,
        update_error=ratio * error / update if update else None,
        edge_update=beyond / seen / OVERHANG if law.kind == "uniform" else None,
        abs_mean_gap=first,
        z_abs_mean=first * root / math.sqrt(law.first_variance),
        kurtosis_gap=m.kurtosis - law.kurtosis,
        z_kurtosis=(m.kurtosis - law.kurtosis) * root / math.sqrt(law.kurtosis_variance),
        law_gap=gap,
        z_law=gap * root if gap is not None else None,
        bound=reach,
        max_over_bound=m.max_abs / reach,
        beyond=beyond,
        beyond_share=beyond / seen,
        distance=math.hypot(math.log(ratio), math.log(m.kurtosis / law.kurtosis)),
    )


@dataclass(frozen=True)
class Structure:
    """Are the entries arranged at random? Compared with iid entries of the *measured* std and kurtosis, so no scale or law is assumed.

    ``*_cv_expected`` is ``sqrt((kurtosis - 1) / (4 * length))``, the coefficient of variation of the norms of iid rows; its relative
    standard error over ``k`` rows is ``1 / sqrt(2 (k - 1))``. ``block_spread`` is the cv of the fc blocks' Frobenius norms, and
    ``z_block`` its chi-square with ``blocks - 1`` degrees, in Wilson and Hilferty's cube-root form. None where it does not apply.
    ``top_row`` (from 0) is the row whose norm is farthest from the mean norm, by ``top_row_z`` standard errors of one iid row; the same for
    columns.
    """

    row_cv: float
    row_cv_expected: float
    z_row: float
    column_cv: float
    column_cv_expected: float
    z_column: float
    top_row: int
    top_row_z: float
    top_column: int
    top_column_z: float
    block_spread: float | None = None
    block_spread_expected: float | None = None
    z_block: float | None = None


def structure(m: Moments, blocks: Sequence[float] = ()) -> Structure | None:
    """Measure the arrangement of a matrix's entries; ``blocks`` are the Frobenius norms of equal column blocks. None when undefined."""
    if m.row_norms is None or m.column_norms is None or not m.kurtosis > 1 or min(m.row_norms.numel(), m.column_norms.numel()) < 2:
        return None
    row, column = _cv(m.row_norms), _cv(m.column_norms)
    excess = m.kurtosis - 1
    row_expected = math.sqrt(excess / (4 * m.column_norms.numel()))
    column_expected = math.sqrt(excess / (4 * m.row_norms.numel()))
    spread = expected = z = None
    if len(blocks) > 1:
        norms = torch.tensor(list(blocks), dtype=torch.float64)
        mean = float(norms.mean())
        expected = math.sqrt(excess * len(blocks) / (4 * m.size))
        spread = float(norms.std()) / mean if mean > 0 else math.nan
        freedom = len(blocks) - 1
        slack = 2 / (9 * freedom)
        z = ((spread / expected) ** (2 / 3) - (1 - slack)) / math.sqrt(slack)
    (top_row, top_row_z), (top_column, top_column_z) = _farthest(m.row_norms, row_expected), _farthest(m.column_norms, column_expected)
    return Structure(
        row_cv=row,
        row_cv_expected=row_expected,
        z_row=(row / row_expected - 1) * math.sqrt(2 * (m.row_norms.numel() - 1)),
        column_cv=column,
        column_cv_expected=column_expected,
        z_column=(column / column_expected - 1) * math.sqrt(2 * (m.column_norms.numel() - 1)),
        top_row=top_row,
        top_row_z=top_row_z,
        top_column=top_column,
        top_column_z=top_column_z,
        block_spread=spread,
        block_spread_expected=expected,
        z_block=z,
    )


def _farthest(norms: Tensor, expected: float) -> tuple[int, float]:
    z = (norms / norms.mean() - 1) / expected
    at = int(z.abs().argmax())
    return at, float(z[at])


def _cv(norms: Tensor) -> float:
    mean = float(norms.mean())
    return float(norms.std()) / mean if mean > 0 else math.nan
