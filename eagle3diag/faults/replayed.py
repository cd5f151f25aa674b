"""What replays say: a draft that is not accepted even where no engine takes part (M1), a weak one (FM-25), rounds that a fault alone makes."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3diag.faults import in_words
from eagle3diag.faults.base import Fault
from eagle3diag.faults.serving import ENOUGH_ROUNDS, NEXT_TO_NOTHING
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.replay import Replay
from eagle3diag.serving import Acceptance

MOSTLY_UNSAID = 0.5
"""Share of the answer's tokens outside the draft's vocabulary that no choice of tokens explains: a vocabulary of 8 to 32 thousand frequent
tokens leaves 1 to 10 % out, a map that is misread two thirds and more."""

HARMLESS = 0.10
"""Accept length that a present fault must cost to be offered as an explanation: one boundary early served 1.62 against 1.60 on the
sample pair, and two runs of an engine differ by up to that much on a hundred rounds."""

WEAK = 1.5
"""Accept length under which a draft barely pays for itself: each round costs a verification and the draft's own forwards."""

TELLING = 30
"""Recorded rounds from which they say more than an accept length of other prompts: what costs 0.1 turns one round in ten, and three of these."""

REFUTED = 0.1
"""Share of "nothing is lost" below which a verdict says that something is: an alarm in ten such cases would be one too many, so it is no level
to be near. Between here and a half the verdict is that it cannot be told."""

BEATEN = 0.5
"""Accept length above the upper end of a weak replay's interval that no choice of prompts gives: sets of a few prompts differ by 0.3 on average."""

GAIN = 0.2
"""Accept length that one change must bring a weak draft to be what the file should have said: a config that is wrong costs a draft most of what
it has (a lost norm flag 2.0 to 1.1, another packing 2.1 to 1.2 on the drafts of the score), and of some forty changes the best gains a little
by chance. Between the ends of both intervals that face each other there must still lie more than is harmless."""

UNLIKE = 0.95
"""Share of the server's rounds that a healthy replay makes below which something differs, if only a little: rounding leaves 0.96 to 0.99."""

ANOTHER_COPY = (
    "give as --draft the very folder that the server loads, or hold both against each other: `eagle3diag weights DRAFT --against SERVED`."
)
"""What to do where the server may have another copy of the draft than was given."""

ALIKE = 0.9
"""Share of the server's rounds that a fault's replay must make for it to be a finding by them alone. Rounding leaves 0.98 or more of a true one's;
of a fault that comes in many forms (another request's rows) the replay may be near enough to be likely, and show no single round."""


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


def share_of_rounds(replay: Replay) -> float | None:
    """Share of the server's recorded rounds that come out as replayed; None where they are too few to tell anything."""
    return replay.served_share if replay.served_rounds >= TELLING else None


def differs(healthy: Replay, length: float | None) -> bool:
    """Whether a server does otherwise than the healthy replay: in its recorded rounds, by more than rounding; or, where these are too few to
    tell, whether it accepts less."""
    alike = share_of_rounds(healthy)
    return alike < UNLIKE if alike is not None else length is not None and length < healthy.accept_length - HARMLESS


def not_accepted(healthy: Replay) -> bool:
    """Whether the file is next to never accepted by itself: what is served of so little tells nothing more."""
    return healthy.accept_length <= NEXT_TO_NOTHING + HARMLESS


def judge_rounds(fault: Fault, how: str, alike: int, rounds: int, healthy: Replay) -> Iterator[Finding]:
    """``fault``, where of the server's recorded ``rounds`` its replay (``how`` it was broken) makes nearly all, ``alike`` of them."""
    if rounds < TELLING or alike < ALIKE * rounds:
        return
    yield Finding(
        fault.id,
        Severity.ERROR,
        f"{fault.title}: {how}",
        "No file and no state shows it. But with this one thing changed the replay accepts, from the same tokens, what the server accepted in its "
        "recorded rounds. That holds if the draft given is the one that is served: another copy of it, such as one whose names the loader drops "
        "(FM-05), may make the same rounds.",
        (
            Evidence("rounds of the server as in the replay with this fault", f"{alike} of {rounds}", None, "live dump"),
            Evidence(
                "the same, in the healthy replay",
                f"{healthy.served_alike} of {healthy.served_rounds}",
                "nearly all, if healthy",
                "live dump",
            ),
        ),
        f"First make sure of the copy: {ANOTHER_COPY} Is it the same? {in_words().get(fault.id, {}).get('fix', '')}".rstrip(),
        "Record the server again: its rounds must then be those of the healthy replay.",
    )


def judge_restored(fault: Fault, how: str, length: float, low: float, healthy: Replay) -> Finding | None:
    """``fault``, where undoing it (``how``) brings a draft that is weak as file and config say to ``length``, at least ``low``."""
    if low < healthy.accept_length_interval[1] + HARMLESS or length < max(healthy.accept_length + GAIN, WEAK):
        return None  # what leaves it weak may only take some of the edge off another fault
    return Finding(
        fault.id,
        Severity.ERROR,
        f"{fault.title}: the draft accepts {length:.2f} instead of {healthy.accept_length:.2f} once it is undone",
        f"Replayed as file and config say, the draft is poor; with one thing done differently ({how}) it is not. So the weights were trained "
        "that way, and the file or its config says something else.",
        (
            Evidence("accept length, replayed as the file says", healthy.accept_length, f"{length:.2f}", "replay"),
            Evidence(f"accept length, {how}", length, None, "replay"),
        ),
        in_words()
        .get(fault.id, {})
        .get("fix", "Write into the config what the trainer did, or export again in the order that engines read."),
        "eagle3diag.replay of the repaired copy.",
    )


def judge_beaten(healthy: Replay, observed: Acceptance) -> Iterator[Finding]:
    """M9: more is served than the draft given can reach; prompts that differ do not explain that much."""
    length = observed.length
    if length is None or not healthy.accept_length < WEAK or length < healthy.accept_length_interval[1] + BEATEN:
        return
    rounds = f"{healthy.served_alike} of {healthy.served_rounds}"
    yield Finding(
        "M9",
        Severity.WARNING,
        f"the server accepts {length:.2f}, and the draft given cannot: its replay gives {healthy.accept_length:.2f}",
        "A server does not beat a replay of what it serves. So it serves another copy of the draft than was given, or the dump is not of what this "
        "one was trained on.",
        (
            Evidence("accept length, observed", round(length, 3), None, "server"),
            Evidence("accept length, replayed", round(healthy.accept_length, 3), f"about {length:.2f}", "replay"),
            *((Evidence("rounds of the server that come out as replayed", rounds, "nearly all", "live dump"),) if healthy.served else ()),
        ),
        ANOTHER_COPY[0].upper() + ANOTHER_COPY[1:],
        "The replay must then reach what is served.",
    )


def judge_less(healthy: Replay, observed: Acceptance, as_trained: float) -> Iterator[Finding]:
    """M11: less is served than replayed by more than chance and prompts explain (``as_trained``: the share of the two), and nothing shows why; or
    next to nothing is, though the rounds that were recorded are as replayed."""
    length = observed.length
    if length is None or length >= healthy.accept_length - HARMLESS:
        return
    alike = share_of_rounds(healthy)
    apart = length <= NEXT_TO_NOTHING and alike is not None and alike >= UNLIKE and healthy.accept_length >= WEAK
    if as_trained >= REFUTED and not apart:
        return
    rounds = f"{healthy.served_alike} of {healthy.served_rounds}"
    yield Finding(
        "M11",
        Severity.WARNING,
        f"{length:.2f} is served where the replay gives {healthy.accept_length:.2f}, and the evidence given does not show why",
        "The rounds that were recorded come out as replayed: so the number is not of them. It is of other requests (sampling, grammar, load), or of "
        "another server."
        if apart
        else "It is more than prompts, chance and rounding explain.",
        (
            Evidence("accept length, observed", round(length, 3), f"about {healthy.accept_length:.2f}", "server"),
            Evidence("accept length, replayed", round(healthy.accept_length, 3), None, "replay"),
            *((Evidence("rounds of the server that come out as replayed", rounds, "nearly all", "live dump"),) if healthy.served else ()),
        ),
        "Record the server while it gives that number, with eagle3diag capture sglang, or vllm."
        if apart
        else ANOTHER_COPY[0].upper() + ANOTHER_COPY[1:],
        "The replay must then give what is served.",
    )


def judge_weak(healthy: Replay, length: float | None) -> Iterator[Finding]:
    """FM-25: the server gives what the replay gives, and it is little; ``length``: the accept length observed."""
    less = length is not None and length < healthy.accept_length - HARMLESS
    if not healthy.accept_length < WEAK or (less and not not_accepted(healthy)):
        return
    evidence = [Evidence("accept length, replayed", healthy.accept_length, f"at least {WEAK}", "replay")]
    if length is not None:
        evidence.append(Evidence("accept length, observed", length, f"{healthy.accept_length:.2f}, as replayed", "server"))
    finding = Finding(
        "FM-25",
        Severity.WARNING if not_accepted(healthy) else Severity.NOTE,
        "the draft is served as it is in the file, and the file predicts little",
        "No engine and no flag is to blame. Either it was trained too little, or it was spoilt on the way into the file in a way that the file alone "
        "does not show: two matrices swapped, rows in another order.",
        tuple(evidence),
        "Compare it with what the trainer kept: `eagle3diag weights DRAFT --against TRAINED`. If they are the same, train on more of the target's own "
        "answers, and choose the epoch by replay, not by loss.",
        "eagle3diag.replay on held-out dumps, per epoch.",
    )
    yield finding
