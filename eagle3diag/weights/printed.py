"""What figures printed somewhere (a shape, a std, an abs mean) say about a weight, and what they cannot say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3diag.weights.laws import UNIFORM, Law, Null, nulls_for
from eagle3diag.weights.nulls import NullDistance, implied_update
from eagle3diag.weights.spectrum import noise_band

UNIMODAL_LIMIT = math.sqrt(3) / 2
"""``mean |w| / std`` of a uniform law, and the most that any symmetric unimodal law can have: such a law is a mixture of uniforms
U(-a, a), and ``E[a]/2 <= sqrt(E[a^2])/2``. A sum of two independent ones is one again (Wintner 1938)."""


@dataclass(frozen=True)
class FromMoments:
    """What a printed std and abs mean say without the tensor, and what they cannot say.

    ``excluded`` and ``possible`` name the initialisations whose std (and ``abs_mean / std``) do or do not lie outside the figures'
    own precision plus ``sigmas`` standard errors. ``above_unimodal``: ``abs_mean / std`` exceeds 0.8660 by more than that precision, so
    that neither a symmetric unimodal start nor one with an independent such update added gives these figures.
    ``band`` is where the singular values of pure noise of this std would lie; ``unknown`` lists what only the tensor tells.
    """

    shape: tuple[int, int]
    fan_in: int
    std: float
    abs_mean: float | None
    abs_over_std: float | None
    distances: tuple[NullDistance, ...]
    excluded: tuple[str, ...]
    possible: tuple[str, ...]
    nearest: str
    above_unimodal: bool
    band: tuple[float, float]
    unknown: tuple[str, ...]


def from_moments(
    shape: Sequence[int],
    std: float,
    abs_mean: float | None = None,
    fan_in: int | None = None,
    *,
    decimals: int | None = 6,
    sigmas: float = 6.0,
    initializer_range: float | None = None,
) -> FromMoments:
    """Judge printed figures of a ``[rows, columns]`` weight: the seed case's fc, whose std is 2.5 % above the default start's.

    ``decimals`` is the number of decimals that were printed (None: the figures are exact).

    >>> seed = from_moments((7168, 21504), 0.004037, 0.003556)
    >>> seed.nearest, "%.3f" % seed.distances[0].std_ratio, "%.2f" % seed.distances[0].implied_update
    ('uniform_fan_in', '1.025', '0.23')
    >>> seed.possible, seed.above_unimodal
    ((), True)
    """
    rows, columns = int(shape[0]), int(shape[1])
    size, half = rows * columns, 0.0 if decimals is None else 0.5 * 10.0**-decimals
    fan = fan_in or columns
    ratio = abs_mean / std if abs_mean is not None else None
    ratio_error = half * (1 + ratio) / std if ratio is not None else 0.0
    distances: list[NullDistance] = []
    excluded: list[str] = []
    possible: list[str] = []
    for null in nulls_for((rows, columns), fan_in=fan, initializer_range=initializer_range):
        if null.law is None:
            continue
        errors = null.std * math.sqrt((null.law.kurtosis - 1) / (4 * size)), math.sqrt(null.law.first_variance / size)
        distances.append(_distance(null, null.law, std, ratio, half, errors))
        out = abs(std - null.std) > half + sigmas * errors[0]
        out = out or (ratio is not None and abs(ratio - null.law.first) > ratio_error + sigmas * errors[1])
        (excluded if out else possible).append(null.name)
    low, high, _ = noise_band(rows, columns, std)
    step = math.sqrt(UNIFORM.first_variance / size)
    return FromMoments(
        shape=(rows, columns),
        fan_in=fan,
        std=std,
        abs_mean=abs_mean,
        abs_over_std=ratio,
        distances=tuple(distances),
        excluded=tuple(excluded),
        possible=tuple(possible),
        nearest=min(distances, key=lambda d: d.distance).name,
        above_unimodal=ratio is not None and ratio - UNIMODAL_LIMIT > ratio_error + sigmas * step,
        band=(low, high),
        unknown=(
            f"whether it learned anything: count the singular values above {high:.3f}, where noise of this std ends",
            "whether rows, columns and blocks have the equal norms of a fresh start",
            f"whether entries lie beyond the default start's bound {1 / math.sqrt(fan):.6f}",
            "the mean: near zero for a fresh and for a trained projection alike",
        ),
    )


def _distance(null: Null, law: Law, std: float, ratio: float | None, half: float, errors: tuple[float, float]) -> NullDistance:
    """Of printed figures, known to ``half`` a last digit; ``errors``: standard errors of the std and of ``abs_mean / std`` under the null."""
    gap = None if ratio is None else ratio - law.first
    return NullDistance(
        name=null.name,
        null_std=null.std,
        std_ratio=std / null.std,
        ratio_error=(half + errors[0]) / null.std,
        z_std=(std - null.std) / errors[0],
        implied_update=implied_update(std / null.std),
        abs_mean_gap=gap,
        z_abs_mean=None if gap is None else gap / errors[1],
        bound=null.bound,
        distance=math.hypot(math.log(std / null.std), math.log(ratio / law.first) if ratio is not None else 0.0),
    )
