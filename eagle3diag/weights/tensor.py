"""One weight, measured: :class:`TensorWeights`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from eagle3diag.checkpoints.tensors import dtype_name
from eagle3diag.weights import laws, nulls, values
from eagle3diag.weights.grid import Grid, grid
from eagle3diag.weights.moments import Moments, NormSpread, moments, spread, thin, tiles
from eagle3diag.weights.nulls import NullDistance, Structure
from eagle3diag.weights.spectrum import Spectrum, spectrum
from eagle3diag.weights.values import Values

Spectra = Literal["auto", "full", "none"]
SERIES = 300
PLAIN_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

EXACT_FLOPS = 1.2e11
"""Above this cost of the Gram matrix (2 m^2 n; 2048 x 8192 is 6.9e10, a few seconds on one thread) ``auto`` settles for the top."""

BLOCK_WIDTH, BLOCK_STEPS = 16, 8


@dataclass(frozen=True)
class BlockWeights:
    """The columns of fc that read one aux state, counted from 0 in the order of concatenation.

    ``stable_rank``, and ``outside`` with its ``outside_energy`` (singular values above the edge of noise with this block's shape and std, and
    their share of its energy) are None without spectra; of a large fc they are lower bounds, the stable rank an upper one.
    """

    block: int
    frobenius: float
    std: float
    stable_rank: float | None
    outside: int | None = None
    outside_energy: float | None = None


@dataclass(frozen=True)
class TensorWeights:
    """One floating tensor, measured; see :class:`~eagle3diag.weights.moments.Moments` for the moments' definitions.

    ``name`` is canonical, ``checkpoint_name`` the file's. ``fan_in`` is the number of columns (None for one dimension). ``looked_at`` entries
    are behind ``abs_mean``, ``kurtosis`` and the laws: all of them up to 16 million, else evenly spaced rows.
    The norm series are in the order of the tensor, thinned evenly to 300. ``tiles`` is the root mean square in a 6 x 12 grid over that of the
    whole. ``blocks`` is filled for ``fc.weight`` only. ``note`` says what was not measured, and why; empty when everything was.
    """

    name: str
    checkpoint_name: str
    shape: tuple[int, ...]
    dtype: str
    size: int
    looked_at: int
    fan_in: int | None
    mean: float
    std: float
    abs_mean: float
    max_abs: float
    kurtosis: float
    zeros: int
    nonfinite: int
    constant: bool
    row_norms: NormSpread | None
    column_norms: NormSpread | None
    row_norm_series: tuple[float, ...]
    column_norm_series: tuple[float, ...]
    zero_rows: int
    zero_columns: int
    tiles: tuple[tuple[float, ...], ...]
    blocks: tuple[BlockWeights, ...]
    structure: Structure | None
    grid: Grid | None
    spectrum: Spectrum | None
    nulls: tuple[NullDistance, ...]
    nearest_null: str | None
    note: str = ""

    def null(self, name: str) -> NullDistance | None:
        """The distance to the null of this name; None when it was not tested."""
        return next((n for n in self.nulls if n.name == name), None)


def measure(
    name: str,
    tensor: Tensor,
    *,
    checkpoint_name: str | None = None,
    n_aux: int | None = None,
    initializer_range: float | None = None,
    spectra: Spectra = "auto",
) -> TensorWeights:
    """Measure one floating ``tensor``. ``fc.weight [H, n_aux * H]`` is cut into ``n_aux`` column blocks (default: columns / rows)."""
    tensor = tensor.detach()
    shape, dtype = tuple(tensor.shape), tensor.dtype
    notes: list[str] = []
    candidates = laws.nulls_for(shape, initializer_range=initializer_range)
    if dtype not in PLAIN_DTYPES:
        candidates = laws.CONSTANTS
        notes.append(f"{dtype} entries are codes in units of a scale: not compared with initialisations")
    m = moments(tensor)
    distances = tuple(nulls.distance(null, m, dtype) for null in candidates)
    nearest = min(distances, key=lambda d: d.distance)
    count = _block_count(name, tensor, n_aux)
    whole, parts = _values(tensor, count, _exact(name, tensor, m, spectra, notes))
    blocks = _blocks(m, parts, count)
    matrix = tensor.dim() == 2 and m.nonfinite == 0
    return TensorWeights(
        name=name,
        checkpoint_name=checkpoint_name or name,
        shape=shape,
        dtype=dtype_name(dtype),
        size=m.size,
        looked_at=m.entries.size,
        fan_in=math.prod(shape[1:]) if len(shape) >= 2 else None,
        mean=m.mean,
        std=m.std,
        abs_mean=m.abs_mean,
        max_abs=m.max_abs,
        kurtosis=m.kurtosis,
        zeros=m.zeros,
        nonfinite=m.nonfinite,
        constant=m.constant,
        row_norms=spread(m.row_norms),
        column_norms=spread(m.column_norms),
        row_norm_series=thin(m.row_norms, SERIES),
        column_norm_series=thin(m.column_norms, SERIES),
        zero_rows=m.zero_rows,
        zero_columns=m.zero_columns,
        tiles=tiles(m),
        blocks=blocks,
        structure=nulls.structure(m, [b.frobenius for b in blocks]) if m.nonfinite == 0 else None,
        grid=grid(tensor) if matrix and not m.constant else None,
        spectrum=spectrum(whole, tensor.shape[0], tensor.shape[1], m.std, m.square) if whole is not None else None,
        nulls=distances,
        nearest_null=nearest.name if math.isfinite(nearest.distance) else None,
        note="; ".join(notes),
    )


def _exact(name: str, tensor: Tensor, m: Moments, spectra: Spectra, notes: list[str]) -> bool | None:
    """Whether to compute all singular values (True), the top (False) or none (None, with the reason added to ``notes``)."""
    if tensor.dim() != 2 or min(tensor.shape) < 2:
        return None
    if m.nonfinite:
        notes.append("no spectrum: the matrix has non-finite entries")
    elif not m.std > 0:
        notes.append("no spectrum: the matrix is constant")
    elif spectra == "none":
        notes.append("no spectrum: not asked for")
    elif spectra == "full" or values.cost(*tensor.shape) <= EXACT_FLOPS:
        return True
    elif name.startswith("embed_tokens"):
        notes.append("no spectrum: a large embedding, as a rule the target's copy; spectra='full' computes it")
    else:
        return False
    return None


def _block_count(name: str, tensor: Tensor, n_aux: int | None) -> int:
    """How many equal column blocks fc has; 0 for other tensors, and when the width is not a multiple (an audit's business)."""
    if name != "fc.weight" or tensor.dim() != 2 or tensor.numel() == 0:
        return 0
    rows, columns = tensor.shape
    count = n_aux or (columns // rows if columns % rows == 0 else 1)
    return count if count > 1 and columns % count == 0 else 0


def _values(tensor: Tensor, count: int, exact: bool | None) -> tuple[Values | None, list[Values]]:
    """Singular values of the whole and of its ``count`` column blocks; the Gram matrix of a wide fc is the sum of its blocks'."""
    if exact is None:
        return None, []
    blocks = tensor.chunk(count, dim=1) if count else ()
    if not exact or values.cost(*tensor.shape) > values.DOUBLE_FLOPS:
        found = [values.krylov(values.wide(b), BLOCK_WIDTH, BLOCK_STEPS).values for b in blocks]
        whole = values.wide(tensor)
        return values.from_gram(values.gram(whole)) if exact else values.krylov(whole).values, found
    grams = [values.gram(values.wide(b)) for b in blocks]
    found = [values.from_gram(g) for g in grams]
    summed = grams and all(len(g) == tensor.shape[0] for g in grams)
    return values.from_gram(torch.stack(grams).sum(0) if summed else values.gram(values.wide(tensor))), found


def _blocks(m: Moments, found: list[Values], count: int) -> tuple[BlockWeights, ...]:
    if not count or m.band_squares is None or m.column_sums is None:
        return ()
    sums, squares = m.column_sums.chunk(count), m.band_squares.sum(0).chunk(count)
    rows, columns = m.row_norms.numel() if m.row_norms is not None else 0, len(sums[0])
    blocks = []
    for index in range(count):
        square = float(squares[index].sum())
        std = math.sqrt(max(0.0, square / (rows * columns) - (float(sums[index].sum()) / (rows * columns)) ** 2))
        rank = outside = energy = None
        if found and std > 0:
            s = spectrum(found[index], rows, columns, std, square)
            rank, outside, energy = s.stable_rank, s.outside, s.outside_energy
        elif found:
            rank, outside, energy = 0.0, 0, 0.0
        blocks.append(BlockWeights(index, math.sqrt(square), std, rank, outside, energy))
    return tuple(blocks)
