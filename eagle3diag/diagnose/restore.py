"""A draft whose own replay is poor: whether one change brings acceptance back, so that file and config do not belong together."""

from __future__ import annotations

from collections.abc import Callable

from eagle3diag.case import Case
from eagle3diag.diagnose.explain import Explanation
from eagle3diag.diagnose.result import Counterfactual, Ranked
from eagle3diag.faults import catalogue
from eagle3diag.faults.replayed import HARMLESS, WEAK
from eagle3diag.findings import Evidence, Finding, Severity

GAIN = 0.2
"""Accept length that a change must bring, beyond the intervals of both replays: a config that is wrong costs a draft most of what it has (a
lost norm flag 2.0 to 1.1, another packing 2.1 to 1.2 on the drafts of the score), and of some forty changes the best gains a little by
chance."""


def in_the_file(explanation: Explanation) -> dict[str, float]:
    """Shares of findings whose effect no replay isolates: it is in the file's own replay, which one change brings back."""
    return {f: w for f, w in explanation.weight.items() if f not in explanation.cost}


def restore(case: Case, explanation: Explanation, say: Callable[[str], None]) -> Ranked | None:
    """Played only where the draft as trained is weak. What breaks a healthy draft mends one that was broken so: most changes are their own
    inverse (the other residual, the other packing, the other pairs)."""
    healthy = case.healthy
    if healthy is None or not healthy.accept_length < WEAK:
        return None
    known = {(c.fault, c.name): c for c in explanation.counterfactuals}
    best: Counterfactual | None = None
    title = ""
    for fault in catalogue():
        for change in fault.changes(case) if fault.id not in case.assume_fixed else ():
            played = known.get((fault.id, change.name))
            if played is None:
                say(f"undoing {fault.id}: {change.name}")
                replay = case.play(change)
                assert replay is not None  # there is a healthy one
                played = Counterfactual.of(fault.id, change.name, replay)
            if best is None or played.accept_length > best.accept_length:
                best, title = played, fault.title
    if best is None or best.accept_length_interval[0] < healthy.accept_length_interval[1] + max(GAIN - HARMLESS, 0.0):
        return None
    if best.accept_length < healthy.accept_length + GAIN:
        return None
    finding = Finding(
        best.fault,
        Severity.ERROR,
        f"{title}: the draft accepts {best.accept_length:.2f} instead of {healthy.accept_length:.2f} once it is undone",
        f"Replayed as file and config say, the draft is poor; with one thing done differently ({best.name}) it is not. So the weights were trained "
        "that way, and the file or its config says something else.",
        (
            Evidence("accept length, replayed as the file says", healthy.accept_length, f"{best.accept_length:.2f}", "replay"),
            Evidence(f"accept length, {best.name}", best.accept_length, None, "replay"),
        ),
        "Write into the config what the trainer did, or export again in the order that engines read.",
        "eagle3diag.replay of the repaired copy.",
    )
    return Ranked(
        finding, explanation.as_trained + sum(in_the_file(explanation).values()), best, best.accept_length - healthy.accept_length
    )
