"""Train against live: where the two sides part, block by block and token by token, as plain numbers without a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eagle3diag.compare.metrics import Quantiles
from eagle3diag.compare.sample import Sampled
from eagle3diag.compare.sources import Side
from eagle3diag.findings import Result

FINAL = -1
"""Stands in place of a boundary for the final state *after* the final norm."""


NO_QUANTILES = Quantiles(*[float("nan")] * 4)


@dataclass(frozen=True)
class LargestDifference:
    """The largest ``|live - train|`` of one channel of one token, and both values there."""

    record: str
    position: int
    channel: int
    train: float
    live: float


@dataclass(frozen=True)
class Octave:
    """Tokens at positions from ``first`` up to twice that: their number, median standardised cosine and relative error."""

    first: int
    tokens: int
    standardised: float
    relative_error: float


@dataclass(frozen=True)
class BlockComparison:
    """One H-wide block of the live features against its train counterpart, over ``tokens`` rows (sink token left out).

    Attributes
    ----------
    block, boundary: index of the train block, and the boundary it holds when the dump declares it; -1 is the final normed state.
    train_norm, live_norm, norm_ratio: medians per token; the ratio is live over train. Like all medians here they leave zero rows out.
    cosine: plain, per token. centred: after the train mean is taken off both sides.
    standardised: channel-standardised cosine: both sides minus the train mean, over the train standard deviation, per channel.
    relative_error: median of ``|live - train| / |train|``; its square is the inverse of the signal-to-noise ratio ``sqnr`` (in decibels).
    zero_rows, nonfinite_train, nonfinite_live: rows that are all zero (live), or hold a NaN or an infinity. They have no cosine.
    duplicate_rows: live rows equal to the one before, bit for bit, where the train rows are not.
    constant_channels: those that have one value in all sampled live rows (zero, mostly) and several in train.
    error, error_p99: median and 99th percentile over tokens of the root mean square over channels of ``(live - train) / std``.
    rounding: ``(dtype, steps)``: how many independent roundings to each dtype explain the median (``eagle3diag.compare.rounding``).
    largest: the largest difference of one channel, and where it is.
    cka: unbiased linear CKA over sampled tokens: 1 for the same state up to rotation and scale, 0 for unrelated ones.
    gram_error: ``||XX' - YY'|| / ||XX'||`` over the same tokens, without the means: 0 for the same state up to rotation alone (test H9).
    trend: the same numbers by distance from the beginning, in octaves (test H12).
    """

    block: int
    boundary: int | None
    tokens: int
    train_norm: float
    live_norm: float
    norm_ratio: float
    cosine: Quantiles
    standardised: Quantiles
    relative_error: float
    zero_rows: int
    nonfinite_train: int
    nonfinite_live: int
    duplicate_rows: int = 0
    constant_channels: int = 0
    centred: Quantiles = NO_QUANTILES
    error: float = float("nan")
    error_p99: float = float("nan")
    rounding: tuple[tuple[str, float], ...] = ()
    largest: LargestDifference | None = None
    cka: float = float("nan")
    gram_error: float = float("nan")
    trend: tuple[Octave, ...] = ()

    @property
    def sqnr(self) -> float:
        """Signal to quantisation noise of the median token, in decibels; infinite where the two are equal."""
        return -20 * math.log10(self.relative_error) if self.relative_error > 0 else float("inf")


@dataclass(frozen=True)
class Hypothesis:
    """One way in which a live block can have come about, and how much of it that explains.

    Attributes
    ----------
    kind: ``as it is``, ``scaled``, ``channels scaled`` (each by a factor of its own), ``normed``, ``un-normed``, ``branch`` (a block's output
        without the residual), ``less embedding``, ``partial sum`` (of the last block's output), ``rotated``, ``shards`` (of the trained blocks,
        some at another's place).
    source: the boundary it is made of; the block's number where train declares none; -1 is the final normed state.
    shift: live token t comes from token t + shift. factor: the scale, the share of the block's output that is there, or the
        number of shards.
    fit: share of the live block's variance that is explained, in the median channel: 1 for all of it, 0 for no better than its mean. Of
        ``un-normed`` the trained state's, by the live block after the norm: a norm forgets the length of every token, so that one undone with
        a free length for each would fit whatever has the direction.
    norm: which norm ``normed`` and ``un-normed`` mean.
    """

    kind: str
    source: int
    shift: int
    factor: float
    fit: float
    norm: str = "the final norm"

    def __str__(self) -> str:
        """In words, where train declares its boundaries.

        >>> str(Hypothesis("partial sum", 15, 0, 0.5, 0.99))
        'boundary 15 with 0.5 of what its last block adds'
        """
        return self.words("boundary")

    def words(self, noun: str) -> str:
        """The same with what ``source`` numbers: a ``boundary``, or a ``train block`` where none are declared."""
        state = "the final normed state" if self.source == FINAL else f"{noun} {self.source}"
        at = f" of the token {self.shift:+d}" if self.shift else ""
        said = {
            "scaled": f"{self.factor:.3g} times {state}",
            "channels scaled": f"{state} with a factor for each channel",
            "normed": f"{state} after {self.norm}",
            "un-normed": f"{state} before {self.norm}",
            "branch": f"what the block below {state} adds, alone",
            "less embedding": f"{state} without the embedding",
            "partial sum": f"{state} with {self.factor:.2g} of what its last block adds",
            "rotated": f"{state}, rotated",
            "shards": f"put together of shards of 1/{self.factor:.0f} of the channels, not all at the places of {state}'s",
        }
        return said.get(self.kind, state) + at


@dataclass(frozen=True)
class BlockOrigin:
    """What a live block most likely is: ``declared`` is how well the trained state fits as it is, ``best`` the hypothesis that fits best,
    with the ones behind it."""

    block: int
    declared: Hypothesis
    best: Hypothesis
    others: tuple[Hypothesis, ...]

    @property
    def margin(self) -> float:
        """By how much the best fits better than what was declared."""
        return self.best.fit - self.declared.fit


@dataclass(frozen=True)
class Displaced:
    """One of the tokens that fit least, and the train row that its live state fits best: itself, a neighbour, or another sequence's."""

    record: str
    position: int
    cosine: float
    best_record: str
    best_position: int
    best_cosine: float


@dataclass(frozen=True)
class Alike:
    """Two blocks of one side held against each other: medians of ``|one - other| / |one|`` on the live side and on the train side."""

    one: int
    other: int
    live: float
    train: float


@dataclass(frozen=True)
class TokenSeries:
    """Values per token of one record and block, for plots: at most 400 points, evenly spaced, the sink token among them."""

    record: str
    block: int
    positions: tuple[int, ...]
    cosine: tuple[float, ...]
    standardised: tuple[float, ...]
    train_norm: tuple[float, ...]
    live_norm: tuple[float, ...]


@dataclass(frozen=True)
class WorstToken:
    """One of the tokens whose channel-standardised cosine is lowest."""

    record: str
    block: int
    position: int
    cosine: float
    norm_ratio: float
    standardised: float = float("nan")


@dataclass(frozen=True)
class Comparison(Result):
    """What :func:`eagle3diag.compare` measured. Plain values; ``findings`` are judged when asked for.

    Attributes
    ----------
    blocks: one per pair of blocks; empty when the widths differ, so that blocks cannot be paired.
    single: when live holds one H-wide vector per token and train several: that vector against each train block, and against the final
        normed state (boundary -1) when it is stored.
    order: ``[train block][live block]`` median cosine after each side was standardised by *its own* channel means and deviations, so that a
        gain or an offset on one side does not hide which layer it is (tests H5, H7). Over at most 4,096 evenly spaced tokens.
    reference, reference_boundaries: the same for every boundary of the reference against every live block; -1 is the final normed state.
    shift: ``(s, mean over blocks of the mean cosine)`` of live token t against train token t + s, standardised as in ``order`` (test H6).
    live_final_rms: median root mean square of (last live block / gain of the target's final norm): 1 when it is already normed (test H8).
    worst: the ten tokens that agree least.
    unaligned: one line per live record whose token ids differ from every train record, or part from theirs midway.
    series: values per token of the first three records.
    origins: for each live block the hypothesis that explains it best; against the reference when there is one.
    displaced: of the 64 tokens that agree least those that do not fit their own row, and where their live states come from.
    alike: every two blocks of a side held against each other (test H13).
    absent: one line for each train record of which live has nothing, each hole, each run of padding, at most 100.
    sampled: which live records were looked at, when not all of them.
    assumed: what had to be taken for granted, one line each.
    zero_tokens, nonfinite_tokens, duplicate_tokens: tokens of which any live block has such a row, as ``BlockComparison`` counts them.
    """

    train: Side
    live: Side
    hidden_size: int
    aligned_tokens: int
    blocks: tuple[BlockComparison, ...]
    single: tuple[BlockComparison, ...]
    order: tuple[tuple[float, ...], ...]
    reference_boundaries: tuple[int, ...]
    reference: tuple[tuple[float, ...], ...]
    shift: tuple[tuple[int, float], ...]
    live_final_rms: float | None
    worst: tuple[WorstToken, ...]
    unaligned: tuple[str, ...]
    series: tuple[TokenSeries, ...] = ()
    origins: tuple[BlockOrigin, ...] = ()
    displaced: tuple[Displaced, ...] = ()
    alike: tuple[Alike, ...] = ()
    absent: tuple[str, ...] = ()
    sampled: Sampled | None = None
    assumed: tuple[str, ...] = ()
    zero_tokens: int = 0
    nonfinite_tokens: int = 0
    duplicate_tokens: int = 0

    @property
    def numbered(self) -> str:
        """What the sources of ``origins`` number: each a ``boundary``, or a ``train block`` where neither train nor a reference says which."""
        return "boundary" if self.train.boundaries or self.reference else "train block"
