"""What a replay says by itself: a draft that is not accepted even where no engine takes part (M1)."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3diag.faults.serving import ENOUGH_ROUNDS, NEXT_TO_NOTHING
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.replay import Replay

MOSTLY_UNSAID = 0.5
"""Share of the answer's tokens outside the draft's vocabulary that no choice of tokens explains: a vocabulary of 8 to 32 thousand frequent
tokens leaves 1 to 10 % out, a map that is misread two thirds and more."""


def judge_replay(replay: Replay) -> Iterator[Finding]:
    """M1, of the draft as it is: a counterfactual is meant to lose acceptance."""
    if replay.changes or replay.rounds < ENOUGH_ROUNDS or not replay.accept_length <= NEXT_TO_NOTHING:
        return
    evidence = [Evidence("accept length, replayed", round(replay.accept_length, 4), f"above {NEXT_TO_NOTHING}", f"{replay.rounds} rounds")]
    unsaid = replay.out_of_vocabulary > MOSTLY_UNSAID
    if unsaid:
        share = Evidence("tokens outside the draft's vocabulary", round(replay.out_of_vocabulary, 4), "0.01 to 0.1", "dump, d2t")
        evidence.append(share)
    yield Finding(
        "M1",
        Severity.WARNING,
        "the draft is not accepted even in the replay, where no engine takes part",
        "So it is not the launch command: it is the draft (weights that were never trained, a wrong vocabulary map) or the dump (states of "
        "another target, of other boundaries or in another order than the draft was trained on)."
        + (" The map of the vocabulary is the first suspect: most of what the target says is outside it." if unsaid else ""),
        tuple(evidence),
        "eagle3diag audit and eagle3diag weights look at the draft, eagle3diag check at the dump. A dump of the draft's own training tells "
        "the two apart.",
        "eagle3diag replay again.",
    )
