"""How the weights of a draft are shown: every tensor with its verdict, fc by aux state and by what it reads, changes, a page per tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eagle3diag.findings import headline
from eagle3diag.report.form import Page, Section, Table
from eagle3diag.report.numbers import MISSING, many, num, percent
from eagle3diag.report.views import weight_parts as parts
from eagle3diag.report.views.common import path_name, shape

if TYPE_CHECKING:
    from eagle3diag.faults.verdict import Verdict
    from eagle3diag.weights import TensorWeights, WeightReport


def page(result: WeightReport) -> Page:
    findings = result.findings
    healthy = f"The weights of {path_name(result.draft)} look trained: nothing above a note."
    facts = [("draft", result.draft), ("tensors", f"{many(len(result.tensors), 'tensor')}, {num(result.total_parameters)} parameters")]
    if result.target:
        facts.append(("target", result.target))
    if result.against:
        facts.append(("against", ", ".join(a.other for a in result.against)))
    if result.skipped:
        facts.append(("not weights", ", ".join(result.skipped)))
    return Page("weights", headline(findings, healthy), tuple(facts), findings, tuple(_sections(result)))


def _sections(result: WeightReport) -> Iterator[Section]:
    judged = result.verdicts
    caption = (
        "Mean and std cannot tell trained from fresh. Singular values above the noise edge, and norms that differ more than chance "
        "allows, can: training arranges entries, an initialisation does not."
    )
    yield Section("Every tensor", caption, tables=(_tensors(judged),))
    for tensor in result.tensors:
        if tensor.blocks:
            yield Section(
                "fc, by aux state", "A block much weaker than the others means that its state is hardly used.", tables=(_blocks(tensor),)
            )
    if result.reading is not None:
        yield from parts.reading(result.reading)
    yield from parts.changes(result)
    yield from parts.origins(result)
    order = sorted(judged, key=lambda tv: (not tv[0].name.startswith("fc"), tv[0].name))
    for i, (tensor, v) in enumerate(order):
        if tensor.spectrum is not None or tensor.row_norm_series:
            yield parts.tensor_page(tensor, v, i)
    notes = tuple((t.name, t.note) for t in result.tensors if t.note)
    if notes:
        yield Section("Not measured", tables=(Table(("tensor", "why"), notes, code=(0,)),), fold=True, terminal=False)


def _tensors(judged: tuple[tuple[TensorWeights, Verdict], ...]) -> Table:
    rows = tuple(
        (
            t.name,
            shape(t.shape),
            v.words,
            num(t.std, 4),
            num(t.kurtosis),
            parts.outside(t),
            percent(t.spectrum.outside_energy) if t.spectrum else MISSING,
            num(t.row_norms.cv) if t.row_norms else MISSING,
            t.nearest_null or MISSING,
            num(t.mean),
            num(t.abs_mean, 4),
            num(t.max_abs),
            num(t.zero_rows),
            num(t.nonfinite),
            t.dtype,
        )
        for t, v in judged
    )
    norms = ("above the edge", "their energy", "row norm cv")
    moments = ("mean", "mean |w|", "max |w|", "zero rows", "not finite", "dtype")
    columns = ("tensor", "shape", "verdict", "std", "kurtosis", *norms, "nearest init", *moments)
    return Table(columns, rows, align="lllrrrrrlrrrrrl", narrow=(0, 2, 5), code=(0, 8))


def _blocks(tensor: TensorWeights) -> Table:
    rows = tuple(
        (str(b.block + 1), num(b.frobenius, 4), num(b.std, 4), num(b.stable_rank, 4), num(b.outside), percent(b.outside_energy))
        for b in tensor.blocks
    )
    return Table(("aux state", "Frobenius norm", "std", "stable rank", "above its edge", "their energy"), rows, align="rrrrrr")
