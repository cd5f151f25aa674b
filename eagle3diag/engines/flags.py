"""Which options an engine's command line has, by version, and combinations of options that it refuses or quietly changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from eagle3diag.engines.rules import Version

if TYPE_CHECKING:  # the facts are about launches, and read none
    from eagle3diag.serving.launch import Launch

Effect = Literal["refused", "fails", "spoils", "changes"]


@dataclass(frozen=True)
class Combination:
    """Options that do not go together in the versions ``since`` .. before ``until``.

    ``effect``: the server is ``refused`` a start; acceptance ``fails`` (nothing is measured, or nothing can be accepted); it ``spoils``
    acceptance under conditions that the command alone does not show; it ``changes`` something without harm. ``absent``: it rests on an
    option that is not given, so it says nothing of a command that is not wholly known.
    """

    fault: str
    effect: Effect
    title: str
    because: str
    fix: str
    source: str
    when: Callable[[Launch], bool]
    shown: tuple[str, ...]
    since: str = "0"
    until: str | None = None
    absent: bool = False

    def holds(self, version: Version) -> bool:
        return Version.parse(self.since) <= version and (self.until is None or version < Version.parse(self.until))


@dataclass(frozen=True)
class OptionTable:
    """Names by the first of the versions ``read`` that has them (``added``) and that lacks them again (``gone``)."""

    read: tuple[str, ...]
    added: Mapping[str, str]
    gone: Mapping[str, str]

    @cached_property
    def _spans(self) -> dict[str, list[tuple[int, int]]]:
        """Per name the half-open ranges of indices into ``read`` in which it exists."""
        spans: dict[str, list[tuple[int, int]]] = {}
        for index, version in enumerate(self.read):
            for name in self.gone.get(version, "").split():
                spans[name][-1] = (spans[name][-1][0], index)
            for name in self.added.get(version, "").split():
                spans.setdefault(name, []).append((index, len(self.read)))
        return spans

    def knows(self, name: str, version: Version) -> bool | None:
        """Whether ``version`` has the option ``name``; None where the versions read on either side of it differ, or it is newer than all.

        argparse takes a beginning of a name that fits only one option, so a beginning counts as known where any name starts so.
        """
        below = max((i for i, v in enumerate(self._versions) if v <= version), default=None)
        above = min((i for i, v in enumerate(self._versions) if v >= version), default=None)
        if above is None or below is None:
            return True if self._has(name, above or below or 0) else None
        answers = {self._has(name, below), self._has(name, above)}
        return answers.pop() if len(answers) == 1 else None

    @cached_property
    def _versions(self) -> tuple[Version, ...]:
        return tuple(Version.parse(v) for v in self.read)

    def _has(self, name: str, index: int) -> bool:
        spans = self._spans.get(name) or [span for n, found in self._spans.items() if n.startswith(name) for span in found]
        return any(first <= index < last for first, last in spans)

    def ever(self, name: str) -> tuple[str, str | None] | None:
        """``(first version read that has it, first that lacks it again)``; None for a name of no version."""
        if name not in self._spans:
            return None
        first, last = self._spans[name][0][0], self._spans[name][-1][1]
        return self.read[first], self.read[last] if last < len(self.read) else None

    def near(self, name: str) -> str | None:
        """The name that was probably meant."""
        return next(iter(get_close_matches(name, self._spans, n=1, cutoff=0.75)), None)
