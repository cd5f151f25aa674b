"""The weights of one draft, measured: :class:`WeightReport` and the walk over the checkpoint that fills it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from eagle3diag.errors import BadArgument, MissingPart
from eagle3diag.findings import Finding, Result
from eagle3diag.weights import nulls
from eagle3diag.weights.moments import Moments, Spread, moments, spread, thin
from eagle3diag.weights.nulls import NullDistance, Structure
from eagle3diag.weights.spectrum import EXACT_FLOPS, Spectrum, cost, gram_values, spectrum, top_values

if TYPE_CHECKING:
    from eagle3diag.checkpoints import Draft

Spectra = Literal["auto", "full", "none"]
SERIES = 600
NARROW = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class BlockWeights:
    """The columns of fc that read one aux state, counted from 0 in the order of concatenation; ``stable_rank`` None without spectra."""

    block: int
    frobenius: float
    std: float
    stable_rank: float | None


@dataclass(frozen=True)
class TensorWeights:
    """One floating tensor, measured; see :class:`~eagle3diag.weights.moments.Moments` for the moments' definitions.

    ``name`` is canonical, ``checkpoint_name`` the file's. ``fan_in`` is the number of columns (None for one dimension).
    The norm series are in the order of the tensor, thinned evenly to 600. ``blocks`` is filled for ``fc.weight`` only.
    ``note`` says what was not measured, and why; empty when everything was.
    """

    name: str
    checkpoint_name: str
    shape: tuple[int, ...]
    dtype: str
    size: int
    fan_in: int | None
    mean: float
    std: float
    abs_mean: float
    max_abs: float
    kurtosis: float
    zeros: int
    nonfinite: int
    constant: bool
    row_norms: Spread | None
    column_norms: Spread | None
    row_norm_series: tuple[float, ...]
    column_norm_series: tuple[float, ...]
    zero_rows: int
    zero_columns: int
    blocks: tuple[BlockWeights, ...]
    structure: Structure | None
    spectrum: Spectrum | None
    nulls: tuple[NullDistance, ...]
    nearest_null: str | None
    note: str = ""

    def null(self, name: str) -> NullDistance | None:
        """The distance to the null of this name; None when it was not tested."""
        return next((n for n in self.nulls if n.name == name), None)


@dataclass(frozen=True)
class WeightReport(Result):
    """Every floating tensor of a draft, by canonical name; ``skipped`` names the others (d2t, t2d, packed codes)."""

    draft: str
    tensors: tuple[TensorWeights, ...]
    total_parameters: int
    skipped: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        from eagle3diag.faults import judge

        return tuple(judge(self))

    def tensor(self, name: str) -> TensorWeights:
        """The tensor of this canonical name; raises :class:`~eagle3diag.errors.MissingPart`."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise MissingPart(f"no floating tensor {name!r}", where=self.draft, hint="it has " + ", ".join(t.name for t in self.tensors))


def weights(draft: str | os.PathLike[str] | Draft | Mapping[str, Tensor], *, spectra: Spectra = "auto") -> WeightReport:
    """Measure every floating tensor of a draft: moments, norms, noise-band spectrum, distance to each initialisation.

    Parameters
    ----------
    draft: a folder or file, an opened draft, or a mapping of canonical names to tensors.
    spectra: ``"auto"`` computes all singular values of matrices up to about 2048 x 8192 and the top of larger ones (the embedding,
        the target's copy as a rule, only when it is that small); ``"full"`` all of every matrix, minutes for a large fc;
        ``"none"`` leaves them out, and with them the one test that tells a fresh fc from a slightly trained one best.

    Raises
    ------
    UnreadableFile, UnsafeFile, MissingPart: as :func:`~eagle3diag.checkpoints.open_draft`; BadArgument: an unknown ``spectra``.

    >>> report = weights({"norm.weight": torch.ones(8)})
    >>> report.tensor("norm.weight").nearest_null
    'ones'
    """
    if spectra not in ("auto", "full", "none"):
        raise BadArgument(f"spectra={spectra!r}", where="weights", hint="one of 'auto', 'full', 'none'")
    aux: int | None = None
    scale: float | None = None
    if isinstance(draft, Mapping):
        label, named = "tensors in memory", [(name, name) for name in sorted(draft)]
        tensors: Mapping[str, Tensor] = draft
    else:
        from eagle3diag.checkpoints import open_draft

        opened = open_draft(draft)
        label, named, tensors = opened.name, sorted(opened.canonical().items()), opened.tensors
        aux, scale = opened.config.n_aux, _initializer_range(opened.config.raw)
    measured: list[TensorWeights] = []
    skipped: list[str] = []
    for name, key in named:
        tensor = tensors[key]
        if tensor.is_floating_point():
            measured.append(measure(name, tensor, checkpoint_name=key, n_aux=aux, initializer_range=scale, spectra=spectra))
        else:
            skipped.append(name)
    return WeightReport(label, tuple(measured), sum(t.size for t in measured), tuple(skipped))


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
    candidates = nulls.nulls_for(shape, initializer_range=initializer_range)
    if dtype not in NARROW:
        candidates = nulls.CONSTANTS
        notes.append(f"{dtype} entries are codes in units of a scale: not compared with initialisations")
    m = moments(tensor, [nulls.edge(null, tensor.numel(), dtype) for null in candidates])
    distances = tuple(nulls.distance(null, m, beyond, dtype) for null, beyond in zip(candidates, m.beyond, strict=True))
    nearest = min(distances, key=lambda d: d.distance)
    exact = _exact(name, tensor, m, spectra, notes)
    blocks = tuple(_blocks(tensor, n_aux, exact)) if name == "fc.weight" else ()
    return TensorWeights(
        name=name,
        checkpoint_name=checkpoint_name or name,
        shape=shape,
        dtype=str(dtype).removeprefix("torch."),
        size=m.size,
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
        blocks=blocks,
        structure=nulls.structure(m, [b.frobenius for b in blocks]) if m.nonfinite == 0 else None,
        spectrum=spectrum(tensor, m.std, m.square, exact=exact) if exact is not None else None,
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
    elif spectra == "full" or cost(*tensor.shape) <= EXACT_FLOPS:
        return True
    elif name.startswith("embed_tokens"):
        notes.append("no spectrum: a large embedding, as a rule the target's copy; spectra='full' computes it")
    else:
        return False
    return None


def _blocks(tensor: Tensor, n_aux: int | None, exact: bool | None) -> Iterator[BlockWeights]:
    """Equal column blocks of fc; none when the width is not a multiple (an audit's business) or there is only one."""
    if tensor.dim() != 2 or tensor.numel() == 0:
        return
    count = n_aux or (tensor.shape[1] // tensor.shape[0] if tensor.shape[1] % tensor.shape[0] == 0 else 1)
    if count < 2 or tensor.shape[1] % count:
        return
    for index, block in enumerate(tensor.chunk(count, dim=1)):
        m = moments(block)
        rank = None
        if exact is not None:
            top = float((gram_values(block) if exact else top_values(block))[0])
            rank = m.square / top**2 if top > 0 else 0.0
        yield BlockWeights(index, math.sqrt(m.square), m.std, rank)


def _initializer_range(raw: Mapping[str, object]) -> float | None:
    """The config's own initialisation scale, wherever its writer put it."""
    nested = raw.get("transformer_layer_config")
    for part in (raw, nested):
        if isinstance(part, Mapping):
            value = part.get("initializer_range")
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
                return float(value)
    return None
