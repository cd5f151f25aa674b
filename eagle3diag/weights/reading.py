"""fc tested on the states of the dump: what it reads of real features, what it ignores, and which order and norm of them its weights expect.

Training leaves a trace of its inputs: every gradient of fc is a sum of outer products with the features it was fed, so that what it learned
lies along the directions in which *those* features vary together. Real features therefore pass a trained fc with more energy than unrelated
ones of the same size, and only in the place and form in which training saw them. The ratio to what a matrix without memory would pass is the
**gain**: 1 by chance. Channels are standardised first, or a few massive ones would decide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.dumps import HiddenStates, Record
from eagle3diag.errors import MismatchedInputs, MissingPart
from eagle3diag.weights.opened import Opened
from eagle3diag.weights.values import leading

TOKENS = 1024
"""Evenly spaced tokens that are used; their number limits the precision less than that of the sequences they come from."""

DIRECTIONS = 48
RESAMPLES = 400
_EPS = 1e-6

AS_DUMPED = "as dumped"
_READERS = ("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight", "layers.0.self_attn.v_proj.weight")


@dataclass(frozen=True)
class BlockReading:
    """What fc does with one aux state (``block`` counts from 0 in the order of the dump).

    ``rms`` of the state; ``energy``: the block's share of fc's output energy (the blocks' outputs taken apart; their cross terms are left
    out); ``gain`` of the block for its own state, with ``gain_error`` over the sequences; ``channel_share``: how much of the block's squared
    column norms, each weighted by its channel's variance, the largest 1 % of the channels hold. ``directions``: the gain along each of the
    48 leading principal directions of the standardised state, first the one with most variance; a matrix without memory gives
    ``1 +- direction_error``. Below the band a direction is ignored, above it is read.
    """

    block: int
    rms: float
    energy: float
    gain: float
    gain_error: float
    channel_share: float
    directions: tuple[float, ...]
    direction_error: float


@dataclass(frozen=True)
class Feeding:
    """One way of feeding fc, tested against the dump as it is.

    ``order[i]`` is the state of the dump that block ``i`` gets. ``gain`` is fc's; ``behind`` that of the attention projections for fc's normed
    output (None when they cannot be read). ``gain_drop`` and ``behind_drop``: those of the dump as it is minus these, with the standard
    error of the difference over the sequences: positive when the weights fit the dump better. ``output_cosine``: mean cosine between fc's
    output so and as dumped: what this way of feeding would do.
    """

    name: str
    order: tuple[int, ...]
    gain: float
    gain_drop: float
    gain_drop_error: float
    behind: float | None
    behind_drop: float | None
    behind_drop_error: float | None
    output_cosine: float


@dataclass(frozen=True)
class FcReading:
    """fc weighed by a dump of ``records`` sequences, of which ``tokens`` tokens were used (the first of each sequence never).

    ``order_gain[i][j]``: gain of block ``i`` of fc for state ``j`` of the dump; the state that a block was trained on stands out.
    ``chance_error``: std of the gain of the whole fc, for the dump as it is, if fc were fresh: ``sqrt(2 tr C^2 / (tr C)^2 / H)`` for features of
    covariance ``C``. ``hypotheses``: the dump as it is first, then other orders, norms and neighbours, as far as the dump stores them.
    """

    dump: str
    records: int
    tokens: int
    boundaries: tuple[int, ...]
    blocks: tuple[BlockReading, ...]
    order_gain: tuple[tuple[float, ...], ...]
    chance_error: float
    hypotheses: tuple[Feeding, ...]

    @property
    def as_dumped(self) -> Feeding:
        return self.hypotheses[0]


@dataclass(frozen=True, eq=False)
class _Fc:
    """fc and what reads its output: ``weight [H, n * Ht]`` float32, ``norm [H]`` and ``readers [k, H]`` when the draft has them."""

    weight: Tensor
    count: int
    norm: Tensor | None
    readers: Tensor | None

    def block(self, i: int) -> Tensor:
        return self.weight.chunk(self.count, 1)[i]


@dataclass(frozen=True, eq=False)
class _Score:
    """Sums per unit of resampling (a sequence): energy ``out`` and ``into`` of fc, the same behind it, and the outputs ``[N, H]``."""

    out: Tensor
    into: Tensor
    behind_out: Tensor | None
    behind_into: Tensor | None
    output: Tensor


def reading(draft: Opened, dump: HiddenStates) -> FcReading | None:
    """Weigh the draft's fc by ``dump``; None when the draft has no fc.

    Raises
    ------
    MismatchedInputs: the features of the dump are not as wide as fc. MissingPart: the dump holds no features, or fewer than two tokens.
    """
    weight = draft.weight("fc.weight")
    if weight is None or weight.dim() != 2:
        return None
    picked = _tokens(dump)
    features, units = _read(dump, picked, lambda record: record.features)
    if features.shape[1] != weight.shape[1]:
        message = f"the features are {features.shape[1]} wide, fc takes {weight.shape[1]}"
        raise MismatchedInputs(message, where="fc", hint="give the training dump of this draft: a live one may hold a single state")
    count = draft.draft.config.n_aux if draft.draft is not None else max(1, weight.shape[1] // weight.shape[0])
    fc = _fc(draft, weight.detach().float(), count if count and weight.shape[1] % count == 0 else 1)
    states = list(features.chunk(fc.count, 1))
    draws = _draws(int(units.max()) + 1)
    orders = _order_gains(fc, states)
    scored = [(name, order, _score(fc, fed, units)) for name, order, fed in _ways(fc, dump, picked, states)]
    return FcReading(
        dump=dump.name,
        records=len(dump),
        tokens=len(features),
        boundaries=dump.boundaries,
        blocks=tuple(_blocks(fc, states, units, draws)),
        order_gain=orders,
        chance_error=_chance_error(_standard(features), weight.shape[0]),
        hypotheses=tuple(_hypothesis(fc, name, order, score, scored[0][2], draws) for name, order, score in scored),
    )


def _fc(draft: Opened, weight: Tensor, count: int) -> _Fc:
    hidden = weight.shape[0]
    norm = draft.weight("layers.0.hidden_norm.weight")
    readers = [t for name in _READERS if (t := draft.weight(name)) is not None and t.dim() == 2 and t.shape[1] == 2 * hidden]
    whole = norm is not None and norm.shape == (hidden,) and len(readers) == len(_READERS)
    return _Fc(
        weight,
        count,
        norm.float() if whole and norm is not None else None,
        torch.cat([t[:, hidden:] for t in readers]).float() if whole else None,
    )


def _tokens(dump: HiddenStates) -> list[Tensor]:
    """Per record, the tokens that are used: evenly spaced over the dump, the first of each record (the sink) left out."""
    lengths = [max(0, r.tokens - 1) for r in dump]
    total = sum(lengths)
    if total < 2:
        raise MissingPart("the dump holds fewer than two tokens after the first of each record", where=dump.path, hint="capture more")
    step = max(1.0, total / TOKENS)
    chosen = (torch.arange(min(total, TOKENS), dtype=torch.float64) * step).long()
    starts = torch.tensor([0, *itertools.accumulate(lengths)])
    return [chosen[(chosen >= a) & (chosen < b)] - a + 1 for a, b in itertools.pairwise(starts)]


def _read(dump: HiddenStates, picked: Sequence[Tensor], part: Callable[[Record], Tensor]) -> tuple[Tensor, Tensor]:
    """The chosen rows of one part of every record, float32, and the number of the record each is from."""
    rows = [part(record)[at].float() for record, at in zip(dump, picked, strict=True) if len(at)]
    units = torch.cat([torch.full((len(r),), i) for i, r in enumerate(rows)])
    if len(rows) < 6:  # too few sequences to resample: stretches of 32 tokens stand in
        units = torch.arange(len(units)) // 32
    found = torch.cat(rows)
    return torch.where(found.isfinite(), found, 0.0), units


def _draws(units: int) -> Tensor:
    """How often each unit is drawn in each resample ``[400, units]``; a fixed seed."""
    drawn = torch.randint(units, (RESAMPLES, units), generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.one_hot(drawn, units).sum(1).double()


def _standard(x: Tensor) -> Tensor:
    """Every channel with mean zero and variance one; a channel that never varies stays zero."""
    centred = x - x.mean(0)
    scale = centred.square().mean(0).sqrt()
    return centred / torch.where(scale > 0, scale, 1.0)


def _rms(x: Tensor) -> Tensor:
    """Every row with root mean square one, as a norm without weight leaves it."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _EPS)


def _per_unit(energy: Tensor, units: Tensor) -> Tensor:
    return torch.zeros(int(units.max()) + 1, dtype=torch.float64).index_add_(0, units, energy.double())


def _gain(out: Tensor, into: Tensor, weight: Tensor) -> Tensor:
    """Energy that passes ``weight [R, C]`` over what a matrix of its energy without memory would pass."""
    return out / into.clamp(min=1e-300) * _per_energy(weight)


def _per_energy(weight: Tensor) -> float:
    """Columns over energy: one over what a matrix without memory passes of each; NaN where all weights are zero."""
    energy = float(weight.double().square().sum())
    return weight.shape[1] / energy if energy else math.nan


def _chance_error(standard: Tensor, rows: int) -> float:
    products = (standard @ standard.T).double()  # has the eigenvalues of the covariance, times the tokens
    trace = float(products.trace())
    return math.sqrt(2 * float(products.square().sum()) / rows) / trace if trace > 0 else math.inf  # where nothing varies, all is chance


def _order_gains(fc: _Fc, states: list[Tensor]) -> tuple[tuple[float, ...], ...]:
    standard = [_standard(x) for x in states]
    return tuple(
        tuple(float(_gain((x @ w.T).double().square().sum(), x.double().square().sum(), w)) for x in standard)
        for w in (fc.block(i) for i in range(fc.count))
    )


def _ways(fc: _Fc, dump: HiddenStates, picked: list[Tensor], states: list[Tensor]) -> Iterator[tuple[str, tuple[int, ...], Tensor]]:
    """Ways of feeding fc: name, order, features. The dump as it is comes first."""
    straight = tuple(range(fc.count))
    yield AS_DUMPED, straight, torch.cat(states, 1)
    if 1 < fc.count <= 4:
        for order in itertools.permutations(straight):
            if order != straight:
                yield f"order {', '.join(str(i + 1) for i in order)}", order, torch.cat([states[i] for i in order], 1)
    yield "each state normed", straight, torch.cat([_rms(x) for x in states], 1)
    yield "all states normed together", straight, _rms(torch.cat(states, 1))
    if all(r.part("final") is not None for r in dump):
        final, _ = _read(dump, picked, lambda record: record.need("final"))
        if final.shape == states[-1].shape:
            yield "last state after the final norm", straight, torch.cat([*states[:-1], final], 1)
    for shift in (-1, 1):
        near = [b + shift for b in dump.boundaries]
        if near and all(b in r.boundaries for b in near for r in dump):
            moved = torch.cat([_read(dump, picked, lambda record, b=b: record.state(b))[0] for b in near], 1)  # type: ignore[misc]
            if moved.shape[1] == fc.weight.shape[1]:
                yield f"boundaries {'one lower' if shift < 0 else 'one higher'}", straight, moved


def _score(fc: _Fc, fed: Tensor, units: Tensor) -> _Score:
    standard = _standard(fed)
    out, into = (standard @ fc.weight.T).square().sum(1), standard.square().sum(1)
    output = fed @ fc.weight.T
    behind_out = behind_into = None
    if fc.readers is not None and fc.norm is not None:
        read = _standard(_rms(output) * fc.norm)
        behind_out = _per_unit((read @ fc.readers.T).square().sum(1), units)
        behind_into = _per_unit(read.square().sum(1), units)
    return _Score(_per_unit(out, units), _per_unit(into, units), behind_out, behind_into, output)


def _hypothesis(fc: _Fc, name: str, order: tuple[int, ...], score: _Score, base: _Score, draws: Tensor) -> Feeding:
    def against(out: Tensor, into: Tensor, out0: Tensor, into0: Tensor, weight: Tensor) -> tuple[float, float, float]:
        drop = _gain(draws @ out0, draws @ into0, weight) - _gain(draws @ out, draws @ into, weight)
        gain = float(_gain(out.sum(), into.sum(), weight))
        return gain, float(_gain(out0.sum(), into0.sum(), weight)) - gain, float(drop.std())

    gain, drop, error = against(score.out, score.into, base.out, base.into, fc.weight)
    behind = behind_drop = behind_error = None
    if score.behind_out is not None and score.behind_into is not None and base.behind_out is not None and base.behind_into is not None:
        assert fc.readers is not None  # there is something behind
        behind, behind_drop, behind_error = against(score.behind_out, score.behind_into, base.behind_out, base.behind_into, fc.readers)
    cosine = torch.nn.functional.cosine_similarity(score.output, base.output, dim=1).mean()
    return Feeding(name, order, gain, drop, error, behind, behind_drop, behind_error, float(cosine))


def _blocks(fc: _Fc, states: list[Tensor], units: Tensor, draws: Tensor) -> Iterator[BlockReading]:
    energies = [float((x @ fc.block(i).T).double().square().sum()) for i, x in enumerate(states)]
    for i, x in enumerate(states):
        w = fc.block(i)
        standard = _standard(x)
        passed = standard @ w.T
        out, into = _per_unit(passed.square().sum(1), units), _per_unit(standard.square().sum(1), units)
        weighted = w.double().square().sum(0) * x.double().var(0, correction=0)
        few = max(1, len(weighted) // 100)
        directions = leading(standard, DIRECTIONS)[2]
        along = (w @ directions).double().square().sum(0) * _per_energy(w)
        yield BlockReading(
            block=i,
            rms=float(x.double().square().mean().sqrt()),
            energy=energies[i] / sum(energies) if sum(energies) > 0 else math.nan,
            gain=float(_gain(out.sum(), into.sum(), w)),
            gain_error=float(_gain(draws @ out, draws @ into, w).std()),
            channel_share=float(weighted.topk(few).values.sum() / weighted.sum()) if float(weighted.sum()) > 0 else math.nan,
            directions=tuple(float(v) for v in along),
            direction_error=math.sqrt(2 / w.shape[0]),
        )
