"""Figures for plotly: plain dictionaries for the HTML page, real ``Figure`` objects for people who want to go on with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from eagle3diag.errors import MissingDependency
from eagle3diag.findings import Result
from eagle3diag.report.axis import Axis
from eagle3diag.report.form import Bars, Figure, Heat, Lines
from eagle3diag.report.numbers import every_nth, num, thin
from eagle3diag.report.palette import CIVIDIS, FRAME, INK, hue, luminance
from eagle3diag.report.safe import shorten, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

CONFIG: Mapping[str, Any] = {
    "showSendToCloud": False,  # plotly 7 turns its upload button on by default; what a report shows stays in the report
    "showEditInChartStudio": False,
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"],
}

_POINTS = 600  # per line; more than a screen's width shows


def figures(result: Result) -> dict[str, go.Figure]:
    """Every figure of ``result`` by name, as plotly objects: change, combine or export them as you like.

    Show them with ``figure.show(config=plots.CONFIG)``; the config keeps plotly's upload button away.
    """
    from eagle3diag.report.views import view

    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise MissingDependency("plotly is needed for interactive figures", hint="pip install 'plotly>=7,<8'") from error
    return {figure.id: go.Figure(spec(figure)) for figure in view(result).figures()}


def spec(figure: Figure, theme: int = 0) -> dict[str, Any]:
    """``{"data", "layout"}`` of one figure; ``theme`` 0 is for a light page, 1 for a dark one.

    Every text is neutralised and escaped: plotly reads a small HTML (``<b>``, ``<a href>``) in titles, names and hovers.
    """
    if isinstance(figure, Lines):
        return _lines(figure, theme)
    return _bars(figure, theme) if isinstance(figure, Bars) else _heat(figure)


def config(figure: Figure) -> dict[str, Any]:
    """What differs from :data:`CONFIG` for this figure: only long series are worth zooming into."""
    return {} if isinstance(figure, Lines) else {"displayModeBar": False}


def _lines(figure: Lines, theme: int) -> dict[str, Any]:
    data = []
    for s in figure.series:
        x, y = thin(s.x, s.y, _POINTS, log=figure.log_x)
        colour = hue(s.hue)[theme]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if s.points or len(y) < 2 else "lines",
                "name": _t(s.name),
                "x": [_number(v) for v in x],
                "y": [_number(v) for v in y],
                "line": {"color": colour, "width": 2, "dash": "dash" if s.dashed else "solid"},
                "marker": {"color": colour, "size": 7},
                "hovertemplate": f"{_t(s.name)}<br>{_t(figure.x_title)} %{{x}}<br><b>%{{y:.4g}}</b><extra></extra>",
            }
        )
    layout = _layout(figure.x_title, figure.y_title)
    layout["hovermode"] = "closest"
    layout["showlegend"] = len(data) > 1
    for axis, log in (("xaxis", figure.log_x), ("yaxis", figure.log_y)):
        if log:
            values = [v for s in figure.series for v in (s.x if axis == "xaxis" else s.y) if math.isfinite(v) and v > 0]
            low, high = (figure.y_range if axis == "yaxis" else None) or (min(values, default=1.0) / 2, max(values, default=1.0) * 2)
            ticks = Axis(low, high, 0, 1, log=True).ticks()  # plotly's own labels between powers of ten are bare digits
            layout[axis] |= {"type": "log", "tickvals": ticks, "ticktext": [num(int(t) if t == int(t) else t) for t in ticks]}
    if figure.whole_x and figure.series and len(figure.series[0].x) <= 12:
        layout["xaxis"]["dtick"] = 1
    if figure.y_range is not None:
        layout["yaxis"]["range"] = [math.log10(edge) if figure.log_y else edge for edge in figure.y_range]
    layout["shapes"], layout["annotations"] = [], []
    for band in figure.bands:
        # a log axis cannot reach 0; whatever lies below the data is the bottom of the plot all the same
        low = max(band.low, band.high * 1e-3) if figure.log_y else band.low
        shape: dict[str, Any] = {"xref": "paper", "x0": 0, "x1": 1, "y0": _number(low), "y1": _number(band.high), "layer": "below"}
        line = band.low == band.high
        shape |= (
            {"type": "line", "line": {"dash": "dash", "width": 1.5, "color": hue(4)[theme]}}
            if line
            else {"type": "rect", "line": {"width": 0}, "fillcolor": "rgba(136,136,136,.22)"}
        )
        layout["shapes"].append(shape)
        top = math.log10(band.high) if figure.log_y and band.high > 0 else band.high
        layout["annotations"].append(
            {
                "xref": "paper",
                "x": 1,
                "xanchor": "right",
                "y": _number(top),
                "yanchor": "bottom",
                "text": _t(band.label),
                "showarrow": False,
            }
        )
    return {"data": data, "layout": layout}


def _bars(figure: Bars, theme: int) -> dict[str, Any]:
    bars = [b for b in reversed(figure.bars) if math.isfinite(b.value)]  # plotly counts rows from the bottom
    up = [max(0.0, b.high - b.value) if b.high is not None and math.isfinite(b.high) else 0.0 for b in bars]
    down = [max(0.0, b.value - b.low) if b.low is not None and math.isfinite(b.low) else 0.0 for b in bars]
    rows = list(range(len(bars)))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": rows,
            "x": [b.value - figure.start for b in bars],
            "base": figure.start,
            "marker": {"color": [hue(b.hue)[theme] for b in bars]},
            "error_x": {
                "type": "data",
                "array": up,
                "arrayminus": down,
                "symmetric": False,
                "thickness": 1.5,
                "width": 5,
                "color": INK[theme],
            },
            "customdata": [
                [_t(b.label), f"{b.value:.3f}", f"[{b.low:.3f}, {b.high:.3f}]" if b.low is not None and b.high is not None else ""]
                for b in bars
            ],
            "hovertemplate": "%{customdata[0]}<br><b>%{customdata[1]}</b> %{customdata[2]}<extra></extra>",
        }
    ]
    layout = _layout(figure.x_title, "")
    layout["showlegend"] = False
    layout["height"] = 96 + 37 * len(bars)
    layout["yaxis"] |= {"tickvals": rows, "ticktext": [_wrapped(b.label) for b in bars], "showgrid": False, "fixedrange": True}
    layout["annotations"] = [
        {"x": b.value + u, "y": i, "text": f"<b>{b.value:.2f}</b>", "showarrow": False, "xanchor": "left", "xshift": 7}
        for i, (b, u) in enumerate(zip(bars, up, strict=True))
    ]
    if bars:
        layout["xaxis"]["range"] = [
            figure.start,
            figure.start + 1.26 * max(1e-9, max(b.value + u for b, u in zip(bars, up, strict=True)) - figure.start),
        ]
    if figure.mark is not None and math.isfinite(figure.mark.low):
        layout["shapes"] = [
            {
                "type": "line",
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "x0": figure.mark.low,
                "x1": figure.mark.low,
                "line": {"dash": "dash", "width": 1.5, "color": hue(4)[theme]},
            }
        ]
    return {"data": data, "layout": layout}


def _heat(figure: Heat) -> dict[str, Any]:
    steps = len(CIVIDIS) - 1
    columns, rows = len(figure.x_labels), len(figure.y_labels)
    data: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "z": [[_number(v) for v in row] for row in figure.values],
            "zmin": _number(figure.low),
            "zmax": _number(figure.high),
            "colorscale": [[i / steps, f"rgb({r},{g},{b})"] for i, (r, g, b) in enumerate(CIVIDIS)],
            "colorbar": {"thickness": 12, "outlinewidth": 0},
            "xgap": 1,
            "ygap": 1,
            "text": [[f"{_t(y)}, {_t(x)}" for x in figure.x_labels] for y in figure.y_labels],
            "hovertemplate": "%{text}<br><b>%{z:.3f}</b><extra></extra>",
        }
    ]
    layout = _layout(figure.x_title, figure.y_title)
    layout["showlegend"] = False
    layout["height"] = int(110 + max(24, min(48, 640 / max(1, columns))) * rows)
    shown = every_nth(columns, math.ceil(columns / 16))
    layout["xaxis"] |= {
        "tickvals": shown,
        "ticktext": [_t(figure.x_labels[c]) for c in shown],
        "showgrid": False,
        "zeroline": False,
        "constrain": "domain",
    }
    layout["yaxis"] |= {
        "tickvals": list(range(rows)),
        "ticktext": [_t(y) for y in figure.y_labels],
        "showgrid": False,
        "zeroline": False,
        "autorange": "reversed",
    }
    layout["shapes"] = [
        {
            "type": "rect",
            "x0": c - 0.47,
            "x1": c + 0.47,
            "y0": r - 0.46,
            "y1": r + 0.46,
            "line": {"color": FRAME, "width": 3},
            "fillcolor": "rgba(0,0,0,0)",
        }
        for r, c in figure.marked
    ]
    layout["annotations"] = []
    if columns <= 8:
        for r, row in enumerate(figure.values):
            for c, value in enumerate(row):
                share = (value - figure.low) / ((figure.high - figure.low) or 1.0)
                at = CIVIDIS[round(min(1.0, max(0.0, share)) * steps)] if math.isfinite(value) else (128, 128, 128)
                ink = "#000" if luminance(*at) > 0.18 else "#fff"
                layout["annotations"].append({"x": c, "y": r, "text": f"{value:.2f}", "showarrow": False, "font": {"color": ink}})
    return {"data": data, "layout": layout}


def _layout(x_title: str, y_title: str) -> dict[str, Any]:
    """The bare layout; the page gives ink and grid colours by theme, so both themes share one set of figures."""
    axis = {"automargin": True, "zeroline": False, "ticks": ""}
    return {
        "autosize": True,
        "height": 340,
        "margin": {"l": 8, "r": 36 if y_title else 12, "t": 8, "b": 8},
        "modebar": {"orientation": "v"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": {**axis, "title": {"text": _t(x_title)}},
        "yaxis": {**axis, "title": {"text": _t(y_title)}},
        "dragmode": False if not x_title else "zoom",
        "uirevision": "kept",
    }


def _number(value: float) -> float | None:
    """Six digits are more than a screen shows; JSON has no NaN, and plotly draws a gap for null."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _t(words: str) -> str:
    """Plotly unescapes entities and then builds the elements itself from a short list; an escaped ``<`` stays text."""
    return visible(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "% {")


def _wrapped(label: str, columns: int = 30) -> str:
    """A label in two lines at most; the hover has all of it."""
    lines, line = [], ""
    for word in shorten(visible(label), 2 * columns - 4).split(" "):
        if line and len(line) + len(word) + 1 > columns:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "<br>".join(_t(part) for part in [*lines, line][:2])
