"""One pass over all aligned rows, in chunks that fit into the processor's cache: memory grows neither with the width nor with the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle3diag.compare import rounding
from eagle3diag.compare.align import Alignment, Pair
from eagle3diag.compare.comparison import FINAL, BlockComparison, LargestDifference, Octave, TokenSeries, WorstToken
from eagle3diag.compare.identity import DISPLACED_TOKENS
from eagle3diag.compare.metrics import ChannelMoments, Quantiles, median, quantile, rows_norm_ratio
from eagle3diag.compare.rows import RowValues, Scale, compare_rows
from eagle3diag.compare.sampling import Layout, chunks, read, spread, take

SERIES_RECORDS, SERIES_POINTS, WORST_TOKENS = 3, 400, 10
MOMENT_ROWS = 8192  # rows that means and deviations are taken from: their error is then under 1 %, of no weight in a cosine
KEPT_TOKENS = 200_000  # tokens whose values are kept for quantiles; evenly spread over more
CHUNK_VALUES = 1 << 18  # float32 values of one side worked on at once: 1 MB, of which a dozen are held


@dataclass
class _Kept:
    """Values of the tokens that are kept, and what is counted over all of them."""

    values: list[RowValues] = field(default_factory=list)
    counted: list[Tensor] = field(default_factory=list)
    positions: list[Tensor] = field(default_factory=list)
    tokens: int = 0
    counts: Tensor | None = None  # [4, n]: zero, odd train, odd live, duplicate
    largest: list[LargestDifference | None] = field(default_factory=list)
    worst: list[WorstToken] = field(default_factory=list)
    series: list[TokenSeries] = field(default_factory=list)
    least: list[tuple[int, int, float]] = field(default_factory=list)  # (pair, row, cosine of the first block)


@dataclass(frozen=True)
class Measured:
    blocks: tuple[BlockComparison, ...] = ()
    worst: tuple[WorstToken, ...] = ()
    series: tuple[TokenSeries, ...] = ()
    least: tuple[tuple[int, int, float], ...] = ()


def measure(alignment: Alignment, layout: Layout, boundaries: Sequence[int], chunk: int | None) -> Measured:
    """Train blocks against live blocks, pair by pair; or one live block against each train block, and the final state where it is stored.

    ``boundaries`` name the train blocks when there is one for each. Nothing when blocks can be matched in neither way.
    """
    h, n = layout.hidden_size, layout.train_blocks
    if not (layout.paired or layout.single):
        return Measured()
    with_final = layout.single and all(_final(pair, h) is not None for pair in alignment.pairs)
    names = (*(boundaries if len(boundaries) == n else (None,) * n), *((FINAL,) if with_final else ()))
    moments = _moments(alignment, layout, with_final)
    scale, count = Scale.of(moments), len(names)
    rows = chunk or max(CHUNK_VALUES // (count * h), 1)
    stride, seen = -(-alignment.tokens // KEPT_TOKENS) or 1, 0
    kept = _Kept(counts=torch.zeros(4, count, dtype=torch.long), largest=[None] * count)
    for number, pair in enumerate(alignment.pairs):
        x, y = _with_final(read(pair, "train", layout), pair, h if with_final else 0), read(pair, "live", layout)
        parts = []
        for part in chunks(pair.tokens, rows):
            a = take(x, pair.train_rows[part]).float().reshape(-1, count, h)
            b = take(y, pair.live_rows[part]).float().reshape(-1, layout.live_blocks, h)
            values = compare_rows(a, b.expand(-1, count, -1) if layout.single else b, scale)
            _largest(kept, values, a, b, pair, part)
            parts.append(values)
        _finish(kept, RowValues.join(parts), number, pair, y, layout, stride, seen)
        if number < SERIES_RECORDS:
            kept.series += _series(pair, parts)
        seen += pair.tokens
    joined, counted = RowValues.join(kept.values), torch.cat(kept.counted)
    positions = torch.cat(kept.positions)
    return Measured(
        tuple(_summary(kept, joined, counted, positions, i, names[i], moments[i].roundings) for i in range(count)),
        tuple(kept.worst) if layout.paired else (),
        tuple(kept.series),
        tuple(kept.least),
    )


def _moments(alignment: Alignment, layout: Layout, with_final: bool) -> list[ChannelMoments]:
    """Mean and deviation of the channels of each train block, and of the final state."""
    h, n = layout.hidden_size, layout.train_blocks
    made = [ChannelMoments(h) for _ in range(n + with_final)]
    some = spread(alignment, MOMENT_ROWS)
    step = max(CHUNK_VALUES // (n * h), 1)
    for pair, rows in zip(some.pairs, some.rows, strict=True):
        x = _with_final(read(pair, "train", layout), pair, h if with_final else 0)
        for part in chunks(len(rows), step):
            block = take(x, pair.train_rows[rows[part]])
            for i, one in enumerate(made):
                one.update(block[:, i * h : (i + 1) * h])
    return made


def _with_final(columns: tuple[Tensor, ...], pair: Pair, hidden_size: int) -> tuple[Tensor, ...]:
    final = _final(pair, hidden_size) if hidden_size else None
    return columns if final is None else (*columns, final)


def _final(pair: Pair, hidden_size: int) -> Tensor | None:
    state = pair.train.final()
    return None if state is None or state.shape[-1] != hidden_size else state.detach().cpu()


def _largest(kept: _Kept, values: RowValues, x: Tensor, y: Tensor, pair: Pair, part: slice) -> None:
    """Remember the largest difference of each block, with its place; the sink token's does not count."""
    counted = pair.counted[part]
    size = torch.where(counted[:, None], values.largest, torch.zeros(()))
    size = torch.where(size.isfinite(), size, torch.zeros(()))
    for i, (top, at) in enumerate(zip(*(v.tolist() for v in size.max(0)), strict=True)):
        now = kept.largest[i]
        if top > (abs(now.live - now.train) if now else 0.0):
            a, b = x[at, i], y[at, i if y.shape[1] > 1 else 0]
            channel = int((b - a).abs().argmax())
            position = int(pair.positions[part][at])
            kept.largest[i] = LargestDifference(pair.live.name, position, channel, float(a[channel]), float(b[channel]))


def _finish(kept: _Kept, values: RowValues, number: int, pair: Pair, y: tuple[Tensor, ...], layout: Layout, stride: int, seen: int) -> None:
    """Count one record's rows, keep some of its values, and its worst tokens."""
    counted = pair.counted
    assert kept.counts is not None
    kept.tokens += int(counted.sum())
    kept.counts[:3] += torch.stack([(v & counted[:, None]).sum(0) for v in (values.zero, values.odd_train, values.odd_live)])
    kept.counts[3] += _duplicates(values, pair, y, layout)
    at = ((torch.arange(pair.tokens) + seen) % stride == 0).nonzero().flatten()
    kept.values.append(values[at] if stride > 1 else values)
    kept.counted.append(counted[at])
    kept.positions.append(pair.positions[at])
    score = torch.where(counted[:, None] & values.cosine.isfinite() & values.standardised.isfinite(), values.standardised, torch.inf)
    ratio = values.live_norm / values.train_norm
    for i in range(score.shape[1]):
        for t in score[:, i].argsort(stable=True)[:WORST_TOKENS].tolist():
            if score[t, i] < torch.inf:
                numbers = float(values.cosine[t, i]), float(ratio[t, i]), float(score[t, i])
                kept.worst.append(WorstToken(pair.live.name, i, int(pair.positions[t]), *numbers))
    for t in score[:, 0].argsort(stable=True)[:DISPLACED_TOKENS].tolist():
        if score[t, 0] < torch.inf:
            kept.least.append((number, t, float(score[t, 0])))
    kept.least = sorted(kept.least, key=lambda item: item[2])[:DISPLACED_TOKENS]
    kept.worst = sorted(kept.worst, key=lambda w: w.standardised)[:WORST_TOKENS]


def _duplicates(values: RowValues, pair: Pair, y: tuple[Tensor, ...], layout: Layout) -> Tensor:
    """Live rows equal to the one before where the train rows differ. Equal norms give them away; then they are held side by side."""
    h, count = layout.hidden_size, values.cosine.shape[1]
    found = torch.zeros(count, dtype=torch.long)
    same = (values.live_norm[1:] == values.live_norm[:-1]) & (values.live_norm[1:] > 0) & (values.train_norm[1:] != values.train_norm[:-1])
    for t, i in same.nonzero().tolist():
        rows = pair.live_rows[t : t + 2]
        cut = slice(i * h, (i + 1) * h) if layout.paired else slice(0, h)
        one, two = take(y, rows[:1])[0, cut], take(y, rows[1:])[0, cut]
        found[i] += int(torch.equal(one, two))
    return found


def _summary(
    kept: _Kept, values: RowValues, counted: Tensor, positions: Tensor, i: int, boundary: int | None, roundings: float
) -> BlockComparison:
    def of(column: Tensor) -> Tensor:
        return column[counted, i]

    assert kept.counts is not None
    zero, odd_train, odd_live, duplicate = kept.counts[:, i].tolist()
    usable = ~of(values.zero)  # a zero row has a standardised cosine, that of minus the mean, which says nothing
    train_norm, live_norm, error = of(values.train_norm), of(values.live_norm), of(values.error)[usable]
    standardised, relative = of(values.standardised), of(values.relative_error)
    typical, far = median(error), quantile(error, 0.99)
    return BlockComparison(
        block=i,
        boundary=boundary,
        tokens=kept.tokens,
        train_norm=median(train_norm),
        live_norm=median(live_norm),
        norm_ratio=median(rows_norm_ratio(train_norm, live_norm)),
        cosine=Quantiles.of(of(values.cosine)),
        standardised=Quantiles.of(standardised[usable]),
        relative_error=median(relative),
        zero_rows=zero,
        nonfinite_train=odd_train,
        nonfinite_live=odd_live,
        duplicate_rows=duplicate,
        centred=Quantiles.of(of(values.centred)[usable]),
        error=typical,
        error_p99=far,
        rounding=tuple((d, rounding.steps(typical**2, roundings, d)) for d in rounding.SIGNIFICANT_BITS),
        largest=kept.largest[i],
        trend=tuple(_octaves(positions[counted], standardised, relative)),
    )


def _octaves(positions: Tensor, standardised: Tensor, relative: Tensor) -> list[Octave]:
    octave = positions.clamp(min=1).double().log2().floor().long()
    made = []
    for k in octave.unique().tolist():
        rows = octave == k
        made.append(Octave(2**k, int(rows.sum()), median(standardised[rows]), median(relative[rows])))
    return made


def _series(pair: Pair, parts: list[RowValues]) -> list[TokenSeries]:
    values = RowValues.join(parts)
    at = torch.linspace(0, pair.tokens - 1, min(pair.tokens, SERIES_POINTS)).round().long()
    positions = tuple(pair.positions[at].tolist())
    columns = [v[at] for v in (values.cosine, values.standardised, values.train_norm, values.live_norm)]
    return [TokenSeries(pair.live.name, i, positions, *(tuple(c[:, i].tolist()) for c in columns)) for i in range(values.cosine.shape[1])]
