"""A notebook that was run as one HTML file for others: its prose, our results drawn anew from their numbers, everything else as escaped text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from eagle3diag.investigation import Investigation
from eagle3diag.report import prose
from eagle3diag.report.budget import LeftOut, numbers_within
from eagle3diag.report.form import GLYPHS, Table
from eagle3diag.report.html import LIMIT, foot, hashed, head, left_out
from eagle3diag.report.markup import asset, escaped, rich
from eagle3diag.report.notebook import body
from eagle3diag.report.notebook_file import Cell, Notebook, Other, Shown, Words
from eagle3diag.report.numbers import num
from eagle3diag.report.redaction import cleaned, removed
from eagle3diag.report.safe import bounded, visible
from eagle3diag.report.views import view

NOT_TAKEN: Mapping[str, str] = {
    "code": "code and its comments may quote prompts, paths and names",
    "text output": "what a cell prints may quote prompts and answers",
    "error": "a traceback quotes code and paths",
    "live control": "it needs a kernel: run the notebook",
    "progress bar": "it has ended",
    "picture": "a picture cannot be searched for what is private",
    "markup": "only results of eagle3diag are drawn; of other outputs the text is taken",
    "damaged view": "its numbers could not be opened; the text beside them is taken",
}
"""What is not taken over from a notebook, and why. The first two are, when texts were asked for."""

_SHOWN = 20_000  # characters of one text
_FOLDED = 40  # lines from which on a text is folded
_HEAD = 16_000  # bytes for the head, the foot and the list of what was left out


@dataclass
class _Block:
    """A piece of the page; ``name`` in the list of what was left out, ``short`` is a view told without its details."""

    html: str
    name: str = ""
    short: str = ""


def page(notebook: Notebook, *, include_text: bool = False, texts: bool = False) -> str:
    """The whole file as text; the same notebook gives the same bytes.

    What names persons or machines is removed as in any report, and code and printed text are left out; ``texts`` keeps these two,
    ``include_text`` keeps all but keys. The results travel as an :class:`~eagle3diag.investigation.Investigation`.
    """
    notebook = cleaned(notebook, private=include_text)
    texts = texts or include_text
    gone, left, counts = removed(_told(notebook, texts)), LeftOut(), Counter[str]()
    headings: list[str] = []
    blocks = [block for n, cell in enumerate(notebook.cells, 1) for block in _cell(cell, n, notebook.title, texts, headings, counts)]
    style, script = asset("page.css") + asset("notebook.css") + asset("notebook_page.css"), asset("tables.js") + asset("page.js")
    top = "".join(_top(notebook, headings))
    numbers = numbers_within(Investigation(notebook.title, notebook.results).to_dict() | {"removed": gone}, LIMIT // 2, left)
    _shorten(blocks, LIMIT - _HEAD - sum(len(text.encode()) for text in (top, style, script, numbers)), left)
    rows = tuple((kind, num(counts[kind]), why) for kind, why in NOT_TAKEN.items() if counts[kind])
    not_taken = Table(("not taken over", "places", "why"), rows, align="lrl", title="Of the notebook") if rows else None
    allowed = (f"script-src {hashed(script)}", f"style-src {hashed(style)}")
    parts = [
        head(notebook.title, style, allowed),
        top,
        *(block.html for block in blocks),
        *left_out(gone, left, include_text, not_taken),
        foot(numbers),
        f"<script>{script}</script>\n</body>\n</html>\n",
    ]
    return "".join(parts)


def _told(notebook: Notebook, texts: bool) -> Any:
    """What the page shows of the notebook, for counting what was removed from it."""
    kept = (replace(c, source="", outputs=tuple(o for o in c.outputs if not isinstance(o, Words))) if c.code else c for c in notebook.cells)
    return notebook if texts else replace(notebook, cells=tuple(kept))


def _top(notebook: Notebook, headings: list[str]) -> Iterator[str]:
    yield "<a class='skip' href='#in-short'>Skip to the results</a>\n"
    yield f"<header><p class='kicker'>eagle3diag · notebook</p><h1>{prose.inline(bounded(notebook.title, 300))}</h1></header>\n"
    links = [("in-short", "In short"), *((f"part-{n}", words) for n, words in enumerate(headings)), ("left-out", "Left out")]
    items = "".join(f"<li><a href='#{target}'>{prose.inline(words)}</a></li>" for target, words in links)
    yield f"<nav aria-label='Contents'><ul>{items}</ul></nav>\n<main>\n"
    yield "<section id='in-short' aria-labelledby='in-short-title'><h2 id='in-short-title'>In short</h2>"
    told = [view(result) for result in notebook.results]
    if told:
        rows = (
            f"<li><a href='#result-{n}'>{GLYPHS[p.worst]} {escaped(p.verb)}</a> {rich(bounded(p.verdict, 400))}</li>"
            for n, p in enumerate(told, 1)
        )
        yield f"<ol class='in-short'>{''.join(rows)}</ol></section>\n"
    else:
        yield "<p>This notebook shows no result of eagle3diag.</p></section>\n"


def _cell(cell: Cell, n: int, title: str, texts: bool, headings: list[str], counts: Counter[str]) -> Iterator[_Block]:
    if not cell.code:
        lines = cell.source.split("\n")
        if prose.heading(lines[0]) == (1, title):
            lines = lines[1:]  # it stands above

        def anchor(words: str) -> str:
            headings.append(words)
            return f"part-{len(headings) - 1}"

        yield _Block(f"<div class='prose'>{prose.blocks(bounded(chr(10).join(lines), _SHOWN), anchor)}</div>\n", f"the prose of cell {n}")
        return
    if cell.source.strip():
        if texts:
            yield _Block(_pre(cell.source, "source", f"code of cell {n}"), f"the code of cell {n}")
        else:
            counts["code"] += 1
    for output in cell.outputs:
        if isinstance(output, Shown):
            counts["result"] += 1
            name = f"result {counts['result']}"
            frame = f"<section class='shown' id='result-{counts['result']}' aria-label='{name}'>{{}}</section>\n"
            yield _Block(frame.format(body(output.result)), f"the details of {name}", frame.format(body(output.result, sections=False)))
        elif isinstance(output, Other):
            counts[output.kind] += 1
            why = output.why or NOT_TAKEN[output.kind]
            if output.kind != "progress bar":  # nobody misses it
                yield _Block(f"<p class='not-taken'>(Not taken over: {output.kind}; {escaped(bounded(why, 400))}.)</p>\n")
        elif texts:
            yield _Block(_pre(output.text, "printed", f"output of cell {n}"), f"the output of cell {n}")
        else:
            counts["text output"] += 1


def _pre(text: str, kind: str, name: str) -> str:
    """Text in its own lines; much of it behind a fold."""
    text = text.rstrip("\n")
    told = f"<pre class='{kind}' tabindex='0' role='region' aria-label='{name}'>{_lines(bounded(text, _SHOWN))}</pre>"
    lines = text.count("\n") + 1
    return f"<details><summary>{name}: {lines} lines</summary>{told}</details>\n" if lines > _FOLDED else f"{told}\n"


def _lines(text: str) -> str:
    return escape(visible(text.replace("\r\n", "\n").expandtabs(4), keep_newlines=True), quote=True)


def _shorten(blocks: list[_Block], room: int, left: LeftOut) -> None:
    """Until all fits: the largest view is told without its details, then the largest texts go."""
    sizes = [len(block.html.encode()) for block in blocks]
    while sum(sizes) > max(room, 0):
        views = [i for i, block in enumerate(blocks) if block.short]
        i = max(views or range(len(blocks)), key=lambda k: sizes[k])
        left.parts.append(blocks[i].name or "a note")
        blocks[i] = _Block(blocks[i].short, blocks[i].name) if views else _Block("")
        sizes[i] = len(blocks[i].html.encode())
