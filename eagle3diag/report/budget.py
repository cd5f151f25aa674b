"""What a page of limited size can carry: numbers lose digits first, then drawings their hover, then long lists and last parts go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3diag.report.form import Section
from eagle3diag.report.safe import visible


@dataclass
class LeftOut:
    """What did not fit, by name."""

    digits: bool = False
    hover: list[str] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    def lines(self) -> tuple[str, ...]:
        """One sentence each, for the page."""
        told = (
            ("Digits after the sixth, in the numbers that the file carries." if self.digits else ""),
            _line("The hover of", self.hover, "their drawings and tables are here"),
            _line("In the numbers that the file carries, the long lists", self.lists, "save the result as JSON to keep them"),
            _line("The parts", self.parts, "save the result as JSON to keep their numbers"),
        )
        return tuple(line for line in told if line)


def _line(head: str, names: list[str], tail: str) -> str:
    shown = ", ".join(visible(name) for name in names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return f"{head} {shown}: {tail}." if names else ""


def parts_within(drawn: list[tuple[Section, str]], room: int, left: LeftOut) -> list[tuple[Section, str]]:
    """As many sections as ``room`` bytes hold, from the first on: they stand in the order of their weight."""
    used = 0
    for i, (_, text) in enumerate(drawn):
        used += len(text.encode())
        if used > room:
            left.parts += [section.title for section, _ in drawn[i:]]
            return drawn[:i]
    return drawn


def numbers_within(body: dict[str, Any], room: int, left: LeftOut) -> str:
    """The JSON of ``body`` in ``room`` bytes: if need be with six digits, then with the longest lists left out."""
    text = json_text(body)
    if len(text) > room:
        body, left.digits = _rounded(body), True
        text = json_text(body)
    for longest in (1000, 200, 40, 8, 0):
        if len(text) <= room:
            break
        names: set[str] = set()
        text, left.lists = json_text(_trimmed(body, longest, "", names)), sorted(names)
    return text


def json_text(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element or starts a comment, and it is plain ASCII."""
    text = json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _trimmed(value: Any, longest: int, name: str, names: set[str]) -> Any:
    if isinstance(value, Mapping):
        return {k: _trimmed(v, longest, k, names) for k, v in value.items()}
    if isinstance(value, list):
        if len(value) > longest and name != "findings":
            names.add(name)
            return {"left_out": len(value)}
        return [_trimmed(v, longest, name, names) for v in value]
    return value


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
