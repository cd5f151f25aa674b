"""How a conversion is shown: every change of the copy, and what was left alone and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eagle3diag.findings import headline
from eagle3diag.report.form import Page, Section, Table
from eagle3diag.report.numbers import num
from eagle3diag.report.views.common import path_name

if TYPE_CHECKING:
    from eagle3diag.convert import Conversion, Edit


def page(result: Conversion) -> Page:
    findings = result.findings
    healthy = f"{path_name(result.out)} is ready for {result.to}: nothing above a note is left."
    facts = (
        ("draft", result.draft),
        ("copy", result.out),
        ("made for", result.to),
        ("written by", result.trainer),
        ("tensors", f"{num(result.tensors)}, of these {num(result.tensors - len(result.rewritten))} byte for byte as they were"),
    )
    changed = Section("Changed", "" if result.changes else "Nothing: the draft was ready as it is.", tables=_tables(result.changes))
    left = Section("Left alone", "What may need a change and is not certain.", tables=_tables(result.left))
    return Page("conversion", headline(findings, healthy), facts, findings, (changed, left) if result.left else (changed,))


def _tables(edits: Sequence[Edit]) -> tuple[Table, ...]:
    rows = tuple((e.what, e.before, e.after, e.why) for e in edits)
    return (Table(("what", "before", "after", "why"), rows, code=(0, 1, 2), whole=(0, 1, 2)),) if rows else ()
