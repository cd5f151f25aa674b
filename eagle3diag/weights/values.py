"""Singular values of a matrix that may lie on disk: all of them through its Gram matrix, or the top and the shape through a Krylov space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

DOUBLE_FLOPS = 2e10
"""Up to this cost (1500 x 4500) a Gram matrix is summed in float64, within a second on one thread; above it in float32, at half the time."""

ROUNDING = {torch.float64: (1e-14, 1e-13), torch.float32: (1.7e-6, 5e-5)}
"""Error of an eigenvalue of a Gram matrix: of the largest one, and of itself. Float32 measured against float64 on noise and on decaying spectra
from 512 x 1536 on: 1e-6 and 8e-6 at most; the rest is room for larger ones."""

WIDTH, STEPS = 64, 17
"""Directions of a block and products with it. On the spectrum of pure noise, where no value stands apart and convergence is slowest, 64 x 16
gives the 64 largest values of [7168, 21504] to 8e-4 (``benchmarks/weights_krylov.py``); on a trained matrix they converge in half of that."""

_SLAB = 1 << 22
_PANEL = 256


@dataclass(frozen=True, eq=False)
class Values:
    """Singular values of a matrix whose shorter side is ``m``.

    ``values [k]`` descend, float64. ``shares [k]`` sum to one: 1/m each when ``exact``; of a Krylov space they are the weights of a
    quadrature, with which ``sum(shares * f(values))`` is the mean of a smooth ``f`` over all m values (Golub and Meurant 2010).
    ``errors [k]``: absolute; a bound of the rounding when exact, else the Ritz residual's estimate. Krylov values are lower bounds.
    """

    values: Tensor
    shares: Tensor
    errors: Tensor
    exact: bool


def wide(matrix: Tensor) -> Tensor:
    """``matrix`` or its transpose, whichever has no more rows than columns."""
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T


def cost(rows: int, columns: int) -> float:
    """Floating-point operations of the full Gram matrix of the short side."""
    m, n = sorted((rows, columns))
    return 2.0 * m * m * n


def slabs(matrix: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """``[m, k]`` columns of ``matrix [m, n]`` from left to right, converted one slab (at most 4 million entries) at a time."""
    for slab in matrix.split(max(1, _SLAB // matrix.shape[0]), dim=1):
        yield slab.to(dtype)


def gram(matrix: Tensor) -> Tensor:
    """``W W^T [m, m]`` of ``matrix [m, n]``, m <= n: only the lower triangle is filled, which halves the work."""
    m, n = matrix.shape
    dtype = torch.float64 if cost(m, n) <= DOUBLE_FLOPS else torch.float32
    found = torch.zeros(m, m, dtype=dtype)
    for slab in slabs(matrix, dtype):
        for start in range(0, m, _PANEL):
            panel = slice(start, min(start + _PANEL, m))
            found[panel, : panel.stop].addmm_(slab[panel], slab[: panel.stop].T)
    return found


def from_gram(found: Tensor) -> Values:
    """All singular values from a Gram matrix whose lower triangle is filled."""
    squares = torch.linalg.eigvalsh(found, UPLO="L").double().clamp(min=0).flip(0)
    values = squares.sqrt()
    of_top, of_itself = ROUNDING[found.dtype]
    slip = of_top * float(squares[0]) + of_itself * squares
    # d(sqrt x) = dx / (2 sqrt x); a value lost in the rounding of the largest is known to its root only
    errors = torch.minimum(slip / (2 * values.clamp(min=1e-300)), slip.sqrt())
    return Values(values, torch.full_like(values, 1 / len(values)), errors, True)


@dataclass(frozen=True, eq=False)
class Krylov:
    """A Krylov space of ``W W^T``: Ritz ``values`` and the ``vectors [m, k]`` (float32) of the leading ones, in the same order."""

    values: Values
    vectors: Tensor


def krylov(matrix: Tensor, width: int = WIDTH, steps: int = STEPS, keep: int = 0) -> Krylov:
    """Block Lanczos with full reorthogonalisation on ``matrix [m, n]``, m <= n: float32 products, a fixed random start.

    The matrix is read ``steps`` times, a slab at a time, and never held in float. Rayleigh-Ritz values cannot exceed the true ones, so no
    value found above an edge is an artefact (Musco and Musco 2015). Memory: ``2 m width steps`` float32.
    """
    m = matrix.shape[0]
    width = min(width, m)
    steps = max(1, min(steps, m // width))
    basis = torch.empty(m, width * steps)
    carried = torch.zeros(width * steps, width * steps, dtype=torch.float64)
    block = torch.linalg.qr(torch.randn(m, width, generator=torch.Generator().manual_seed(0))).Q
    for step in range(steps):
        here = slice(step * width, (step + 1) * width)
        basis[:, here] = block
        grown = torch.zeros(m, width)
        for slab in slabs(matrix, torch.float32):
            grown.addmm_(slab, slab.T @ block)
        so_far = basis[:, : here.stop]
        first = so_far.T @ grown
        carried[: here.stop, here] = first.double()
        grown -= so_far @ first
        grown -= so_far @ (so_far.T @ grown)  # twice is enough (Kahan; Parlett 1980)
        block, rest = torch.linalg.qr(grown)
        block, again = torch.linalg.qr(block - so_far @ (so_far.T @ block))  # a space that is exhausted leaves directions of rounding
        rest = again @ rest
        if step + 1 < steps:
            carried[here.stop : here.stop + width, here] = rest.double()
    squares, vectors = torch.linalg.eigh((carried + carried.T) / 2)
    squares, vectors = squares.clamp(min=0).flip(0), vectors.flip(1)
    values = squares.sqrt()
    residual = (rest.double() @ vectors[-width:]).norm(dim=0)
    # Kato and Temple: residual^2 / gap, the gap being that to the value which one block's width of others separates from this one
    gap = squares - torch.cat([squares[width:], squares.new_zeros(min(width, len(squares)))])
    errors = torch.minimum(residual, residual.square() / gap.clamp(min=1e-300)) / (2 * values.clamp(min=1e-300)) + 1e-6 * values[0]
    shares = vectors[:width].square().sum(0) / width
    return Krylov(Values(values, shares / shares.sum(), errors, False), basis @ vectors[:, :keep].float())


def leading(matrix: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ``k`` leading singular triples ``U [R, k]``, ``s [k]``, ``V [C, k]`` of ``matrix [R, C]``, float32, through a small Krylov space."""
    w = wide(matrix)
    k = min(k, w.shape[0])
    found = krylov(w, width=min(2 * k, 48), steps=10, keep=k)
    short = found.vectors
    long = torch.cat([slab.T @ short for slab in slabs(w, torch.float32)])
    scale = long.norm(dim=0)
    long = long / scale.clamp(min=1e-30)
    return (short, scale, long) if w is matrix else (long, scale, short)
