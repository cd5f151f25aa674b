"""How likely all that was observed is, number and rounds together, under what one hypothesis predicts; and under anything else."""

from __future__ import annotations

import math
from functools import cached_property

from eagle3diag.case import Case
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
from eagle3diag.replay import Change, Replay

OTHER_FORM, MANY_FORMS = 0.1, 0.5
"""Probability that a fault that is there shows itself in another form than its replay: of one with few forms, which are all replayed, and of one
whose replay is marked as one of many."""

FAR = 3.0
"""Natural log of how much better than a hypothesis the best possible one must be before others are tried. Twice the difference is chi-squared:
with four positions a true hypothesis exceeds 3 once in five times, which costs replays, and no verdict."""


class Observation:
    """The accept length or counts of a case, and the rounds that its live dump holds, beside its healthy replay. All likelihoods are natural logs."""

    def __init__(self, case: Case) -> None:
        self.number, self.recorded, self.healthy, self.steps = case.observed, case.recorded, case.healthy, case.steps

    @property
    def length(self) -> float | None:
        return self.number.length if self.number is not None else None

    @property
    def known(self) -> bool:
        """Whether there is a number that asks for an explanation."""
        return self.length is not None

    @property
    def lost(self) -> float | None:
        """Accept length that is served less than replayed."""
        return None if self.healthy is None or self.length is None else self.healthy.accept_length - self.length

    @cached_property
    def spread(self) -> float:
        """See :class:`~eagle3diag.diagnose.likelihood.Predicted`."""
        return self.predicted(self.healthy).spread if self.healthy else 1.0

    def predicted(self, replay: Replay, *changes: Change) -> Predicted:
        """What a replay with these changes says of the server."""
        other_form = max((MANY_FORMS if c.one_of_many else OTHER_FORM for c in changes), default=0.0)
        spread = overdispersion(replay.p, replay.rounds, replay.accept_length_interval)
        few = narrowness(len(replay.records))  # a few records that are alike by chance do not make the server's prompts like them
        low, high = (replay.accept_length + few * (end - replay.accept_length) for end in replay.accept_length_interval)
        return Predicted(replay.p, replay.rounds / few**2, spread, (low, high), replay.served, other_form)

    # -- what was replayed ------------------------------------------------------------------------------------------------------------

    def likelihood(self, predicted: Predicted) -> float:
        """Where what was replayed is there: as it was, or in another form."""
        return log_sum(self._forms(predicted))

    def is_other_form(self, predicted: Predicted) -> bool:
        """Whether the rounds speak for another form of the fault than the one replayed."""
        forms = self._forms(predicted)
        return forms[-1] > forms[0]

    def is_near(self, predicted: Predicted, likelihood: float) -> bool:
        """Whether no other hypothesis could do much better. Each round for itself says more than their sums do, of a fault that has one form."""
        if predicted.served:
            return predicted.other_form >= MANY_FORMS or of_rounds(predicted.served) > of_near_rounds(predicted.served)
        return not predicted.p or likelihood > self._best_possible - FAR

    def much_as(self, predicted: Predicted) -> float:
        """Under something else that does much the same as what was replayed: in some of its rounds, or only as often."""
        if not predicted.served:
            return self.anything
        near = of_near_rounds(predicted.served) + self.anything - self._any_rounds
        return log_sum((near, of_as_often(predicted.served) + self._of_number(predicted))) - math.log(2)

    def _forms(self, predicted: Predicted) -> list[float]:
        exact = self._of_number(predicted) + (of_rounds(predicted.served) if predicted.served else self._any_rounds)
        if not predicted.served or not predicted.other_form:
            return [exact]
        return [exact + math.log(1 - predicted.other_form), self.much_as(predicted) + math.log(predicted.other_form)]

    def _of_number(self, predicted: Predicted) -> float:
        return 0.0 if self.number is None or self._only_rounds else log_likelihood(predicted, self.number, self.steps)

    @cached_property
    def _best_possible(self) -> float:
        """Of a replay that gives just what was observed."""
        if self.number is None or self.healthy is None:
            return self.anything
        few = narrowness(len(self.healthy.records))
        told = Predicted(self.number.p, self.healthy.rounds / few**2, self.spread, self.number.interval or (1.0, 1.0))
        return self.likelihood(told) if self.number.p else -math.inf

    # -- what was not -----------------------------------------------------------------------------------------------------------------

    @cached_property
    def anything(self) -> float:
        """Where nothing is foretold: every number alike, and any share of the rounds other than when healthy."""
        if self.number is None or self._only_rounds:
            return self._any_rounds
        return log_of_anything(self.number, self.steps, self.spread) + self._any_rounds

    def whatever(self, some: float) -> float:
        """Under a cause of which nothing is known: under some of these all is lost, and under the others it is as likely as ``some`` says."""
        lost = of_lost_rounds(self.healthy.served) if self.healthy is not None and self.healthy.served else 0.0
        if self.number is not None and not self._only_rounds:
            lost += log_of_collapse(self.number, self.steps, self.spread)
        return log_sum((some + math.log(1 - COLLAPSES), lost + math.log(COLLAPSES)))

    @cached_property
    def _only_rounds(self) -> bool:
        """Whether the number is of the very rounds that are weighed one by one, so that it says nothing more."""
        return self.number is self.recorded and self._any_rounds != 0.0

    @cached_property
    def _any_rounds(self) -> float:
        return of_near_rounds(self.healthy.served) if self.healthy is not None and self.healthy.served else 0.0
