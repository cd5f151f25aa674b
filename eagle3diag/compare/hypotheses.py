"""Ways in which a live block can have come about, each built from what is known and scored by how much of the block it explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from eagle3diag.compare.align import Alignment
from eagle3diag.compare.comparison import FINAL, BlockOrigin, Hypothesis
from eagle3diag.compare.identity import SHIFTS, blocks, known_boundaries, moments, standardised
from eagle3diag.compare.metrics import median, rows_cosine
from eagle3diag.compare.sampling import Layout, Spread, spread

STATE_VALUES = 1 << 20  # of one state that are sampled: a dozen such tensors are held at once
LOOKED_AT = 3  # states whose direction fits best, tried in every form; the declared one always is
TIE = 0.005  # fits that differ by less are equal: then the simplest explanation is taken
KINDS = (
    "as it is",
    "scaled",
    "channels scaled",
    "normed",
    "un-normed",
    "branch",
    "less embedding",
    "partial sum",
    "rotated",
)  # the simpler first
RANKS = (2, 4, 8)  # in how many shards the channels of a state usually lie
SHARD_FITS = 0.9  # under this another shard is looked for that fits as well; one of a neighbouring boundary has 0.65 to 0.77
ROTATION_WIDTH = 1024  # widest state whose rotation is solved for: a singular value decomposition of that size takes a second


def origins(
    alignment: Alignment, layout: Layout, declared: tuple[int, ...], gain: Tensor | None, reference: bool
) -> tuple[BlockOrigin, ...]:
    """For each live block, what it most likely is. ``declared[j]`` is the boundary that block j should be (its number, where none is
    declared); with ``reference`` the train side of ``alignment`` holds boundaries one by one, else the trained blocks."""
    h = layout.hidden_size
    some = spread(alignment, min(2048, max(128, STATE_VALUES // h)))
    if not layout.live_blocks or len(some) < 8 or len(declared) != layout.live_blocks:
        return ()
    known = known_boundaries(alignment, h) if reference else declared
    if not set(declared) <= set(known):
        return ()
    reader = _reader(layout, declared, reference)

    @lru_cache(maxsize=2 * LOOKED_AT + 4)
    def state(boundary: int) -> Tensor:
        return reader(some, boundary)

    made = []
    for j, live in enumerate(blocks(some.live(layout), h)):
        sound = live.isfinite().all(-1) & (live != 0).any(-1)
        if int(sound.sum()) < 8:
            nothing = Hypothesis("as it is", declared[j], 0, 1.0, float("nan"))
            made.append(BlockOrigin(j, nothing, nothing, ()))
            continue
        y = live[sound].float()
        moved = _shards(y, j, declared, sound, state)
        made.append(moved or _origin(j, live, sound, declared[j], known, state, some, reader, gain))
    return tuple(made)


Reader = Callable[[Spread, int], Tensor]


def _reader(layout: Layout, declared: tuple[int, ...], reference: bool) -> Reader:
    h = layout.hidden_size
    if reference:
        return lambda rows, boundary: rows.state(boundary, h)
    return lambda rows, boundary: blocks(rows.train(layout), h)[declared.index(boundary)]


def _origin(
    j: int,
    live: Tensor,
    sound: Tensor,
    wanted: int,
    known: tuple[int, ...],
    state: Callable[[int], Tensor],
    some: Spread,
    reader: Reader,
    gain: Tensor | None,
) -> BlockOrigin:
    y = live[sound].float()
    declared = Hypothesis("as it is", wanted, 0, 1.0, fit(state(wanted)[sound].float(), y))
    tried = [declared]
    if declared.fit >= 1 - TIE:  # whatever else fits is a tie, and the declared state the simplest
        return BlockOrigin(j, declared, declared, ())
    near = _nearest(live, known, state)
    for boundary in dict.fromkeys([wanted, *near[:LOOKED_AT]]):
        x = state(boundary)[sound].float()
        tried += _forms(x, y, boundary, gain)
        if boundary - 1 in known and boundary > 0:
            tried += _sums(state(boundary - 1)[sound].float(), x, y, boundary)
        if 0 in known and boundary > 0:
            tried.append(Hypothesis("less embedding", boundary, 0, 1.0, fit(x - state(0)[sound].float(), y)))
    tried += _branches(live, sound, known, state)
    for boundary in dict.fromkeys([wanted, near[0]]):
        for s in SHIFTS:
            there, kept = some.shifted(s)
            both = kept & sound
            if s and int(both.sum()) >= 8:
                moved = reader(there, boundary)[sound[kept]].float()
                tried.append(Hypothesis("as it is", boundary, s, 1.0, fit(moved, live[both].float())))
    tried += _rotated(state(wanted)[sound].float(), y, wanted, max(t.fit for t in tried))
    one_each = {(t.kind, t.source, t.shift): t for t in tried if not math.isnan(t.fit)}
    ranked = sorted(one_each.values(), key=lambda t: -t.fit)
    if not ranked:
        return BlockOrigin(j, declared, declared, ())
    equal = [t for t in ranked if t.fit >= ranked[0].fit - TIE]
    best = min(equal, key=lambda t: (KINDS.index(t.kind), t.source != wanted, abs(t.shift), -t.fit))
    return BlockOrigin(j, declared, best, tuple(t for t in ranked if t is not best)[:3])


def fit(predicted: Tensor, live: Tensor) -> float:
    """Share of the variance of ``live`` [R, H] that ``predicted`` explains, in the median channel: robust against a few massive ones."""
    return _middle(_explained(predicted, live))


def _explained(predicted: Tensor, live: Tensor) -> Tensor:
    """The same of each channel [H]; NaN where it does not vary."""
    variance = (live - live.mean(0)).square().mean(0)
    left = (live - predicted).square().mean(0)
    return torch.where(variance > 0, 1 - left / variance, torch.nan)


def _middle(explained: Tensor) -> float:
    return median(explained[~explained.isnan()])


def _nearest(live: Tensor, known: tuple[int, ...], state: Callable[[int], Tensor]) -> list[int]:
    """Known states by how alike their direction is, whatever gain or offset was put on."""
    z = standardised(live, moments(live))
    score = {b: median(rows_cosine(standardised(x := state(b), moments(x)), z)) for b in known}
    return sorted(known, key=lambda b: math.inf if math.isnan(score[b]) else -score[b])


def _shards(y: Tensor, j: int, declared: tuple[int, ...], sound: Tensor, state: Callable[[int], Tensor]) -> BlockOrigin | None:
    """Block ``y`` [R, H], of the ``sound`` rows, as shards of ranks, some at another's place. Each is searched for in all trained blocks; the fit is
    the worst shard's, for the median channel does not see a minority. None where no shard is another one, or all are those of one other block."""
    cuts = [ranks for ranks in RANKS if y.shape[1] % ranks == 0 and y.shape[1] // ranks >= 8]
    own = _explained(state(declared[j])[sound].float(), y)
    if not any(_middle(part) < SHARD_FITS for ranks in cuts for part in own.chunk(ranks)):
        return None  # each is where it was trained
    states, found = [state(b)[sound].float() for b in declared], []
    for ranks in cuts:
        width = y.shape[1] // ranks
        parts = [[x[:, i * width : (i + 1) * width] for i in range(ranks)] for x in states]
        places, fits = [], []
        for i in range(ranks):
            part = y[:, i * width : (i + 1) * width]
            places.append((j, i))
            fits.append(fit(parts[j][i], part))
            if fits[i] < SHARD_FITS:
                tried = {(b, k): fit(x, part) for b, xs in enumerate(parts) for k, x in enumerate(xs)}
                places[i] = max(tried, key=lambda at: -math.inf if math.isnan(tried[at]) else tried[at])
                fits[i] = tried[places[i]]
        whole = len({b for b, _ in places}) == 1 and [k for _, k in places] == list(range(ranks))
        if not whole and min(fits) >= SHARD_FITS:
            found.append(Hypothesis("shards", declared[j], 0, float(ranks), min(fits)))
    if not found:
        return None
    best = next(f for f in found if f.fit >= max(g.fit for g in found) - TIE)
    return BlockOrigin(j, Hypothesis("as it is", declared[j], 0, 1.0, _middle(own)), best, ())


def _forms(x: Tensor, y: Tensor, boundary: int, gain: Tensor | None) -> Iterator[Hypothesis]:
    """The state as it is, times a factor, after a norm, or before one."""
    as_is = Hypothesis("as it is", boundary, 0, 1.0, fit(x, y))
    yield as_is
    weight = _evenly(y)
    factor = _factor(x, y, weight)
    yield replace(as_is, kind="scaled", factor=factor, fit=fit(x * factor, y))
    yield replace(as_is, kind="channels scaled", fit=_gained(x, y))
    if boundary != FINAL:
        yield _norm(replace(as_is, kind="normed"), x, y, gain)
    yield _norm(replace(as_is, kind="un-normed"), y, x, gain)


def _norm(hypothesis: Hypothesis, raw: Tensor, normed: Tensor, gain: Tensor | None) -> Hypothesis:
    """Which norm makes ``normed`` of ``raw`` [R, H]: with the final one's gain, none, or any other."""
    unit = raw / raw.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-30)
    fits = {"a norm without weight": fit(unit, normed)}
    if gain is not None:
        fits["the final norm"] = fit(unit * gain, normed)
    fits["a norm" if gain is None else "a norm of another weight"] = _gained(unit, normed)
    known = {name: value for name, value in fits.items() if not math.isnan(value)}
    name = next((n for n, value in known.items() if value >= max(known.values()) - TIE), "a norm")
    return replace(hypothesis, fit=fits.get(name, math.nan), norm=name)


def _gained(x: Tensor, y: Tensor) -> float:
    """How well ``x`` [R, H] with a gain for each channel fits: each half of the tokens with the gains of the other."""
    made = torch.empty_like(x)
    for some, rest in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        made[rest] = x[rest] * (x[some] * y[some]).mean(0) / x[some].square().mean(0).clamp(min=1e-30)
    return fit(made, y)


def _sums(before: Tensor, after: Tensor, y: Tensor, boundary: int) -> Iterator[Hypothesis]:
    """The state before the block plus a share of what the block adds: sums of ranks not reduced yet, or reduced too often."""
    added = after - before
    share = _factor(added, y - before, _evenly(y))
    yield Hypothesis("partial sum", boundary, 0, share, fit(before + share * added, y))


def _evenly(y: Tensor) -> Tensor:
    """Weights [H] by which every channel of ``y`` [R, H] counts alike, the massive ones too."""
    return 1 / (y - y.mean(0)).square().mean(0).clamp(min=1e-30)


def _factor(x: Tensor, y: Tensor, weight: Tensor) -> float:
    """By which ``x`` [R, H] comes nearest to ``y``, in squares that are weighted by channel."""
    return float(((x * y).mean(0) * weight).sum() / ((x * x).mean(0) * weight).sum().clamp(min=1e-30))


def _branches(live: Tensor, sound: Tensor, known: tuple[int, ...], state: Callable[[int], Tensor]) -> Iterator[Hypothesis]:
    """What a block adds, without the residual: all blocks whose two boundaries are known."""
    y = live[sound].float()
    for boundary in known:
        if boundary > 0 and boundary - 1 in known:
            added = state(boundary)[sound].float() - state(boundary - 1)[sound].float()
            yield Hypothesis("branch", boundary, 0, 1.0, fit(added, y))


def _rotated(x: Tensor, y: Tensor, boundary: int, so_far: float) -> Iterator[Hypothesis]:
    """Orthogonal Procrustes on every other token, scored on those between. Nothing when there are fewer than the channels demand."""
    h = x.shape[1]
    if so_far > 0.5 or h > ROTATION_WIDTH or len(x) // 2 < h:
        return
    together = x[0::2].T @ y[0::2]
    if not together.isfinite().all():  # the known state holds NaN, or numbers too large to multiply
        return
    u, _, vt = torch.linalg.svd(together, full_matrices=False)
    yield Hypothesis("rotated", boundary, 0, 1.0, fit(x[1::2] @ (u @ vt), y[1::2]))
