"""A page as one HTML file that needs nothing else: no server, no network, and not even JavaScript to be read."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

from eagle3diag import __version__
from eagle3diag.findings import Evidence, Finding, Result, Severity
from eagle3diag.report import plots, svg
from eagle3diag.report.form import GLYPHS, Page, Section, Table
from eagle3diag.report.numbers import num
from eagle3diag.report.palette import HUES, INK
from eagle3diag.report.safe import bounded, redacted, visible
from eagle3diag.report.tables import behind
from eagle3diag.report.views import view

LIMIT = 3_000_000  # bytes; what mail and chat still take without a word
_ROWS = 400
_ASSETS = Path(__file__).parent / "assets"


def page(result: Result) -> str:
    """The whole file as text; the same result gives the same bytes.

    The numbers of :meth:`Result.to_dict` travel in ``<script type="application/json" id="result">``. If the file would pass
    :data:`LIMIT`, the longest lists are left out there (the foot of the page says so); nothing that is shown is left out.
    """
    told = view(result)
    drawings = {figure.id: figure for figure in told.figures()}
    source, packed = _plotly() if drawings else (None, "")
    script = _asset("page.js")
    style = _asset("page.css")
    figures = _json({name: plots.spec(figure) | {"config": plots.config(figure)} for name, figure in drawings.items()}) if packed else ""
    before = "".join(_body(told))
    room = LIMIT - len(before.encode()) - len(figures) - len(packed) - len(script) - len(style) - 8_000
    numbers, left_out = _within(_redacted(result.to_dict()), room)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(_hash(text) for text in (script, source) if text is not None)}",
            f"style-src {_hash(style)} {_hash('')}",  # plotly adds one empty style element and fills it by script
            "style-src-attr 'unsafe-inline'",  # plotly positions its labels with style attributes
            "img-src data: blob:",  # heat maps are drawn as data: images; blob: is the button that saves a picture
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    parts = [
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n",
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n<meta name='referrer' content='no-referrer'>\n",
        "<meta name='color-scheme' content='light dark'>\n",
        f"<meta name='generator' content='eagle3diag {__version__}'>\n<title>{escaped(f'{told.verb}: {told.verdict}')}</title>\n",
        f"<style>{style}</style>\n{_spare_styles(source or '')}</head>\n<body>\n",
        before,
        "<footer><div>",
        f"<p>Written by eagle3diag {__version__}. This file is complete: it loads nothing and sends nothing. ",
        f"The numbers of the result are inside it as JSON{_left_out_note(left_out)}.</p>",
        "<p><button type='button' id='save-json' hidden>Save the numbers as JSON</button></p></div></footer>\n",
        f'<script type="application/json" id="result">{numbers}</script>\n',
    ]
    if packed:
        parts += [
            f'<script type="application/json" id="figures">{figures}</script>\n',
            f'<script type="application/json" id="plot-config">{_json(dict(plots.CONFIG))}</script>\n',
            f'<script type="application/json" id="hues">{_json((*HUES, INK))}</script>\n',
            f'<script type="text/plain" id="plotly-packed">{packed}</script>\n',
        ]
    parts.append(f"<script>{script}</script>\n</body>\n</html>\n")
    return "".join(parts)


def _body(told: Page) -> Iterator[str]:
    yield "<a class='skip' href='#findings'>Skip to the findings</a>\n"
    yield f"<header><p class='kicker'>eagle3diag · {escaped(told.verb)}</p><h1>{rich(told.verdict)}</h1>"
    yield f"<ul class='chips'>{''.join(_chips(told))}</ul>"
    if told.facts:
        yield f"<dl class='facts'>{''.join(f'<dt>{escaped(name)}</dt><dd>{rich(value)}</dd>' for name, value in told.facts)}</dl>"
    yield "</header>\n"
    links = [("findings", "Findings"), *((f"part-{i}", s.title) for i, s in enumerate(told.sections) if not s.group)]
    links += [(f"part-{i}", s.group) for i, s in enumerate(told.sections) if s.group and (i == 0 or told.sections[i - 1].group != s.group)]
    items = "".join(f"<li><a href='#{target}'>{escaped(name)}</a></li>" for target, name in links)
    yield f"<nav aria-label='Contents'><ul>{items}</ul></nav>\n<main>\n"
    yield "<section id='findings'><h2>Findings</h2>"
    if told.findings:
        yield "<ol class='findings'>"
        for i, finding in enumerate(told.findings):
            yield from _finding(finding, told.remarks[i] if i < len(told.remarks) else "")
        yield "</ol>"
    else:
        yield "<p>Nothing was found. What was measured is below.</p>"
    yield "</section>\n"
    group = ""
    for i, section in enumerate(told.sections):
        if section.group and section.group != group:
            yield f"<p class='group'>{escaped(section.group)}</p>"
        group = section.group
        yield from _section(section, f"part-{i}")
    yield "</main>\n"


def _chips(told: Page) -> Iterator[str]:
    for severity in (Severity.ERROR, Severity.WARNING, Severity.NOTE):
        n = sum(f.severity == severity for f in told.findings)
        if n:
            yield f"<li><span class='badge {severity.label}'>{GLYPHS[severity]} {n} {severity.label}{'s' if n > 1 else ''}</span></li>"
    if all(f.severity <= Severity.NOTE for f in told.findings):
        yield f"<li><span class='badge ok'>{GLYPHS[None]} nothing above a note</span></li>"


def _finding(finding: Finding, remark: str) -> Iterator[str]:
    label = finding.severity.label
    yield f"<li class='{label}'><div class='finding-head'><span class='badge'>{GLYPHS[finding.severity]} {label}</span>"
    yield f"<h3>{rich(finding.title)}</h3><span class='fault code'>{escaped(finding.fault)}</span></div>"
    for words, kind in ((finding.because, "because"), (remark, "remark")):
        if words:
            yield f"<p class='{kind}'>{rich(words)}</p>"
    if finding.evidence:
        rows = [(e.name, _value(e), e.expected or "", e.source or "") for e in finding.evidence]
        used = [c for c in range(4) if any(row[c] for row in rows)]
        heads = "".join(f"<th scope='col'>{('measured', 'value', 'expected', 'read from')[c]}</th>" for c in used)
        yield f"<div class='aside'><table class='evidence'><thead><tr>{heads}</tr></thead><tbody>"
        plain, code = "", " class='code'"
        for row in rows:
            yield f"<tr>{''.join(f'<td{code if c == 1 else plain}>{escaped(row[c])}</td>' for c in used)}</tr>"
        yield "</tbody></table></div>"
    if finding.fix or finding.check:
        yield "<dl class='do'>"
        for name, words in (("Fix", finding.fix), ("Then check", finding.check)):
            if words:
                yield f"<dt>{name}</dt><dd>{rich(words, keep_newlines=True)}</dd>"
        yield "</dl>"
    yield "</li>"


def _section(section: Section, anchor: str) -> Iterator[str]:
    title = f"<h2>{rich(section.title)}</h2>"
    yield f"<section id='{anchor}'{' class=' + repr('folded') if section.fold else ''}>" + (
        f"<details><summary>{title}</summary>" if section.fold else title
    )
    if section.caption:
        yield f"<p class='lead'>{rich(section.caption)}</p>"
    yield from (f"<p>{rich(words)}</p>" for words in section.paragraphs)
    if section.steps:
        yield f"<ol class='steps'>{''.join(f'<li>{rich(step)}</li>' for step in section.steps)}</ol>"
    for figure in section.figures:
        yield f"<figure id='{figure.id}'><h3>{rich(figure.title)}</h3><figcaption>{rich(figure.caption)}</figcaption>"
        yield f"<div class='live' hidden></div><div class='static'>{svg.draw(figure)}</div>"
        yield f"<details><summary>The numbers behind it</summary>{table_html(behind(figure), figure.title)}</details></figure>"
    for table in section.tables:
        yield table_html(table, section.title)
    yield ("</details>" if section.fold else "") + "</section>\n"


def table_html(table: Table, name: str) -> str:
    """One table in a box that scrolls by itself, so that the page never does sideways."""
    heads = "".join(f"<th scope='col' class='{table.side(c)}'>{escaped(column)}</th>" for c, column in enumerate(table.columns))
    classes = [table.side(c) + (" code" if c in table.code else "") + _short(table, c) for c in range(len(table.columns))]
    rows = "".join(
        "<tr>" + "".join(f"<td class='{kind}'>{escaped(cell)}</td>" for kind, cell in zip(classes, row, strict=True)) + "</tr>"
        for row in table.rows[:_ROWS]
    )
    more = f" ({len(table.rows) - _ROWS:,} more rows are in the JSON)" if len(table.rows) > _ROWS else ""
    caption = f"<caption>{escaped(table.title)}{more}</caption>" if table.title or more else ""
    box = f"<div class='scroll' tabindex='0' role='region' aria-label='{escaped(table.title or name)}'>"
    return f"{box}<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"


def _short(table: Table, column: int) -> str:
    """A column of short words is not broken into lines."""
    return " short" if max((len(row[column]) for row in table.rows[:_ROWS]), default=0) <= 28 else ""


def _value(evidence: Evidence) -> str:
    return num(evidence.value, 4) if isinstance(evidence.value, (int, float)) else bounded(evidence.value, 600)


def escaped(words: object) -> str:
    """Neutralised, then escaped: safe as text and inside a quoted attribute."""
    return escape(visible(words), quote=True)


def rich(words: str, *, keep_newlines: bool = False) -> str:
    """Escaped, with the parts between backticks set as code."""
    parts = escape(visible(bounded(words), keep_newlines=keep_newlines), quote=True).split("`")
    if len(parts) % 2 == 0:  # an odd backtick is a backtick
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _json(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element or starts a comment, and it is plain ASCII."""
    text = json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _within(body: dict[str, Any], room: int) -> tuple[str, list[str]]:
    """The JSON of ``body`` in ``room`` bytes: if need be with six digits, then longest lists left out first; and the names of those."""
    text, left_out = _json(body), []
    if len(text) > room:
        body = _rounded(body)
        text = _json(body)
    for longest in (1000, 200, 40, 8, 0):
        if len(text) <= room:
            break
        names: set[str] = set()
        text, left_out = _json(_trimmed(body, longest, "", names)), sorted(names)
    return text, left_out


def _trimmed(value: Any, longest: int, name: str, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {k: _trimmed(v, longest, k, names) for k, v in value.items()}
    if isinstance(value, list):
        if len(value) > longest and name != "findings":
            names.add(name)
            return {"left_out": len(value)}
        return [_trimmed(v, longest, name, names) for v in value]
    return value


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _redacted(value: Any) -> Any:
    if isinstance(value, dict):
        return {redacted(str(k)): _redacted(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_redacted(v) for v in value]
    return redacted(value) if isinstance(value, str) else value


def _left_out_note(names: list[str]) -> str:
    shown = ", ".join(visible(n) for n in names[:12])
    return escape(f", except for the long lists {shown}, which would not fit: save the result as JSON to keep them") if names else ""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _spare_styles(source: str) -> str:
    """Empty style elements with the ids under which plotly.js would add the style sheets of its maps: it skips what is there.

    Reports have no maps, and a policy that names every style by its hash would block those sheets with a message.
    """
    return "".join(f"<style id='{name}'></style>\n" for name in sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', source))))


@lru_cache(maxsize=4)
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _plotly() -> tuple[str | None, str]:
    """plotly.js out of the installed package, as it is and packed; without the package the page shows its static drawings."""
    found = importlib.util.find_spec("plotly")  # looks, without importing it
    places = found.submodule_search_locations if found is not None else None
    file = Path(next(iter(places))) / "package_data" / "plotly.min.js" if places else None
    if file is None or not file.is_file():
        return None, ""
    source = file.read_text(encoding="utf-8")
    return source, base64.b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode()
