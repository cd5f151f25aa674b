"""Colours: Okabe and Ito's set, which stays apart in every common form of colour blindness; each value for a light and a dark page."""

from __future__ import annotations

# (light, dark): of each hue the member of the set that keeps 3:1 against the page; the fifth is the ink itself, muted.
HUES: tuple[tuple[str, str], ...] = (
    ("#0072B2", "#56B4E9"),
    ("#D55E00", "#E69F00"),
    ("#009E73", "#2BC79A"),
    ("#CC79A7", "#CC79A7"),
    ("#5B6470", "#A9B2BD"),
    ("#8A6100", "#F0E442"),
)

FRAME = "#d55e00"  # around a cell: the same on both pages, because the cells are; small letters keep it out of the exchange of hues
INK = ("#1B1F24", "#E7EAEE")

# Cividis (Nuñez, Anderton and Renslow 2018), thinned: even steps of lightness for every kind of sight.
CIVIDIS: tuple[tuple[int, int, int], ...] = (
    (0, 34, 78),
    (18, 53, 112),
    (59, 73, 108),
    (87, 93, 109),
    (112, 113, 115),
    (138, 134, 120),
    (165, 156, 116),
    (195, 179, 105),
    (225, 204, 85),
    (254, 232, 56),
)


def hue(index: int) -> tuple[str, str]:
    return HUES[index % len(HUES)]


def cividis(share: float) -> tuple[int, int, int]:
    """The colour at ``share`` of the way, clipped to 0..1.

    >>> cividis(0.0), cividis(2.0)
    ((0, 34, 78), (254, 232, 56))
    """
    at = min(1.0, max(0.0, share)) * (len(CIVIDIS) - 1)
    i = min(int(at), len(CIVIDIS) - 2)
    low, high = CIVIDIS[i], CIVIDIS[i + 1]
    red, green, blue = (round(a + (b - a) * (at - i)) for a, b in zip(low, high, strict=True))
    return red, green, blue


def luminance(red: int, green: int, blue: int) -> float:
    """Relative luminance of WCAG 2, 0 (black) to 1 (white).

    >>> luminance(0, 0, 0), round(luminance(255, 255, 255), 6)
    (0.0, 1.0)
    """
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red / 255, green / 255, blue / 255)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
