"""The parts that the page and the notebook view share, as HTML: escaped text, tables, findings' evidence, the strip."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from html import escape
from pathlib import Path

from eagle3diag.faults import named
from eagle3diag.findings import Evidence, Finding
from eagle3diag.report.form import Strip, Table
from eagle3diag.report.numbers import num
from eagle3diag.report.palette import HUES, hue
from eagle3diag.report.safe import bounded, visible

ROWS = 400
_ASSETS = Path(__file__).parent / "assets"
_COLUMNS = ("measured", "value", "expected", "read from")


def escaped(words: object) -> str:
    """Neutralised, then escaped: safe as text and inside a quoted attribute."""
    return escape(visible(words), quote=True)


def rich(words: str, *, keep_newlines: bool = False) -> str:
    """Escaped, with the parts between backticks set as code."""
    parts = escape(visible(bounded(words), keep_newlines=keep_newlines), quote=True).split("`")
    if len(parts) % 2 == 0:  # an odd backtick is a backtick
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def table_html(table: Table, name: str) -> str:
    """One table in a box that scrolls by itself, so that the page never does sideways; ``name`` is its caption when it has no title."""
    heads = "".join(f"<th scope='col' class='{table.side(c)}'>{escaped(column)}</th>" for c, column in enumerate(table.columns))
    classes = [table.side(c) + (" code" if c in table.code else "") + _short(table, c) for c in range(len(table.columns))]
    rows = "".join(
        "<tr>"
        + "".join(f"<td class='{kind}'>{escaped(bounded(cell, 600))}</td>" for kind, cell in zip(classes, row, strict=True))
        + "</tr>"
        for row in table.rows[:ROWS]
    )
    more = f" ({len(table.rows) - ROWS:,} more rows are in the JSON)" if len(table.rows) > ROWS else ""
    hidden = "" if table.title or more else " class='hidden'"
    caption = f"<caption{hidden}>{escaped(table.title or name)}{more}</caption>"
    box = f"<div class='scroll' tabindex='0' role='region' aria-label='{escaped(table.title or name)}'>"
    return f"{box}<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"


def _short(table: Table, column: int) -> str:
    """A column of short words is not broken into lines."""
    return " short" if max((len(row[column]) for row in table.rows[:ROWS]), default=0) <= 28 else ""


def evidence_html(finding: Finding) -> str:
    """The numbers of a finding; columns that no row fills are left out. On a narrow screen the rows become blocks with labels."""
    rows = [(e.name, _value(e), e.expected or "", e.source or "") for e in finding.evidence]
    used = [c for c in range(4) if any(row[c] for row in rows)]
    heads = "".join(f"<th scope='col'>{_COLUMNS[c]}</th>" for c in used)
    out = [
        f"<table class='evidence'><caption class='hidden'>Evidence of {escaped(named(finding.fault))}</caption><thead><tr>{heads}</tr></thead><tbody>"
    ]
    for row in rows:
        cells = (f"<td class='{'code' if c == 1 else ''}' data-label='{_COLUMNS[c]}'>{escaped(row[c])}</td>" for c in used[1:])
        out.append(f"<tr><th scope='row'>{escaped(row[0])}</th>{''.join(cells)}</tr>")
    return f"<div class='aside'>{''.join(out)}</tbody></table></div>" if rows else ""


def _value(evidence: Evidence) -> str:
    return num(evidence.value, 4) if isinstance(evidence.value, (int, float)) else bounded(evidence.value, 600)


def strip_html(strip: Strip) -> Iterator[str]:
    """Label, bar and number per row; the bars are drawings without text, so that they stretch to any width."""
    yield f"<p class='lead'>{rich(strip.caption)}</p><ul class='strip'>"
    for row in strip.rows:
        full, whole = (100 * strip.share(v if v is not None else row.value) for v in (row.value, row.whole))
        light, shade = hue(row.hue)[0], f"e3d-f{row.hue % len(HUES)}"
        lost = (
            f"<rect class='e3d-lost {shade}' fill='{light}' fill-opacity='.2' x='0' y='0' width='{whole:.1f}' height='10'/>"
            if whole > full
            else ""
        )
        bar = f"<rect class='{shade}' fill='{light}' x='0' y='0' width='{max(full, 0.6):.1f}' height='10'/>"
        track = f"<svg class='track' viewBox='0 0 100 10' preserveAspectRatio='none' aria-hidden='true' height='18'>{lost}{bar}</svg>"
        note = f"<span class='note'>{escaped(row.note)}</span>" if row.note else ""
        yield f"<li><span class='label'>{escaped(row.label)}</span>{track}<b>{row.value:.2f}</b>{note}</li>"
    yield "</ul>"


@lru_cache(maxsize=8)
def asset(name: str) -> str:
    """A style sheet or script of ours."""
    return (_ASSETS / name).read_text(encoding="utf-8")
