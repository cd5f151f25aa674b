"""Judge a :class:`WeightReport`: dead, broken, still at its initialisation, or trained although its std says otherwise.

Every threshold below was set on random starts of 40 seeds, 5 shapes, 4 laws and 2 dtypes (1600 matrices): no z exceeded 3.6 and no
singular value the edge. The calibration is repeated in ``tests/unit/test_trained.py``, which counts errors on seeds kept apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.weights.nulls import NullDistance
from eagle3diag.weights.printed import FromMoments
from eagle3diag.weights.report import WeightReport
from eagle3diag.weights.tensor import TensorWeights

Z_LIMIT = 5.0
"""Largest |z| that chance is granted. A draft gives some forty z; below 5 chance keeps 40 of them together in all but 2 in 100,000."""

STD_CLOSE, KURTOSIS_CLOSE = 0.005, 0.02
"""Effects too small to matter however large z is (a matrix of 1.5e8 entries has z = 5 at a std 0.02 % off)."""

NEAR_STD = 0.10
"""Within this of an initialisation's std a reader takes the tensor for fresh: the seed case's fc was 2.5 % above."""

DEAD_SHARE = 0.001
"""Share of all-zero rows or columns above which something was lost: training leaves none, a lost shard at least 1/1024 (K3)."""

WEAK_BLOCK = 0.10
"""An fc block below this share of the strongest block's Frobenius norm reads its aux state at under 1 % of the energy (K3)."""

SMALLEST_SIDE = 16
"""Matrices with a shorter side have too few singular values and norms to tell learning from chance."""

State = Literal["initial", "noise", "learned", "unknown"]


@dataclass(frozen=True)
class Verdict:
    """What one matrix is: ``initial`` (no structure, law and scale of ``null``), ``noise`` (no structure, no known start),
    ``learned`` (``signs`` of structure, in words), ``unknown`` (too small, constant or not finite)."""

    state: State
    null: NullDistance | None = None
    signs: tuple[str, ...] = ()


def verdict(tensor: TensorWeights) -> Verdict:
    """Fresh or trained? Structure decides; std, mean and kurtosis only name the start of a matrix that has none.

    The four signs of structure: singular values above the noise edge, and row, column or fc block norms that differ more than iid
    entries allow. One suffices, because each has a false-alarm rate of at most 0.001.
    """
    s = tensor.structure
    if len(tensor.shape) != 2 or min(tensor.shape) < SMALLEST_SIDE or tensor.nonfinite or tensor.constant or s is None:
        return Verdict("unknown")
    signs = []
    if tensor.spectrum and tensor.spectrum.outside:
        signs.append(f"{tensor.spectrum.outside} singular values above the noise edge")
    for kind, z in (("row", s.z_row), ("column", s.z_column)):
        if abs(z) > Z_LIMIT:
            signs.append(f"{kind} norms {'more' if z > 0 else 'less'} spread than noise (z {z:.1f})")
    if s.z_block is not None and s.z_block > Z_LIMIT:  # a low z only says that three blocks are alike
        signs.append(f"blocks of unequal norm (z {s.z_block:.1f})")
    if signs:
        return Verdict("learned", _near(tensor), tuple(signs))
    fresh = [n for n in tensor.nulls if _is(n)]
    if fresh:
        return Verdict("initial", min(fresh, key=lambda n: n.distance))
    return Verdict("noise", _near(tensor))


def _is(null: NullDistance) -> bool:
    """Law and scale of this null, within chance or within an effect that does not matter; no entry beyond a uniform's bound."""
    if null.std_ratio is None or null.z_std is None or null.kurtosis_gap is None or null.z_kurtosis is None:
        return False
    return (
        (abs(null.std_ratio - 1) <= STD_CLOSE or abs(null.z_std) <= Z_LIMIT)
        and (abs(null.kurtosis_gap) <= KURTOSIS_CLOSE or abs(null.z_kurtosis) <= Z_LIMIT)
        and not ("uniform" in null.name and null.beyond)
    )


def _near(tensor: TensorWeights) -> NullDistance | None:
    """The nearest of the starts that draft trainers use whose std this tensor's is within NEAR_STD of."""
    usual = (n for n in tensor.nulls if n.name.startswith(("uniform_fan_in", "normal_")))
    return min((n for n in usual if n.std_ratio is not None and abs(n.std_ratio - 1) <= NEAR_STD), key=lambda n: n.distance, default=None)


def judge_weights(report: WeightReport) -> tuple[Finding, ...]:
    """Findings of a weight report, most severe first; a healthy draft gives notes at most."""
    found = [*_broken(report), *_weak_blocks(report), *_untrained(report), *_notes(report)]
    return tuple(sorted(found, key=lambda f: -f.severity))


def _broken(report: WeightReport) -> Iterator[Finding]:
    nonfinite = [t for t in report.tensors if t.nonfinite]
    if nonfinite:
        yield Finding(
            "K3",
            Severity.ERROR,
            f"NaN or infinite weights in {_names(nonfinite)}",
            "One such entry makes every logit of the draft non-finite: nothing is accepted, or one token is repeated for ever.",
            tuple(Evidence(f"{t.name}: non-finite entries of {t.size}", t.nonfinite, "0", t.checkpoint_name) for t in nonfinite),
            "Export again from the last checkpoint whose loss was finite; look for an overflow in a float16 conversion.",
            "weights() counts 0 non-finite entries.",
        )
    empty = [t for t in report.tensors if t.size == 0]
    zero = [t for t in report.tensors if t.size and t.zeros == t.size]
    matrices = [t for t in zero if len(t.shape) >= 2]
    norms = [t for t in zero if len(t.shape) < 2 and "norm" in t.name]
    if lost := [*empty, *matrices]:
        yield Finding(
            "FM-22",
            Severity.ERROR,
            f"Empty or all-zero weights: {_names(lost)}",
            "Training never leaves a whole matrix at zero; a save that gathers only one rank's part of a sharded tensor does.",
            tuple(Evidence(f"{t.name}: non-zero entries of {t.size}", t.size - t.zeros, "nearly all", t.checkpoint_name) for t in lost),
            "Gather the full state dict before saving (FSDP, ZeRO-3, DCP), and compare names and shapes with the trainer's parameters.",
            "weights() reports no empty and no zero tensor; then replay.",
        )
    if norms:
        yield Finding(
            "FM-22",
            Severity.WARNING,
            f"All-zero norm weights: {_names(norms)}",
            "A norm that multiplies by its weight outputs zero. Only where it multiplies by 1 + weight (Gemma) is zero a plain start.",
            tuple(Evidence(f"{t.name}: largest absolute entry", t.max_abs, "about 1", t.checkpoint_name) for t in norms),
            "Check the architecture in the config; export again when it is not a 1 + weight one.",
            "replay with the exported norms.",
        )
    constant = [t for t in report.tensors if t.constant and t.zeros != t.size and len(t.shape) >= 2]
    if constant:
        yield Finding(
            "K3",
            Severity.ERROR,
            f"Every entry is the same number in {_names(constant)}",
            "A constant matrix has rank one and carries no information: a placeholder was saved.",
            tuple(Evidence(f"{t.name}: the one value", t.mean, "a spread of values", t.checkpoint_name) for t in constant),
            "Export again from the trained model.",
            "weights() reports no constant matrix.",
        )
    for t in report.tensors:
        if t in zero or len(t.shape) < 2 or t.size == 0:
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


def _weak_blocks(report: WeightReport) -> Iterator[Finding]:
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
            "The columns of this state are nearly zero beside the others'. A lost shard does that; "
            "so does training on a dump in which the state was zero.",
            tuple(
                Evidence(f"{t.name}: Frobenius norm of block {b.block}", b.frobenius, f">= {WEAK_BLOCK:g} x {top:.4g}", t.checkpoint_name)
                for b in weak
            ),
            "Gather fc before saving; look at this block in the training dump.",
            "compare() on the training dump shows this block alive; weights() shows blocks of one size.",
        )


def _untrained(report: WeightReport) -> Iterator[Finding]:
    judged = [(t, verdict(t)) for t in report.tensors]
    for embedding in (False, True):
        group = [(t, v) for t, v in judged if t.name.startswith("embed_tokens") == embedding]
        initial = [(t, v) for t, v in group if v.state == "initial"]
        noise = [(t, v) for t, v in group if v.state == "noise"]
        if initial:
            complete = all(t.spectrum is not None for t, _ in initial)
            spectra = "no singular value above the noise band" if complete else "singular values not all computed (see the notes)"
            yield Finding(
                "FM-09" if embedding else "K4",
                Severity.WARNING if embedding else Severity.ERROR,
                f"Still at the initialisation: {_names([t for t, _ in initial])}",
                f"By every test these are fresh random numbers: the law and scale of the start, {spectra}, "
                "and rows, columns and blocks of equal norm. Std alone would not say so; all of them together say that they were never "
                "trained, or by less than can be seen.",
                _evidence(initial),
                "Leave the embedding out of the export, or copy the target's."
                if embedding
                else "Save the object that was trained, not a fresh copy loaded with strict=False; check that the optimiser held these.",
                "weights() on the new checkpoint shows values outside of the band; then replay to see what it was worth.",
            )
        if noise:
            yield Finding(
                "FM-09" if embedding else "K4",
                Severity.WARNING,
                f"Nothing learned is visible in {_names([t for t, _ in noise])}",
                "The entries are arranged like independent random numbers, although law or scale is that of no start we know: "
                "a start that we do not know, a training of very few steps, or noise written by a conversion.",
                _evidence(noise),
                "Compare with the trainer's own copy, and with an earlier epoch: a tensor that never changes is not being trained.",
                "weights() shows values outside of the band; then replay.",
            )


def _notes(report: WeightReport) -> Iterator[Finding]:
    learned = [(t, v) for t in report.tensors if (v := verdict(t)).state == "learned"]
    near = [(t, v) for t, v in learned if v.null is not None and not t.name.startswith("embed_tokens")]
    if near:
        yield Finding(
            "K4",
            Severity.NOTE,
            f"Looks fresh by its std but is trained: {_names([t for t, _ in near])}",
            "The mean of a projection is near zero before and after training, and a change that is small beside the start hardly "
            "moves the std (it adds in squares: a change of 22 % moves it by 2.5 %). What was learned lies in few directions, so look "
            "at the singular values above the noise band and at the norms of rows and blocks. These say trained.",
            _evidence(near),
        )
    ones = [t for t in report.tensors if len(t.shape) == 1 and "norm" in t.name and (n := t.null("ones")) is not None and n.at_value == 1]
    if ones:
        yield Finding(
            "K4",
            Severity.NOTE,
            f"Norm weights are exactly one: {_names(ones)}",
            "They never moved: frozen, or trained in pure bfloat16, where steps below 0.004 around 1 round away. Harmless by itself.",
            tuple(Evidence(f"{t.name}: share of entries equal to 1", 1.0, "below 1 after training", t.checkpoint_name) for t in ones),
        )


def judge_moments(figures: FromMoments) -> Finding:
    """What a printed std and abs mean allow to say about one weight: a note that never concludes "untrained"."""
    nearest = min(figures.distances, key=lambda d: d.distance)
    evidence = [Evidence(f"std / std of {nearest.name}", nearest.std_ratio or 0.0, "1 if untouched")]
    if nearest.implied_update is not None:
        evidence.append(Evidence("independent change that explains it, relative to the start", nearest.implied_update))
    if figures.abs_over_std is not None:
        evidence.append(Evidence("mean |w| / std", figures.abs_over_std, "0.8660 uniform, 0.7979 normal"))
    if figures.possible:
        because = f"They fit {', '.join(figures.possible)}, and a trained weight as well."
    else:
        because = f"They fit none of {', '.join(figures.excluded)}: an untouched start of those is excluded."
    if figures.above_unimodal:
        because += " Mean |w| / std is above what any symmetric unimodal law has: entries moved outward, or the figures are of two tensors."
    return Finding(
        "K4",
        Severity.NOTE,
        "These figures cannot say whether the weight was trained",
        because + " Not known without the tensor: " + "; ".join(figures.unknown) + ".",
        tuple(evidence),
        check="weights(draft)",
    )


def _evidence(judged: list[tuple[TensorWeights, Verdict]]) -> tuple[Evidence, ...]:
    """The numbers behind the verdicts on the first four tensors (fc sorts first); the report holds the rest."""
    return tuple(e for t, v in judged[:4] for e in _numbers(t, v))


def _numbers(t: TensorWeights, v: Verdict) -> Iterator[Evidence]:
    source = t.checkpoint_name
    if v.null is not None and v.null.std_ratio is not None:
        yield Evidence(f"{t.name}: std / std of {v.null.name}", v.null.std_ratio, "1 if untouched", source)
        if v.null.beyond is not None and "uniform" in v.null.name:
            yield Evidence(f"{t.name}: entries beyond the start's bound", v.null.beyond, "0 if untouched", source)
    else:
        yield Evidence(f"{t.name}: std", t.std, None, source)
    if (s := t.spectrum) is not None:
        visible = f"one direction shows above {s.visible_energy:.2g}"
        yield Evidence(f"{t.name}: singular values above {s.tracy_widom_high:.4g}", s.outside, "0 for noise", source)
        yield Evidence(f"{t.name}: their share of the energy", s.outside_energy, visible, source)
    if (a := t.structure) is not None:
        yield Evidence(f"{t.name}: spread (cv) of row norms", a.row_cv, f"{a.row_cv_expected:.3g} for noise", source)
        if a.block_spread is not None:
            yield Evidence(f"{t.name}: spread (cv) of block norms", a.block_spread, f"{a.block_spread_expected:.2g} for noise", source)


def _names(tensors: list[TensorWeights]) -> str:
    names = [t.name for t in tensors]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


__all__ = ["Verdict", "judge_moments", "judge_weights", "verdict"]
