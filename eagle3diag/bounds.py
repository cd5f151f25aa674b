"""What the numbers of a result can be at all: a range for each field, and for each kind how its fields hang together.

A measurement keeps to them by itself; a file that claims to be one was perhaps changed by hand, or by somebody who means harm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Any, get_args, get_type_hints

Range = tuple[float, float]

_EVERY: Range = (-math.inf, math.inf)
_COUNT: Range = (0, 1 << 53)
_WHOLE: Range = (-(1 << 53), 1 << 53)

_FIELDS: Mapping[Range, str] = {
    # shares and probabilities
    (0, 1): """
        p c every_position_p p_interval drafted_p out_of_vocabulary weight certainty none_of_these as_trained distinct equal equal_rounded
        in_range_offset in_range_absolute unique_offset unique_absolute agree_offset agree_absolute agreement other_agreement copied
        channel_share outside_energy bulk_outside_energy overlap""",
    # cosines
    (-1, 1): "cosine next_cosine best_cosine output_cosine standardised Comparison.order reference",
    # accept lengths: the bonus token counts, and no engine drafts a thousand tokens
    (1, 1000): "accept_length Summary.expected vocabulary_cap drafted_accept_length",
    (0, 1000): "accept_length_interval expected_interval",
    # as an engine printed it: six digits are read
    (0, 1e6): "Acceptance.accept_length printed_rate observed observed_interval",
    # sizes, norms, errors, times
    (0, math.inf): """
        abs_mean max_abs std null_std bulk_std rms final_rms live_final_rms norm train_norm live_norm norm_ratio relative_error error error_p99
        gram_error relative_change off_scale max_change frobenius cv min max NormSpread.median row_norm_series column_norm_series tiles
        singular_values stable_rank effective_rank kurtosis seconds temperature Cost.draft slot speedup Counterfactual.distance width_in_h""",
    # whole numbers that may be below zero; what stands in a config stands there
    _WHOLE: """
        block boundary boundaries reference_boundaries aux_boundaries default_boundaries ids lost layers layer source Hypothesis.shift
        Reading.shift seed levels top_row top_column max_position_embeddings sliding_window head_dim q_lora_rank""",
}
_RANGES: Mapping[str, Range] = {name: bounds for bounds, names in _FIELDS.items() for name in names.split()}

_TOGETHER: Mapping[str, tuple[tuple[str, Callable[[Any], bool]], ...]] = {
    "Replay": (
        ("p and p_interval have one value a step", lambda r: len(r.p) == len(r.p_interval) == r.steps),
        ("no draft is accepted more often than the one before it", lambda r: _falls(r.p)),
        ("steps + 1 tokens a round are the most", lambda r: not r.accept_length > r.steps + 1 + _ROUNDING),
        ("served has one row and column for each number of accepted drafts", lambda r: len(r.served) in (0, r.steps + 1)),
    ),
    "Counterfactual": (("served_alike is a part of served_rounds", lambda c: c.served_alike <= c.served_rounds),),
    "Diagnosis": (
        (
            "the shares of the explanation are one together",
            lambda d: sum(r.weight for r in (*d.ranked, *d.suspects)) + d.none_of_these + d.as_trained <= 1 + 1e-3,
        ),
    ),
    "Comparison": (("reference has a row for each of its boundaries", lambda c: len(c.reference) in (0, len(c.reference_boundaries))),),
    "TokenSeries": (
        (
            "every series has a value for each position",
            lambda s: len({*map(len, (s.positions, s.cosine, s.standardised, s.train_norm, s.live_norm))}) == 1,
        ),
    ),
    "Quantiles": (("quantiles rise", lambda q: _falls((q.median, q.p5, q.p1))),),
    "NormSpread": (("min, median and max rise", lambda n: _falls((n.max, n.median, n.min))),),
    "PartCheck": (("of its rows are those that are odd", lambda p: max(p.zero_rows, p.nonfinite_rows, p.duplicate_rows) <= p.tokens),),
    "RankCheck": (("of its tokens are those that differ", lambda r: r.differing <= r.tokens),),
    "Spectrum": (
        ("singular values fall", lambda s: _falls(s.singular_values)),
        ("the band begins before it ends", lambda s: not s.band_low > s.band_high),
    ),
    "TensorWeights": (
        ("size is the product of the shape", lambda t: t.size == math.prod(t.shape)),
        ("of its entries are those that are odd or were looked at", lambda t: max(t.zeros, t.nonfinite, t.looked_at) <= t.size),
    ),
}
_ROUNDING = 1e-6


def broken(value: object, where: str) -> str | None:
    """What the numbers of a dataclass at ``where`` cannot be, in words; None where all are possible. NaN is "not known".

    Values inside it that are dataclasses too are not looked at.
    """
    kind: Any = type(value)
    for name, (low, high) in _ranges(kind).items():
        field = getattr(value, name)
        for number in _numbers(field):
            if number < low - _ROUNDING or number > high + _ROUNDING:
                return f"{where}.{name} is {number:.6g}, not within {low:g} to {high:g}"
        if name.endswith("interval") and not all(_falls(pair[::-1]) for pair in _pairs(field)):
            return f"{where}.{name} ends before it begins"
        if name in _matrices(kind) and len(set(map(len, field))) > 1:
            return f"{where}.{name} has rows of different lengths"
    rules = _TOGETHER.get(kind.__name__, ())
    return next((f"{where} does not hang together: {words}" for words, holds in rules if not holds(value)), None)


@cache
def _ranges(kind: Any) -> Mapping[str, Range]:
    """The range of each field that holds numbers."""
    hints = get_type_hints(kind)
    found = {}
    for name in (field.name for field in fields(kind)):
        leaves = set(_leaves(hints[name]))
        if leaves & {int, float}:
            usual = _EVERY if float in leaves else _COUNT
            found[name] = _RANGES.get(f"{kind.__name__}.{name}", _RANGES.get(name, usual))
    return found


@cache
def _matrices(kind: Any) -> frozenset[str]:
    """The fields that are rows of any number of numbers."""
    return frozenset(
        name for name, hint in get_type_hints(kind).items() if hint in (tuple[tuple[float, ...], ...], tuple[tuple[int, ...], ...])
    )


def _leaves(hint: Any) -> Iterator[Any]:
    inner = get_args(hint)
    if not inner:
        yield hint
    for part in inner:
        yield from _leaves(part)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ():
        yield from _numbers(item)


def _pairs(value: Any) -> Iterator[tuple[float, float]]:
    """One interval, or several."""
    if isinstance(value, tuple):
        yield from value if all(isinstance(item, tuple) for item in value) else (value,)


def _falls(values: tuple[float, ...]) -> bool:
    """Whether no number is above the one before it; what is not a number says nothing."""
    known = [value for value in values if not math.isnan(value)]
    return not any(after > before + _ROUNDING * max(1.0, abs(before)) for before, after in pairwise(known))


__all__ = ["broken"]
