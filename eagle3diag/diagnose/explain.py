"""Which of the faults, alone or together, explain the accept length: hypotheses, their replays, and the posterior over them.

A hypothesis is a set of faults that are present. Its prior comes from the direct evidence, its likelihood from a replay with just
those faults (:mod:`eagle3diag.diagnose.likelihood`). What a fault explains is its share of the loss in every hypothesis that holds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

from eagle3diag.case import Case
from eagle3diag.diagnose.candidates import RULED_OUT, Candidate, candidates, signs
from eagle3diag.diagnose.likelihood import Predicted, log_sum
from eagle3diag.diagnose.observed import Observation
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

SURE = 0.9
"""Probability of being present from which a fault is a finding though there is no other evidence than the rounds that it makes."""

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
        self.observed, self.healthy = Observation(case), case.healthy
        self.candidates, self.signs = {c.id: c for c in candidates(case, found)}, signs(found)
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
        return Counterfactual.of(fault, name, replay, self.observed.length)

    def _best(self, fault: str) -> tuple[Change, Counterfactual, Replay] | None:
        """The variant of a fault that explains the number best."""
        return max(self.singles.get(fault, ()), key=lambda v: self.observed.likelihood(self.observed.predicted(v[2], v[0])), default=None)

    # -- hypotheses -----------------------------------------------------------------------------------------------------------------

    def _suppose(self, faults: frozenset[str]) -> Hypothesis:
        prior = sum(math.log(c.present if f in faults else 1 - c.present) for f, c in self.candidates.items())
        predicted, open_ended = self._prediction(faults)
        likelihood = self.observed.likelihood(predicted)
        if len(faults) == 1 and (variants := self.singles.get(next(iter(faults)))):
            # which of its variants it is nobody told: the mean over them, not the best of many
            likelihood = log_sum(self.observed.likelihood(self.observed.predicted(v[2], v[0])) for v in variants) - math.log(len(variants))
        fits = likelihood > self.observed.anything and self.observed.is_near(predicted, likelihood)
        if open_ended:  # a fault that no replay shows may cost nothing or everything
            likelihood = log_sum((likelihood, self.observed.whatever(self.observed.anything))) - math.log(2)
        made = Hypothesis(faults, prior, likelihood, fits, self.observed.much_as(predicted), self.observed.is_other_form(predicted))
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
        return Predicted(spread=self.observed.spread, length=(low, max(low, min(high, base.length[1])))), open_ended

    def _played_together(self, shown: dict[str, tuple[Change, Counterfactual, Replay]]) -> Predicted:
        """The healthy replay with these faults at once; without a replay, what a draft that works gives, or nothing."""
        if self.healthy is None:
            return Predicted(spread=self.observed.spread, length=(WEAK, self.case.steps + 1.0))
        if len(shown) <= 1:
            return next((self.observed.predicted(best[2], best[0]) for best in shown.values()), self.observed.predicted(self.healthy))
        name = " and ".join(best[0].name for best in shown.values())
        self.say(f"counterfactual {'+'.join(shown)}: {name}")
        changes = [best[0] for best in shown.values()]
        played = self.case.play(*changes)
        assert played is not None
        self.series.append(self._counterfactual("+".join(shown), name, played))
        return self.observed.predicted(played, *changes)

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
        return not self.observed.known or any(h.fits for h in self.hypotheses)

    @property
    def _open(self) -> bool:
        """Whether what was not seen must be weighed though "as trained" fits: it fits little better than others where nothing was replayed,
        where less is served than replayed, on other prompts than those that were, and where rounds differ by more than rounding."""
        if not self.observed.known or any(c.seen for c in self.candidates.values()):
            return False
        return self.healthy is None or differs(self.healthy, self.observed.length)

    # -- weights --------------------------------------------------------------------------------------------------------------------

    def _weigh(self) -> Explanation:
        out = Explanation(series=tuple(self.series))
        out.counterfactuals = tuple(v[1] for played in self.singles.values() for v in played)
        for fault in self.singles:
            if (best := self._best(fault)) is not None and self.healthy is not None:
                out.variant[fault], out.nearest[fault] = best[:2]
                out.cost[fault] = self.healthy.accept_length - best[1].accept_length
        beside = [h for h in self.hypotheses if not h.faults or (self.observed.known and all(self.candidates[f].seen for f in h.faults))]
        # a cause in no list leaves rounds much as when healthy, much as in some replay, or loses them all
        much_as = log_sum(h.unlisted for h in self.hypotheses) - math.log(len(self.hypotheses))
        cause = math.log(NONE_OF_THESE) + self.observed.whatever(log_sum((self.observed.anything, much_as)) - math.log(2))
        total = log_sum([h.log_weight for h in self.hypotheses] + [h.prior + cause for h in beside])
        for h in self.hypotheses:
            probability, shares = math.exp(h.log_weight - total), self._shares(h, out.cost)
            out.add(h, probability, shares)
            out.as_trained += 0.0 if shares else probability
        for h in beside:
            probability, shares = math.exp(h.prior + cause - total), self._shares_beside_a_cause(h, out.cost)
            out.add(h, probability, shares)
            out.none_of_these += probability * (1 - sum(shares.values()))
        for sign, fault in self.signs.items():
            out.certainty[sign] = out.certainty.get(fault, 0.0)
        return out

    def _shares_beside_a_cause(self, h: Hypothesis, cost: dict[str, float]) -> dict[str, float]:
        """Each fault's part of the loss where a cause in no list is there too. Beside faults that explain the number it has taken nothing away;
        beside others it has taken what they leave, if that is known."""
        shares = self._shares(h, cost)
        if h.fits or not shares:
            return shares
        lost = self.observed.lost
        if lost is None or not h.faults <= cost.keys():
            return {}
        known = sum(max(cost[f], 0.0) for f in h.faults)
        return {f: share * known / lost for f, share in shares.items()} if known < lost else {}

    def _shares(self, h: Hypothesis, cost: dict[str, float]) -> dict[str, float]:
        """Each fault's part of the loss under one hypothesis: by what it costs alone; empty where nothing is lost to speak of."""
        lost = self.observed.lost
        known = {f: max(cost[f], 0.0) for f in h.faults if f in cost and not h.other_form}
        unknown = h.faults - known.keys()
        rest = 1.0 if lost is None else max(lost - sum(known.values()), HARMLESS if unknown and not h.other_form else 0.0)
        loss = known | {f: rest / len(unknown) for f in unknown}
        total = sum(loss.values())
        return {f: x / total for f, x in loss.items()} if total >= HARMLESS else {}
