"""How two results are shown side by side: what the fix did to the accept length, what is gone, what is new, what is still there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from eagle3diag.faults import named
from eagle3diag.findings import Finding
from eagle3diag.report.form import Page, Row, Section, Strip, Table
from eagle3diag.report.numbers import MISSING, many
from eagle3diag.report.views.common import accept_length

if TYPE_CHECKING:
    from eagle3diag.before_after import BeforeAfter


def page(result: BeforeAfter) -> Page:
    new = {f.fault for f in result.new}
    findings = result.findings
    remarks = tuple("New since the fix." if f.fault in new else "It was there before the fix." for f in findings)
    facts = (("before", result.before.verdict), ("after", result.after.verdict))
    return Page("before and after", _verdict(result), facts, findings, tuple(_sections(result)), remarks, _strip(result))


def _verdict(result: BeforeAfter) -> str:
    counts = [
        f"{many(len(found), 'finding')} {word}"
        for found, word in ((result.gone, "gone"), (result.still, "still there"), (result.new, "new"))
        if found
    ]
    told = ", ".join(counts) or "nothing was found before, and nothing after"
    if result.gained is None:
        return f"{told[0].upper()}{told[1:]}."
    return f"Accept length {result.before.observed:.2f} before, {result.after.observed:.2f} after: {told}."


def _strip(result: BeforeAfter) -> Strip | None:
    sides = (("before", result.before), ("after", result.after))
    rows = [Row(f"observed {name}", s.observed, s.expected, 4 if name == "before" else 2) for name, s in sides if s.observed is not None]
    expected = {f"as trained, {name}": s.expected for name, s in sides if s.expected is not None}
    if len(expected) > 1 and len(set(expected.values())) == 1:  # the same draft on the same dump: one line says it
        expected = {"as trained, replayed": result.after.expected or 0.0}
    rows += [Row(label, value, None, 0) for label, value in expected.items()]
    caption = "Accept length; 1.00 means that nothing is accepted. Pale: what the replay says is still to be had."
    return Strip("The accept length", caption, 1.0, tuple(rows)) if len(rows) > 1 else None


def _sections(result: BeforeAfter) -> Iterator[Section]:
    rows = tuple(
        (
            what,
            accept_length(before, interval) if before is not None else MISSING,
            accept_length(after, later) if after is not None else MISSING,
        )
        for what, before, interval, after, later in (
            ("observed", result.before.observed, result.before.observed_interval, result.after.observed, result.after.observed_interval),
            (
                "as trained, replayed",
                result.before.expected,
                result.before.expected_interval,
                result.after.expected,
                result.after.expected_interval,
            ),
        )
        if before is not None or after is not None
    )
    if rows:
        table = Table(("accept length", "before", "after"), rows, align="lrr")
        yield Section("In numbers", "With their 95 % intervals, where there are counts.", tables=(table,))
    for title, caption, found in (
        ("Gone", "Found before the fix, and not after it.", result.gone),
        ("New", "Found after the fix only: what the first fault may have hidden.", result.new),
        ("Still there", "Found before the fix and after it.", result.still),
    ):
        if found:
            yield Section(title, caption, tables=(_found(found),))


def _found(found: Sequence[Finding]) -> Table:
    rows = tuple((named(f.fault), f.severity.label, f.title) for f in found)
    return Table(("fault", "severity", "what"), rows, code=(0,))
