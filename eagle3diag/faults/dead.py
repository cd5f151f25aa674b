"""Judge what is dead or broken in a :class:`WeightReport`: K3 and FM-22."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3diag.faults.base import some_of
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.weights import TensorWeights, WeightReport

DEAD_SHARE = 0.001
"""Share of all-zero rows or columns above which something was lost: training leaves none, a lost shard at least 1/1024 (K3)."""

WEAK_BLOCK = 0.10
"""An fc block below this share of the strongest block's Frobenius norm reads its aux state at under 1 % of the energy (K3)."""


def broken(report: WeightReport) -> Iterator[Finding]:
    """Not finite, empty, zero, constant, or with rows and columns of zeros."""
    yield from _nonfinite(report)
    yield from _zero(report)
    yield from _constant(report)
    yield from _zero_rows(report)


def _nonfinite(report: WeightReport) -> Iterator[Finding]:
    nonfinite = [t for t in report.tensors if t.nonfinite]
    if nonfinite:
        yield Finding(
            "K3",
            Severity.ERROR,
            f"NaN or infinite weights in {names_of(nonfinite)}",
            "One such entry makes every logit of the draft non-finite: nothing is accepted, or one token is repeated forever.",
            tuple(Evidence(f"{t.name}: non-finite entries of {t.size}", t.nonfinite, "0", t.checkpoint_name) for t in nonfinite),
            "Export again from the last checkpoint whose loss was finite; look for an overflow in a float16 conversion.",
            "weights() counts 0 non-finite entries.",
        )


def _zero(report: WeightReport) -> Iterator[Finding]:
    empty = [t for t in report.tensors if t.size == 0]
    zero = [t for t in report.tensors if _all_zero(t)]
    matrices = [t for t in zero if len(t.shape) >= 2]
    norms = [t for t in zero if len(t.shape) < 2 and "norm" in t.name]
    if lost := [*empty, *matrices]:
        yield Finding(
            "FM-22",
            Severity.ERROR,
            f"Empty or all-zero weights: {names_of(lost)}",
            "Training never leaves a whole matrix at zero; a save that gathers only one rank's part of a sharded tensor does.",
            tuple(Evidence(f"{t.name}: non-zero entries of {t.size}", t.size - t.zeros, "nearly all", t.checkpoint_name) for t in lost),
            "Gather the full state dict before saving (FSDP, ZeRO-3, DCP), and compare names and shapes with the trainer's parameters.",
            "weights() reports no empty and no zero tensor; then replay.",
        )
    if norms:
        yield Finding(
            "FM-22",
            Severity.WARNING,
            f"All-zero norm weights: {names_of(norms)}",
            "A norm that multiplies by its weight outputs zero. Zero is a normal start only where it multiplies by 1 + weight (Gemma).",
            tuple(Evidence(f"{t.name}: largest absolute entry", t.max_abs, "about 1", t.checkpoint_name) for t in norms),
            "Check the architecture in the config; export again when it is not a 1 + weight one.",
            "replay with the exported norms.",
        )


def _constant(report: WeightReport) -> Iterator[Finding]:
    constant = [t for t in report.tensors if t.constant and t.zeros != t.size and len(t.shape) >= 2]
    if constant:
        yield Finding(
            "K3",
            Severity.ERROR,
            f"Every entry is the same number in {names_of(constant)}",
            "A constant matrix has rank one and carries no information: a placeholder was saved.",
            tuple(Evidence(f"{t.name}: the one value", t.mean, "a spread of values", t.checkpoint_name) for t in constant),
            "Export again from the trained model.",
            "weights() reports no constant matrix.",
        )


def _zero_rows(report: WeightReport) -> Iterator[Finding]:
    for t in report.tensors:
        if _all_zero(t) or len(t.shape) < 2 or t.size == 0:
            continue
        columns = t.size // t.shape[0]
        lost_blocks = sum(b.frobenius == 0 for b in t.blocks)  # these have their own finding
        zero_columns = t.zero_columns - (lost_blocks * columns // len(t.blocks) if lost_blocks else 0)
        share = max(t.zero_rows / t.shape[0], zero_columns / columns)
        if share <= DEAD_SHARE:
            continue
        embedding = t.name.startswith("embed_tokens")  # padding and unused ids are zero in many targets
        yield Finding(
            "K3" if embedding else "FM-22",
            Severity.NOTE if embedding else Severity.WARNING,
            f"{t.name} has {t.zero_rows} zero rows and {zero_columns} zero columns",
            "Padding ids of an embedding are often zero."
            if embedding
            else "Training moves every row and column; zeros suggest a part that was not gathered.",
            (Evidence(f"{t.name}: largest share of zero rows or columns", share, f"<= {DEAD_SHARE:g}", t.checkpoint_name),),
            "" if embedding else "Compare this tensor with the trainer's own copy; gather shards before saving.",
            "" if embedding else "weights() counts no zero rows or columns; then replay.",
        )


def _all_zero(t: TensorWeights) -> bool:
    return t.size > 0 and t.zeros == t.size


def weak_blocks(report: WeightReport) -> Iterator[Finding]:
    """A block of fc that reads nothing, or next to nothing, of its aux state."""
    for t in report.tensors:
        top = max((b.frobenius for b in t.blocks), default=0.0)
        weak = [b for b in t.blocks if b.frobenius < WEAK_BLOCK * top]
        if not weak:
            continue
        zero = any(b.frobenius == 0 for b in weak)
        which = f"aux state{'s' if len(weak) > 1 else ''} {', '.join(str(b.block + 1) for b in weak)} of {len(t.blocks)}"
        yield Finding(
            "FM-22",
            Severity.ERROR if zero else Severity.WARNING,
            f"fc {'does not read' if zero else 'hardly reads'} {which}",
            "The columns of this state are nearly zero compared with the others'. A lost shard does that; "
            "so does training on a dump in which the state was zero.",
            tuple(
                Evidence(f"{t.name}: Frobenius norm of block {b.block}", b.frobenius, f">= {WEAK_BLOCK:g} x {top:.4g}", t.checkpoint_name)
                for b in weak
            ),
            "Gather fc before saving; look at this block in the training dump.",
            "compare() on the training dump shows this block alive; weights() shows blocks of one size.",
        )


def names_of(tensors: list[TensorWeights]) -> str:
    return some_of([t.name for t in tensors])
