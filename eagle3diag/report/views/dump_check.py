"""How the check of one dump is shown: what is in it, the soundness of each state, and which reading of the last states is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eagle3diag.report.form import Page, Section, Table
from eagle3diag.report.numbers import MISSING, fixed, listed, many, num, percent
from eagle3diag.report.views.common import boundary, engine, path_name, verdict

if TYPE_CHECKING:
    from eagle3diag.compare import DumpCheck, Reading


def page(result: DumpCheck) -> Page:
    findings = result.findings
    healthy = f"{path_name(result.name)} is sound by itself: nothing above a note."
    facts = [
        ("dump", result.name),
        ("side", f"{result.side}, from {engine(result.engine, None)}"),
        ("holds", f"{many(result.records, 'record')}, {many(result.tokens, 'token')}"),
        ("boundaries", listed(result.boundaries) if result.boundaries else "not declared"),
        *(("assumed", words) for words in result.assumed),
    ]
    if result.final_rms is not None:
        facts.append(("final state", f"rms {num(result.final_rms)} after dividing by the final norm's gain (1 means it is normed)"))
    return Page("check", verdict(findings, healthy), tuple(facts), findings, tuple(_sections(result)))


def _sections(result: DumpCheck) -> Iterator[Section]:
    rows = tuple(
        (p.part, num(p.tokens), num(p.zero_rows), num(p.nonfinite_rows), num(p.duplicate_rows), num(p.norm, 4)) for p in result.parts
    )
    columns = ("state", "rows", "zero", "not finite", "repeated", "norm, median")
    text = "Norms grow with the boundary; rows that are zero, not finite or repeated were never computed for their token."
    yield Section("State by state", text, tables=(Table(columns, rows, align="lrrrrr", code=(0,)),))
    if result.readings:
        text = "Each way to read the last state, through the target's head, and how often it gives the token that stands there."
        readings = tuple(_reading(r) for r in sorted(result.readings, key=lambda r: -r.agreement))
        yield Section(
            "How the last state is to be read", text, tables=(Table(("state", "form", "gives", "right"), readings, align="lllr"),)
        )
    if result.alike:
        names = {p.block: p.part for p in result.parts}
        pairs = tuple((names.get(a.one, str(a.one)), names.get(a.other, str(a.other)), num(a.live)) for a in result.alike)
        text = "Relative difference of every two states; near zero would be one buffer stored twice."
        yield Section(
            "Are they different states?", text, tables=(Table(("one", "other", "difference"), pairs, align="llr"),), terminal=False
        )
    if result.by_record:
        worst = tuple(
            (r.record, percent(r.agreement), num(r.tokens), r.other or MISSING, fixed(r.other_agreement, 2)) for r in result.by_record
        )
        heads = ("record", "right", "tokens", "fits the tokens of", "share")
        yield Section("Record by record", tables=(Table(heads, worst, align="lrrlr", code=(0, 3)),), fold=True, terminal=False)


def _reading(reading: Reading) -> tuple[str, ...]:
    state = boundary(-1) if reading.part == "final" else reading.part
    token = "its own token" if reading.shift == 0 else "the next token" if reading.shift == 1 else f"the token {reading.shift:+d}"
    return state, reading.form, token, percent(reading.agreement)
