"""Before the fix and after it: what is gone, what is new, and what it did to the accept length."""

from __future__ import annotations

import os
from dataclasses import dataclass

from eagle3diag.errors import BadArgument
from eagle3diag.findings import Finding, Result, Severity, headline

__all__ = ["BeforeAfter", "Summary", "before_after"]


@dataclass(frozen=True)
class Summary:
    """One of the two results, in short.

    ``observed``, ``expected``: accept length on the server and in the healthy replay, with their 95 % intervals; None when not known.
    """

    verdict: str
    observed: float | None
    observed_interval: tuple[float, float] | None
    expected: float | None
    expected_interval: tuple[float, float] | None
    found: tuple[Finding, ...]


@dataclass(frozen=True)
class BeforeAfter(Result):
    """Two results of the same ``of`` (kind), held against each other by the ids of what they found above a note."""

    of: str
    before: Summary
    after: Summary

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is found after the fix: what is new first, then what is still there."""
        rank = {f.fault: 0 for f in self.new}
        return tuple(sorted(self.after.found, key=lambda f: (-f.severity, rank.get(f.fault, 1))))

    @property
    def gone(self) -> tuple[Finding, ...]:
        return _without(self.before, self.after)

    @property
    def new(self) -> tuple[Finding, ...]:
        return _without(self.after, self.before)

    @property
    def still(self) -> tuple[Finding, ...]:
        """As they are after the fix."""
        return tuple(f for f in _serious(self.after) if f.fault in {b.fault for b in _serious(self.before)})

    @property
    def gained(self) -> float | None:
        """Accept length observed after, less before."""
        return None if self.before.observed is None or self.after.observed is None else self.after.observed - self.before.observed


def before_after(before: Result | str | os.PathLike[str], after: Result | str | os.PathLike[str]) -> BeforeAfter:
    """Hold two results of one kind against each other; each is a result, or a file that :func:`eagle3diag.load` opens.

    Raises
    ------
    BadArgument: two kinds that cannot be compared. UnreadableFile: as :func:`eagle3diag.load`.
    """
    from eagle3diag.report.saved import load

    first, second = (item if isinstance(item, Result) else load(item) for item in (before, after))
    kinds = [type(item).__name__ for item in (first, second)]
    if kinds[0] != kinds[1]:
        raise BadArgument(f"a {kinds[0]} and a {kinds[1]} cannot be compared", hint="give two results of the same verb")
    return BeforeAfter(kinds[0], _summary(first), _summary(second))


def _summary(result: Result) -> Summary:
    observed, replayed = getattr(result, "observed", None), getattr(result, "replay", None)
    if type(result).__name__ == "Replay":
        replayed = result
    return Summary(
        verdict=getattr(result, "verdict", None) or headline(result.findings),
        observed=observed.length if observed is not None else None,
        observed_interval=observed.interval if observed is not None else None,
        expected=replayed.accept_length if replayed is not None else None,
        expected_interval=replayed.accept_length_interval if replayed is not None else None,
        found=result.findings,
    )


def _serious(side: Summary) -> tuple[Finding, ...]:
    return tuple(f for f in side.found if f.severity > Severity.NOTE)


def _without(side: Summary, other: Summary) -> tuple[Finding, ...]:
    known = {f.fault for f in _serious(other)}
    return tuple(f for f in _serious(side) if f.fault not in known)
