"""Each fault as far as one case knows it, and how likely it is there before any number is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eagle3diag.case import Case
from eagle3diag.faults import catalogue, tests_in_words
from eagle3diag.faults.base import Fault
from eagle3diag.findings import Finding, Severity
from eagle3diag.replay import Change

PRESENT = {Severity.ERROR: 0.99, Severity.WARNING: 0.6, Severity.NOTE: 0.05}
"""Probability that what direct evidence shows is there and acts: an error names numbers that a healthy case does not have."""

UNSEEN = 0.4
"""The same for all faults together that the evidence given could not have shown, in equal parts: how many of them the catalogue lists must not
make a healthy case less so."""

RULED_OUT = 0.001
"""And for one that the evidence given would have shown, and did not."""


@dataclass(frozen=True)
class Candidate:
    """One fault as far as this case knows it: how likely it is present, and the changes that would show what it does."""

    fault: Fault
    finding: Finding | None
    present: float
    changes: tuple[Change, ...]

    @property
    def id(self) -> str:
        return self.fault.id

    @property
    def seen(self) -> bool:
        return self.finding is not None and self.finding.severity > Severity.NOTE


def candidates(case: Case, found: tuple[Finding, ...]) -> Iterator[Candidate]:
    """Every fault of the catalogue that was not mended, and every finding above a note that is outside it; ``found``: most severe first."""
    by_fault = _first_of_each(found)
    for sign in signs(found):
        del by_fault[sign]
    listed = [f for f in catalogue() if f.id not in case.assume_fixed]
    unseen = sum(f.lowers and f.id not in by_fault and not case.would_show(f.shown_by) for f in listed)
    for fault in listed:
        own = by_fault.get(fault.id)
        shown = case.would_show(fault.shown_by) or not fault.lowers
        present = PRESENT[own.severity] if own else RULED_OUT if shown else UNSEEN / unseen
        yield Candidate(fault, own, present, tuple(fault.changes(case)))
    known = {fault.id for fault in catalogue()} | case.assume_fixed
    for name, finding in by_fault.items():
        if name not in known and finding.severity > Severity.NOTE and not is_symptom(name):
            yield Candidate(Fault(name, lambda _: None, own_title=finding.title), finding, PRESENT[finding.severity], ())


def signs(found: tuple[Finding, ...]) -> dict[str, str]:
    """Tests whose finding says what that of a fault says more precisely, and at least as surely; and the fault. They are no causes of their own."""
    by_fault, out = _first_of_each(found), {}
    for test, words in tests_in_words().items():
        known = [by_fault[f] for f in words.get("sign_of", ()) if f in by_fault]
        if test in by_fault and known and (first := max(known, key=lambda f: f.severity)).severity >= by_fault[test].severity:
            out[test] = first.fault
    return out


def _first_of_each(found: tuple[Finding, ...]) -> dict[str, Finding]:
    by_fault: dict[str, Finding] = {}
    for finding in found:
        by_fault.setdefault(finding.fault, finding)
    return by_fault


def is_symptom(fault: str) -> bool:
    """Whether a finding restates the number (tests M1 to M9) instead of giving a cause of it."""
    return fault.startswith("M")
