"""Which of the faults, alone or together, explain the accept length: hypotheses, their replays, and the posterior over them.

A hypothesis is a set of faults that are present. Its prior comes from the direct evidence, its likelihood from a replay with just
those faults (:mod:`eagle3diag.diagnose.likelihood`). What a fault explains is its share of the loss in every hypothesis that holds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

from eagle3diag.case import Case
from eagle3diag.diagnose.candidates import RULED_OUT, Candidate, candidates
from eagle3diag.diagnose.likelihood import (
    COLLAPSES,
    Predicted,
    log_likelihood,
    log_of_anything,
    log_of_collapse,
    log_sum,
    narrowness,
    of_as_often,
    of_lost_rounds,
    of_near_rounds,
    of_rounds,
    overdispersion,
)
from eagle3diag.diagnose.result import Counterfactual
from eagle3diag.faults.base import no_changes
from eagle3diag.faults.replayed import HARMLESS, WEAK, differs
from eagle3diag.findings import Finding
from eagle3diag.replay import Change, Replay

NONE_OF_THESE = 0.05
"""Prior of a cause that is in no list. In some of them all is lost (:data:`~eagle3diag.diagnose.likelihood.COLLAPSES`); the others predict every
number alike, and of rounds that they come out more or less as in some replay."""

LISTED = 0.95
"""Share of what the faults hold that were not seen, likeliest first, up to which they are named: what is left open is a credible set."""

NEGLIGIBLE = 0.02
"""Share, of what is not "as trained", below which all of them together are not worth a word."""

OTHER_FORM, MANY_FORMS = 0.1, 0.5
"""Probability that a fault that is there shows itself in another form than its replay: of one with few forms, which are all replayed, and of one
whose replay is marked as one of many."""

SURE = 0.9
"""Probability of being present from which a fault is a finding though there is no other evidence than the rounds that it makes."""

FAR = 3.0
"""Natural log of how much better than a hypothesis the best possible one must be before others are tried. Twice the difference is chi-squared:
with four positions a true hypothesis exceeds 3 once in five times, which costs replays, and no verdict."""

MOST_AT_ONCE = 3  # faults of one series; each further one is looked for only while the number is unexplained


@dataclass(frozen=True)
class Hypothesis:
    """A set of faults, with the logs of its prior and likelihood, and whether it explains the number better than anything would.

    ``unlisted``: the log likelihood under a cause that is in no list and does much the same as these. ``other_form``:
    the rounds speak for another form of its faults than was replayed, so what that costs is not known."""

    faults: frozenset[str]
    prior: float
    likelihood: float
    fits: bool
    unlisted: float
    other_form: bool

    @property
    def log_weight(self) -> float:
        return self.prior + self.likelihood


@dataclass
class Explanation:
    """The outcome for one case: every replay that was made, and who explains how much."""

    counterfactuals: tuple[Counterfactual, ...] = ()
    series: tuple[Counterfactual, ...] = ()
    weight: dict[str, float] = field(default_factory=dict)
    certainty: dict[str, float] = field(default_factory=dict)
    nearest: dict[str, Counterfactual] = field(default_factory=dict)
    variant: dict[str, Change] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    none_of_these: float = 0.0
    as_trained: float = 0.0

    def add(self, h: Hypothesis, probability: float, shares: dict[str, float]) -> None:
        """What a hypothesis of this ``probability`` says of its faults, and of whose ``shares`` the loss is."""
        for fault in h.faults:
            self.certainty[fault] = self.certainty.get(fault, 0.0) + probability
        for fault, share in shares.items():
            self.weight[fault] = self.weight.get(fault, 0.0) + probability * share


def explain(case: Case, found: tuple[Finding, ...], say: Callable[[str], None]) -> Explanation:
    """Weigh every fault of the catalogue, and every finding outside it, against the accept length that was observed."""
    return _Weighing(case, found, say).outcome()


class _Weighing:
    """One run: plays what is needed, in order of likelihood, and stops when the number is explained."""

    def __init__(self, case: Case, found: tuple[Finding, ...], say: Callable[[str], None]) -> None:
        self.case, self.say = case, say
        self.observed, self.healthy = case.observed, case.healthy
        self.candidates = {c.id: c for c in candidates(case, found)}
        self.singles: dict[str, list[tuple[Change, Counterfactual, Replay]]] = {}
        self.series: list[Counterfactual] = []
        self.hypotheses: list[Hypothesis] = []

    def outcome(self) -> Explanation:
        seen = [c for c in self.candidates.values() if c.seen]
        for candidate in seen:
            self._play_alone(candidate)
        self._suppose(frozenset())
        for size in range(1, min(len(seen), MOST_AT_ONCE) + 1):
            for chosen in combinations(sorted(c.id for c in seen), size):
                self._suppose(frozenset(chosen))
        if len(seen) > MOST_AT_ONCE:
            self._suppose(frozenset(c.id for c in seen))
        if not self._explained or self._open:
            self._look_further(frozenset(c.id for c in seen))
        return self._weigh()

    # -- replays --------------------------------------------------------------------------------------------------------------------

    def _play_alone(self, candidate: Candidate) -> None:
        if self.healthy is None or candidate.id in self.singles:
            return
        played = []
        for change in candidate.changes:
            self.say(f"counterfactual {candidate.id}: {change.name}")
            replay = self.case.play(change)
            assert replay is not None
            played.append((change, self._counterfactual(candidate.id, change.name, replay), replay))
        self.singles[candidate.id] = played

    def _counterfactual(self, fault: str, name: str, replay: Replay) -> Counterfactual:
        return Counterfactual.of(fault, name, replay, self.observed.length if self.observed else None)

    def _best(self, fault: str) -> tuple[Change, Counterfactual, Replay] | None:
        """The variant of a fault that explains the number best."""
        return max(self.singles.get(fault, ()), key=lambda v: self._likelihood(self._predicted(v[2], v[0])), default=None)

    def _predicted(self, replay: Replay, *changes: Change) -> Predicted:
        other_form = max((MANY_FORMS if c.one_of_many else OTHER_FORM for c in changes), default=0.0)
        spread = overdispersion(replay.p, replay.rounds, replay.accept_length_interval)
        few = narrowness(len(replay.records))  # a few records that are alike by chance do not make the server's prompts like them
        low, high = (replay.accept_length + few * (end - replay.accept_length) for end in replay.accept_length_interval)
        return Predicted(replay.p, replay.rounds / few**2, spread, (low, high), replay.served, other_form)

    def _likelihood(self, predicted: Predicted) -> float:
        """Of number and rounds, where what was replayed is there: as replayed, or in another form."""
        return log_sum(self._forms(predicted))

    def _forms(self, predicted: Predicted) -> list[float]:
        """The same in its parts: as replayed, and, where that can be, in another form."""
        if not predicted.served or not predicted.other_form:
            return [self._exactly(predicted)]
        return [self._exactly(predicted) + math.log(1 - predicted.other_form), self._much_as(predicted) + math.log(predicted.other_form)]

    def _exactly(self, predicted: Predicted) -> float:
        return self._number(predicted) + (of_rounds(predicted.served) if predicted.served else self._any_rounds)

    def _much_as(self, predicted: Predicted) -> float:
        """Of number and rounds under something else that does much the same: in some of its rounds, or only as often."""
        if not predicted.served:
            return self._anything
        near = of_near_rounds(predicted.served) + self._anything - self._any_rounds
        return log_sum((near, of_as_often(predicted.served) + self._number(predicted))) - math.log(2)

    def _number(self, predicted: Predicted) -> float:
        return 0.0 if self.observed is None or self._only_rounds else log_likelihood(predicted, self.observed, self.case.steps)

    # -- hypotheses -----------------------------------------------------------------------------------------------------------------

    def _suppose(self, faults: frozenset[str]) -> Hypothesis:
        prior = sum(math.log(c.present if f in faults else 1 - c.present) for f, c in self.candidates.items())
        predicted, open_ended = self._prediction(faults)
        likelihood = self._likelihood(predicted)
        if len(faults) == 1 and (variants := self.singles.get(next(iter(faults)))):
            # which of its variants it is nobody told: the mean over them, not the best of many
            likelihood = log_sum(self._likelihood(self._predicted(v[2], v[0])) for v in variants) - math.log(len(variants))
        better = likelihood > self._anything
        if open_ended:  # a fault that no replay shows may cost nothing or everything
            likelihood = log_sum((likelihood, self._whatever(self._anything))) - math.log(2)
        if predicted.served:  # each round for itself says more than their sums do, of a fault that has one form
            near = predicted.other_form >= MANY_FORMS or of_rounds(predicted.served) > of_near_rounds(predicted.served)
        else:
            near = not predicted.p or likelihood > self._best_possible - FAR
        forms = self._forms(predicted)
        other_form = forms[-1] > forms[0]
        made = Hypothesis(faults, prior, likelihood, better and near, self._much_as(predicted), other_form)
        self.hypotheses.append(made)
        return made

    def _prediction(self, faults: frozenset[str]) -> tuple[Predicted, bool]:
        """What the set predicts, and whether it holds a fault whose effect is not known at all."""
        shown = {f: best for f in sorted(faults) if (best := self._best(f)) is not None}
        base = self._played_together(shown)
        ranges = {f: r for f in faults - set(shown) if (r := self.candidates[f].fault.typical) is not None}
        open_ended = len(shown) + len(ranges) < len(faults)
        if not ranges:
            return base, open_ended
        low, high = min(ranges.values(), key=lambda r: r[1])
        return Predicted(spread=self._spread, length=(low, max(low, min(high, base.length[1])))), open_ended

    def _played_together(self, shown: dict[str, tuple[Change, Counterfactual, Replay]]) -> Predicted:
        """The healthy replay with these faults at once; without a replay, what a draft that works gives, or nothing."""
        if self.healthy is None:
            return Predicted(spread=self._spread, length=(WEAK, self.case.steps + 1.0))
        if len(shown) <= 1:
            return next((self._predicted(best[2], best[0]) for best in shown.values()), self._predicted(self.healthy))
        name = " and ".join(best[0].name for best in shown.values())
        self.say(f"counterfactual {'+'.join(shown)}: {name}")
        changes = [best[0] for best in shown.values()]
        played = self.case.play(*changes)
        assert played is not None
        self.series.append(self._counterfactual("+".join(shown), name, played))
        return self._predicted(played, *changes)

    def _look_further(self, seen: frozenset[str]) -> None:
        """Faults that were not seen, each alone beside what was; then the best sets grow by one more while nothing fits."""
        hidden = [c for c in self.candidates.values() if not c.seen and c.present > RULED_OUT and self._possible(c)]
        tried = []
        for candidate in hidden:
            self._play_alone(candidate)
            tried.append(self._suppose(frozenset({candidate.id})))
        self._series_of(seen, hidden, tried)

    def _possible(self, candidate: Candidate) -> bool:
        """Whether it could lower the number here. What nothing but a replay shows, and would change nothing in this draft, is not here."""
        fault = candidate.fault
        only_replayed = self.healthy is not None and fault.changes is not no_changes and not fault.shown_by
        return fault.lowers and (bool(candidate.changes) or not only_replayed)

    def _series_of(self, seen: frozenset[str], hidden: list[Candidate], tried: list[Hypothesis]) -> None:
        base = seen
        while not self._explained and self.healthy is not None and len(base) < MOST_AT_ONCE and hidden:
            if not base:
                base = max(tried, key=lambda h: h.log_weight).faults
                continue
            grown = [self._suppose(base | {c.id}) for c in hidden if c.id not in base]
            if not grown:
                return
            base = max(grown, key=lambda h: h.log_weight).faults

    @property
    def _explained(self) -> bool:
        """Whether any hypothesis so far does better than "anything"; always where no number asks for an explanation."""
        return not self._known or any(h.fits for h in self.hypotheses)

    @property
    def _open(self) -> bool:
        """Whether what was not seen must be weighed though "as trained" fits: it fits little better than others where nothing was replayed,
        where less is served than replayed, on other prompts than those that were, and where rounds differ by more than rounding."""
        if not self._known or any(c.seen for c in self.candidates.values()):
            return False
        assert self.observed is not None and self.observed.length is not None
        return self.healthy is None or differs(self.healthy, self.observed.length)

    @property
    def _known(self) -> bool:
        return self.observed is not None and self.observed.length is not None

    @cached_property
    def _anything(self) -> float:
        if self.observed is None or self._only_rounds:
            return self._any_rounds
        return log_of_anything(self.observed, self.case.steps, self._spread) + self._any_rounds

    def _whatever(self, some: float) -> float:
        """The same for a cause of which nothing is known: under some all is lost, and under the others it is as likely as ``some`` says."""
        lost = of_lost_rounds(self.healthy.served) if self.healthy is not None and self.healthy.served else 0.0
        if self.observed is not None and not self._only_rounds:
            lost += log_of_collapse(self.observed, self.case.steps, self._spread)
        return log_sum((some + math.log(1 - COLLAPSES), lost + math.log(COLLAPSES)))

    @cached_property
    def _only_rounds(self) -> bool:
        """Whether the number is of the very rounds that are weighed one by one, so that it says nothing more."""
        return self.observed is self.case.recorded and self._any_rounds != 0.0

    @cached_property
    def _any_rounds(self) -> float:
        """Of the recorded rounds, where nothing says what they should have been: they are more or less like those of a healthy server."""
        return of_near_rounds(self.healthy.served) if self.healthy is not None and self.healthy.served else 0.0

    @cached_property
    def _best_possible(self) -> float:
        """The likelihood of a replay that gives just what was observed."""
        if self.observed is None or self.healthy is None:
            return self._anything
        few = narrowness(len(self.healthy.records))
        told = Predicted(self.observed.p, self.healthy.rounds / few**2, self._spread, self.observed.interval or (1.0, 1.0))
        return self._likelihood(told) if self.observed.p else -math.inf

    @cached_property
    def _spread(self) -> float:
        return self._predicted(self.healthy).spread if self.healthy else 1.0

    # -- weights --------------------------------------------------------------------------------------------------------------------

    def _weigh(self) -> Explanation:
        out = Explanation(series=tuple(self.series))
        out.counterfactuals = tuple(v[1] for played in self.singles.values() for v in played)
        for fault in self.singles:
            if (best := self._best(fault)) is not None and self.healthy is not None:
                out.variant[fault], out.nearest[fault] = best[:2]
                out.cost[fault] = self.healthy.accept_length - best[1].accept_length
        beside = [h for h in self.hypotheses if not h.faults or (self._known and all(self.candidates[f].seen for f in h.faults))]
        # a cause in no list leaves rounds much as when healthy, much as in some replay, or loses them all
        much_as = log_sum(h.unlisted for h in self.hypotheses) - math.log(len(self.hypotheses))
        cause = math.log(NONE_OF_THESE) + self._whatever(log_sum((self._anything, much_as)) - math.log(2))
        total = log_sum([h.log_weight for h in self.hypotheses] + [h.prior + cause for h in beside])
        for h in self.hypotheses:
            probability, shares = math.exp(h.log_weight - total), self._shares(h, out.cost)
            out.add(h, probability, shares)
            out.as_trained += 0.0 if shares else probability
        for h in beside:
            probability, shares = math.exp(h.prior + cause - total), self._shares_beside_a_cause(h, out.cost)
            out.add(h, probability, shares)
            out.none_of_these += probability * (1 - sum(shares.values()))
        return out

    def _shares_beside_a_cause(self, h: Hypothesis, cost: dict[str, float]) -> dict[str, float]:
        """Each fault's part of the loss where a cause in no list is there too. Beside faults that explain the number it has taken nothing away;
        beside others it has taken what they leave, if that is known."""
        shares = self._shares(h, cost)
        if h.fits or not shares:
            return shares
        length = self.observed.length if self.observed else None
        if self.healthy is None or length is None or not h.faults <= cost.keys():
            return {}
        known, lost = sum(max(cost[f], 0.0) for f in h.faults), self.healthy.accept_length - length
        return {f: share * known / lost for f, share in shares.items()} if known < lost else {}

    def _shares(self, h: Hypothesis, cost: dict[str, float]) -> dict[str, float]:
        """Each fault's part of the loss under one hypothesis: by what it costs alone; empty where nothing is lost to speak of."""
        length = self.observed.length if self.observed else None
        left = None if self.healthy is None or length is None else self.healthy.accept_length - length
        known = {f: max(cost[f], 0.0) for f in h.faults if f in cost and not h.other_form}
        unknown = h.faults - known.keys()
        rest = 1.0 if left is None else max(left - sum(known.values()), HARMLESS if unknown and not h.other_form else 0.0)
        loss = known | {f: rest / len(unknown) for f in unknown}
        total = sum(loss.values())
        return {f: x / total for f, x in loss.items()} if total >= HARMLESS else {}
