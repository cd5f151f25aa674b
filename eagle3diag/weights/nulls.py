"""How far a weight is from each way of initialising it, and from having no structure at all: effect sizes first, z beside them.

Two questions are kept apart. *Which law do the entries follow?* is answered by :func:`distance` for each :class:`Null`.
*Are the entries arranged at random?* is answered by :func:`structure`, whatever their law and scale: training arranges them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import torch
from torch import Tensor

from eagle3diag.weights.moments import Moments
from eagle3diag.weights.spectrum import noise_band


@dataclass(frozen=True)
class Law:
    """A symmetric law of unit variance: absolute moments 1, 3, 4, 6 and 8 (the even ones give the sampling errors)."""

    first: float
    third: float
    kurtosis: float
    sixth: float
    eighth: float

    @property
    def kurtosis_variance(self) -> float:
        """Asymptotic ``N * Var`` of the sample kurtosis (delta method; 24 for the normal law)."""
        k = self.kurtosis
        return (self.eighth - k * k) - 4 * k * (self.sixth - k) + 4 * k * k * (k - 1)

    @property
    def first_variance(self) -> float:
        """Asymptotic ``N * Var`` of ``mean |w| / std`` (delta method; 0.045 for the normal law, Geary 1935)."""
        r = self.first
        return (1 - r * r) - r * (self.third - r) + r * r * (self.kurtosis - 1) / 4


UNIFORM = Law(math.sqrt(3) / 2, 3 * math.sqrt(3) / 4, 9 / 5, 27 / 7, 9.0)
NORMAL = Law(math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi), 3.0, 15.0, 105.0)


@dataclass(frozen=True)
class Null:
    """One initialisation: a constant ``value``, or a ``law`` of this ``std`` (float, before rounding), with its ``bound`` if it has one."""

    name: str
    std: float
    law: Law | None = None
    bound: float | None = None
    value: float | None = None


CONSTANTS = (Null("zeros", 0.0, value=0.0), Null("ones", 0.0, value=1.0))


def nulls_for(shape: Sequence[int], *, fan_in: int | None = None, initializer_range: float | None = None) -> tuple[Null, ...]:
    """The initialisations that trainers and engines use for a weight of this shape.

    ``uniform_fan_in`` is ``nn.Linear``'s own start, U(-1/sqrt(F), 1/sqrt(F)): SafeAILab, SpecForge up to mid 2026, ModelOpt,
    AngelSlim, TorchSpec, and SGLang's fallback for a missing fc. ``normal_0.02``: speculators, SpecForge 0.2, Automodel; a
    different ``initializer_range`` of the config is added under its own value. ``normal_1`` is ``nn.Embedding``'s.
    Tensors of one dimension have the constants only.
    """
    if len(shape) < 2:
        return CONSTANTS
    fan_out, columns = shape[0], math.prod(shape[1:])
    fan = fan_in or columns
    if fan < 1 or fan_out < 1:
        return CONSTANTS
    glorot = math.sqrt(2 / (fan + fan_out))
    scales = dict.fromkeys([0.02, *([initializer_range] if initializer_range else [])])
    return (
        Null("uniform_fan_in", 1 / math.sqrt(3 * fan), UNIFORM, 1 / math.sqrt(fan)),
        *(Null(f"normal_{scale:g}", scale, NORMAL) for scale in scales),
        Null("xavier_uniform", glorot, UNIFORM, glorot * math.sqrt(3)),
        Null("xavier_normal", glorot, NORMAL),
        Null("lecun_normal", 1 / math.sqrt(fan), NORMAL),
        Null("normal_1", 1.0, NORMAL),
        *CONSTANTS,
    )


def edge(null: Null, size: int, dtype: torch.dtype) -> float:
    """What no entry of the null exceeds after rounding to ``dtype`` (uniform), or one entry of ``size`` does on average (normal).

    In bfloat16 the bound 0.018042 is stored as 0.018066, so comparing with the bound itself would call every fresh weight trained.
    """
    if null.value is not None:
        return abs(null.value)
    reach = null.bound if null.bound is not None else null.std * NormalDist().inv_cdf(1 - 0.5 / max(size, 2))
    reach *= 1 + 2.0**-22  # the generator works in float32, where the bound itself is rounded
    return max(reach, float(torch.tensor(reach, dtype=torch.float32).to(dtype).double()))


@lru_cache(maxsize=256)
def rounded_std(null: Null, dtype: torch.dtype) -> float:
    """Std of the null after rounding to ``dtype``: exact for the 16-bit types, by summing over their values; else the null's own.

    The correction is a few millionths, up or down with the bound's place between two powers of two.
    """
    if dtype not in (torch.bfloat16, torch.float16) or null.std == 0:
        return null.std
    codes = torch.arange(torch.tensor(torch.finfo(dtype).max, dtype=dtype).view(torch.int16).item() + 1, dtype=torch.int16)
    values = codes.view(dtype).double()  # every finite value from 0 up, ascending
    edges = (values[1:] + values[:-1]) / 2
    below = (edges / null.bound).clamp(max=1) if null.bound is not None else torch.erf(edges / (null.std * math.sqrt(2)))
    share = torch.cat([below, below.new_ones(1)]).diff(prepend=below.new_zeros(1))
    return math.sqrt(float((values.square() * share).sum()))


@dataclass(frozen=True)
class NullDistance:
    """How far the measured entries are from one null. z are in standard errors of the null; None where the null has no such quantity.

    Attributes
    ----------
    std_ratio: std / the null's. ``implied_update``: ``sqrt(std_ratio^2 - 1)``, the size of an independent change, relative to the
        start, that would explain it (None when the ratio is not above 1).
    abs_mean_gap: ``mean |w| / std`` minus the null's (uniform 0.8660, normal 0.7979).
    kurtosis_gap: kurtosis minus the null's (uniform 1.8, normal 3).
    max_over_bound: largest ``|w|`` / the uniform's bound after rounding, or / the level that one entry of a normal null exceeds on average.
    beyond: entries above that level; ``beyond_share`` of all. Under a uniform null exactly none; under a normal one about one.
    off_value: root mean square of ``w - value`` for a constant null; ``at_value``: share of entries equal to it.
    distance: ``hypot(log std_ratio, log kurtosis ratio)``, used only to name the nearest null; infinite for a constant that is not met.
    """

    name: str
    null_std: float
    std_ratio: float | None = None
    z_std: float | None = None
    implied_update: float | None = None
    abs_mean_gap: float | None = None
    z_abs_mean: float | None = None
    kurtosis_gap: float | None = None
    z_kurtosis: float | None = None
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


def distance(null: Null, m: Moments, beyond: int, dtype: torch.dtype) -> NullDistance:
    """Compare measured moments with a null; ``beyond`` counts the entries above :func:`edge`."""
    n = m.size - m.nonfinite
    if null.value is not None:
        off = math.sqrt(m.std**2 + (m.mean - null.value) ** 2) if n else math.nan
        at = (m.zeros if null.value == 0 else m.ones) / n if n else math.nan
        return NullDistance(null.name, 0.0, off_value=off, at_value=at, distance=0.0 if at == 1 else math.inf)
    assert null.law is not None  # a null is a constant or a law
    law, std, reach = null.law, rounded_std(null, dtype), edge(null, m.size, dtype)
    if not n or not m.std > 0:
        return NullDistance(null.name, std, bound=reach)
    root, ratio = math.sqrt(n), m.std / std
    return NullDistance(
        name=null.name,
        null_std=std,
        std_ratio=ratio,
        z_std=(ratio - 1) * root / math.sqrt((law.kurtosis - 1) / 4),
        implied_update=implied_update(ratio),
        abs_mean_gap=m.abs_mean / m.std - law.first,
        z_abs_mean=(m.abs_mean / m.std - law.first) * root / math.sqrt(law.first_variance),
        kurtosis_gap=m.kurtosis - law.kurtosis,
        z_kurtosis=(m.kurtosis - law.kurtosis) * root / math.sqrt(law.kurtosis_variance),
        bound=reach,
        max_over_bound=m.max_abs / reach,
        beyond=beyond,
        beyond_share=beyond / n,
        distance=math.hypot(math.log(ratio), math.log(m.kurtosis / law.kurtosis)),
    )


@dataclass(frozen=True)
class Structure:
    """Are the entries arranged at random? Compared with iid entries of the *measured* std and kurtosis, so no scale or law is assumed.

    ``*_cv_expected`` is ``sqrt((kurtosis - 1) / (4 * length))``, the coefficient of variation of the norms of iid rows; its relative
    standard error over ``k`` rows is ``1 / sqrt(2 (k - 1))``. ``block_spread`` is the cv of the fc blocks' Frobenius norms, and
    ``z_block`` its chi-square with ``blocks - 1`` degrees, in Wilson and Hilferty's cube-root form. None where it does not apply.
    """

    row_cv: float
    row_cv_expected: float
    z_row: float
    column_cv: float
    column_cv_expected: float
    z_column: float
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
    return Structure(
        row_cv=row,
        row_cv_expected=row_expected,
        z_row=(row / row_expected - 1) * math.sqrt(2 * (m.row_norms.numel() - 1)),
        column_cv=column,
        column_cv_expected=column_expected,
        z_column=(column / column_expected - 1) * math.sqrt(2 * (m.column_norms.numel() - 1)),
        block_spread=spread,
        block_spread_expected=expected,
        z_block=z,
    )


def _cv(norms: Tensor) -> float:
    mean = float(norms.mean())
    return float(norms.std()) / mean if mean > 0 else math.nan


UNIMODAL_LIMIT = math.sqrt(3) / 2
"""``mean |w| / std`` of a uniform law, and the most that any symmetric unimodal law can have: such a law is a mixture of uniforms
U(-a, a), and ``E[a]/2 <= sqrt(E[a^2])/2``. A sum of two independent ones is one again (Wintner 1938)."""


@dataclass(frozen=True)
class FromMoments:
    """What a printed std and abs mean say without the tensor, and what they cannot say.

    ``excluded`` and ``possible`` name the initialisations whose std (and ``abs_mean / std``) do or do not lie outside of the figures'
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
        error = null.std * math.sqrt((null.law.kurtosis - 1) / (4 * size))
        out = abs(std - null.std) > half + sigmas * error
        gap = z = None
        if ratio is not None:
            gap, step = ratio - null.law.first, math.sqrt(null.law.first_variance / size)
            z = gap / step
            out = out or abs(gap) > ratio_error + sigmas * step
        (excluded if out else possible).append(null.name)
        distances.append(
            NullDistance(
                name=null.name,
                null_std=null.std,
                std_ratio=std / null.std,
                z_std=(std - null.std) / error,
                implied_update=implied_update(std / null.std),
                abs_mean_gap=gap,
                z_abs_mean=z,
                bound=null.bound,
                distance=math.hypot(math.log(std / null.std), math.log(ratio / null.law.first) if ratio is not None else 0.0),
            )
        )
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
