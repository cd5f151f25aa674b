"""Singular values of a weight, beside the band in which those of pure noise of the same shape and std would lie."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from eagle3diag.weights.moments import thin

TRACY_WIDOM_999 = 3.2724
"""0.999 quantile of the Tracy-Widom law of order 1 (recomputed from its Painleve form in the tests)."""

EXACT_FLOPS = 1.2e11
"""Above this cost of the Gram matrix (2 m^2 n; 2048 x 8192 is 6.9e10, a few seconds on one thread) ``auto`` settles for the top."""

KRYLOV_WIDTH, KRYLOV_STEPS = 24, 8
SERIES = 2000
CHUNK = 1 << 21


@dataclass(frozen=True)
class Spectrum:
    """Singular values of ``W [R, C]``, ``m = min(R, C)``, ``n = max(R, C)``, and the noise that they are compared with.

    Attributes
    ----------
    singular_values: descending, thinned evenly to 2000 when there are more (the 200 largest always kept).
    count: how many were computed; ``m`` when ``exact``.
    exact: False when only the top of the spectrum was approached: ``outside`` is then a lower bound, never an overestimate.
    method: what was done, in words.
    band_low, band_high: ``std * (sqrt(n) -/+ sqrt(m))``, where iid noise lies in the limit (Marchenko and Pastur 1967).
    tracy_widom_high: upper edge with the fluctuation of the largest value at finite size, 0.999 quantile (Johnstone 2001):
        ``std * sqrt(mu + 3.2724 s)``, ``mu = (sqrt(n-1) + sqrt(m))^2``, ``s = (sqrt(n-1) + sqrt(m)) (1/sqrt(n-1) + 1/sqrt(m))^(1/3)``.
    outside: values above ``tracy_widom_high``. ``outside_energy``: their share of the squared Frobenius norm.
    highest_over_edge: largest value / ``tracy_widom_high``.
    visible_energy: ``1 / sqrt(m n)``: a single learned direction with less than this share of the noise's energy does not leave
        the band, so that its absence proves nothing (Benaych-Georges and Nadakuditi 2012, their threshold in these units).
    stable_rank: squared Frobenius norm / largest singular value squared.
    effective_rank: exp of the entropy of ``s_i / sum(s)`` (Roy and Vetterli 2007); None unless ``exact``.
    bulk_std: std of the noise whose *median* singular value this would be. Learned outliers raise the plain std and leave this
        one at the start's, so it shows the initialisation under the training. None unless ``exact``.
    """

    singular_values: tuple[float, ...]
    count: int
    exact: bool
    method: str
    band_low: float
    band_high: float
    tracy_widom_high: float
    outside: int
    outside_energy: float
    highest_over_edge: float
    visible_energy: float
    stable_rank: float
    effective_rank: float | None
    bulk_std: float | None


def noise_band(rows: int, columns: int, std: float) -> tuple[float, float, float]:
    """``(band_low, band_high, tracy_widom_high)`` of the singular values of iid noise; see :class:`Spectrum`.

    >>> ["%.3f" % edge for edge in noise_band(7168, 21504, 0.004037)]
    ['0.250', '0.934', '0.936']
    """
    m, n = sorted((rows, columns))
    low, high = std * (math.sqrt(n) - math.sqrt(m)), std * (math.sqrt(n) + math.sqrt(m))
    if n < 2:
        return low, high, high
    root = math.sqrt(n - 1) + math.sqrt(m)
    scale = root * (1 / math.sqrt(n - 1) + 1 / math.sqrt(m)) ** (1 / 3)
    return low, high, std * math.sqrt(root**2 + TRACY_WIDOM_999 * scale)


@lru_cache(maxsize=64)
def noise_median(ratio: float) -> float:
    """Median of the Marchenko-Pastur law (unit variance) for the aspect ratio ``m / n`` in (0, 1].

    With ``x = mid + half cos(t)`` the density becomes smooth, so that a midpoint sum over ``t`` is exact to six digits.
    """
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
    mid, half = (low + high) / 2, (high - low) / 2
    steps = 20_000
    angles = (torch.arange(steps, dtype=torch.float64) + 0.5) * (math.pi / steps)
    x = mid + half * angles.cos()
    mass = (half * angles.sin()).square() / x
    below = mass.flip(0).cumsum(0) / mass.sum()
    return float(x.flip(0)[int(torch.searchsorted(below, 0.5))])


def _slabs(wide: Tensor, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """Columns ``[m, k]`` of ``wide [m, n]`` from left to right, converted one slab at a time."""
    step = max(1, CHUNK // wide.shape[0])
    for start in range(0, wide.shape[1], step):
        yield start, wide[:, start : start + step].to(dtype)


def _roots(gram: Tensor) -> Tensor:
    """Square roots of the eigenvalues, descending; rounding may leave the smallest a hair below zero."""
    values: Tensor = torch.linalg.eigvalsh(gram)
    return values.clamp(min=0).sqrt().flip(0)


def gram_values(matrix: Tensor) -> Tensor:
    """All singular values of ``matrix [R, C]``, descending, float64, through the float64 Gram matrix of its short side.

    A value below about 1e-8 of the largest is lost in rounding; no statistic here looks that deep.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    gram = torch.zeros(wide.shape[0], wide.shape[0], dtype=torch.float64)
    for _, slab in _slabs(wide, torch.float64):
        gram.addmm_(slab, slab.T)
    return _roots(gram)


def top_values(matrix: Tensor, width: int = KRYLOV_WIDTH, steps: int = KRYLOV_STEPS) -> Tensor:
    """Lower bounds of the largest singular values of ``matrix [R, C]``, descending, float32 arithmetic, a fixed seed.

    Block Krylov iteration (Musco and Musco 2015): the matrix is read ``2 steps + 1`` times and never held in float.
    Rayleigh-Ritz values cannot exceed the true ones, so no value found above an edge is an artefact.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    m = wide.shape[0]
    width = min(width, m)
    block = torch.linalg.qr(torch.randn(m, width, generator=torch.Generator().manual_seed(0))).Q
    blocks = [block]
    for _ in range(min(steps, max(1, m // width)) - 1):
        grown = torch.zeros_like(block)
        for _, slab in _slabs(wide, torch.float32):
            grown.addmm_(slab, slab.T @ block)
        block = torch.linalg.qr(grown).Q
        blocks.append(block)
    basis = torch.linalg.qr(torch.cat(blocks, 1)).Q
    gram = torch.zeros(basis.shape[1], basis.shape[1], dtype=torch.float64)
    for _, slab in _slabs(wide, torch.float32):
        projected = (basis.T @ slab).double()
        gram.addmm_(projected, projected.T)
    return _roots(gram)


def spectrum(matrix: Tensor, std: float, square: float, *, exact: bool) -> Spectrum:
    """Measure ``matrix [R, C]`` (finite, any floating dtype), given its entries' ``std`` and their sum of squares."""
    m, n = sorted(matrix.shape)
    values = gram_values(matrix) if exact else top_values(matrix)
    low, high, edge = noise_band(m, n, std)
    outside = values > edge
    top = float(values[0])
    shares = values / values.sum() if exact and top > 0 else None
    if exact:
        method = "all values, float64 Gram matrix of the short side"
    else:
        method = f"top of the spectrum only, lower bounds from a block Krylov space of {values.numel()} directions, float32"
    head, tail = values[:200], values[200:]
    return Spectrum(
        singular_values=tuple(float(v) for v in head) + thin(tail, SERIES - 200),
        count=values.numel(),
        exact=exact,
        method=method,
        band_low=low,
        band_high=high,
        tracy_widom_high=edge,
        outside=int(outside.sum()),
        outside_energy=float(values[outside].square().sum()) / square if square > 0 else 0.0,
        highest_over_edge=top / edge if edge > 0 else math.nan,
        visible_energy=1 / math.sqrt(m * n),
        stable_rank=square / top**2 if top > 0 else 0.0,
        effective_rank=math.exp(float(torch.special.entr(shares).sum())) if shares is not None else None,
        bulk_std=float(values.quantile(0.5)) / math.sqrt(n * noise_median(m / n)) if exact else None,
    )


def cost(rows: int, columns: int) -> float:
    """Floating-point operations of the exact spectrum: the Gram matrix of the short side."""
    m, n = sorted((rows, columns))
    return 2.0 * m * m * n
