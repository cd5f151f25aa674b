"""How the accept length of a log moves: over uptime, with context, with load. Numbers only; what they mean is judged in ``faults``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from eagle3diag.intervals import Z95
from eagle3diag.serving.lines import Window


@dataclass(frozen=True)
class Mean:
    """Mean accept length of ``n`` windows, and half its 95 % interval.

    Neighbouring windows resemble each other (one prompt spans several), so the standard error is widened by their lag-1 correlation r:
    by sqrt((1 + r) / (1 - r)), as for a first-order autoregression.
    """

    n: int
    mean: float
    half: float

    def above(self, other: Mean) -> tuple[float, float]:
        """By how much this mean is above the other, and half the 95 % interval of the difference."""
        return self.mean - other.mean, math.hypot(self.half, other.half)


@dataclass(frozen=True)
class Octave:
    """Windows whose value lies in ``[low, 2 * low)``."""

    low: float
    lengths: Mean


@dataclass(frozen=True)
class Drift:
    """The first and the last tenth of a log. ``hours``: from the first window to the last, None where the log has no times. ``lost``: by
    how much the first is above the last among windows of the same octave of load, weighed by how many there are; None where none is shared."""

    first: Mean
    last: Mean
    hours: float | None
    lost: float | None


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and its interval over values in the order of time.

    >>> mean_of([1.0, 2.0] * 50).mean
    1.5
    """
    n = len(values)
    if n == 0:
        return Mean(0, math.nan, math.inf)
    mean = sum(values) / n
    spread = sum((v - mean) ** 2 for v in values)
    if n < 3 or spread == 0:
        return Mean(n, mean, math.inf if n < 3 else 0.0)
    r = sum((a - mean) * (b - mean) for a, b in pairwise(values)) / spread
    r = min(max(r + (1 + 4 * r) / n, 0.0), 0.95)  # r itself is too small by that much (Kendall 1954)
    return Mean(n, mean, Z95 * math.sqrt(spread / (n - 1) / n * (1 + r) / (1 - r)))


def drift(windows: Sequence[Window]) -> Drift | None:
    """First against last tenth; None under 30 windows, where a tenth has no mean worth the name."""
    if len(windows) < 30:
        return None
    tenth = len(windows) // 10
    times = [w.time for w in (windows[0], windows[-1])]
    hours = None if times[0] is None or times[1] is None else (times[1] - times[0]) / 3600
    lengths = [w.accept_length for w in windows]
    return Drift(mean_of(lengths[:tenth]), mean_of(lengths[-tenth:]), hours, _lost(windows[:tenth], windows[-tenth:]))


def _lost(first: Sequence[Window], last: Sequence[Window]) -> float | None:
    groups: tuple[dict[int, list[float]], dict[int, list[float]]] = ({}, {})
    for windows, group in zip((first, last), groups, strict=True):
        for window in windows:  # an idle server and one that does not say are groups of their own
            load = -1 if window.running is None else window.running.bit_length()
            group.setdefault(load, []).append(window.accept_length)
    shared = [(a, groups[1][load]) for load, a in groups[0].items() if load in groups[1]]
    weights = [min(len(a), len(b)) for a, b in shared]
    falls = [sum(a) / len(a) - sum(b) / len(b) for a, b in shared]
    return sum(n * fall for n, fall in zip(weights, falls, strict=True)) / sum(weights) if weights else None


def octaves(windows: Sequence[Window], value: Callable[[Window], float | None]) -> tuple[Octave, ...]:
    """Windows grouped by powers of two of a positive ``value``, ascending; those without it are left out."""
    groups: dict[int, list[float]] = {}
    for window in windows:
        at = value(window)
        if at is not None and at >= 1:
            groups.setdefault(math.floor(math.log2(at)), []).append(window.accept_length)
    return tuple(Octave(2.0**power, mean_of(lengths)) for power, lengths in sorted(groups.items()))


def by_context(windows: Sequence[Window]) -> tuple[Octave, ...]:
    """Accept length by tokens of context a running request."""
    return octaves(windows, lambda w: w.context)


def by_load(windows: Sequence[Window]) -> tuple[Octave, ...]:
    """Accept length by running requests."""
    return octaves(windows, lambda w: w.running)
