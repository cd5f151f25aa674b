"""What each live block is: cosines with every known state, shifts, Gram matrices, and rows that came from elsewhere. On sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from eagle3diag.compare.align import Alignment
from eagle3diag.compare.comparison import FINAL, Alike, Displaced
from eagle3diag.compare.metrics import ChannelMoments, cosine_matrix, median, rows_cosine, rows_largest, rows_relative_error, rows_rms
from eagle3diag.compare.rows import Scale
from eagle3diag.compare.sampling import Layout, spread

SHIFTS = (-3, -2, -1, 0, 1, 2, 3)
SAMPLE_VALUES = 2_750_000  # values of one side that are sampled: 128 tokens of 21,504, where medians have long settled
GRAM_TOKENS = 256
FEW_ROWS = 8  # under which a channel may well be constant
PIECE = 64  # rows worked on at once where many are searched
OWN_RECORD = 1e-3  # cosine that another record's row must be better by
DISPLACED_TOKENS, SEARCHED_TOKENS = 64, 4096


def sample_size(width: int) -> int:
    """Tokens to sample for states of this width."""
    return min(2048, max(128, SAMPLE_VALUES // max(width, 1)))


@dataclass(frozen=True)
class Identity:
    order: tuple[tuple[float, ...], ...] = ()
    shift: tuple[tuple[int, float], ...] = ()
    live_final_rms: float | None = None
    cka: tuple[float, ...] = ()
    gram_error: tuple[float, ...] = ()
    alike: tuple[Alike, ...] = ()
    constant: tuple[int, ...] = ()


def identify(alignment: Alignment, layout: Layout, gain: Tensor | None) -> Identity:
    """Blocks of both sides against each other on a few hundred tokens."""
    h, n, m = layout.hidden_size, layout.train_blocks, layout.live_blocks
    some = spread(alignment, sample_size(max(layout.train_width, layout.live_width)))
    if not m or not len(some):
        return Identity()
    live = some.live(layout)
    rms = None if gain is None else median(rows_rms(live[:, -h:], gain))
    if not n:
        return Identity(live_final_rms=rms)
    train = some.train(layout)
    xs, ys = blocks(train, h), blocks(live, h)
    stats = [moments(x) for x in xs]
    zy = [standardised(y, moments(y)) for y in ys]
    order = tuple(tuple(median(rows_cosine(zx, z)) for z in zy) for zx in map(standardised, xs, stats))
    shift, cka, gram = [], [], []
    if layout.paired:
        for s in SHIFTS:
            there, kept = some.shifted(s)
            if bool(kept.any()):
                moved = blocks(there.train(layout), h)
                cosines = [rows_cosine(standardised(moved[i], stats[i]), zy[i][kept]) for i in range(n)]
                shift.append((s, float(torch.cat(cosines).double().nanmean())))
        pairs = [gram_numbers(x[:GRAM_TOKENS], y[:GRAM_TOKENS]) for x, y in zip(*(map(_thinned, side) for side in (xs, ys)), strict=True)]
        cka, gram = [p[0] for p in pairs], [p[1] for p in pairs]
    constant = tuple(map(_constant, xs, ys)) if layout.paired else ()
    return Identity(order, tuple(shift), rms, tuple(cka), tuple(gram), tuple(_alike(xs, ys)), constant)


def against_reference(alignment: Alignment, layout: Layout) -> tuple[tuple[int, ...], tuple[tuple[float, ...], ...]]:
    """Which boundary of the reference (train side of ``alignment``) each live block is: boundaries, and medians ``[boundary][block]``."""
    h, m = layout.hidden_size, layout.live_blocks
    boundaries = known_boundaries(alignment, h)
    some = spread(alignment, sample_size(layout.live_width))
    if not boundaries or not m or not len(some):
        return (), ()
    ys = [standardised(y, moments(y)) for y in blocks(some.live(layout), h)]
    found = []
    for boundary in boundaries:
        state = some.state(boundary, h)
        z = standardised(state, moments(state))
        found.append(tuple(median(rows_cosine(z, y)) for y in ys))
    return boundaries, tuple(found)


def known_boundaries(alignment: Alignment, hidden_size: int) -> tuple[int, ...]:
    """The boundaries that every record of the train side stores, and -1 when all have the final state."""
    everywhere = set.intersection(*(set(p.train.boundaries) for p in alignment.pairs))
    finals = (p.train.final() for p in alignment.pairs)
    return (*sorted(everywhere), *((FINAL,) if all(f is not None and f.shape[-1] == hidden_size for f in finals) else ()))


def displaced(alignment: Alignment, layout: Layout, worst: Sequence[tuple[int, int, float]]) -> tuple[Displaced, ...]:
    """For tokens ``(pair, row, cosine)`` that do not fit their own row, the train row that the first live block fits best: searched in the
    same sequence, and at the same places of the others."""
    h, pairs = layout.hidden_size, alignment.pairs
    # where a row fits itself so well, none can be better by what another must be
    worst = [one for one in worst if one[2] < 1 - OWN_RECORD]
    if not worst or not layout.paired:
        return ()
    index: list[tuple[int, int]] = []
    for number in dict.fromkeys(p for p, _, _ in worst):
        index += [(number, t) for t in range(pairs[number].tokens)]
    wanted = sorted({int(pairs[p].positions[t]) for p, t, _ in worst})
    own_pairs = {p for p, _, _ in worst}
    for number, pair in enumerate(pairs):
        if number not in own_pairs and len(index) < SEARCHED_TOKENS:
            index += [(number, int(t)) for t in torch.isin(pair.positions, torch.tensor(wanted)).nonzero().flatten().tolist()]
    index = index[:: -(-len(index) // SEARCHED_TOKENS) or 1]
    by_pair: dict[int, list[int]] = {}
    for p, t in index:
        by_pair.setdefault(p, []).append(t)
    index = [(p, t) for p, ts in by_pair.items() for t in ts]
    pieces = [(p, torch.tensor(ts[i : i + PIECE])) for p, ts in by_pair.items() for i in range(0, len(ts), PIECE)]
    stats = ChannelMoments(h)
    for p, rows in pieces:
        stats.update(_first(pairs[p].train.features(), pairs[p].train_rows[rows], h))
    scale = Scale.of([stats])
    seen = torch.cat([_first(pairs[p].live.features(), pairs[p].live_rows[t : t + 1], h) for p, t, _ in worst])
    z = standardised(seen, scale)[None]
    found = []
    for p, rows in pieces:
        found.append(cosine_matrix(standardised(_first(pairs[p].train.features(), pairs[p].train_rows[rows], h), scale)[None], z)[0])
    matrix = torch.cat(found).nan_to_num(-2)
    # records share prompts, so the same state may stand in several of them: then its own is meant
    same = torch.tensor([p for p, _ in index])[:, None] == torch.tensor([p for p, _, _ in worst])
    best = (matrix + OWN_RECORD * same).argmax(0).tolist()
    made = []
    for number, ((p, t, cosine), at) in enumerate(zip(worst, best, strict=True)):
        q, u = index[at]
        value = matrix[at, number]
        made.append(
            Displaced(pairs[p].live.name, int(pairs[p].positions[t]), cosine, pairs[q].train.name, int(pairs[q].positions[u]), float(value))
        )
    return tuple(made)


def _first(parts: Sequence[Tensor], rows: Tensor, h: int) -> Tensor:
    """The first block's rows, whatever their order, on the CPU."""
    return parts[0].detach()[rows, :h].cpu()


def blocks(x: Tensor, h: int) -> list[Tensor]:
    """``[R, n * H]`` as n views [R, H]."""
    return [x[:, i : i + h] for i in range(0, x.shape[1], h)]


def moments(x: Tensor) -> Scale:
    """The moments of all rows at once."""
    made = ChannelMoments(x.shape[1])
    made.update(x)
    return Scale.of([made])


def standardised(x: Tensor, scale: Scale) -> Tensor:
    """``x`` [R, H] by these moments. Zero rows become NaN, so that they have no cosine."""
    z = x.float() - scale.high
    if scale.low is not None:
        z -= scale.low
    z *= scale.inverse
    z[rows_largest(x) == 0] = float("nan")
    return z


def _thinned(x: Tensor) -> Tensor:
    return x[:: -(-len(x) // GRAM_TOKENS) or 1]


def _constant(x: Tensor, y: Tensor) -> int:
    """Channels of ``y`` [R, H] that have one value in all rows where ``x`` has several; broken rows of either are left out."""
    sound = x.isfinite().all(-1) & y.isfinite().all(-1) & (x != 0).any(-1) & (y != 0).any(-1)
    x, y = x[sound], y[sound]
    return int(((y == y[:1]).all(0) & (x != x[:1]).any(0)).sum()) if len(y) >= FEW_ROWS else 0


def gram_numbers(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Unbiased linear CKA (Song et al. 2012's estimator of HSIC, as Nguyen et al. 2021 use it), and the relative difference of the centred
    Gram matrices; rows that are zero or not finite on either side are left out."""
    x, y = x.float(), y.float()
    sound = x.isfinite().all(-1) & y.isfinite().all(-1) & (x != 0).any(-1) & (y != 0).any(-1)
    x, y = x[sound], y[sound]
    if len(x) < 4:
        return float("nan"), float("nan")
    k, ell = ((z - z.mean(0)) @ (z - z.mean(0)).T for z in (x, y))
    apart = float((k - ell).norm() / k.norm()) if float(k.norm()) > 0 else float("nan")
    k, ell = k.double().fill_diagonal_(0), ell.double().fill_diagonal_(0)
    scale = (_hsic(k, k) * _hsic(ell, ell)).clamp(min=0).sqrt()
    return float(_hsic(k, ell) / scale) if float(scale) > 0 else float("nan"), apart


def _hsic(k: Tensor, ell: Tensor) -> Tensor:
    """Without its constant 1 / (n (n - 3)); both with a zero diagonal."""
    n = len(k)
    sums = k.sum() * ell.sum() / ((n - 1) * (n - 2))
    return (k * ell).sum() + sums - 2 / (n - 2) * (k.sum(0) @ ell.sum(0))


def _alike(xs: list[Tensor], ys: list[Tensor]) -> list[Alike]:
    """Every two blocks of each side, where both have as many."""
    if len(xs) != len(ys):
        return []
    pairs = combinations(range(len(xs)), 2)
    return [Alike(i, j, median(rows_relative_error(ys[i], ys[j])), median(rows_relative_error(xs[i], xs[j]))) for i, j in pairs]


__all__ = ["Identity", "against_reference", "displaced", "identify"]
