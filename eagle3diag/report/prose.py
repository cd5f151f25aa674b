r"""The prose of a notebook as HTML: the Markdown that such texts use, out of escaped text; markup, links and images stay words.

>>> blocks("See **this**: `a<b`, [the page](https://example.org/x) <img src=x>")
'<p>See <strong>this</strong>: <code>a&lt;b</code>, the page (https://example.org/x) &lt;img src=x&gt;</p>'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby

from eagle3diag.report.markup import escaped

_HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*#*")
_ITEM = re.compile(r"\s*(?:[-*+]|(?P<number>\d{1,4})[.)])\s+(?P<words>.*)")
_RULE = re.compile(r"\s*([-*_])(?:\s*\1){2,}\s*")
_LINK = re.compile(r"!?\[([^\[\]\n]{0,300})\]\(([^()\s]{0,600})\)")
_BOLD = re.compile(r"\*\*(\S(?:[^*\n]{0,400}\S)?)\*\*")
_ITALIC = re.compile(r"(?<![\w*])\*(\S(?:[^*\n]{0,400}\S)?)\*(?![\w*])")


def heading(text: str) -> tuple[int, str] | None:
    """Level and words, where ``text`` is a heading."""
    found = _HEADING.fullmatch(text.strip()) if len(text) < 1000 else None
    return (len(found[1]), found[2]) if found else None


def blocks(text: str, anchor: Callable[[str], str] = lambda words: "") -> str:
    """HTML of ``text``; ``anchor`` is told each second-level heading and returns its id. The first level is the page's own."""
    out: list[str] = []
    for kind, run in groupby(_kinds(text.replace("\r\n", "\n").split("\n")), lambda pair: pair[0]):
        out += _block(kind, [line for _, line in run], anchor)
    return "".join(out)


def _kinds(lines: list[str]) -> Iterator[tuple[str, str]]:
    fenced = False
    for line in lines:
        fence = line.lstrip().startswith("```")
        yield ("blank" if fence or not (fenced or line.strip()) else "code" if fenced else _kind(line)), line
        fenced ^= fence


def inline(text: str) -> str:
    """One run of words: code between backticks, strong, emphasis; a link is its words and, where it leaves the file, its address."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = ["`".join(parts[-2:])]
    return "".join(f"<code>{escaped(part)}</code>" if i % 2 else _marked(part) for i, part in enumerate(parts))


def _marked(text: str) -> str:
    words = escaped(_LINK.sub(lambda m: f"{m[1]} ({m[2]})" if "://" in m[2] else m[1], text))
    return _ITALIC.sub(r"<em>\1</em>", _BOLD.sub(r"<strong>\1</strong>", words))


def _kind(line: str) -> str:
    if heading(line):
        return "heading"
    if line.lstrip().startswith("|"):
        return "table"
    if _RULE.fullmatch(line):
        return "rule"
    if item := _ITEM.fullmatch(line):
        return "ol" if item["number"] else "ul"
    return "quote" if line.startswith(">") else "words"


def _block(kind: str, lines: list[str], anchor: Callable[[str], str]) -> Iterator[str]:
    if kind == "code":
        lines_of_code = "\n".join(map(escaped, lines))
        yield f"<pre><code>{lines_of_code}</code></pre>"
    elif kind == "heading":
        for found in filter(None, map(heading, lines)):
            level, words = min(max(found[0], 2), 4), found[1]
            name = anchor(words) if level == 2 else ""
            yield f"<h{level}{f' id={name!r}' if name else ''}>{inline(words)}</h{level}>"
    elif kind == "table":
        yield _table(lines)
    elif kind == "rule":
        yield "<hr>"
    elif kind in ("ol", "ul"):
        items = "".join(f"<li>{inline(found['words'])}</li>" for found in map(_ITEM.fullmatch, lines) if found)
        yield f"<{kind}>{items}</{kind}>"
    elif kind == "quote":
        yield f"<blockquote><p>{inline(' '.join(line.lstrip('> ') for line in lines))}</p></blockquote>"
    elif kind == "words" and (words := " ".join(lines).strip()):
        yield f"<p>{inline(words)}</p>"


def _table(lines: list[str]) -> str:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    body = [row for row in rows[1:] if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
    heads = "".join(f"<th scope='col'>{inline(cell)}</th>" for cell in rows[0])
    cells = "".join(f"<tr>{''.join(f'<td>{inline(cell)}</td>' for cell in row)}</tr>" for row in body[:400])
    name = escaped(", ".join(filter(None, rows[0]))[:200] or "table")
    box = f"<div class='scroll' tabindex='0' role='region' aria-label='{name}'>"
    return f"{box}<table aria-label='{name}'><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table></div>"
