"""Spread of counts: variance and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959963984540054


def variance(reached: Sequence[float]) -> float:
    """Variance of a count from its tails, ``reached[i] = P(A > i)``: E[A] is their sum, E[A^2] = sum (2i + 1) P(A > i).

    >>> variance((0.5, 0.25)), variance((1.0, 1.0))
    (0.6875, 0.0)
    """
    return max(sum((2 * i + 1) * share for i, share in enumerate(reached)) - sum(reached) ** 2, 0.0)


def wilson(hits: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's 95 % interval of a share (Wilson 1927): sensible at 0 and at n, where the normal one is not.

    >>> [round(x, 3) for x in wilson(0, 100)], [round(x, 2) for x in wilson(2, 24)]
    ([0.0, 0.037], [0.02, 0.26])
    """
    if n <= 0:
        return 0.0, 1.0
    p = hits / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def exact(hits: int, n: int) -> tuple[float, float]:
    """The exact 95 % interval of a share (Clopper and Pearson 1934): it never covers less often than it says.

    >>> [round(x, 2) for x in exact(2, 24)], [round(x, 3) for x in exact(0, 100)]
    ([0.01, 0.27], [0.0, 0.036])
    """
    from scipy.special import betaincinv  # not at import: only counts need it

    if n <= 0:
        return 0.0, 1.0
    low = 0.0 if hits <= 0 else float(betaincinv(hits, n - hits + 1, 0.025))
    high = 1.0 if hits >= n else float(betaincinv(hits + 1, n - hits, 0.975))
    return low, high
