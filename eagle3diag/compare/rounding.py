"""What rounding alone does to a state, so that "these differ by rounding" is a number and not a feeling."""

from __future__ import annotations

import math

#: Significant bits of a number, the leading one counted.
SIGNIFICANT_BITS = {"float32": 24, "float16": 11, "bfloat16": 8, "float8_e4m3fn": 4, "float8_e5m2": 3}


def unit(dtype: str) -> float:
    """Relative error (root mean square) of rounding once to ``dtype``, for values spread evenly over the scale of logarithms.

    A step is ``2**(1 - bits)`` of the power of two below the value, its error ``step / sqrt(12)``, and the mean of
    ``(power / value)**2`` over an octave is ``3 / (8 ln 2)``.

    >>> round(unit("bfloat16"), 5)
    0.00166
    """
    return 2.0 ** (1 - SIGNIFICANT_BITS[dtype]) * math.sqrt(3 / (8 * math.log(2)) / 12)


def steps(squared_error: float, roundings: float, dtype: str) -> float:
    """How many independent roundings to ``dtype`` explain a standardised error: its square, the mean over channels, over that of one
    rounding (``ChannelMoments.roundings`` times the unit squared). One engine against itself in another order of
    summation needs a few for each block below; another state needs hundreds.

    >>> steps(4 * unit("bfloat16") ** 2, 1.0, "bfloat16")
    4.0
    """
    return squared_error / (roundings * unit(dtype) ** 2) if roundings > 0 else float("nan")
