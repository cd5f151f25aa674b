"""A result in a notebook: text for everyone, HTML that is complete without a kernel or a network; a script adds sorting, no more."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from eagle3diag.faults import named
from eagle3diag.findings import Finding, Result, Severity
from eagle3diag.report import svg, text
from eagle3diag.report.form import GLYPHS, Section
from eagle3diag.report.markup import asset, escaped, evidence_html, rich, strip_html, table_html
from eagle3diag.report.redaction import cleaned
from eagle3diag.report.views import view

MIME = "application/vnd.eagle3diag+json"
"""Under this type a saved output carries the numbers of its result; viewers that do not know it pass it over."""


def bundle(result: Result) -> dict[str, Any]:
    """What ``_repr_mimebundle_`` returns: the terminal text, a compact HTML whose drawings tell their values under the pointer, the numbers.

    Like the terminal it shows what is on this machine, except for keys; ``result.to_html(path)`` and ``eagle3diag export`` write what
    others may see. Figures to zoom into are one call away: ``eagle3diag.report.plots.figures(result)``.
    """
    return {"text/plain": text.render(result), "text/html": fragment(result), MIME: cleaned(result, private=True).to_dict()}


def fragment(result: Result) -> str:
    """The HTML of a notebook output: :func:`body`, with the style sheet and the script that belong to it."""
    return f"<style>{asset('notebook.css')}</style>{body(result)}<script>{asset('tables.js')}</script>"


def body(result: Result, *, sections: bool = True) -> str:
    """Everything inside one ``<div class="e3d">``: verdict, strip, findings, and the ``sections`` with tables and drawings."""
    told = view(result)
    facts = "".join(f"<tr><th scope='row'>{escaped(name)}</th><td>{rich(value)}</td></tr>" for name, value in told.facts)
    parts = [
        "<div class='e3d'>",
        f"<p class='e3d-kicker'>eagle3diag {escaped(told.verb)} · {GLYPHS[told.worst]} {told.counts}</p>",
        f"<p class='e3d-verdict'><b>{rich(told.verdict)}</b></p>",
        f"<table class='e3d-facts' aria-label='Facts'><tbody>{facts}</tbody></table>" if facts else "",
        f"<p><b>{rich(told.strip.title)}</b></p>{''.join(strip_html(told.strip))}" if told.strip is not None else "",
        *(_finding(f, told.remarks[i] if i < len(told.remarks) else "") for i, f in enumerate(told.findings)),
        *(_grouped(told.sections) if sections else ()),
        "</div>",
    ]
    return "".join(parts)


def _finding(finding: Finding, remark: str) -> str:
    body = [f"<p>{rich(words)}</p>" for words in (finding.because, remark) if words]
    body.append(evidence_html(finding))
    body += [f"<p><b>{name}.</b> {rich(words)}</p>" for name, words in (("Fix", finding.fix), ("Then check", finding.check)) if words]
    head = f"{GLYPHS[finding.severity]} {finding.severity.label} · {escaped(named(finding.fault))} · <b>{rich(finding.title)}</b>"
    opened = " open" if finding.severity >= Severity.WARNING else ""
    return f"<details class='e3d-finding e3d-{finding.severity.label}'{opened}><summary>{head}</summary>{''.join(body)}</details>"


def _grouped(sections: tuple[Section, ...]) -> Iterator[str]:
    """Each run of a group behind one fold, so that all the evidence of a diagnosis takes a few lines until it is opened."""
    for group, run in groupby(sections, key=lambda s: s.group):
        body = "".join(map(_section, run))
        yield f"<details><summary><b>{rich(group)}</b></summary><div class='e3d-group'>{body}</div></details>" if group else body


def _section(section: Section) -> str:
    body = [f"<p>{rich(words)}</p>" for words in (section.caption, *section.paragraphs) if words]
    if section.steps:
        body.append(f"<ol>{''.join(f'<li>{rich(step)}</li>' for step in section.steps)}</ol>")
    body += [
        f"<div class='e3d-figure'><p><b>{rich(f.title)}.</b> {rich(f.caption)}</p>{svg.draw(f, hover=True)}</div>" for f in section.figures
    ]
    body += [table_html(table, section.title) for table in section.tables]
    opened = "" if section.fold or section.group else " open"
    return f"<details{opened}><summary><b>{rich(section.title)}</b></summary>{''.join(body)}</details>"
