"""One pass for channel statistics, one for everything else, over aligned rows in chunks: memory does not grow with the dump's width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle3diag.compare.align import Alignment, Pair
from eagle3diag.compare.comparison import FINAL, BlockComparison, TokenSeries, WorstToken
from eagle3diag.compare.metrics import (
    ChannelMoments,
    Quantiles,
    cosine_matrix,
    median,
    rows_cosine,
    rows_largest,
    rows_norm,
    rows_norm_ratio,
    rows_relative_error,
    rows_rms,
)
from eagle3diag.errors import MismatchedInputs

SHIFTS = (-2, -1, 0, 1, 2)
SERIES_RECORDS, SERIES_POINTS, WORST_TOKENS = 3, 400, 10
MATRIX_TOKENS = 4096  # medians of layer-identity cosines settle long before; every boundary against every block is the costly part


@dataclass(frozen=True)
class Layout:
    """How wide the two sides are, in blocks of ``hidden_size``; 0 blocks when a width is not a multiple of it."""

    hidden_size: int
    train_width: int
    live_width: int

    @property
    def train_blocks(self) -> int:
        return 0 if self.train_width % self.hidden_size else self.train_width // self.hidden_size

    @property
    def live_blocks(self) -> int:
        return 0 if self.live_width % self.hidden_size else self.live_width // self.hidden_size

    @property
    def paired(self) -> bool:
        return self.train_blocks > 0 and self.train_width == self.live_width

    @property
    def single(self) -> bool:
        return self.live_blocks == 1 and self.train_blocks > 1


@dataclass
class Values:
    """Per-token values of one pair of blocks, in the order of the rows; sink tokens included, ``counted`` says which are not."""

    block: int
    boundary: int | None
    cosine: list[Tensor] = field(default_factory=list)
    standardised: list[Tensor] = field(default_factory=list)
    train_norm: list[Tensor] = field(default_factory=list)
    live_norm: list[Tensor] = field(default_factory=list)
    relative_error: list[Tensor] = field(default_factory=list)
    zero: list[Tensor] = field(default_factory=list)
    odd_train: list[Tensor] = field(default_factory=list)
    odd_live: list[Tensor] = field(default_factory=list)

    def add(self, x: Tensor, y: Tensor, moments: ChannelMoments) -> None:
        self.cosine.append(rows_cosine(x, y))
        self.standardised.append(rows_cosine(moments.standardise(x), moments.standardise(y)))
        self.train_norm.append(rows_norm(x))
        self.live_norm.append(rows_norm(y))
        self.relative_error.append(rows_relative_error(x, y))
        live_largest = rows_largest(y)
        self.zero.append(live_largest == 0)
        self.odd_train.append(~rows_largest(x).isfinite())
        self.odd_live.append(~live_largest.isfinite())

    def summary(self, counted: Tensor) -> BlockComparison:
        def of(values: list[Tensor]) -> Tensor:
            return torch.cat(values)[counted]

        train_norm, live_norm = of(self.train_norm), of(self.live_norm)
        usable = ~of(self.zero)  # a zero row has a standardised cosine, that of minus the mean, which says nothing
        return BlockComparison(
            block=self.block,
            boundary=self.boundary,
            tokens=len(train_norm),
            train_norm=median(train_norm),
            live_norm=median(live_norm),
            norm_ratio=median(rows_norm_ratio(train_norm, live_norm)),
            cosine=Quantiles.of(of(self.cosine)),
            standardised=Quantiles.of(of(self.standardised)[usable]),
            relative_error=median(of(self.relative_error)),
            zero_rows=int(of(self.zero).sum()),
            nonfinite_train=int(of(self.odd_train).sum()),
            nonfinite_live=int(of(self.odd_live).sum()),
        )


@dataclass(frozen=True)
class Measured:
    blocks: tuple[BlockComparison, ...]
    single: tuple[BlockComparison, ...]
    order: tuple[tuple[float, ...], ...]
    shift: tuple[tuple[int, float], ...]
    live_final_rms: float | None
    worst: tuple[WorstToken, ...]
    series: tuple[TokenSeries, ...]


def measure(alignment: Alignment, layout: Layout, boundaries: Sequence[int], gain: Tensor | None, chunk: int) -> Measured:
    """Everything that train and live tell about each other. ``boundaries`` name the train blocks when there is one for each."""
    h, n, m = layout.hidden_size, layout.train_blocks, layout.live_blocks
    train_stats, live_stats = [ChannelMoments(h) for _ in range(n)], [ChannelMoments(h) for _ in range(m)]
    final_stats = ChannelMoments(h)
    with_final = layout.single and all(_final(pair, h) is not None for pair in alignment.pairs)
    for pair, x, y, final in _read(alignment, layout, with_final):
        for rows in _chunks(pair.tokens, chunk):
            counted = pair.counted[rows]
            for stats, blocks in ((train_stats, _split(x[rows], h, n)), (live_stats, _split(y[rows], h, m))):
                for one, block in zip(stats, blocks, strict=True):
                    one.update(block[counted])
            if final is not None:
                final_stats.update(final[rows][counted])

    names = tuple(boundaries) if len(boundaries) == n else (None,) * n
    compared = range(n) if layout.paired or layout.single else range(0)
    values = [Values(i, names[i]) for i in compared] + ([Values(n, FINAL)] if with_final else [])
    stride, seen = _stride(alignment), 0
    order: list[Tensor] = []
    shifted: dict[int, list[Tensor]] = {s: [] for s in SHIFTS}
    final_rms: list[Tensor] = []
    for pair, x, y, final in _read(alignment, layout, with_final):
        for rows in _chunks(pair.tokens, chunk):
            xs, ys, counted = _split(x[rows], h, n), _split(y[rows], h, m), pair.counted[rows]
            for i in compared:
                values[i].add(xs[i], ys[i if layout.paired else 0], train_stats[i])
            if final is not None:
                values[n].add(final[rows], ys[0], final_stats)
            if gain is not None and m:
                final_rms.append(rows_rms(ys[-1][counted], gain))
            sampled = _every(counted, stride, seen)
            seen += int(counted.sum())
            if n and m and len(sampled):
                zs = _own([b[sampled] for b in ys], live_stats)
                order.append(cosine_matrix(_own([b[sampled] for b in xs], train_stats), zs))
                if layout.paired:
                    for s, there, kept in _shifts(pair, sampled + rows.start):
                        moved = _own(_split(x[there], h, n), train_stats)
                        shifted[s].append(torch.stack([rows_cosine(moved[:, i], zs[kept, i]) for i in range(n)], 1))
    counted = torch.cat([p.counted for p in alignment.pairs])
    summaries = tuple(v.summary(counted) for v in values)
    return Measured(
        blocks=summaries if layout.paired else (),
        single=summaries if layout.single else (),
        order=_medians(order),
        shift=tuple((s, float(torch.cat(c).double().nanmean())) for s, c in shifted.items() if c),
        live_final_rms=median(torch.cat(final_rms)) if final_rms else None,
        worst=_worst(alignment, values, counted) if layout.paired else (),
        series=_series(alignment, values),
    )


def measure_reference(
    alignment: Alignment, hidden_size: int, live_width: int, chunk: int
) -> tuple[tuple[int, ...], tuple[tuple[float, ...], ...]]:
    """Which boundary of the reference (train side of ``alignment``) each live block is: boundaries, and medians ``[boundary][block]``."""
    h = hidden_size
    m = 0 if live_width % h else live_width // h
    everywhere = set.intersection(*(set(p.train.boundaries) for p in alignment.pairs))
    boundaries = (*sorted(everywhere), *([FINAL] if all(_final(p, h) is not None for p in alignment.pairs) else []))
    if not boundaries or not m:
        return (), ()
    stride, seen = _stride(alignment), 0
    kept: list[tuple[Pair, Tensor]] = []
    for pair in alignment.pairs:
        kept.append((pair, _every(pair.counted, stride, seen)))
        seen += int(pair.counted.sum())
    # at most MATRIX_TOKENS rows: they fit in memory, so nothing is read twice
    live = torch.cat([_cpu(pair.live.features())[pair.live_rows[rows]] for pair, rows in kept])
    live_stats = [ChannelMoments(h) for _ in range(m)]
    for part in _chunks(len(live), chunk):
        for one, block in zip(live_stats, _split(live[part], h, m), strict=True):
            one.update(block)
    found: list[tuple[float, ...]] = []
    for boundary in boundaries:
        state = torch.cat([_state(pair, boundary, h)[rows] for pair, rows in kept])
        stats = ChannelMoments(h)
        for part in _chunks(len(state), chunk):
            stats.update(state[part])
        parts = [cosine_matrix(_own([state[p]], [stats]), _own(_split(live[p], h, m), live_stats)) for p in _chunks(len(state), chunk)]
        found.extend(_medians(parts) or ((float("nan"),) * m,))
    return boundaries, tuple(found)


def _read(alignment: Alignment, layout: Layout, with_final: bool) -> Iterator[tuple[Pair, Tensor, Tensor, Tensor | None]]:
    for pair in alignment.pairs:
        x, y = _cpu(pair.train.features()), _cpu(pair.live.features())
        for what, rows, tensor, width in (("train", pair.train, x, layout.train_width), ("live", pair.live, y, layout.live_width)):
            if tensor.shape[-1] != width:
                raise MismatchedInputs(
                    f"features are {tensor.shape[-1]} wide, but the first record's are {width}",
                    where=f"{what} record {rows.name!r}",
                    hint="one dump holds one layout; compare the records separately",
                )
        yield pair, _take(x, pair.train_rows), _take(y, pair.live_rows), _final(pair, layout.hidden_size) if with_final else None


def _state(pair: Pair, boundary: int, hidden_size: int) -> Tensor:
    state = pair.train.final() if boundary == FINAL else pair.train.state(boundary)
    assert state is not None
    if state.shape[-1] != hidden_size:
        raise MismatchedInputs(
            f"boundary {boundary} is {state.shape[-1]} wide, but the target's hidden size is {hidden_size}",
            where=f"reference record {pair.train.name!r}",
            hint="capture the reference from the same target",
        )
    return _take(_cpu(state), pair.train_rows)


def _final(pair: Pair, hidden_size: int) -> Tensor | None:
    state = pair.train.final()
    return None if state is None or state.shape[-1] != hidden_size else _take(_cpu(state), pair.train_rows)


def _cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu()


def _take(x: Tensor, rows: Tensor) -> Tensor:
    """``x[rows]`` for rising ``rows``; a view, without a copy, when they follow one another."""
    first, last = int(rows[0]), int(rows[-1])
    return x[first : last + 1] if last - first + 1 == len(rows) else x[rows]


def _split(x: Tensor, h: int, n: int) -> list[Tensor]:
    return [x[:, i * h : (i + 1) * h] for i in range(n)]


def _own(blocks: list[Tensor], stats: list[ChannelMoments]) -> Tensor:
    """Each block standardised by the moments of its own side: [T, blocks, H]. Zero rows become NaN, so that they have no cosine."""
    made = []
    for block, one in zip(blocks, stats, strict=True):
        z = one.standardise(block)
        z[rows_largest(block) == 0] = float("nan")
        made.append(z)
    return torch.stack(made, 1)


def _chunks(tokens: int, chunk: int) -> Iterator[slice]:
    for start in range(0, tokens, chunk):
        yield slice(start, min(start + chunk, tokens))


def _stride(alignment: Alignment) -> int:
    return -(-sum(int(p.counted.sum()) for p in alignment.pairs) // MATRIX_TOKENS) or 1


def _every(counted: Tensor, stride: int, seen: int) -> Tensor:
    """Indices of the counted rows whose number over the whole comparison (``seen`` came before) is a multiple of ``stride``."""
    number = counted.long().cumsum(0) - 1 + seen
    return (counted & (number % stride == 0)).nonzero().flatten()


def _shifts(pair: Pair, at: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each shift: rows ``s`` tokens later that exist (and are no sink), and which of ``at`` they belong to."""
    for s in SHIFTS:
        there = at + s
        kept = ((there >= 0) & (there < pair.tokens)).nonzero().flatten()
        position = pair.positions[there[kept]]
        kept = kept[(position - pair.positions[at[kept]] == s) & (position != 0)]
        if len(kept):
            yield s, there[kept], kept


def _medians(matrices: list[Tensor]) -> tuple[tuple[float, ...], ...]:
    if not matrices:
        return ()
    whole = torch.cat(matrices)
    return tuple(tuple(median(whole[:, i, j]) for j in range(whole.shape[2])) for i in range(whole.shape[1]))


def _worst(alignment: Alignment, values: list[Values], counted: Tensor) -> tuple[WorstToken, ...]:
    owner = torch.cat([torch.full((p.tokens,), i) for i, p in enumerate(alignment.pairs)])
    position = torch.cat([p.positions for p in alignment.pairs])
    found: list[WorstToken] = []
    for v in values:
        score, plain = torch.cat(v.standardised), torch.cat(v.cosine)
        ratio = rows_norm_ratio(torch.cat(v.train_norm), torch.cat(v.live_norm))
        at = (counted & score.isfinite() & plain.isfinite()).nonzero().flatten()
        for i in at[score[at].argsort(stable=True)[:WORST_TOKENS]].tolist():
            name = alignment.pairs[int(owner[i])].live.name
            found.append(WorstToken(name, v.block, int(position[i]), float(plain[i]), float(ratio[i]), float(score[i])))
    return tuple(sorted(found, key=lambda w: w.standardised)[:WORST_TOKENS])


def _series(alignment: Alignment, values: list[Values]) -> tuple[TokenSeries, ...]:
    made: list[TokenSeries] = []
    joined: list[tuple[int, Callable[[slice, Tensor], list[tuple[float, ...]]]]] = [(v.block, _picker(v)) for v in values]
    start = 0
    for pair in alignment.pairs[:SERIES_RECORDS]:
        at = torch.linspace(0, pair.tokens - 1, min(pair.tokens, SERIES_POINTS)).round().long()
        for block, pick in joined:
            columns = pick(slice(start, start + pair.tokens), at)
            made.append(TokenSeries(pair.live.name, block, tuple(pair.positions[at].tolist()), *columns))
        start += pair.tokens
    return tuple(made)


def _picker(v: Values) -> Callable[[slice, Tensor], list[tuple[float, ...]]]:
    columns = [torch.cat(c) for c in (v.cosine, v.standardised, v.train_norm, v.live_norm)]
    return lambda rows, at: [tuple(c[rows][at].tolist()) for c in columns]
