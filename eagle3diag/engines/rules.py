"""Engine facts as data: versions, and rules that hold for a range of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Generic, TypeVar

from eagle3diag.errors import BadArgument

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class Version:
    """An engine version that sorts: ``0.5.5.post3`` lies between ``0.5.5`` and ``0.5.6``, a release candidate before its release.

    >>> Version.parse("0.5.5") < Version.parse("0.5.5.post3") < Version.parse("0.5.12rc1") < Version.parse("0.5.12")
    True
    """

    numbers: tuple[int, ...]
    post: int = 0

    @classmethod
    def parse(cls, text: str) -> Version:
        match = re.match(r"\s*v?(\d{1,9}(?:\.\d{1,9})*)(?!\d)(?:\.?post(\d{1,9})|\.?(rc|a|b|dev)\d*)?", text, re.ASCII)
        if match is None:
            raise BadArgument(f"{text!r:.80} is not a version", hint="write it like 0.5.23")
        return cls(tuple(int(n) for n in match[1].split(".")), -1 if match[3] else int(match[2] or 0))

    def __str__(self) -> str:
        suffix = "rc" if self.post < 0 else f".post{self.post}" if self.post else ""
        return ".".join(map(str, self.numbers)) + suffix


@dataclass(frozen=True)
class Since(Generic[T]):
    """A value that holds from ``version`` on, until the next row of its table, and where that was read."""

    version: Version
    value: T
    source: str


def since(version: str, value: T, source: str) -> Since[T]:
    """One row of a table of :class:`Since`."""
    return Since(Version.parse(version), value, source)


def at(rules: tuple[Since[T], ...], version: Version) -> Since[T]:
    """The rule in force at ``version``: the newest that is not newer; the oldest where all are."""
    return max((r for r in rules if r.version <= version), key=lambda r: r.version, default=rules[0])


@dataclass(frozen=True)
class Span:
    """Versions from ``first`` on and before ``before``; None is "no end".

    >>> Version.parse("0.5.10") in Span.of("0.4.9", "0.5.11"), Version.parse("0.5.11") in Span.of("0.4.9", "0.5.11")
    (True, False)
    """

    first: Version | None = None
    before: Version | None = None

    @classmethod
    def of(cls, first: str | None = None, before: str | None = None) -> Span:
        return cls(Version.parse(first) if first else None, Version.parse(before) if before else None)

    def __and__(self, other: Span) -> Span:
        """The versions in both."""
        firsts = [v for v in (self.first, other.first) if v is not None]
        ends = [v for v in (self.before, other.before) if v is not None]
        return Span(max(firsts, default=None), min(ends, default=None))

    def __contains__(self, version: Version) -> bool:
        return (self.first is None or self.first <= version) and (self.before is None or version < self.before)

    def __str__(self) -> str:
        start = f"since {self.first}" if self.first else ""
        end = f"before {self.before}" if self.before else ""
        return " and ".join(part for part in (start, end) if part) or "every version"


#: Every version.
ALWAYS = Span()


@dataclass(frozen=True)
class Bug:
    """A known fault of some engine versions: the catalogue's id, when it shows, what it does, how to get round it.

    ``shows``: the condition under which it matters, a key of the judge's table of conditions (``faults/engine.py``).
    """

    fault: str
    versions: Span
    shows: str
    title: str
    because: str
    fix: str
    source: str


def split_engine(engine: str) -> tuple[str, str | None]:
    """``"sglang==0.5.23"`` to ``("sglang", "0.5.23")``; a bare name has no version.

    >>> split_engine("sglang==0.5.8")
    ('sglang', '0.5.8')
    """
    name, _, version = engine.partition("==")
    return name.strip().lower(), version.strip() or None
