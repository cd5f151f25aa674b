"""The form between a result and its renderings: a page of sections with tables and figures, all plain frozen values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from dataclasses import dataclass, replace
from typing import Literal

from eagle3diag.findings import Finding, Severity


def _same_length(first: Sized, *others: Sized) -> None:
    """A saved result that was changed by hand shows here, before anything is drawn."""
    for other in others:
        if len(other) != len(first):
            raise ValueError(f"{len(other)} values stand against {len(first)}")


@dataclass(frozen=True)
class Table:
    """Cells are text already, so every rendering shows the same digits.

    ``align`` has one letter per column, ``l`` or ``r``; ``narrow`` names the columns that a terminal of 80 columns has room
    for (all when empty), ``terminal`` is False where a drawing there says the same; ``code`` names the columns that hold names to be set in a fixed-width face,
    ``whole`` those of them whose names go on in the next line of a terminal rather than lose their middle. ``most``: rows that a terminal
    shows, which is for reading; ``rest``: what it says in place of the others, where it does not count them.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str = ""
    narrow: tuple[int, ...] = ()
    code: tuple[int, ...] = ()
    whole: tuple[int, ...] = ()
    title: str = ""
    terminal: bool = True
    most: int = 12
    rest: str = ""

    def __post_init__(self) -> None:
        _same_length(self.columns, *self.rows)

    def side(self, column: int) -> str:
        return self.align[column] if column < len(self.align) else "l"


@dataclass(frozen=True)
class Series:
    """One line of points; ``hue`` counts through the palette, so train and live of one block can share a colour."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    hue: int = 0
    dashed: bool = False
    points: bool = False

    def __post_init__(self) -> None:
        _same_length(self.x, self.y)


@dataclass(frozen=True)
class Band:
    """A shaded range of y, or a single dashed line when ``low == high``."""

    low: float
    high: float
    label: str


@dataclass(frozen=True)
class Lines:
    """y over x for a few series."""

    id: str
    title: str
    caption: str
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    bands: tuple[Band, ...] = ()
    log_y: bool = False
    log_x: bool = False
    whole_x: bool = False
    y_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Bar:
    """One horizontal bar, with an interval where there is one."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    hue: int = 0


@dataclass(frozen=True)
class Bars:
    """A few values side by side; ``mark`` is a value that all are held against, drawn as a line. ``terminal`` as in :class:`Table`."""

    id: str
    title: str
    caption: str
    x_title: str
    bars: tuple[Bar, ...]
    start: float = 0.0
    mark: Band | None = None
    terminal: bool = True


@dataclass(frozen=True)
class Heat:
    """A small matrix; ``marked`` cells (row, column) get a frame, whose meaning ``mark_label`` gives."""

    id: str
    title: str
    caption: str
    x_title: str
    y_title: str
    x_labels: tuple[str, ...]
    y_labels: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    low: float = 0.0
    high: float = 1.0
    marked: tuple[tuple[int, int], ...] = ()
    mark_label: str = ""

    def __post_init__(self) -> None:
        _same_length(self.y_labels, self.values)
        _same_length(self.x_labels, *self.values)


Figure = Lines | Bars | Heat


@dataclass(frozen=True)
class Section:
    """A titled part of the page.

    ``steps`` are shown as a numbered list. ``fold`` closes the section in HTML until it is opened; ``terminal`` is False for
    parts that would only fill the screen there. ``group`` is the heading under which a run of sections stands.
    """

    title: str
    caption: str = ""
    paragraphs: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    fold: bool = False
    terminal: bool = True
    group: str = ""


@dataclass(frozen=True)
class Row:
    """One line of a strip: a value, the value it would have were nothing lost (None: nothing to lose), and a word about it."""

    label: str
    value: float
    whole: float | None = None
    hue: int = 0
    note: str = ""


@dataclass(frozen=True)
class Strip:
    """The answer in one look, under the verdict: few rows from ``start``, where nothing is gained, to the largest value."""

    title: str
    caption: str
    start: float
    rows: tuple[Row, ...]

    def share(self, value: float) -> float:
        """Where ``value`` stands between ``start`` and the largest value of all rows, 0 to 1; 0 for what is not a number."""
        top = max((v for r in self.rows for v in (r.value, r.whole) if v is not None and math.isfinite(v)), default=self.start)
        return min(1.0, max(0.0, (value - self.start) / (top - self.start))) if top > self.start and math.isfinite(value) else 0.0


@dataclass(frozen=True)
class Page:
    """What a result says. ``remarks`` runs beside ``findings``: one extra line each (may be empty)."""

    verb: str
    verdict: str
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    remarks: tuple[str, ...] = ()
    strip: Strip | None = None

    @property
    def worst(self) -> Severity | None:
        return max((f.severity for f in self.findings), default=None)

    @property
    def counts(self) -> str:
        """``"2 errors, 1 warning"``, or ``"no findings"``."""
        parts = []
        for severity in (Severity.ERROR, Severity.WARNING, Severity.NOTE):
            n = sum(f.severity == severity for f in self.findings)
            if n:
                parts.append(f"{n} {severity.label}{'s' if n > 1 else ''}")
        return ", ".join(parts) or "no findings"

    def figures(self) -> Iterator[Figure]:
        for section in self.sections:
            yield from section.figures

    def grouped(self, group: str, *, fold: bool = True, terminal: bool = False, prefix: str = "") -> tuple[Section, ...]:
        """These sections as a part of a larger page: under one heading, folded, with figure ids that stay unique."""
        return tuple(
            replace(
                s,
                group=group,
                fold=fold or s.fold,
                terminal=terminal and s.terminal,
                figures=tuple(replace(f, id=f"{prefix}{f.id}") for f in s.figures),
            )
            for s in self.sections
        )


Glyph = Literal["✖", "▲", "●", "✔"]
GLYPHS: dict[Severity | None, Glyph] = {Severity.ERROR: "✖", Severity.WARNING: "▲", Severity.NOTE: "●", None: "✔"}
