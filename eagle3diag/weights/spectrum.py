"""What the singular values of a weight say, beside the band in which those of pure noise of the same shape and std would lie."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.weights.moments import thin
from eagle3diag.weights.values import Values

TRACY_WIDOM_999 = 3.2724
"""0.999 quantile of the Tracy-Widom law of order 1 (recomputed from its Painleve form in the tests)."""

TOP, SERIES = 200, 600


@dataclass(frozen=True)
class Spectrum:
    """Singular values of ``W [R, C]``, ``m = min(R, C)``, ``n = max(R, C)``, and the noise that they are compared with.

    Attributes
    ----------
    singular_values: descending, the 200 largest and then evenly thinned to 600 in all.
    count: how many were computed; ``m`` when ``exact``.
    exact: False when only the top and the shape of the spectrum were approached: ``outside`` is then a lower bound, never an overestimate.
    method: what was done, in words. accurate_above: values above this are known to one part in a thousand.
    band_low, band_high: ``std * (sqrt(n) -/+ sqrt(m))``, where iid noise lies in the limit (Marchenko and Pastur 1967).
    tracy_widom_high: upper edge with the fluctuation of the largest value at finite size, 0.999 quantile (Johnstone 2001):
        ``std * sqrt(mu + 3.2724 s)``, ``mu = (sqrt(n-1) + sqrt(m))^2``, ``s = (sqrt(n-1) + sqrt(m)) (1/sqrt(n-1) + 1/sqrt(m))^(1/3)``.
    tracy_widom: the largest value in these units, ``(value^2 / std^2 - mu) / s``: -1.2 +- 1.3 for noise.
    outside: values above ``tracy_widom_high``. ``outside_energy``: their share of the squared Frobenius norm.
    highest_over_edge: largest value / ``tracy_widom_high``.
    visible_energy: ``1 / sqrt(m n)``: a single learned direction with less than this share of the noise's energy does not leave
        the band, so that its absence proves nothing (Benaych-Georges and Nadakuditi 2012, their threshold in these units).
    stable_rank: squared Frobenius norm / largest singular value squared.
    effective_rank: exp of the entropy of ``s_i / sum(s)`` (Roy and Vetterli 2007).
    bulk_std: std of the Marchenko-Pastur law that fits the values inside. Learned outliers raise the plain std and leave this one near the
        start's, so it shows the initialisation under the training. ``bulk_edge``: where this noise ends (0.999), ``bulk_outside`` the
        values above it and ``bulk_outside_energy`` their share: what was learned, as far as it stands apart.
    bulk_misfit: largest distance between the distribution of the values inside and the fitted law: about 1/m for noise. None unless exact.
    tail_exponent: ``a`` of a density ``x^-a`` of the squared values above ``bulk_edge`` (Hill 1975), ``tail_error`` its standard error;
        None with fewer than ten.
    """

    singular_values: tuple[float, ...]
    count: int
    exact: bool
    method: str
    accurate_above: float
    band_low: float
    band_high: float
    tracy_widom_high: float
    tracy_widom: float
    outside: int
    outside_energy: float
    highest_over_edge: float
    visible_energy: float
    stable_rank: float
    effective_rank: float
    bulk_std: float
    bulk_edge: float
    bulk_outside: int
    bulk_outside_energy: float
    bulk_misfit: float | None
    tail_exponent: float | None
    tail_error: float | None


def noise_band(rows: int, columns: int, std: float) -> tuple[float, float, float]:
    """``(band_low, band_high, tracy_widom_high)`` of the singular values of iid noise; see :class:`Spectrum`.

    >>> ["%.3f" % edge for edge in noise_band(7168, 21504, 0.004037)]
    ['0.250', '0.934', '0.936']
    """
    m, n = sorted((rows, columns))
    low, high = std * (math.sqrt(n) - math.sqrt(m)), std * (math.sqrt(n) + math.sqrt(m))
    centre, scale = _edge(m, n)
    return low, high, std * math.sqrt(centre + TRACY_WIDOM_999 * scale) if n > 1 else high


def _edge(m: int, n: int) -> tuple[float, float]:
    """Centre and scale of the largest squared singular value of noise of unit variance (Johnstone 2001)."""
    root = math.sqrt(max(n - 1, 1)) + math.sqrt(m)
    return root**2, root * (1 / math.sqrt(max(n - 1, 1)) + 1 / math.sqrt(m)) ** (1 / 3)


@dataclass(frozen=True)
class Bulk:
    """The fitted noise under a spectrum: its ``std``, its upper ``edge``, and a mask of the values that belong to it."""

    std: float
    edge: float
    inside: Tensor


def fit_bulk(found: Values, m: int, n: int) -> Bulk:
    """Fit a Marchenko-Pastur law to the values inside its own edge, whatever lies outside.

    The scale is where the mean of ``1 / (1 + x)`` over ``x = value^2 / (n std^2)`` has the law's value, which is known in closed form: a
    smooth bounded statistic, so that a quadrature of a few hundred nodes gives it, and an outlier weighs at most one share. Values above the
    edge are then left out and the scale is found again, until none moves.
    """
    ratio = m / n
    goal = (math.sqrt(4 + ratio * ratio) - 2 + ratio) / (2 * ratio)  # the law's Stieltjes transform at -1
    squares, shares = found.values.square(), found.shares
    inside = torch.ones_like(squares, dtype=torch.bool)
    std, edge = 0.0, 0.0
    for _ in range(50):
        x, w = squares[inside], shares[inside] / shares[inside].sum()
        low, high = 0.0, float(x[0]) * 4 + 1e-300
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if float((w / (1 + x / middle)).sum()) < goal else (low, middle)
        std = math.sqrt(high / n)
        edge = noise_band(m, n, std)[2]
        kept = found.values <= edge
        if not kept.any() or bool((kept == inside).all()):
            break
        inside = kept
    return Bulk(std, edge, inside)


def misfit(inside: Tensor, ratio: float, std: float, n: int) -> float:
    """Largest distance between the distribution of ``inside`` (values, descending) and the Marchenko-Pastur law of this std.

    With ``x = mid + half cos(t)`` the law's density becomes smooth, so that a midpoint sum over ``t`` is exact to six digits.
    """
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
    mid, half, steps = (low + high) / 2, (high - low) / 2, 20_000
    angles = (torch.arange(steps, dtype=torch.float64) + 0.5) * (math.pi / steps)
    x = (mid + half * angles.cos()).flip(0)
    mass = (half * angles.sin()).square().flip(0) / x
    below = mass.cumsum(0) / mass.sum()
    places = inside.flip(0).square() / (n * std * std)
    expected = below[(torch.searchsorted(x, places) - 1).clamp(min=0)] * (places > low)
    ranks = (torch.arange(len(places), dtype=torch.float64) + 0.5) / len(places)
    return float((expected - ranks).abs().max())


def spectrum(found: Values, rows: int, columns: int, std: float, square: float) -> Spectrum:
    """What singular values ``found`` of a matrix ``[rows, columns]`` say, given its entries' ``std`` and their sum of squares."""
    m, n = sorted((rows, columns))
    values, top = found.values, float(found.values[0])
    low, high, edge = noise_band(m, n, std)
    centre, scale = _edge(m, n)
    outside = values > edge
    bulk = fit_bulk(found, m, n)
    learned = values[~bulk.inside]
    exponent = tail(learned, bulk.edge)
    rough = values[found.errors > 1e-3 * values]
    return Spectrum(
        singular_values=tuple(float(v) for v in values[:TOP]) + thin(values[TOP:], SERIES - TOP),
        count=values.numel(),
        exact=found.exact,
        method="all values, through the Gram matrix of the short side"
        if found.exact
        else f"lower bounds of the top and a quadrature of the rest, from a block Krylov space of {values.numel()} directions",
        accurate_above=float(rough[0]) if rough.numel() else 0.0,
        band_low=low,
        band_high=high,
        tracy_widom_high=edge,
        tracy_widom=((top / std) ** 2 - centre) / scale if std > 0 else math.nan,
        outside=int(outside.sum()),
        outside_energy=float(values[outside].square().sum()) / square if square > 0 else 0.0,
        highest_over_edge=top / edge if edge > 0 else math.nan,
        visible_energy=1 / math.sqrt(m * n),
        stable_rank=square / top**2 if top > 0 else 0.0,
        effective_rank=_effective_rank(found, m),
        bulk_std=bulk.std,
        bulk_edge=bulk.edge,
        bulk_outside=len(learned),
        bulk_outside_energy=float(learned.square().sum()) / square if square > 0 else 0.0,
        bulk_misfit=misfit(values[bulk.inside], m / n, bulk.std, n) if found.exact and bulk.std > 0 else None,
        tail_exponent=exponent,
        tail_error=(exponent - 1) / math.sqrt(len(learned)) if exponent is not None else None,
    )


def _effective_rank(found: Values, m: int) -> float:
    """``exp(-sum p log p)``, ``p = s / sum(s)``, as means over the m values: ``log(m mean(s)) - mean(s log s) / mean(s)``."""
    mean = float((found.shares * found.values).sum())
    if not mean > 0:
        return 0.0
    return m * mean * math.exp(float((found.shares * torch.special.entr(found.values)).sum()) / mean)


def tail(learned: Tensor, edge: float) -> float | None:
    """Exponent of a power law of the squares of ``learned`` values, all above ``edge``; None for fewer than ten."""
    if len(learned) < 10:
        return None
    return 1 + len(learned) / float(2 * (learned / edge).log().sum())
