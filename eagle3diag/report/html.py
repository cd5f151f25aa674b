"""A page as one HTML file that needs nothing else: no server, no network, and not even JavaScript to be read."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from eagle3diag import __version__
from eagle3diag.faults import named
from eagle3diag.findings import Finding, Result, Severity
from eagle3diag.report import plots, svg
from eagle3diag.report.budget import LeftOut, json_text, numbers_within, parts_within
from eagle3diag.report.form import GLYPHS, Figure, Page, Section, Table
from eagle3diag.report.markup import asset, escaped, evidence_html, rich, strip_html, table_html
from eagle3diag.report.numbers import num
from eagle3diag.report.palette import HUES, INK
from eagle3diag.report.redaction import REASONS, cleaned, removed
from eagle3diag.report.safe import bounded
from eagle3diag.report.tables import behind
from eagle3diag.report.views import view

LIMIT = 3_000_000  # bytes; what mail and chat still take without a word
_HEAD = 12_000  # bytes for the head, the foot and the list of what was left out
_NUMBERS = 60_000  # bytes that parts of the page leave to the numbers


def page(result: Result, *, include_text: bool = False) -> str:
    """The whole file as text; the same result gives the same bytes.

    What names persons or machines, and text of prompts, is removed first, in one place (:mod:`eagle3diag.report.redaction`), unless
    ``include_text``; keys always are. The numbers travel in ``<script type="application/json" id="result">``. What would pass
    :data:`LIMIT` is left out. Both are listed at the end of the page.
    """
    result = cleaned(result, private=include_text)
    gone = removed(result)
    told = view(result)
    left = LeftOut()
    source, packed = _plotly() if any(told.figures()) else (None, "")
    script, style = asset("tables.js") + asset("page.js"), asset("page.css")
    top, answer = "".join(_header(told)), "".join(_answer(told))
    room = LIMIT - _HEAD - sum(len(text.encode()) for text in (packed, script, style, top, answer))
    drawn = parts_within([(s, "".join(_section(s, f"part-{i}"))) for i, s in enumerate(told.sections)], room - _NUMBERS, left)
    room -= sum(len(text.encode()) for _, text in drawn)
    figures = _hovering([f for section, _ in drawn for f in section.figures] if packed else [], room // 2, left)
    numbers = numbers_within(result.to_dict() | {"removed": gone}, room - len(figures), left)
    allowed = (
        f"script-src {' '.join(hashed(text) for text in (script, source) if text is not None)}",
        f"style-src {hashed(style)} {hashed('')}",  # plotly adds one empty style element and fills it by script
        "style-src-attr 'unsafe-inline'",  # plotly positions its labels with style attributes
        "img-src data: blob:",  # heat maps are drawn as data: images; blob: is the button that saves a picture
    )
    parts = [
        head(f"{told.verb}: {told.verdict}", style, allowed, more=_spare_styles(source or "")),
        top,
        *_contents(told, len(drawn)),
        answer,
        *_grouped(drawn),
        *left_out(gone, left, include_text),
        foot(numbers),
    ]
    if packed:
        parts += [
            f'<script type="text/plain" id="figures-packed">{figures}</script>\n',
            f'<script type="application/json" id="plot-config">{json_text(dict(plots.CONFIG))}</script>\n',
            f'<script type="application/json" id="hues">{json_text((*HUES, INK))}</script>\n',
            f'<script type="text/plain" id="plotly-packed">{packed}</script>\n',
        ]
    parts.append(f"<script>{script}</script>\n</body>\n</html>\n")
    return "".join(parts)


def head(title: str, style: str, allowed: Iterable[str], *, more: str = "") -> str:
    """All before the content: nothing is permitted but what ``allowed`` names, by hash."""
    policy = "; ".join(("default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'"))
    return "".join(
        (
            "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n",
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            "<meta name='viewport' content='width=device-width, initial-scale=1'>\n<meta name='referrer' content='no-referrer'>\n",
            "<meta name='color-scheme' content='light dark'>\n",
            f"<meta name='generator' content='eagle3diag {__version__}'>\n<title>{escaped(bounded(title, 200))}</title>\n",
            f"<style>{style}</style>\n{more}</head>\n<body>\n",
        )
    )


def foot(numbers: str) -> str:
    """The end of the content, and the JSON that :func:`eagle3diag.load` reads."""
    return "".join(
        (
            "</main>\n<footer><div>",
            f"<p>Written by eagle3diag {__version__}. This file is complete: it loads nothing and sends nothing. ",
            "The numbers of what it shows are inside it as JSON; <code>eagle3diag.load()</code> opens it again.</p>",
            "<p><button type='button' id='save-json' hidden>Save the numbers as JSON</button></p></div></footer>\n",
            f'<script type="application/json" id="result">{numbers}</script>\n',
        )
    )


def _header(told: Page) -> Iterator[str]:
    yield "<a class='skip' href='#findings'>Skip to the findings</a>\n"
    yield f"<header><p class='kicker'>eagle3diag · {escaped(told.verb)}</p><h1>{rich(told.verdict)}</h1>"
    yield f"<ul class='chips'>{''.join(_chips(told))}</ul>"
    if told.facts:
        yield f"<dl class='facts'>{''.join(f'<dt>{escaped(name)}</dt><dd>{rich(value)}</dd>' for name, value in told.facts)}</dl>"
    yield "</header>\n"


def _contents(told: Page, drawn: int) -> Iterator[str]:
    """Links to what is on the page: its first ``drawn`` sections."""
    sections = told.sections[:drawn]
    links = [("loss", told.strip.title)] if told.strip is not None else []
    links += [("findings", "Findings"), *((f"part-{i}", s.title) for i, s in enumerate(sections) if not s.group)]
    links += [(f"part-{i}", s.group) for i, s in enumerate(sections) if s.group and (i == 0 or sections[i - 1].group != s.group)]
    items = "".join(f"<li><a href='#{target}'>{escaped(name)}</a></li>" for target, name in [*links, ("left-out", "Left out")])
    yield f"<nav aria-label='Contents'><ul>{items}</ul></nav>\n<main>\n"


def _answer(told: Page) -> Iterator[str]:
    """The strip and the findings: what a page is never without."""
    if told.strip is not None:
        yield f"<section id='loss' aria-labelledby='loss-title'><h2 id='loss-title'>{rich(told.strip.title)}</h2>{''.join(strip_html(told.strip))}</section>\n"
    yield "<section id='findings' aria-labelledby='findings-title'><h2 id='findings-title'>Findings</h2>"
    if told.findings:
        yield "<ol class='findings'>"
        for i, finding in enumerate(told.findings):
            yield from _finding(finding, told.remarks[i] if i < len(told.remarks) else "")
        yield "</ol>"
    else:
        yield "<p>Nothing was found. What was measured is below.</p>"
    yield "</section>\n"


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
    yield f"<h3>{rich(finding.title)}</h3><span class='fault code'>{escaped(named(finding.fault))}</span></div>"
    for words, kind in ((finding.because, "because"), (remark, "remark")):
        if words:
            yield f"<p class='{kind}'>{rich(words)}</p>"
    yield evidence_html(finding)
    if finding.fix or finding.check:
        yield "<dl class='do'>"
        for name, words in (("Fix", finding.fix), ("Then check", finding.check)):
            if words:
                yield f"<dt>{name}</dt><dd>{rich(words, keep_newlines=True)}</dd>"
        yield "</dl>"
    yield "</li>"


def _grouped(drawn: list[tuple[Section, str]]) -> Iterator[str]:
    """The sections, each run of a group under its heading."""
    group = ""
    for section, text in drawn:
        if section.group and section.group != group:
            yield f"<p class='group'>{escaped(section.group)}</p>"
        group = section.group
        yield text


def _section(section: Section, anchor: str) -> Iterator[str]:
    title = f"<h2 id='{anchor}-title'>{rich(section.title)}</h2>"
    yield f"<section id='{anchor}' aria-labelledby='{anchor}-title'{' class=' + repr('folded') if section.fold else ''}>" + (
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


def left_out(gone: dict[str, int], left: LeftOut, include_text: bool, more: Table | None = None) -> Iterator[str]:
    """What this page does not tell, so that a reader need not guess; ``more`` has rows of kinds of its own."""
    yield "<section id='left-out' aria-labelledby='left-out-title'><h2 id='left-out-title'>Left out</h2>"
    asked = "Keys and passwords are removed; hosts, paths, names and texts were kept because that was asked for."
    safe = "Keys, hosts, addresses, names of persons, home folders and texts of prompts are removed before anything is drawn."
    yield f"<p class='lead'>{asked if include_text else safe}{'' if gone else ' There were none.'}</p>"
    if gone:
        rows = tuple((kind, num(places), REASONS[kind]) for kind, places in gone.items())
        yield table_html(Table(("removed", "places", "why"), rows, align="lrl"), "What was removed, by kind")
    if more is not None:
        yield table_html(more, more.title)
    if left.lines():
        yield f"<p>To stay under {LIMIT / 1e6:g} MB:</p><ul>{''.join(f'<li>{escaped(line)}</li>' for line in left.lines())}</ul>"
    yield "</section>\n"


def _hovering(figures: list[Figure], room: int, left: LeftOut) -> str:
    """The figures for plotly, packed, in ``room`` bytes; the last ones go first, for what stands high matters more."""
    specs = {figure.id: plots.spec(figure) | {"config": plots.config(figure)} for figure in figures}
    while len(packed := _pack(json_text(specs))) > room and specs:
        name = next(reversed(specs))
        left.hover.insert(0, next(f.title for f in figures if f.id == name))
        del specs[name]
    return packed


def _pack(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def hashed(text: str) -> str:
    """The source expression that lets exactly this script or style in."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@lru_cache(maxsize=1)
def _spare_styles(source: str) -> str:
    """Empty style elements with the ids under which plotly.js would add the style sheets of its maps: it skips what is there.

    Reports have no maps, and a policy that names every style by its hash would block those sheets with a message.
    """
    return "".join(f"<style id='{name}'></style>\n" for name in sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', source))))


@lru_cache(maxsize=1)
def _plotly() -> tuple[str | None, str]:
    """plotly.js out of the installed package, as it is and packed; without the package the page shows its static drawings."""
    found = importlib.util.find_spec("plotly")  # looks, without importing it
    places = found.submodule_search_locations if found is not None else None
    file = Path(next(iter(places))) / "package_data" / "plotly.min.js" if places else None
    if file is None or not file.is_file():
        return None, ""
    source = file.read_text(encoding="utf-8")
    return source, _pack(source)
