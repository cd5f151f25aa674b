"""How numbers are written, once for all renderings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

MISSING = "-"


def num(value: float | int | None, digits: int = 3) -> str:
    """``digits`` significant digits; whole numbers in full, with thin grouping; None as a dash.

    >>> num(1234567), num(0.00403712), num(1.0), num(10000.0), num(float("nan")), num(None), num(-2.5e-9)
    ('1,234,567', '0.00404', '1', '10,000', 'nan', '-', '-2.5e-09')
    """
    if value is None:
        return MISSING
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e9):
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def fixed(value: float | None, places: int = 3) -> str:
    """A value on a known scale, such as a cosine, always with the same number of places.

    >>> fixed(0.99957), fixed(None), fixed(float("inf"))
    ('1.000', '-', 'inf')
    >>> fixed(0.99957, 4)
    '0.9996'
    """
    return MISSING if value is None else f"{value:.{places}f}"


def percent(value: float | None, places: int = 1) -> str:
    """
    >>> percent(0.0312), percent(None)
    ('3.1 %', '-')
    """
    return MISSING if value is None or math.isnan(value) else f"{100 * value:.{places}f} %"


def span(interval: Sequence[float] | None, places: int = 2) -> str:
    """
    >>> span((1.0, 1.034)), span(())
    ('[1.00, 1.03]', '-')
    """
    return f"[{interval[0]:.{places}f}, {interval[1]:.{places}f}]" if interval else MISSING


def many(count: int, noun: str) -> str:
    """
    >>> many(1, "token"), many(1200, "token")
    ('1 token', '1,200 tokens')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(values: Sequence[object]) -> str:
    """
    >>> listed((2, 15, 27)), listed(())
    ('2, 15, 27', '-')
    """
    return ", ".join(map(str, values)) or MISSING


def every_nth(count: int, step: int) -> list[int]:
    """Places for labels: every ``step``-th, and the last one in place of a neighbour too close to it.

    >>> every_nth(32, 2)[-3:], every_nth(3, 1)
    ([26, 28, 31], [0, 1, 2])
    """
    places = list(range(0, count, max(1, step)))
    if places and places[-1] != count - 1:
        places[-1:] = [count - 1] if len(places) > 1 else [places[-1], count - 1]
    return places


def thin(x: Sequence[float], y: Sequence[float], limit: int, *, log: bool = False) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """At most ``limit`` points of a series: per stretch the lowest and the highest, so that spikes survive; gaps stay gaps.

    On a ``log`` axis the stretches grow with the distance from the start, as they do on the screen.

    >>> thin((0, 1, 2, 3, 4, 5, 6, 7), (0, 0, 9, 0, 0, 0, -9, 0), 4)
    ((0, 2, 4, 6), (0, 9, 0, -9))
    """
    n = len(y)
    if n <= limit:
        return tuple(x), tuple(y)
    stretches = max(1, limit // 2)
    if log:
        edges = sorted({0, n, *(round(n ** (k / stretches)) for k in range(1, stretches))})
    else:
        edges = [k * n // stretches for k in range(stretches + 1)]
    keep: list[int] = []
    for start, end in pairwise(edges):
        finite = [i for i in range(start, end) if math.isfinite(y[i])] or [start]
        keep += sorted({min(finite, key=y.__getitem__), max(finite, key=y.__getitem__)})
    return tuple(x[i] for i in keep), tuple(y[i] for i in keep)
