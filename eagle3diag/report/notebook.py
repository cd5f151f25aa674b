"""A result in a notebook: text for everyone, HTML that is complete without a kernel or a network; a script adds sorting, no more."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from eagle3diag.findings import Finding, Result, Severity
from eagle3diag.report import svg, text
from eagle3diag.report.form import GLYPHS, Section
from eagle3diag.report.markup import asset, escaped, evidence_html, rich, strip_html, table_html
from eagle3diag.report.views import view


def bundle(result: Result) -> dict[str, str]:
    """What ``_repr_mimebundle_`` returns: the terminal text, and a compact HTML whose drawings tell their values under the pointer.

    Like the terminal it shows what is on this machine, except for keys; ``result.to_html(path)`` writes what others may see. Figures to
    zoom into are one call away: ``eagle3diag.report.plots.figures(result)``.
    """
    return {"text/plain": text.render(result), "text/html": fragment(result)}


def fragment(result: Result) -> str:
    """The HTML of a notebook output: everything stands inside one ``<div class="e3d">`` with a style sheet of its own."""
    told = view(result)
    facts = "".join(f"<tr><th>{escaped(name)}</th><td>{rich(value)}</td></tr>" for name, value in told.facts)
    parts = [
        f"<style>{asset('notebook.css')}</style><div class='e3d'>",
        f"<p class='e3d-kicker'>eagle3diag {escaped(told.verb)} · {GLYPHS[told.worst]} {told.counts}</p>",
        f"<p class='e3d-verdict'><b>{rich(told.verdict)}</b></p>",
        f"<table class='e3d-facts'><tbody>{facts}</tbody></table>" if facts else "",
        f"<p><b>{rich(told.strip.title)}</b></p>{''.join(strip_html(told.strip))}" if told.strip is not None else "",
        *(_finding(f, told.remarks[i] if i < len(told.remarks) else "") for i, f in enumerate(told.findings)),
        *_grouped(told.sections),
        f"</div><script>{asset('tables.js')}</script>",
    ]
    return "".join(parts)


def _finding(finding: Finding, remark: str) -> str:
    body = [f"<p>{rich(words)}</p>" for words in (finding.because, remark) if words]
    body.append(evidence_html(finding))
    body += [f"<p><b>{name}.</b> {rich(words)}</p>" for name, words in (("Fix", finding.fix), ("Then check", finding.check)) if words]
    head = f"{GLYPHS[finding.severity]} {finding.severity.label} · {escaped(finding.fault)} · <b>{rich(finding.title)}</b>"
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
