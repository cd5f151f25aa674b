"""One pass over all aligned rows, in chunks that fit into the processor's cache: memory grows neither with the width nor with the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate

import torch
from torch import Tensor

from eagle3diag.compare import rounding
from eagle3diag.compare.align import Alignment, Pair
from eagle3diag.compare.comparison import FINAL, BlockComparison, LargestDifference, Octave, TokenSeries, WorstToken
from eagle3diag.compare.identity import DISPLACED_TOKENS
from eagle3diag.compare.metrics import ChannelMoments, Quantiles, median, quantile, rows_norm_ratio
from eagle3diag.compare.on_cores import run
from eagle3diag.compare.partial import Partial, Top, join
from eagle3diag.compare.rows import ReadRows, RowValues, Scale, compare_rows
from eagle3diag.compare.sampling import Layout, at_once, chunks, read, same_rows, scattered, spread, take
from eagle3diag.devices import CPU
from eagle3diag.dumps.ahead import read_ahead

SERIES_RECORDS, SERIES_POINTS, WORST_TOKENS = 3, 400, 10
MOMENT_ROWS = 1024  # rows that means and deviations are taken from: a channel's is then 2 % off, of no weight in a cosine over hundreds
KEPT_TOKENS = 200_000  # tokens whose values are kept for quantiles; evenly spread over more


@dataclass(frozen=True)
class Plan:
    """What every part of one measurement has in common, wherever it is done.

    ``names``: the boundary of each train block (None where it is not declared), and -1 for the final state where it is held against a
    single live block. ``rows`` are worked on at once on ``device``, every ``stride``-th token is kept for quantiles.
    """

    layout: Layout
    names: tuple[int | None, ...]
    scale: Scale
    roundings: tuple[float, ...]
    rows: int
    stride: int
    device: torch.device = CPU

    @property
    def with_final(self) -> bool:
        return self.names[-1] == FINAL


@dataclass(frozen=True)
class Numbered:
    """A pair with its number, and how many tokens the pairs before it have: together they say what is kept of it."""

    number: int
    seen: int
    pair: Pair


@dataclass(frozen=True)
class Measured:
    blocks: tuple[BlockComparison, ...] = ()
    worst: tuple[WorstToken, ...] = ()
    series: tuple[TokenSeries, ...] = ()
    least: tuple[tuple[int, int, float], ...] = ()  # (pair, row, cosine of the first block)
    zero_tokens: int = 0
    nonfinite_tokens: int = 0
    duplicate_tokens: int = 0


def plan(alignment: Alignment, layout: Layout, boundaries: Sequence[int], chunk: int | None, device: torch.device = CPU) -> Plan | None:
    """How to hold train blocks against live blocks, pair by pair; or one live block against each train block, and the final state where it
    is stored.

    ``boundaries`` name the train blocks when there is one for each. None when blocks can be matched in neither way.
    """
    h, n = layout.hidden_size, layout.train_blocks
    if not (layout.paired or layout.single):
        return None
    with_final = layout.single and all(_final(pair, h) is not None for pair in alignment.pairs)
    names = (*(boundaries if len(boundaries) == n else (None,) * n), *((FINAL,) if with_final else ()))
    moments = _moments(alignment, layout, with_final)
    rows = chunk or at_once(len(names) * h, device)
    stride = -(-alignment.tokens // KEPT_TOKENS) or 1
    return Plan(layout, names, Scale.of(moments), tuple(m.roundings for m in moments), rows, stride, device)


def numbered(alignment: Alignment) -> tuple[Numbered, ...]:
    """The pairs in their order."""
    seen = accumulate((p.tokens for p in alignment.pairs), initial=0)
    return tuple(Numbered(i, before, pair) for i, (pair, before) in enumerate(zip(alignment.pairs, seen, strict=False)))


def measure(plan: Plan, pairs: Sequence[Numbered]) -> Partial:
    """All values of some pairs."""
    return join(list(run(lambda i: opened(plan, pairs[i]), range(len(pairs)))))


def opened(plan: Plan, one: Numbered) -> Callable[[], Partial]:
    """One pair, its states asked for; what is left to do gives all its values."""
    x = _with_final(read(one.pair, "train", plan.layout), one.pair, plan.layout.hidden_size if plan.with_final else 0)
    y = read(one.pair, "live", plan.layout)
    for part in (*x, *y):
        read_ahead(part)
    return lambda: _measure(plan, one, x, y)


def _measure(plan: Plan, one: Numbered, x: tuple[Tensor, ...], y: tuple[Tensor, ...]) -> Partial:
    pair, layout, count, h = one.pair, plan.layout, len(plan.names), plan.layout.hidden_size

    def rows(part: Tensor | slice, device: torch.device) -> tuple[Tensor, Tensor]:
        a, b = take(x, pair.train_rows[part], device), take(y, pair.live_rows[part], device)
        return a.reshape(-1, count, h), b.reshape(-1, layout.live_blocks, h)

    values = compare_rows(rows, pair.tokens, plan.rows, plan.scale, plan.device)
    tops = _largest(values, rows, pair) | (_worst(values, one) if layout.paired else {})
    tops["least"] = Top.of(DISPLACED_TOKENS, [(s, [one.number, t, s]) for t, s in _lowest(values, pair, 0, DISPLACED_TOKENS)])
    if one.number < SERIES_RECORDS:
        tops["series"] = Top.of(SERIES_RECORDS * count, [(float(one.number), s) for s in _series(pair, values)])
    return Partial(_kept(plan, one, values), _counts(values, pair, y, layout), tops)


def _moments(alignment: Alignment, layout: Layout, with_final: bool) -> list[ChannelMoments]:
    """Mean and deviation of the channels of each train block, and of the final state."""
    h, n = layout.hidden_size, layout.train_blocks
    made = [ChannelMoments(h) for _ in range(n + with_final)]
    some = spread(alignment, MOMENT_ROWS)
    step = at_once(n * h, CPU)
    for pair, rows in zip(some.pairs, some.rows, strict=True):
        x = _with_final(read(pair, "train", layout), pair, h if with_final else 0)
        for part in chunks(len(rows), step):
            block = scattered(x, pair.train_rows[rows[part]])
            for i, one in enumerate(made):
                one.update(block[:, i * h : (i + 1) * h])
    return made


def _with_final(columns: tuple[Tensor, ...], pair: Pair, hidden_size: int) -> tuple[Tensor, ...]:
    final = _final(pair, hidden_size) if hidden_size else None
    return columns if final is None else (*columns, final)


def _final(pair: Pair, hidden_size: int) -> Tensor | None:
    state = pair.train.final()
    return None if state is None or state.shape[-1] != hidden_size else state.detach()


def _largest(values: RowValues, rows: ReadRows, pair: Pair) -> dict[str, Top]:
    """The largest difference of each block with its place; the sink token's does not count."""
    size = torch.where(pair.counted[:, None] & values.largest.isfinite(), values.largest, torch.zeros(()))
    made = {}
    for i, (top, at) in enumerate(zip(*(v.tolist() for v in size.max(0)), strict=True)):
        a, b = (side[0, i if side.shape[1] > 1 else 0].float() for side in rows(slice(at, at + 1), CPU))
        channel = int((b - a).abs().argmax())
        place = [pair.live.name, int(pair.positions[at]), channel, float(a[channel]), float(b[channel])]
        made[f"largest.{i}"] = Top.of(1, [(-top, place)] if top > 0 else [])
    return made


def _kept(plan: Plan, one: Numbered, values: RowValues) -> dict[str, Tensor]:
    """What is kept of each token for quantiles."""
    at = ((torch.arange(one.pair.tokens) + one.seen) % plan.stride == 0).nonzero().flatten()
    return {f.name: getattr(values, f.name)[at] for f in fields(values)} | {
        "counted": one.pair.counted[at],
        "position": one.pair.positions[at],
    }


def _counts(values: RowValues, pair: Pair, y: tuple[Tensor, ...], layout: Layout) -> dict[str, Tensor]:
    """What is counted over all tokens but the sink."""
    counted = pair.counted[:, None]
    kinds = (values.zero & counted, values.nonfinite_train & counted, values.nonfinite_live & counted, _duplicates(values, pair, y, layout))
    rows, tokens = torch.stack([k.sum(0) for k in kinds]), torch.stack([k.any(-1).sum() for k in kinds])
    return {"tokens": counted.sum(), "rows": rows, "broken": tokens}


def _lowest(values: RowValues, pair: Pair, block: int, most: int) -> list[tuple[int, float]]:
    """The rows whose standardised cosine is lowest, with it."""
    sound = pair.counted & values.cosine[:, block].isfinite() & values.standardised[:, block].isfinite()
    score = torch.where(sound, values.standardised[:, block], torch.inf)
    return [(t, float(score[t])) for t in score.argsort(stable=True)[:most].tolist() if score[t] < torch.inf]


def _worst(values: RowValues, one: Numbered) -> dict[str, Top]:
    pair, ratio = one.pair, values.live_norm / values.train_norm
    entries = [
        (s, [pair.live.name, i, int(pair.positions[t]), float(values.cosine[t, i]), float(ratio[t, i]), s])
        for i in range(values.cosine.shape[1])
        for t, s in _lowest(values, pair, i, WORST_TOKENS)
    ]
    return {"worst": Top.of(WORST_TOKENS, entries)}


def _duplicates(values: RowValues, pair: Pair, y: tuple[Tensor, ...], layout: Layout) -> Tensor:
    """Which live rows [R, n], with one row before them, equal that one where the train rows differ. Equal norms give them away; then they are
    held side by side."""
    same = (values.live_norm[1:] == values.live_norm[:-1]) & (values.live_norm[1:] > 0) & (values.train_norm[1:] != values.train_norm[:-1])
    at = same.any(-1).nonzero().flatten()
    return same[at] & same_rows(y, pair.live_rows[at], pair.live_rows[at + 1], layout.live_blocks)


def finish(plan: Plan, whole: Partial) -> Measured:
    """The numbers of a comparison from what all pairs gave."""
    zero, _, nonfinite, duplicate = whole.counts["broken"].tolist()
    values = RowValues(*(whole.rows[f.name] for f in fields(RowValues)))
    return Measured(
        tuple(_summary(plan, whole, values, i) for i in range(len(plan.names))),
        tuple(WorstToken(*v) for v in whole.entries("worst")),
        tuple(TokenSeries(name, block, *map(tuple, columns)) for name, block, *columns in whole.entries("series")),
        tuple((number, row, cosine) for number, row, cosine in whole.entries("least")),
        zero,
        nonfinite,
        duplicate,
    )


def _summary(plan: Plan, whole: Partial, values: RowValues, i: int) -> BlockComparison:
    counted = whole.rows["counted"]

    zero, nonfinite_train, nonfinite_live, duplicate = whole.counts["rows"][:, i].tolist()
    filled = counted & ~values.zero[:, i]  # the length of a zero row says nothing of the others
    looked_at = filled if bool(filled.any()) else counted

    def sound(column: Tensor) -> Tensor:
        return column[looked_at, i]

    train_norm, live_norm, error = sound(values.train_norm), sound(values.live_norm), sound(values.error)
    standardised, relative = sound(values.standardised), sound(values.relative_error)
    typical, far = median(error), quantile(error, 0.99)
    return BlockComparison(
        block=i,
        boundary=plan.names[i],
        tokens=int(whole.counts["tokens"]),
        train_norm=median(train_norm),
        live_norm=median(live_norm),
        norm_ratio=median(rows_norm_ratio(train_norm, live_norm)),
        cosine=Quantiles.of(sound(values.cosine)),
        standardised=Quantiles.of(standardised),
        relative_error=median(relative),
        zero_rows=zero,
        nonfinite_train=nonfinite_train,
        nonfinite_live=nonfinite_live,
        duplicate_rows=duplicate,
        centred=Quantiles.of(sound(values.centred)),
        error=typical,
        error_p99=far,
        rounding=tuple((d, rounding.steps(typical**2, plan.roundings[i], d)) for d in rounding.SIGNIFICANT_BITS),
        largest=next((LargestDifference(*v) for v in whole.entries(f"largest.{i}")), None),
        trend=tuple(_octaves(whole.rows["position"][looked_at], standardised, relative)),
    )


def _octaves(positions: Tensor, standardised: Tensor, relative: Tensor) -> list[Octave]:
    octave = positions.clamp(min=1).double().log2().floor().long()
    made = []
    for k in octave.unique().tolist():
        rows = octave == k
        made.append(Octave(2**k, int(rows.sum()), median(standardised[rows]), median(relative[rows])))
    return made


def _series(pair: Pair, values: RowValues) -> list[list[object]]:
    at = torch.linspace(0, pair.tokens - 1, min(pair.tokens, SERIES_POINTS)).round().long()
    columns = [v[at] for v in (values.cosine, values.standardised, values.train_norm, values.live_norm)]
    positions = pair.positions[at].tolist()
    return [[pair.live.name, i, positions, *(c[:, i].tolist() for c in columns)] for i in range(values.cosine.shape[1])]
