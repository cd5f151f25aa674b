"""A draft whose own replay is poor: whether one change brings acceptance back, so that file and config do not belong together."""

from __future__ import annotations

from collections.abc import Callable

from eagle3diag.case import Case
from eagle3diag.diagnose.explain import Explanation
from eagle3diag.diagnose.result import Counterfactual, Ranked
from eagle3diag.faults import catalogue
from eagle3diag.faults.base import Fault
from eagle3diag.faults.replayed import WEAK, judge_restored


def taken_over(explanation: Explanation, fault: str) -> dict[str, float]:
    """Shares that are those of the ``fault`` that is undone: its own, and of all whose effect no replay isolates, since it is in the file's own
    replay, which undoing this brings back."""
    return {f: w for f, w in explanation.weight.items() if f == fault or f not in explanation.cost}


def restore(case: Case, explanation: Explanation, say: Callable[[str], None]) -> Ranked | None:
    """Played only where the draft as trained is weak. What breaks a healthy draft mends one that was broken so: most changes are their own
    inverse (the other residual, the other packing, the other pairs)."""
    healthy = case.healthy
    if healthy is None or not healthy.accept_length < WEAK:
        return None
    known = {(c.fault, c.name): c for c in explanation.counterfactuals}
    every: list[tuple[Fault, Counterfactual]] = []
    for fault in catalogue():
        for change in fault.changes(case) if fault.id not in case.assume_fixed else ():
            played = known.get((fault.id, change.name))
            if played is None:
                say(f"undoing {fault.id}: {change.name}")
                replay = case.play(change)
                assert replay is not None  # there is a healthy one
                played = Counterfactual.of(fault.id, change.name, replay)
            every.append((fault, played))
    if not every:
        return None
    fault, best = max(every, key=lambda one: one[1].accept_length)
    finding = judge_restored(fault, best.name, best.accept_length, best.accept_length_interval[0], healthy)
    share = explanation.as_trained + sum(taken_over(explanation, fault.id).values())
    return None if finding is None else Ranked(finding, share, best, best.accept_length - healthy.accept_length)
