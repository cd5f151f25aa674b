"""Judge a :class:`WeightReport`: dead, broken, still at its initialisation, or trained although its std says otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3diag.faults.changed import changed
from eagle3diag.faults.dead import broken, names_of, weak_blocks
from eagle3diag.faults.expects import expects
from eagle3diag.faults.verdict import Verdict, unseen, verdict
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.weights import TensorWeights, WeightReport

COARSE = 8
"""Distinct values among 128 neighbours up to which a warning is due: 4-bit formats keep 13 to 16 of them where they are used well, and lose a
draft little; three bits or an outlier's scale leave 8 or fewer. A smooth bfloat16 row has about 120."""


def judge_weights(report: WeightReport) -> tuple[Finding, ...]:
    """Findings of a weight report, most severe first; a healthy draft gives notes at most."""
    makers = (broken, weak_blocks, _untrained, _quantised, _copied, changed, expects, _notes)
    found = [finding for maker in makers for finding in maker(report)]
    return tuple(sorted(found, key=lambda f: -f.severity))


def verdicts(report: WeightReport) -> Iterator[tuple[TensorWeights, Verdict]]:
    """Every tensor with what it is."""
    for tensor in report.tensors:
        yield tensor, verdict(tensor, report.origin(tensor.name))


def _untrained(report: WeightReport) -> Iterator[Finding]:
    judged = [(t, v) for t, v in verdicts(report) if len(t.shape) > 1]  # norm weights have a note of their own
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
                f"Still at the initialisation: {names_of([t for t, _ in initial])}",
                f"By every test these are fresh random numbers: the law and scale of the start, {spectra}, "
                "and rows, columns and blocks of equal norm. Std alone would not say so; all of them together say that they were never "
                "trained, or by less than can be detected.",
                _evidence(initial),
                "Leave the embedding out of the export, or copy the target's."
                if embedding
                else "Save the object that was trained, not a fresh copy loaded with strict=False; check that the optimiser held these.",
                "weights() on the new checkpoint shows values outside the band; then replay to see what it was worth.",
            )
        if noise:
            yield Finding(
                "FM-09" if embedding else "K4",
                Severity.WARNING,
                f"Nothing learned is visible in {names_of([t for t, _ in noise])}",
                "The entries are arranged like independent random numbers, although law or scale fits no known start: "
                "an unknown start, very few training steps, or noise written by a conversion.",
                _evidence(noise),
                "Compare with the trainer's own copy, and with an earlier epoch: a tensor that never changes is not being trained.",
                "weights() shows values outside the band; then replay.",
            )


def _notes(report: WeightReport) -> Iterator[Finding]:
    judged = list(verdicts(report))
    near = [
        (t, v)
        for t, v in judged
        if v.state == "learned" and v.origin is None and v.null is not None and not t.name.startswith("embed_tokens")
    ]
    if near:
        yield Finding(
            "K4",
            Severity.NOTE,
            f"Looks fresh by its std but is trained: {names_of([t for t, _ in near])}",
            "The mean of a projection is near zero before and after training, and a change that is small compared with the start hardly "
            "moves the std (it adds in squares: a change of 22 % moves it by 2.5 %). What was learned lies in few directions, so look "
            "at the singular values above the noise band and at the norms of rows and blocks. These say trained.",
            _evidence(near),
        )
    ones = [t for t in report.tensors if len(t.shape) == 1 and "norm" in t.name and (n := t.null("ones")) is not None and n.at_value == 1]
    if ones:
        yield Finding(
            "K4",
            Severity.NOTE,
            f"Norm weights are exactly one: {names_of(ones)}",
            "They never moved: frozen, or trained in pure bfloat16, where steps below 0.004 around 1 round away. Harmless by itself.",
            tuple(Evidence(f"{t.name}: share of entries equal to 1", 1.0, "below 1 after training", t.checkpoint_name) for t in ones),
        )


def _quantised(report: WeightReport) -> Iterator[Finding]:
    """FM-78, the part that the entries tell: they lie on the grid of a narrow format."""
    found = [(t, v.quantised, t.grid) for t, v in verdicts(report) if v.quantised and t.grid is not None]
    if not found:
        return
    found.sort(key=lambda f: f[2].levels[-1])
    coarse = [t for t, _, g in found if g.levels[-1] <= COARSE]
    names = ", ".join(sorted({name for _, name, _ in found}))
    lost = f"Of {names_of(coarse)} no more than three bits are left, which costs any draft that was not trained so. "
    kept = "A draft that was trained that way loses nothing; one that was quantised afterwards loses a little, which replay measures."
    yield Finding(
        "FM-78",
        Severity.WARNING if coarse else Severity.NOTE,
        f"Went through {names} and back: {names_of([t for t, _, _ in found])}",
        "The entries lie on the grid of that format. " + (lost if coarse else kept),
        tuple(
            Evidence(
                f"{t.name}: distinct values, distinct mantissas of 128",
                f"{g.levels[-1]}, {g.mantissas}",
                "about 120, 80",
                t.checkpoint_name,
            )
            for t, _, g in found[:4]
        ),
        "Serve the draft as it was trained, in bfloat16; if it must be quantised, in 8 bits, and replay both." if coarse else "",
        "weights(DRAFT, against=THE TRAINER'S COPY) says by how much each tensor differs; replay of both, what it costs.",
    )


def _copied(report: WeightReport) -> Iterator[Finding]:
    """Projections that are the target's own, untouched. Head, embedding and final norm are often meant to be."""
    found = [(t, v) for t, v in verdicts(report) if v.state == "copied" and v.origin is not None and v.origin.layer is not None]
    matrices = [(t, v) for t, v in found if len(t.shape) == 2]
    if matrices:
        yield Finding(
            "K4",
            Severity.WARNING,
            f"Copied from the target and never moved: {names_of([t for t, _ in matrices])}",
            "These are the target's own projections, entry by entry. As a start that is fine; after training every one of them has moved.",
            tuple(
                Evidence(
                    f"{t.name}: relative difference from {v.origin.source}",
                    v.origin.relative_change,
                    "above 0 after training",
                    t.checkpoint_name,
                )
                for t, v in matrices[:4]
                if v.origin is not None
            ),
            "Save the object that was trained; check that the optimiser held these and that they were not frozen.",
            "weights(draft, target=...) shows them moved.",
        )


def _evidence(judged: list[tuple[TensorWeights, Verdict]]) -> tuple[Evidence, ...]:
    """The numbers behind the verdicts on the first four tensors (fc sorts first); the report holds the rest."""
    return tuple(e for t, v in judged[:4] for e in _numbers(t, v))


def _numbers(t: TensorWeights, v: Verdict) -> Iterator[Evidence]:
    source = t.checkpoint_name
    if v.update is not None and v.update_range is not None:
        low, high = v.update_range
        yield Evidence(f"{t.name}: update relative to its start", f"{low:.3g} to {high:.3g}", "0 if untouched", source)
    if v.null is not None and v.null.std_ratio is not None:
        yield Evidence(f"{t.name}: std / std of {v.null.name}", v.null.std_ratio, "1 if untouched", source)
        if v.null.edge_update is not None and v.null.beyond is not None:
            yield Evidence(f"{t.name}: entries beyond the start's bound", v.null.beyond, "0 if untouched", source)
    else:
        yield Evidence(f"{t.name}: std", t.std, None, source)
    if (s := t.spectrum) is not None:
        visible = f"one direction shows above {s.visible_energy:.2g}"
        yield Evidence(f"{t.name}: singular values above {s.tracy_widom_high:.4g}", s.outside, "0 for noise", source)
        yield Evidence(f"{t.name}: their share of the energy", s.outside_energy, visible, source)
    if v.state in ("initial", "noise") and v.null is not None:
        spread, single = unseen(t, v.null)
        if spread is not None:
            yield Evidence(f"{t.name}: smallest update that would show, spread evenly", spread, None, source)
        if single is not None:
            yield Evidence(f"{t.name}: the same, in a single direction", single, None, source)
    if (a := t.structure) is not None:
        yield Evidence(f"{t.name}: spread (cv) of row norms", a.row_cv, f"{a.row_cv_expected:.3g} for noise", source)
        if a.block_spread is not None:
            yield Evidence(f"{t.name}: spread (cv) of block norms", a.block_spread, f"{a.block_spread_expected:.2g} for noise", source)
