"""How exact the Krylov space is at full size, on spectra that are known: noise of any shape, and noise with a signal on it.

    python benchmarks/weights_krylov.py [--shape 7168,21504]

Lanczos from a random start sees nothing of a matrix but its singular values, so a diagonal of them stands in for the matrix. Those of a normal
matrix are drawn through its bidiagonal form (Dumitriu and Edelman 2002), without the matrix. A minute or two on one thread.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from eagle3diag.weights.spectrum import fit_bulk
from eagle3diag.weights.values import STEPS, WIDTH, Krylov, krylov


def noise_values(m: int, n: int, seed: int) -> Tensor:
    """Singular values, descending, of an ``m x n`` matrix of independent standard normals."""
    rng = np.random.default_rng(seed)
    a, b = np.sqrt(rng.chisquare(n - np.arange(m))), np.sqrt(rng.chisquare(m - 1 - np.arange(m - 1)))
    main = a**2
    main[1:] += b**2
    squares = eigh_tridiagonal(main, a[:-1] * b, eigvals_only=True)
    return torch.from_numpy(np.sqrt(np.sort(squares)[::-1].clip(0)))


class Diagonal:
    """A square diagonal that the Krylov code reads like a matrix, without holding its zeros."""

    def __init__(self, values: Tensor) -> None:
        self.values, self.shape = values.float(), (len(values), len(values))

    def split(self, _: int, dim: int) -> tuple[Diagonal]:
        return (self,)

    def to(self, _: torch.dtype) -> Diagonal:
        return self

    @property
    def T(self) -> Diagonal:
        return self

    def __matmul__(self, block: Tensor) -> Tensor:
        return self.values[:, None] * block

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        target, diagonal, block = args  # addmm_(target, diagonal, block)
        return target.add_(diagonal @ block)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="7168,21504")
    m, n = sorted(int(side) for side in parser.parse_args().shape.split(","))
    torch.set_num_threads(1)
    noise = noise_values(m, n, 0)
    signal = torch.cat([noise[0] * torch.linspace(3, 1.02, 40, dtype=torch.float64), noise[40:]])
    print(f"[{m}, {n}], block of {WIDTH}, {STEPS} products")
    for name, truth in (("noise", noise), ("40 values above it", signal)):
        found: Krylov = krylov(Diagonal(truth))  # type: ignore[arg-type]
        values = found.values
        off = (1 - values.values[:64] / truth[:64]).abs()
        share = truth / truth.sum()
        rank = torch.exp(-(share * share.log()).sum())
        mean = (values.shares * values.values).sum()
        approx = m * mean * torch.exp((values.shares * torch.special.entr(values.values)).sum() / mean)
        bulk = fit_bulk(values, m, n)
        understated = (truth[:64] - values.values[:64] > 3 * values.errors[:64]).sum()
        print(
            f"{name:20s} 64 largest off by at most {off.max():.1e} (median {off.median():.1e}), errors understated {int(understated)}; "
            f"effective rank off by {approx / rank - 1:+.1e}; std of the bulk {bulk.std:.4f}, outside {int((~bulk.inside).sum())}"
        )


if __name__ == "__main__":
    main()
