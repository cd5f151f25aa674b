"""Train against live: where the two sides part, block by block and token by token, as plain numbers without a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3diag.compare.metrics import Quantiles
from eagle3diag.compare.sources import Side
from eagle3diag.findings import Finding, Result

FINAL = -1
"""Stands in place of a boundary for the final state *after* the final norm."""


@dataclass(frozen=True)
class BlockComparison:
    """One H-wide block of the live features against its train counterpart, over ``tokens`` rows (sink token left out).

    Attributes
    ----------
    block, boundary: index of the train block, and the boundary it holds when the dump declares it; -1 is the final normed state.
    train_norm, live_norm, norm_ratio: medians per token; the ratio is live over train.
    cosine: plain, per token.
    standardised: channel-standardised cosine: both sides minus the train mean, over the train standard deviation, per channel.
    relative_error: median of ``|live - train| / |train|``.
    zero_rows, nonfinite_train, nonfinite_live: rows that are all zero (live), or hold a NaN or an infinity. They have no cosine.
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

    @property
    def findings(self) -> tuple[Finding, ...]:
        from eagle3diag.faults import judge

        return judge(self)
