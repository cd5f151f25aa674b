"""What each kind of result shows, and in which order: one function per kind, from the result to a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eagle3diag.findings import Result
from eagle3diag.report.form import Page
from eagle3diag.report.views import audit, before_after, comparison, conversion, diagnosis, dump_check, probe, replay, weights
from eagle3diag.report.views.generic import generic

# By name, so that rendering one kind does not import the packages that measure the others.
_VIEWS: dict[str, Callable[[Any], Page]] = {
    "Comparison": comparison.page,
    "WeightReport": weights.page,
    "Replay": replay.page,
    "Audit": audit.page,
    "Conversion": conversion.page,
    "Diagnosis": diagnosis.page,
    "BeforeAfter": before_after.page,
    "Probe": probe.page,
    "DumpCheck": dump_check.page,
}


def view(result: Result) -> Page:
    """The page of ``result``; a kind without a view of its own is shown field by field."""
    for kind in type(result).__mro__:
        if kind.__name__ in _VIEWS:
            return _VIEWS[kind.__name__](result)
    return generic(result)
