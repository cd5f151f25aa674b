"""Figures as static SVG: what the page shows without JavaScript, on paper, and in a notebook without a kernel.

Colours are set twice: as attributes, which survive where style sheets are stripped, and as classes, which follow a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from eagle3diag.report.axis import Axis
from eagle3diag.report.form import Bars, Figure, Heat, Lines, Series
from eagle3diag.report.numbers import every_nth, num, thin
from eagle3diag.report.palette import FRAME, HUES, cividis, hue, luminance
from eagle3diag.report.safe import shorten, visible

_WIDE = 720
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 44
_EDGE = _WIDE - _RIGHT
_POINTS = 240  # a polyline of 720 units shows no more
_TOLD = 48


def draw(figure: Figure, *, hover: bool = False) -> str:
    """One ``<svg>`` element with a title and a description for screen readers; ``hover`` lets lines tell their values under the pointer,
    as bars and cells always do."""
    height, body = _lines(figure, hover) if isinstance(figure, Lines) else _bars(figure) if isinstance(figure, Bars) else _heat(figure)
    return (
        f'<svg class="e3d-svg" viewBox="0 0 {_WIDE} {_n(height)}" role="img" aria-label="{_t(figure.title)}" '
        'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif" font-size="12" fill="currentColor">'
        f"<desc>{_t(figure.caption)}</desc>{''.join(body)}</svg>"
    )


def _lines(figure: Lines, hover: bool) -> tuple[float, list[str]]:
    legend, legend_height = _legend([(s.name, s.hue, s.dashed) for s in figure.series] if len(figure.series) > 1 else [])
    top, bottom = _TOP + legend_height, _TOP + legend_height + 240
    series = [(s, *thin(s.x, s.y, _POINTS, log=figure.log_x)) for s in figure.series]
    xs = [x for _, sx, _ in series for x in sx if _drawable(x, figure.log_x)]
    ys = [y for _, _, sy in series for y in sy if _drawable(y, figure.log_y)]
    ys += [edge for b in figure.bands for edge in (b.low, b.high) if _drawable(edge, figure.log_y)]
    if not xs or not ys:
        return _nothing()
    x_axis = Axis(min(xs), max(xs), _LEFT, _EDGE, log=figure.log_x, whole=figure.whole_x)
    low, high = figure.y_range or _padded(min(ys), max(ys), figure.log_y)
    y_axis = Axis(low, high, bottom, top, log=figure.log_y)
    out = legend + _frame(x_axis, y_axis, figure.x_title, figure.y_title, top, bottom)
    for band in figure.bands:
        if not _drawable(band.high, figure.log_y):
            continue
        y = y_axis.at(band.high)
        below = y_axis.at(band.low) if _drawable(band.low, figure.log_y) else bottom
        if band.low == band.high:
            out.append(_dashed(_LEFT, y, _EDGE, y))
        else:
            fill = {"class": "e3d-band", "fill": "#888", "fill-opacity": ".22"}
            out.append(_tag("rect", x=_LEFT, y=y, width=_EDGE - _LEFT, height=max(1.0, below - y), **fill))
        out.append(_text(_EDGE - 6, max(top + 12, y - 5), band.label, anchor="end", size=11))
    for s, sx, sy in series:
        points = [
            (x_axis.at(x), y_axis.at(y)) if _drawable(x, figure.log_x) and _drawable(y, figure.log_y) else None
            for x, y in zip(sx, sy, strict=True)
        ]
        for run in _runs(points):
            if len(run) > 1:
                path = " ".join(f"{_n(x)},{_n(y)}" for x, y in run)
                style = {"fill": "none", "stroke-width": "1.8", "stroke-linejoin": "round"}
                out.append(_tag("polyline", points=path, **style, **_stroke(s.hue, s.dashed)))
            if s.points or len(run) == 1:
                out += [_tag("circle", cx=x, cy=y, r=3.4, **_fill(s.hue)) for x, y in run]
        if hover:
            out += _told(figure, s, x_axis, y_axis)
    return bottom + _BOTTOM, out


def _told(figure: Lines, s: Series, x_axis: Axis, y_axis: Axis) -> list[str]:
    """Places on a line that are not drawn and tell their value: few enough for a finger, and the extremes among them."""
    out = []
    for x, y in zip(*thin(s.x, s.y, _TOLD, log=figure.log_x), strict=True):
        if _drawable(x, figure.log_x) and _drawable(y, figure.log_y):
            title = f"<title>{_t(s.name)}; {_t(figure.x_title)} {num(int(x) if x == int(x) else x)}: {num(y, 4)}</title>"
            out.append(_tag("circle", title, cx=x_axis.at(x), cy=y_axis.at(y), r=6, **{"fill-opacity": "0"}))
    return out


def _bars(figure: Bars) -> tuple[float, list[str]]:
    bars = [b for b in figure.bars if math.isfinite(b.value)]
    if not bars:
        return _nothing()
    left, right, row = 250, _WIDE - 92, 30
    highest = max(max(b.value, b.high if b.high is not None and math.isfinite(b.high) else b.value) for b in bars)
    x_axis = Axis(figure.start, max(highest, figure.start + 1e-9) * 1.02, left, right)
    bottom = _TOP + row * len(bars)
    out = []
    for tick in x_axis.ticks():
        at = x_axis.at(tick)
        out += [_grid(at, _TOP, at, bottom), _text(at, bottom + 16, num(tick))]
    for i, bar in enumerate(bars):
        y, end = _TOP + row * i + 6, x_axis.at(bar.value)
        out.append(_text(left - 8, y + 13, shorten(visible(bar.label), 34), anchor="end"))
        interval = f" [{bar.low:.3f}, {bar.high:.3f}]" if bar.low is not None and bar.high is not None else ""
        hover = f"<title>{_t(bar.label)}: {bar.value:.3f}{interval}</title>"
        out.append(_tag("rect", hover, x=left, y=y, width=max(1.5, end - left), height=18, rx=2, **_fill(bar.hue)))
        if bar.low is not None and bar.high is not None and math.isfinite(bar.low) and math.isfinite(bar.high):
            a, b, middle = _n(x_axis.at(max(bar.low, figure.start))), _n(x_axis.at(bar.high)), y + 9
            whisker = f"M{a} {middle - 5}v10M{a} {middle}H{b}M{b} {middle - 5}v10"
            out.append(_tag("path", d=whisker, fill="none", stroke="currentColor", **{"stroke-width": "1.4"}))
            end = max(end, x_axis.at(bar.high))
        out.append(_text(end + 7, y + 13, f"{bar.value:.2f}", anchor="start", weight="600"))
    if figure.mark is not None and math.isfinite(figure.mark.low):
        at = x_axis.at(figure.mark.low)
        out.append(_dashed(at, _TOP - 4, at, bottom))
    out.append(_text((left + right) / 2, bottom + 36, figure.x_title))
    return bottom + _BOTTOM, out


def _heat(figure: Heat) -> tuple[float, list[str]]:
    n_columns, n_rows = len(figure.x_labels), len(figure.y_labels)
    if not n_columns or not n_rows:
        return _nothing()
    left, top = 110, _TOP
    cell = (_EDGE - left) / n_columns
    row = max(24.0, min(44.0, cell))
    span = (figure.high - figure.low) or 1.0
    out = []
    for r, values in enumerate(figure.values):
        y = top + row * r
        out.append(_text(left - 8, y + row / 2 + 4, shorten(visible(figure.y_labels[r]), 16), anchor="end"))
        for c, value in enumerate(values):
            x = left + cell * c
            colour = cividis((value - figure.low) / span) if math.isfinite(value) else (128, 128, 128)
            hover = f"<title>{_t(figure.y_labels[r])}, {_t(figure.x_labels[c])}: {value:.3f}</title>"
            out.append(_tag("rect", hover, x=x, y=y, width=cell - 1, height=row - 1, fill=f"rgb{colour}".replace(" ", "")))
            if cell >= 40:
                ink = "#000" if luminance(*colour) > 0.18 else "#fff"
                out.append(_text(x + cell / 2, y + row / 2 + 4, f"{value:.2f}", fill=ink))
    for r, c in figure.marked:
        x, y, frame = left + cell * c + 0.5, top + row * r + 0.5, {"stroke": FRAME, "stroke-width": "3"}
        out.append(_tag("rect", x=x, y=y, width=cell - 2, height=row - 2, fill="none", **frame))
    bottom = top + row * n_rows
    every = max(1, math.ceil(34 / cell))
    for c in every_nth(n_columns, every):
        label = shorten(visible(figure.x_labels[c]), max(6, int(cell * every / 7)))
        out.append(_text(left + cell * (c + 0.5), bottom + 15, label))
    note = f"{figure.x_title} (framed: {figure.mark_label})" if figure.marked and figure.mark_label else figure.x_title
    out.append(_text((left + _EDGE) / 2, bottom + 36, note))
    out.append(_upright((top + bottom) / 2, figure.y_title))
    return bottom + _BOTTOM, out


def _nothing() -> tuple[float, list[str]]:
    return 60.0, [_text(_WIDE / 2, 34, "nothing finite to draw")]


def _frame(x_axis: Axis, y_axis: Axis, x_title: str, y_title: str, top: float, bottom: float) -> list[str]:
    out = []
    for tick in y_axis.ticks():
        y = y_axis.at(tick)
        out += [_grid(_LEFT, y, _EDGE, y), _text(_LEFT - 7, y + 4, num(tick), anchor="end")]
    for tick in x_axis.ticks():
        out.append(_text(x_axis.at(tick), bottom + 16, num(int(tick) if tick == int(tick) else tick)))
    out.append(_tag("line", x1=_LEFT, x2=_EDGE, y1=bottom, y2=bottom, stroke="currentColor"))
    return [*out, _text((_LEFT + _EDGE) / 2, bottom + 36, x_title), _upright((top + bottom) / 2, y_title)]


def _legend(entries: Sequence[tuple[str, int, bool]]) -> tuple[list[str], float]:
    """Entries left to right, wrapped; returns the drawing and its height."""
    out, x, y = [], float(_LEFT), 12.0
    for name, index, dashed in entries:
        label = shorten(visible(name), 60)
        wide = 34 + 6.9 * len(label)
        if x > _LEFT and x + wide > _WIDE:
            x, y = float(_LEFT), y + 18
        out.append(_tag("line", x1=x, x2=x + 20, y1=y, y2=y, **{"stroke-width": "2.4"}, **_stroke(index, dashed)))
        out.append(_text(x + 25, y + 4, label, anchor="start"))
        x += wide
    return out, y + 4


def _padded(low: float, high: float, log: bool, share: float = 0.06) -> tuple[float, float]:
    if log:
        factor = (high / low) ** share if high > low else 1.0
        return low / factor, high * factor
    room = (high - low) * share
    return low - room, high + room


def _drawable(value: float, log: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not log)


def _runs(points: Sequence[tuple[float, float] | None]) -> list[list[tuple[float, float]]]:
    """Stretches of points without a gap."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is not None:
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _tag(name: str, content: str = "", **attributes: str | float) -> str:
    """An element; ``content`` is markup already, attribute values are ours and need no escaping."""
    written = "".join(f' {key}="{value if isinstance(value, str) else _n(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def _text(x: float, y: float, words: str, *, anchor: str = "middle", size: int = 12, weight: str = "", fill: str = "") -> str:
    style = {"font-weight": weight, "fill": fill, "font-size": str(size) if size != 12 else ""}
    return _tag("text", _t(words), x=x, y=y, **{"text-anchor": anchor}, **{k: v for k, v in style.items() if v}) if words else ""


def _upright(y: float, words: str) -> str:
    return _tag("text", _t(words), transform=f"translate(13 {_n(y)}) rotate(-90)", **{"text-anchor": "middle"}) if words else ""


def _grid(x1: float, y1: float, x2: float, y2: float) -> str:
    return _tag("line", x1=x1, x2=x2, y1=y1, y2=y2, stroke="#888", **{"stroke-opacity": ".3", "class": "e3d-grid"})


def _dashed(x1: float, y1: float, x2: float, y2: float) -> str:
    return _tag("line", x1=x1, x2=x2, y1=y1, y2=y2, stroke="currentColor", **{"stroke-dasharray": "5 4", "class": "e3d-mark"})


def _stroke(index: int, dashed: bool) -> dict[str, str]:
    dash = {"stroke-dasharray": "5 4"} if dashed else {}
    return {"class": f"e3d-s{index % len(HUES)}", "stroke": hue(index)[0], **dash}


def _fill(index: int) -> dict[str, str]:
    return {"class": f"e3d-f{index % len(HUES)}", "fill": hue(index)[0]}


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _t(words: str) -> str:
    return escape(visible(words), quote=True)
