"""Where acceptance is lost: accept lengths from a perfect draft down to what was observed, each step with what takes the difference."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3diag.case import Case
from eagle3diag.diagnose.explain import Explanation
from eagle3diag.diagnose.result import Stage
from eagle3diag.faults.replayed import HARMLESS
from eagle3diag.replay import Replay


def waterfall(case: Case, explanation: Explanation, live: Replay | None) -> Iterator[Stage]:
    """Stages in the order in which a drafted token can be lost; only those that the evidence allows.

    Every number is over the training dump, but that on what the server fed and the observed one: the vocabulary cap is what a draft would reach
    that is right whenever its vocabulary holds the token, the faults are those found, added one after the other from the likeliest on.
    """
    healthy = case.healthy
    if healthy is None:
        return
    yield Stage("all drafts right", healthy.steps + 1.0, f"{healthy.steps} drafts a round, and the bonus token")
    if healthy.vocabulary_cap is not None and healthy.vocabulary_cap < healthy.steps + 1.0:
        share = f"{healthy.out_of_vocabulary:.1%} of the answer's tokens are not in the draft vocabulary"
        yield Stage("the draft vocabulary", healthy.vocabulary_cap, share)
    yield Stage("the draft as it was trained", healthy.accept_length, f"replayed on {healthy.dump}")
    faults = tuple(_faults(case, explanation))
    yield from faults
    if live is not None and not faults:  # the states that were fed hold the very faults that are replayed
        yield Stage("on what the server fed it", live.accept_length, f"replayed on {live.dump}")
    if case.observed is not None and case.observed.length is not None:
        yield Stage("observed", case.observed.length, "engine, sampling, other prompts: what no stage above shows")


def _faults(case: Case, explanation: Explanation) -> Iterator[Stage]:
    """The faults found, added up one by one: each replay holds those before it too."""
    changes = []
    by_share = sorted((f for f in explanation.nearest if explanation.weight.get(f, 0.0) > 0), key=lambda f: -explanation.weight[f])
    for fault in by_share:
        change = explanation.variant[fault]
        if explanation.certainty.get(fault, 0.0) < 0.5 or explanation.cost[fault] < HARMLESS:
            continue
        changes.append(change)
        replay = case.play(*changes)
        if replay is not None:
            yield Stage(fault, replay.accept_length, change.name)
