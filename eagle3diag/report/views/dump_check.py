"""How one dump is shown: are its rows sound, and how do its last states have to be read to predict the tokens that follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eagle3diag.findings import headline
from eagle3diag.report.form import Page, Section, Table
from eagle3diag.report.numbers import many, num, percent
from eagle3diag.report.views.common import joined, path_name

if TYPE_CHECKING:
    from eagle3diag.compare.one_dump import DumpCheck


def page(result: DumpCheck) -> Page:
    findings, read = result.findings, result.declared
    told = f" Its last states, read as declared, predict {percent(read.agreement)} of the tokens that follow." if read is not None else ""
    facts = (
        ("dump", path_name(result.name)),
        ("written by", joined(result.engine, f"{result.side} side")),
        (
            "holds",
            joined(many(result.records, "record"), many(result.tokens, "token"), f"boundaries {', '.join(map(str, result.boundaries))}"),
        ),
        *(("assumed", words) for words in result.assumed),
    )
    healthy = f"{path_name(result.name)} holds what it says.{told}"
    return Page("check", headline(findings, healthy), facts, findings, tuple(_sections(result)))


def _sections(result: DumpCheck) -> Iterator[Section]:
    rows = tuple(
        (p.part, num(p.tokens), num(p.zero_rows), num(p.nonfinite_rows), num(p.duplicate_rows), num(p.norm, 4)) for p in result.parts
    )
    columns = ("state", "tokens", "zero", "not finite", "as the row before", "norm, median")
    yield Section("Its rows", "Of each stored state.", tables=(Table(columns, rows, align="lrrrrr", code=(0,)),))
    if result.readings:
        yield Section(
            "What its last states predict",
            "Through the target's head, in each form and at each distance: the right reading stands far above the others.",
            tables=(_readings(result),),
        )
    if result.by_record:
        records = tuple((r.record, percent(r.agreement), num(r.tokens), r.other, percent(r.other_agreement)) for r in result.by_record)
        heads = ("record", "predicts its own tokens", "tokens", "next best record", "predicts that one's")
        caption = "The worst first. A record whose states predict another one's tokens belongs to that one."
        yield Section("By record", caption, tables=(Table(heads, records, align="lrrlr", code=(0, 3)),), fold=True, terminal=False)
    if result.alike:
        pairs = tuple((f"{a.one} and {a.other}", num(a.live, 4)) for a in result.alike)
        table = Table(("blocks", "relative difference"), pairs, align="lr")
        yield Section("Its blocks against each other", "0 means that two are the same state.", tables=(table,), fold=True)


def _readings(result: DumpCheck) -> Table:
    shifts = sorted({r.shift for r in result.readings})
    kinds = dict.fromkeys((r.part, r.form) for r in result.readings)
    share = {(r.part, r.form, r.shift): percent(r.agreement) for r in result.readings}
    rows = tuple((part, form, *(share.get((part, form, shift), "-") for shift in shifts)) for part, form in kinds)
    return Table(
        ("state", "read", *(f"token t{shift:+d}" if shift else "token t" for shift in shifts)),
        rows,
        align="ll" + "r" * len(shifts),
        code=(0,),
    )
