"""The numbers behind a figure as a table, for readers without a screen to look at and for checking a plot by eye."""

from __future__ import annotations

from eagle3diag.report.form import Bars, Figure, Lines, Table
from eagle3diag.report.numbers import MISSING, num, span

_LINES = 24


def behind(figure: Figure) -> Table:
    """Bars and heat maps in full; long lines at evenly spaced places."""
    if isinstance(figure, Lines):
        return _of_lines(figure)
    if isinstance(figure, Bars):
        rows = tuple(
            (b.label, num(b.value, 4), span((b.low, b.high), 3) if b.low is not None and b.high is not None else MISSING)
            for b in figure.bars
        )
        return Table(("", figure.x_title, "95 % interval"), rows, align="lrr")
    cells = tuple((label, *(num(v, 4) for v in values)) for label, values in zip(figure.y_labels, figure.values, strict=True))
    return Table((figure.y_title, *figure.x_labels), cells, align="l" + "r" * len(figure.x_labels))


def _of_lines(figure: Lines) -> Table:
    places = sorted({x for s in figure.series for x in s.x})
    note = ""
    if len(places) > _LINES:
        step = (len(places) - 1) / (_LINES - 1)
        note = f"{_LINES} of {len(places):,} places"
        places = [places[round(k * step)] for k in range(_LINES)]
    values = [dict(zip(s.x, s.y, strict=True)) for s in figure.series]
    rows = tuple((num(int(x) if x == int(x) else x), *(num(v.get(x), 4) for v in values)) for x in places)
    return Table((figure.x_title, *(s.name for s in figure.series)), rows, align="r" * (1 + len(figure.series)), title=note)
