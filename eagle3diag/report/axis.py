"""One axis of a drawing: from values to units, and where round numbers stand."""

from __future__ import annotations

import math

_SMALLEST, _LARGEST = 1e-150, 1e150  # what is drawn; sums, squares and ratios of these are still floats


class Axis:
    """Values to units, linear or by powers of ten, with round ticks."""

    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool = False, whole: bool = False) -> None:
        smallest = _SMALLEST if log else -_LARGEST
        low, high = (min(max(value, smallest), _LARGEST) for value in (low, high))
        if not high - low > max(1e-12 * max(abs(low), abs(high)), _SMALLEST):  # one value, or two that no float tells apart
            pad = max(0.5, 1e-3 * abs(low))
            low, high = (low / 2, low * 2) if log else (low - pad, low + pad)
        self.low, self.high, self.start, self.end, self.log, self.whole = low, high, start, end, log, whole

    def at(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1,) if last - first > 3 else (1, 2, 5) if last - first > 1 else (1, 1.5, 2, 3, 5, 7)
            return [t for e in range(first, last + 1) for s in steps if self.low <= (t := s * 10.0**e) <= self.high]
        raw = (self.high - self.low) / 6
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= raw * 0.999)
        if self.whole:
            step = max(1.0, round(step))
        first_tick = math.ceil(self.low / step - 1e-9)
        return [round(k * step, 12) for k in range(first_tick, math.floor(self.high / step + 1e-9) + 1)]
