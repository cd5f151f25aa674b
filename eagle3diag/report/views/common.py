"""What several views say in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eagle3diag.faults import named
from eagle3diag.report.form import Bar, Series
from eagle3diag.report.numbers import span

if TYPE_CHECKING:
    from eagle3diag.diagnose import Counterfactual
    from eagle3diag.replay import Replay


def boundary(b: int | None) -> str:
    """``-1`` is the final state after the final norm, which is not a boundary."""
    return "unknown" if b is None else "final, normed" if b == -1 else f"boundary {b}"


def accept_bar(label: str, value: float, interval: Sequence[float] | None, hue: int) -> Bar:
    return Bar(label, value, interval[0] if interval else None, interval[1] if interval else None, hue)


def by_position(name: str, p: Sequence[float], *, hue: int, dashed: bool = False) -> Series:
    return Series(name, tuple(float(i) for i in range(1, len(p) + 1)), tuple(p), hue, dashed, points=True)


def accept_length(value: float, interval: Sequence[float] | None) -> str:
    return f"{value:.2f}" + (f" {span(interval)}" if interval else "")


def broken(counterfactual: Counterfactual) -> str:
    """What was broken, after the code and the words of its fault."""
    return f"{named(counterfactual.fault)} {counterfactual.name}".strip()


def alike(replay: Replay | Counterfactual) -> str:
    """Of the server's recorded rounds, how many come out as in the replay."""
    return f"{replay.served_alike} of {replay.served_rounds}"


def path_name(path: str | None) -> str:
    """The last part of a path, which is what tells two drafts apart in a sentence; facts carry the whole."""
    return (path or "?").rstrip("/").rsplit("/", 1)[-1] or "?"


def joined(*parts: str | None) -> str:
    return " · ".join(part for part in parts if part)


def engine(name: str | None, version: str | None) -> str:
    return " ".join(part for part in (name, version) if part)


def shape(size: Sequence[int]) -> str:
    return f"[{', '.join(map(str, size))}]"
