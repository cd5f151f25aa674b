"""A page in 80 columns for a terminal: verdict, findings with their evidence and fix, key tables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from eagle3diag.faults import named
from eagle3diag.findings import Evidence, Finding, Result, Severity
from eagle3diag.report.form import GLYPHS, Bars, Heat, Page, Section, Strip, Table
from eagle3diag.report.numbers import fixed, many
from eagle3diag.report.safe import bounded, shorten, visible, width
from eagle3diag.report.views import view

_BARS = 12  # in one figure: a terminal is for reading, --html and --json have the rest
_EVIDENCE = 12  # of one finding, three or four numbers each of a few tensors; a line says what is cut
_TRACK = 12  # columns that a bar has at least, however long the notes behind it are
_RESET = "\x1b[0m"
_STYLES = {
    "bold": "\x1b[1m",
    "dim": "\x1b[2m",
    Severity.ERROR: "\x1b[1;31m",
    Severity.WARNING: "\x1b[1;33m",
    Severity.NOTE: "\x1b[1;36m",
    None: "\x1b[1;32m",
}


def render(result: Result, *, colour: bool = False, columns: int = 80) -> str:
    """``result`` as text; no line needs more than ``columns`` columns, except for a single long word such as a path.

    Escape sequences appear only when ``colour`` is true, and then only ours: whatever came out of a file is shown, not obeyed.
    """
    return "\n".join(_Writer(columns, colour).page(view(result)))


class _Writer:
    def __init__(self, columns: int, colour: bool) -> None:
        self.columns, self.colour = max(40, columns), colour

    def page(self, page: Page) -> Iterator[str]:
        name, counts = f"eagle3diag {page.verb}", f"{GLYPHS[page.worst]} {page.counts}"
        gap = " " * max(2, self.columns - width(name) - width(counts))
        yield f"{self.paint(name, 'dim')}{gap}{self.paint(counts, page.worst)}"
        yield self.paint("─" * self.columns, "dim")
        yield from (self.paint(line, "bold") for line in self.wrap(page.verdict))
        if page.facts:
            yield ""
            wide = max(width(visible(name)) for name, _ in page.facts)
            for name, value in page.facts:
                yield from self.wrap(value, first=f"  {visible(name)}{' ' * (wide - width(visible(name)))}  ", rest=" " * (wide + 4))
        for i, finding in enumerate(page.findings):
            yield ""
            yield from self.finding(finding, page.remarks[i] if i < len(page.remarks) else "")
        if page.strip is not None:
            yield ""
            yield from self.strip(page.strip)
        for section in page.sections:
            if section.terminal:
                yield ""
                yield from self.section(section)

    def finding(self, finding: Finding, remark: str) -> Iterator[str]:
        head = f"{GLYPHS[finding.severity]} {finding.severity.label}  {visible(named(finding.fault))}  "
        lines = self.wrap(finding.title, first=head, rest=" " * 4)
        for n, line in enumerate(lines):
            yield self.paint(head, finding.severity) + self.paint(line[len(head) :], "bold") if n == 0 else self.paint(line, "bold")
        for paragraph in (finding.because, remark):
            if paragraph:
                yield from self.wrap(paragraph, first="    ", rest="    ")
        for evidence in finding.evidence[:_EVIDENCE]:
            yield from self.wrap(str(_short(evidence)), first="    · ", rest="      ")
        if len(finding.evidence) > _EVIDENCE:
            yield self.paint(f"    … {many(len(finding.evidence) - _EVIDENCE, 'more number')}: see the HTML or JSON", "dim")
        for label, words in (("fix", finding.fix), ("check", finding.check)):
            if words:
                yield from self.wrap(words, first=f"    {label:<5}  ", rest=" " * 11, newlines=True)

    def strip(self, strip: Strip) -> Iterator[str]:
        yield self.paint(visible(strip.title), "bold")
        yield from self.wrap(strip.caption, first="  ", rest="  ")
        labels, notes = (
            max(width(visible(text)) for text in texts) for texts in zip(*((r.label, r.note) for r in strip.rows), strict=True)
        )
        room = max(_TRACK, self.columns - labels - notes - 13)
        for row in strip.rows:
            full, whole = (round(room * strip.share(v if v is not None else row.value)) for v in (row.value, row.whole))
            label = f"{visible(row.label)}{' ' * (labels - width(visible(row.label)))}"
            track = f"{'█' * full or '▏'}{'░' * (whole - max(full, 1))}"
            yield from self.wrap(
                row.note, first=f"  {label}  {row.value:>5.2f}  {track}{' ' * (room - width(track))}  ", rest=" " * (labels + room + 13)
            )

    def section(self, section: Section) -> Iterator[str]:
        yield self.paint(visible(section.title), "bold")
        for paragraph in (section.caption, *section.paragraphs):
            if paragraph:
                yield from self.wrap(paragraph, first="  ", rest="  ")
        for n, step in enumerate(section.steps, 1):
            yield from self.wrap(step, first=f"  {n:>2}  ", rest=" " * 6)
        for figure in section.figures:
            if isinstance(figure, Bars) and figure.terminal:
                yield from self.bars(figure)
            elif isinstance(figure, Heat) and len(figure.x_labels) <= 6:
                rows = tuple((label, *(fixed(v) for v in row)) for label, row in zip(figure.y_labels, figure.values, strict=True))
                yield from self.table(Table(("", *figure.x_labels), rows, align="l" + "r" * len(figure.x_labels), title=figure.title))
        for n, table in enumerate(filter(lambda t: t.terminal, section.tables)):
            if n and table.title:
                yield ""
            yield from self.table(table)

    def table(self, table: Table) -> Iterator[str]:
        use = table.narrow or tuple(range(len(table.columns)))
        use = use[: self.columns // 8]  # a column narrower than six says nothing
        rows = [[visible(row[c]) for c in use] for row in table.rows[: table.most]]
        heads = [visible(table.columns[c]) for c in use]
        wide = [max(width(cells[k]) for cells in [heads, *rows]) for k in range(len(use))]
        spare = self.columns - 2 - 2 * (len(use) - 1)
        while sum(wide) > spare and max(wide) > 6:  # whichever column is the widest gives way
            wide[wide.index(max(wide))] -= 1

        def lines(cells: list[str]) -> Iterator[str]:
            parts = [
                self.cell(cell, columns, prose=c not in table.code, whole=c in table.whole)
                for cell, columns, c in zip(cells, wide, use, strict=True)
            ]
            for n in range(max(map(len, parts))):
                row = [part[n] if n < len(part) else "" for part in parts]
                pads = [" " * (columns - width(cell)) for cell, columns in zip(row, wide, strict=True)]
                padded = [pad + cell if table.side(c) == "r" else cell + pad for cell, pad, c in zip(row, pads, use, strict=True)]
                yield f"  {'  '.join(padded)}".rstrip()

        if table.title:
            yield from self.wrap(table.title, first="  ", rest="  ")
        yield from (self.paint(line, "dim") for line in (lines(heads) if rows else ()))
        for row in rows:
            yield from lines(row)
        if len(table.rows) > table.most:
            rest = table.rest or f"… {many(len(table.rows) - table.most, 'more row')}: see the HTML or JSON"
            yield from (self.paint(line, "dim") for line in self.wrap(rest, first="  ", rest="  "))

    def cell(self, text: str, columns: int, *, prose: bool, whole: bool) -> list[str]:
        """The lines of one cell: prose is filled into as many as it needs, a name loses its middle, and so does a word that is too wide; a
        name that is wanted whole goes on behind one of its dots."""
        if whole:
            pieces = re.sub(r"([._/,])(?=\w)", "\\1\0", text).replace(" ", " \0").split("\0")
            lines = [""]
            for piece in pieces:
                if lines[-1] and width(lines[-1].rstrip()) + width(piece.rstrip()) > columns - (lines[-1] != lines[-1].rstrip()):
                    lines.append("")
                lines[-1] += piece
            return [shorten(line.rstrip(), columns) for line in lines]
        if not prose or width(text) <= columns:
            return [shorten(text, columns)]
        filled = _Writer(columns, False)
        filled.columns = columns
        return [shorten(line, columns) for line in filled.wrap(text)]

    def bars(self, figure: Bars) -> Iterator[str]:
        finite = [b for b in figure.bars if math.isfinite(b.value)][:_BARS]
        if not finite:
            return
        yield from self.wrap(figure.title, first="  ", rest="  ")
        label_columns = min(max(width(visible(b.label)) for b in finite), self.columns // 2)
        room = self.columns - label_columns - 28
        top = max(max(b.value for b in finite) - figure.start, 1e-12)
        for bar in finite:
            label = shorten(visible(bar.label), label_columns)
            drawn = "█" * max(0, round(room * (bar.value - figure.start) / top)) or "▏"
            numbers = f"{bar.value:.2f}" + (f" [{bar.low:.2f}, {bar.high:.2f}]" if bar.low is not None and bar.high is not None else "")
            yield f"  {label}{' ' * (label_columns - width(label))}  {numbers:<20}  {drawn}"

    def wrap(self, words: str, *, first: str = "", rest: str = "", newlines: bool = False) -> list[str]:
        """``words`` filled into lines; a word wider than a line is left whole, so that a path can still be copied."""
        lines: list[str] = []
        for paragraph in visible(bounded(words), keep_newlines=newlines).split("\n"):
            line, empty = (rest if lines else first), True
            for word in paragraph.split(" "):
                if not empty and width(line) + 1 + width(word) > self.columns:
                    lines.append(line)
                    line, empty = rest, True
                line, empty = (line + word if empty else f"{line} {word}"), False
            lines.append(line.rstrip() if line.strip() else "")
        return lines

    def paint(self, words: str, style: str | Severity | None) -> str:
        return f"{_STYLES[style]}{words}{_RESET}" if self.colour and words else words


def _short(evidence: Evidence) -> Evidence:
    """Evidence whose value, if it is a text out of a file, is cut to a length that leaves the rest readable."""
    if isinstance(evidence.value, str) and len(evidence.value) > 300:
        return Evidence(evidence.name, bounded(evidence.value, 300), evidence.expected, evidence.source)
    return evidence
