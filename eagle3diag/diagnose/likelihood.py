"""How well a replay explains what a server accepted: likelihood of the observed counts, with room for rounds that are not alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import lgamma, log

from eagle3diag.intervals import Z95, variance
from eagle3diag.serving import Acceptance

TOLERANCE = 0.05
"""Accept length within which a counterfactual reproduces what was observed (test D3): two runs of one engine on one set of prompts, in
bf16, part by about that much."""

CONCENTRATION = 100.0
"""Pseudo-rounds at most that a replay's conditional acceptance is trusted with: a spread of 0.05 at 0.5, as between engines and prompts
of one kind. More rounds replayed do not make other prompts more alike."""


ROUNDING = (2.0, 100.0)
"""Beta prior of the share of a server's rounds in which rounding alone lets it accept another number of drafts than a float32 replay of the
right thing does. Measured on a training dump of the same tokens: 46 of 3,359 (1.0 to 1.8 %) in SGLang 0.5.23, bf16 chain and tree and float32
chain, and vLLM 0.32 in bf16. For kernels and targets that were not measured the prior lies higher, with one in twenty beyond 4.6 %."""

ANY_SHARE = (1.0, 1.0)
"""The same for a cause that is in no list: every share alike."""

BY_ACCIDENT = (1.0, 19.0)
"""Beta prior of the chance of a draft that is wrong everywhere: collapsed servers of the reports show 1.00 to 1.10."""

COLLAPSES = 1 / 3
"""Share of the causes in no list under which all is lost, as of those listed: of 33 whose reports give a range of accept lengths, 9 end by 1.3,
14 by 1.6."""

Matrix = tuple[tuple[int, ...], ...]
"""Rounds by what the server accepted and what the replay does, [steps + 1, steps + 1] (:attr:`eagle3diag.replay.Replay.served`)."""


@dataclass(frozen=True)
class Predicted:
    """What a hypothesis predicts: unconditional ``p`` [steps], worth ``rounds`` replayed rounds, or only a range of accept lengths.

    ``spread``: by how much the variance between rounds is inflated (1: rounds are independent), see :func:`overdispersion`.
    ``served``: where rounds of the server were recorded, each of them beside the replay's; empty otherwise. ``other_form``:
    probability that what it names is there in another form than the one replayed.
    """

    p: tuple[float, ...] = ()
    rounds: float = 0
    spread: float = 1.0
    length: tuple[float, float] = (1.0, 1.0)  # 95 % interval, or the range known from reports
    served: Matrix = ()
    other_form: float = 0.0

    @property
    def accept_length(self) -> float:
        return 1 + sum(self.p) if self.p else sum(self.length) / 2


def overdispersion(p: tuple[float, ...], rounds: int, interval: tuple[float, float]) -> float:
    """Variance of the mean accept length over records, against what independent rounds would give; at least 1.

    ``interval`` is the bootstrap over records: rounds of one text resemble each other, so it is the wider of the two.
    """
    alone = variance(p)
    if rounds < 2 or not alone:
        return 1.0
    return max(1.0, ((interval[1] - interval[0]) / (2 * Z95)) ** 2 * rounds / alone)


def narrowness(records: int) -> float:
    """By how much a percentile bootstrap over so few records is too narrow: Student's t instead of z, and n for n - 1 (Hesterberg 2015).
    One record says nothing of how records differ; it is worth what two are.

    >>> [round(narrowness(n), 2) for n in (1, 2, 6, 10, 100)]
    [9.17, 9.17, 1.44, 1.22, 1.02]
    """
    from scipy.special import stdtrit  # not at import: only replays need it

    n = max(records, 2)
    return float(stdtrit(n - 1, 0.975)) / Z95 * math.sqrt(n / (n - 1))


def log_likelihood(predicted: Predicted, observed: Acceptance, steps: int) -> float:
    """Natural log of the probability (counts) or density (a bare accept length) of what was observed.

    With counts per position: a beta-binomial for each conditional acceptance, both sides thinned by the replay's over-dispersion.
    Otherwise: a normal around the predicted accept length, of the variance of both and of :data:`TOLERANCE`. A prediction that is
    only a range of accept lengths says nothing of the positions: there they are as likely as under :func:`log_of_anything`.
    """
    if observed.length is None:
        return 0.0
    if not _has_positions(observed, steps):
        return _of_length(predicted, observed, observed.length)
    if len(predicted.p) != steps:
        return log_of_anything(observed, steps, predicted.spread) + _of_length(predicted, observed, observed.length) + log(steps)
    total, before, reached = 0.0, 1.0, 1.0
    for share, said in zip(observed.p, predicted.p, strict=True):
        trials = _trials(observed, reached, predicted.spread)
        if trials < 1:
            break
        weight = min(predicted.rounds * before / predicted.spread, CONCENTRATION)
        c = said / before if before > 0 else 0.5
        total += _beta_binomial(round(trials * share / reached), trials, c * weight + 0.5, (1 - c) * weight + 0.5)
        before, reached = said, share
    return total


def of_rounds(served: Matrix) -> float:
    """Natural log of the probability of what the server accepted in each recorded round, where the replay says what it should have: a round
    comes out as replayed, but for a share of them that rounding turns."""
    return _alike(served, ROUNDING)


def of_near_rounds(served: Matrix) -> float:
    """The same for what does more or less what was replayed: any share of the rounds may come out otherwise."""
    return _alike(served, ANY_SHARE)


def of_as_often(served: Matrix) -> float:
    """The same where only how often so many are accepted is as replayed (Dirichlet-multinomial)."""
    seen, replayed = [sum(row) for row in served], [sum(column) for column in zip(*served, strict=True)]
    worth = min(1.0, CONCENTRATION / sum(replayed))
    prior = [0.5 + worth * n for n in replayed]
    total = lgamma(sum(prior)) - lgamma(sum(prior) + sum(seen))
    return total + sum(lgamma(a + n) - lgamma(a) for a, n in zip(prior, seen, strict=True))


def of_lost_rounds(served: Matrix) -> float:
    """The same for one under which all is lost: each draft that is come to is right by accident, with one chance at each position."""
    reached = [sum(map(sum, served[i:])) for i in range(len(served))]
    a, b = BY_ACCIDENT
    return sum(_log_beta(a + after, b + before - after) - _log_beta(a, b) for before, after in pairwise(reached))


def _alike(served: Matrix, share: tuple[float, float]) -> float:
    """Rounds that come out as replayed but for a share, drawn from Beta(``share``), that comes out as any of the other numbers alike."""
    total, alike = sum(map(sum, served)), sum(row[i] for i, row in enumerate(served))
    unlike, (a, b) = total - alike, share
    return _log_beta(a + unlike, b + alike) - _log_beta(a, b) - unlike * log(max(len(served) - 1, 1))


def log_sum(logs: Iterable[float]) -> float:
    """Log of the sum of what these are the logs of."""
    listed = list(logs)
    top = max(listed)
    return top + log(sum(math.exp(v - top) for v in listed))


def _of_length(predicted: Predicted, observed: Acceptance, length: float) -> float:
    wide = _width(observed)
    low, high = predicted.length
    if predicted.p:
        sigma = math.hypot((high - low) / (2 * Z95), wide, TOLERANCE, TOLERANCE * (predicted.accept_length - 1))
        return -0.5 * ((length - predicted.accept_length) / sigma) ** 2 - log(sigma * math.sqrt(2 * math.pi))
    # a range from reports: uniform over it, with soft ends
    sigma = math.hypot(wide, TOLERANCE)
    inside = (math.erf((length - low) / sigma / 2**0.5) - math.erf((length - high) / sigma / 2**0.5)) / 2
    return log(max(inside / max(high - low, sigma), 1e-300))


def log_of_anything(observed: Acceptance, steps: int, spread: float = 1.0) -> float:
    """The same where nothing is foretold: every conditional acceptance, or every accept length from 1 to ``steps + 1``, alike."""
    if _has_positions(observed, steps):
        return _of_positions(observed, spread, 1.0, 1.0)
    return 0.0 if observed.length is None else -log(steps)


def log_of_collapse(observed: Acceptance, steps: int, spread: float = 1.0) -> float:
    """The same where all is lost: drafts are right by accident (:data:`BY_ACCIDENT`)."""
    if _has_positions(observed, steps):
        return _of_positions(observed, spread, *BY_ACCIDENT)
    if observed.length is None:
        return 0.0
    sigma = math.hypot(_width(observed), TOLERANCE, BY_ACCIDENT[0] / sum(BY_ACCIDENT))
    return log(2) - 0.5 * ((observed.length - 1) / sigma) ** 2 - log(sigma * math.sqrt(2 * math.pi))


def _of_positions(observed: Acceptance, spread: float, a: float, b: float) -> float:
    """Counts whose chance at each position is drawn from Beta(a, b)."""
    total, reached = 0.0, 1.0
    for share in observed.p:
        trials = _trials(observed, reached, spread)
        if trials < 1:
            break
        total += _beta_binomial(round(trials * share / reached), trials, a, b)
        reached = share
    return total


def _beta_binomial(hits: int, trials: int, a: float, b: float) -> float:
    """Log probability of ``hits`` in ``trials`` whose chance is itself drawn from Beta(a, b)."""
    choose = lgamma(trials + 1) - lgamma(hits + 1) - lgamma(trials - hits + 1)
    return choose + _log_beta(hits + a, trials - hits + b) - _log_beta(a, b)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def _width(observed: Acceptance) -> float:
    """Standard error of the accept length, where its interval is known."""
    return 0.0 if observed.interval is None else (observed.interval[1] - observed.interval[0]) / (2 * Z95)


def _trials(observed: Acceptance, reached: float, spread: float) -> int:
    """Rounds that came as far as a position, thinned by how alike they are."""
    return round((observed.rounds or 0) * reached / spread)


def _has_positions(observed: Acceptance, steps: int) -> bool:
    """Counts per position that can be: each position is reached through the one before (an engine that counts otherwise is FM-74)."""
    falling = all(0 <= after <= before for before, after in pairwise((1.0, *observed.p)))
    return bool(observed.rounds) and len(observed.p) == steps and falling
