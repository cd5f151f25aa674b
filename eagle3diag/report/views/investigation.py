"""How the results of a notebook are shown as one report: each under its own heading, folded."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from eagle3diag.findings import headline
from eagle3diag.report.form import Page
from eagle3diag.report.numbers import many

if TYPE_CHECKING:
    from eagle3diag.investigation import Investigation


def page(result: Investigation) -> Page:
    from eagle3diag.report.views import view

    findings, told = result.findings, [view(one) for one in result.results]
    sections = chain.from_iterable(p.grouped(f"{n} · {p.verb}: {p.verdict}", prefix=f"result-{n}-") for n, p in enumerate(told, 1))
    facts = (("notebook", result.title), *((f"{n} · {p.verb}", p.verdict) for n, p in enumerate(told, 1)))
    healthy = f"{many(len(told), 'result')}, and nothing above a note in any of them."
    return Page("notebook", headline(findings, healthy), facts, findings, tuple(sections))
