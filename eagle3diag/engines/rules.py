"""Engine facts as data: versions, and rules that hold for a range of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from eagle3diag.errors import BadArgument


@dataclass(frozen=True, order=True)
class Version:
    """An engine version that sorts: ``0.5.5.post3`` lies between ``0.5.5`` and ``0.5.6``.

    >>> Version.parse("0.5.5") < Version.parse("0.5.5.post3") < Version.parse("0.5.12")
    True
    """

    numbers: tuple[int, ...]
    post: int = 0

    @classmethod
    def parse(cls, text: str) -> Version:
        match = re.match(r"\s*v?(\d+(?:\.\d+)*)(?:\.?post(\d+))?", text)
        if match is None:
            raise BadArgument(f"{text!r} is no version", hint="write it like 0.5.23")
        return cls(tuple(int(n) for n in match[1].split(".")), int(match[2] or 0))

    def __str__(self) -> str:
        return ".".join(map(str, self.numbers)) + (f".post{self.post}" if self.post else "")


@dataclass(frozen=True)
class Since:
    """A value that holds from ``version`` on, and where that was read."""

    version: Version
    value: str
    source: str


def at(rules: tuple[Since, ...], version: Version) -> Since:
    """The rule in force at ``version``: the newest that is not newer; the oldest where all are."""
    return max((r for r in rules if r.version <= version), key=lambda r: r.version, default=rules[0])


def split_engine(engine: str) -> tuple[str, str | None]:
    """``"sglang==0.5.23"`` to ``("sglang", "0.5.23")``; a bare name has no version.

    >>> split_engine("sglang==0.5.8")
    ('sglang', '0.5.8')
    """
    name, _, version = engine.partition("==")
    return name.strip().lower(), version.strip() or None
