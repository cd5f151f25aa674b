"""The weights of one draft, measured: :class:`WeightReport` and the walk over the checkpoint that fills it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3diag.checkpoints import TargetSource, open_target
from eagle3diag.dumps import open_dump
from eagle3diag.dumps.records import DumpSource
from eagle3diag.errors import BadArgument, MissingPart
from eagle3diag.findings import Result
from eagle3diag.weights.change import Against, changes
from eagle3diag.weights.opened import Source, opened
from eagle3diag.weights.origin import Origin, Overlap, origins, overlaps
from eagle3diag.weights.reading import FcReading, reading
from eagle3diag.weights.tensor import Spectra, TensorWeights, measure

if TYPE_CHECKING:
    from eagle3diag.faults.verdict import Verdict


@dataclass(frozen=True)
class WeightReport(Result):
    """Every floating tensor of a draft, by canonical name; ``skipped`` names the others (d2t, t2d, packed codes).

    ``origins`` and ``overlaps`` need the target, ``against`` other checkpoints, ``reading`` a dump; empty or None without.
    """

    draft: str
    tensors: tuple[TensorWeights, ...]
    total_parameters: int
    skipped: tuple[str, ...] = ()
    target: str | None = None
    origins: tuple[Origin, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    against: tuple[Against, ...] = ()
    reading: FcReading | None = None

    @property
    def verdicts(self) -> tuple[tuple[TensorWeights, Verdict], ...]:
        """Every tensor with what it is: fresh, trained, copied, dead. Judged when asked for, as the findings are."""
        from eagle3diag.faults.trained import verdicts

        return tuple(verdicts(self))

    def tensor(self, name: str) -> TensorWeights:
        """The tensor of this canonical name; raises :class:`~eagle3diag.errors.MissingPart`."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise MissingPart(f"no floating tensor {name!r}", where=self.draft, hint="it has " + ", ".join(t.name for t in self.tensors))

    def origin(self, name: str) -> Origin | None:
        """What of the target the tensor of this canonical name resembles; None when nothing has its shape, or no target was given."""
        return next((o for o in self.origins if o.tensor == name), None)


def weights(
    draft: Source,
    *,
    spectra: Spectra = "auto",
    target: TargetSource | None = None,
    dump: DumpSource | None = None,
    against: Source | Sequence[Source] | None = None,
) -> WeightReport:
    """Measure every floating tensor of a draft: moments, norms, noise-band spectrum, distance to each initialisation.

    Parameters
    ----------
    draft: a folder or file, an opened draft, or a mapping of canonical names to tensors.
    spectra: ``"auto"`` computes all singular values of matrices up to about 2048 x 8192, and the top and the shape of the spectrum of larger
        ones (the embedding, the target's copy as a rule, only when it is that small); ``"full"`` all of every matrix, minutes for a large
        fc; ``"none"`` leaves them out, and with them the one test that tells a fresh fc from a slightly trained one best.
    target: also look for what was copied from it, and where the leading directions meet its embedding and head.
    dump: also weigh fc by the states of a training dump: what it reads, and which order and norm of them it expects.
    against: one other checkpoint of the same draft or several (earlier epochs, the parent, the file before conversion), oldest first.

    Raises
    ------
    UnreadableFile, UnsafeFile, MissingPart: as :func:`~eagle3diag.checkpoints.open_draft`, ``open_target`` and ``open_dump``;
    MismatchedInputs: the dump is not of this draft's width; BadArgument: an unknown ``spectra``.

    >>> import torch
    >>> report = weights({"norm.weight": torch.ones(8)})
    >>> report.tensor("norm.weight").nearest_null
    'ones'
    """
    if spectra not in ("auto", "full", "none"):
        raise BadArgument(f"spectra={spectra!r}", where="weights", hint="one of 'auto', 'full', 'none'")
    this = opened(draft)
    others = [opened(other) for other in _several(against)]
    config = this.draft.config if this.draft is not None else None
    base = open_target(target) if target is not None else None
    states = open_dump(dump) if dump is not None else None
    scale, aux = (_initializer_range(config.raw), config.n_aux) if config is not None else (None, None)
    measured: list[TensorWeights] = []
    skipped: list[str] = []
    for name, key in sorted(this.names.items()):
        tensor = this.tensors[key]
        if tensor.is_floating_point():
            measured.append(measure(name, tensor, checkpoint_name=key, n_aux=aux, initializer_range=scale, spectra=spectra))
        else:
            skipped.append(name)
    return WeightReport(
        draft=this.label,
        tensors=tuple(measured),
        total_parameters=sum(t.size for t in measured),
        skipped=tuple(skipped),
        target=base.name if base is not None else None,
        origins=origins(this, base) if base is not None else (),
        overlaps=overlaps(this, base) if base is not None else (),
        against=tuple(changes(this, other) for other in others),
        reading=reading(this, states) if states is not None else None,
    )


def _several(against: Source | Sequence[Source] | None) -> Sequence[Source]:
    if against is None:
        return ()
    return against if isinstance(against, (list, tuple)) else (against,)


def _initializer_range(raw: Mapping[str, object]) -> float | None:
    """The config's own initialisation scale, wherever its writer put it."""
    nested = raw.get("transformer_layer_config")
    for part in (raw, nested):
        if isinstance(part, Mapping):
            value = part.get("initializer_range")
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
                return float(value)
    return None
