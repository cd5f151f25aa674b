"""What an entry of the catalogue is: how it is detected, which counterfactuals reproduce it, what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from eagle3diag.audit import Audit
from eagle3diag.case import Case
from eagle3diag.faults import in_words
from eagle3diag.findings import Finding
from eagle3diag.replay import Change

IN_FILES = (("draft",),)
"""Evidence that shows a fault of the checkpoint: the checkpoint alone."""


IN_DUMPS = (("train", "live"),)
"""And of one of the fed states: both sides are needed."""


def no_changes(case: Case) -> Iterator[Change]:
    """Of a fault that no replay shows."""
    yield from ()


def some_of(names: Sequence[str]) -> str:
    """The first four, and how many more.

    >>> some_of(["a", "b"]), some_of("abcdef")
    ('a, b', 'a, b, c, d and 2 more')
    """
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def off_by_one(trained: Sequence[int], seen: Sequence[int]) -> bool:
    """Whether every boundary that is seen lies beside the trained one, all on the same side.

    >>> off_by_one((2, 15), (3, 16)), off_by_one((2, 15), (3, 14)), off_by_one((2, 15), (3,))
    (True, False, False)
    """
    return len(trained) == len(seen) and {b - a for a, b in zip(trained, seen, strict=True)} in ({1}, {-1})


@dataclass(frozen=True)
class Fault:
    """One catalogue entry.

    Attributes
    ----------
    id: of the catalogue (FM-05), or of a test (H2, C11).
    detect: direct evidence in the case, or None. It must stay silent on a healthy case and on legal oddities.
    changes: the counterfactual replays that show what this fault does here; empty where a replay cannot show it or the evidence for it
        is not there.
    shown_by: sets of evidence, any of which would show this fault directly; so its silence there speaks against it. Empty: none would.
    typical: accept lengths reported for it where the draft is otherwise healthy, or replayed on the drafts of the score, for cases without a
        replay.
    own_title: one line, for an id that ``catalogue.toml`` does not tell of.
    """

    id: str
    detect: Callable[[Case], Finding | None]
    changes: Callable[[Case], Iterator[Change]] = no_changes
    shown_by: tuple[tuple[str, ...], ...] = ()
    typical: tuple[float, float] | None = None
    own_title: str = field(default="", kw_only=True)

    @property
    def title(self) -> str:
        """One line: the catalogue's, or its own."""
        return str(in_words().get(self.id, {}).get("title", self.own_title))

    @property
    def lowers(self) -> bool:
        """Whether it can lower the accept length, as a replay, a report, or its place among the fed states says."""
        return bool(self.typical) or self.changes is not no_changes or IN_DUMPS[0] in self.shown_by


def on_audit(judge: Callable[[Audit], Finding | None]) -> Callable[[Case], Finding | None]:
    """A judge of the audit as the ``detect`` of a fault."""

    def detect(case: Case) -> Finding | None:
        return judge(case.audit) if case.audit is not None else None

    return detect


def in_files(
    id: str,
    judge: Callable[[Audit], Finding | None],
    changes: Callable[[Case], Iterator[Change]] = no_changes,
    typical: tuple[float, float] | None = None,
) -> Fault:
    """A fault that the checkpoint shows or rules out: its changes are worth a replay only where it is seen."""

    def if_seen(case: Case) -> Iterator[Change]:
        if case.audit is not None and judge(case.audit) is not None:
            yield from changes(case)

    return Fault(id, on_audit(judge), changes if changes is no_changes else if_seen, IN_FILES, typical)
