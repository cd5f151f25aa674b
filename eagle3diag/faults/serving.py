"""What counts of a running draft say by themselves: the identities of metrics and their signatures (M1 to M5, M9)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from eagle3diag.case import Case
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.intervals import exact
from eagle3diag.serving import Acceptance

NOTHING_ACCEPTED = 1.02
"""M1: accept length at or below which nothing is accepted: 1.00 plus what windows of a log round to, and the prefill token that SGLang's
``meta_info`` counts."""

NEXT_TO_NOTHING = 1.15
"""Accept length up to which the first draft is right by accident only: always saying the commonest token gives p_1 of .03 to .11 (D4)."""

ENOUGH_ROUNDS = 100
"""M1: below this the upper bound of a rate of zero is above 3 %, and a healthy draft could still look dead."""

CLIFF = 0.5
"""M4: healthy conditional rates are nearly flat (.70 .69 .65; .77 .71 .69 .76); the second at half the first is a fault of the recurrence."""

CLIFF_FROM = 0.3
"""M4: a first rate under this is already a fault of its own, and its successors say little."""

SUM_OFF = 0.02
"""M3: accept length and per-position rates of one set of counts differ by rounding only (three decimals, up to 16 positions)."""

LOOP = 0.1
"""M9: share of different tokens in an answer; a few hundred tokens of prose or code have 0.3 to 0.7."""


def judge_acceptance(seen: Acceptance) -> Iterator[Finding]:
    """What one set of counts says by itself. M1 is a symptom and comes from :func:`symptoms`."""
    yield from _identities(seen)
    yield from _cliff(seen)
    yield from _saturated(seen)
    yield from _off(seen)


_SHOWS = (
    ("launch", "the launch command", "EAGLE named for EAGLE3"),
    ("draft", "the draft", "names dropped at load, a lost vocabulary map"),
    ("target", "the target", ""),
    ("train", "a dump from training (eagle3diag capture)", ""),
    ("live", "a dump from the server (eagle3diag capture sglang, or vllm)", "wrong layers, or states changed on their way to the draft"),
)
"""Kinds of evidence, cheapest first: what to call each, and the usual causes that only it shows."""


def symptoms(case: Case) -> Iterator[Finding]:
    """M1: nothing, or next to nothing, is accepted. Only worth saying where no cause was found, and no replay says what to expect."""
    seen = case.observed
    length = None if seen is None else seen.length
    if seen is None or length is None or length > NEXT_TO_NOTHING or case.healthy is not None:
        return
    few = seen.rounds is not None and seen.rounds < ENOUGH_ROUNDS
    lacking = [words for part, words, _ in _SHOWS if getattr(case, part) is None]
    usual = [cause for part, _, cause in _SHOWS if getattr(case, part) is None and cause]
    evidence = [Evidence("accept length", round(length, 4), f"above {NEXT_TO_NOTHING}", "server")]
    if seen.interval is not None:
        evidence.append(Evidence("95 % interval", f"{seen.interval[0]:.2f} to {seen.interval[1]:.2f}", None, f"{seen.rounds} rounds"))
    yield Finding(
        "M1",
        Severity.NOTE if few else Severity.WARNING,
        f"{'nothing' if length <= NOTHING_ACCEPTED else 'next to nothing'} is accepted, and the evidence given does not say why",
        "Nearly every round yields the target's own token only."
        + (f" The usual causes: {'; '.join(usual)}." if usual else " What the checkpoint and the command can show is ruled out.")
        + (f" But {seen.rounds} rounds are few." if few else ""),
        tuple(evidence),
        f"Give more of the evidence: {', '.join(lacking)}."
        if lacking
        else "Measure again with more rounds, and report the engine's version.",
        "eagle3diag diagnose with what was added names the cause, or rules more out.",
    )


def _identities(seen: Acceptance) -> Iterator[Finding]:
    """M3: what every set of counts must satisfy, whatever the draft does."""
    wrong = []
    length = seen.length
    if length is not None and seen.p and abs(length - 1 - sum(seen.p)) > SUM_OFF:
        wrong.append(Evidence("accept length - 1", round(length - 1, 4), f"{sum(seen.p):.4f}, the sum of the per-position rates"))
    rises = [(i, a, b) for i, (a, b) in enumerate(pairwise(seen.p), 1) if b > a + 0.001]
    wrong += [Evidence(f"p_{i + 1}", round(b, 4), f"at most p_{i} = {a:.4f}") for i, a, b in rises[:1]]
    if seen.accepted is not None and seen.drafted is not None and seen.accepted > seen.drafted:
        wrong.append(Evidence("accepted drafts", seen.accepted, f"at most the {seen.drafted} proposed"))
    if length is not None and seen.steps and length > seen.steps + 1 + SUM_OFF:
        wrong.append(Evidence("accept length", round(length, 4), f"at most {seen.steps + 1}: {seen.steps} drafts and the bonus token"))
    if wrong:
        yield Finding(
            "FM-74",
            Severity.WARNING,
            "the numbers contradict each other: they follow different definitions, or come from different windows",
            "Accept length is 1 + the sum of the unconditional per-position rates, which never rise; vLLM's V0 engine counted drafts after a "
            "wrong one, and conditional rates do not add up.",
            tuple(wrong),
            "Take rounds and accepted drafts from one place: two pages of /metrics, or eagle3diag probe.",
            "The sum of p must be the accept length - 1.",
        )


def _cliff(seen: Acceptance) -> Iterator[Finding]:
    """M4, only where the counts exclude chance."""
    if len(seen.p) < 2 or not seen.rounds:
        return
    first, second = round(seen.p[0] * seen.rounds), round(seen.p[1] * seen.rounds)
    if seen.p[0] <= CLIFF_FROM or not first or exact(second, first)[1] >= CLIFF * seen.p[0]:
        return
    yield Finding(
        "FM-46",
        Severity.WARNING,
        f"the first draft is accepted ({seen.p[0]:.0%}), those after it are not ({second / first:.0%} of them)",
        "What feeds the first draft is right, so target features, names and map are right too; what goes wrong is what the draft passes to itself: the "
        "state carried on (normed or not), its position, its cache, or training on one step only (FM-49, FM-50, FM-69).",
        tuple(Evidence(f"c_{i}", round(c, 3), f"near {seen.p[0]:.2f}" if i > 1 else None, "counts") for i, c in enumerate(seen.c, 1)),
        "Check norm_output, the engine's version for known faults of draft positions, and how many steps the draft was trained for.",
        "eagle3diag replay: the first step at which its curve and the server's part is where the fault acts.",
    )


def _saturated(seen: Acceptance) -> Iterator[Finding]:
    """M5 and M9: all accepted, or answers that repeat themselves, are no success by themselves."""
    length, steps = seen.length, seen.steps
    all_of_them = length is not None and steps is not None and abs(length - steps - 1) < 0.005
    full = all_of_them and ((seen.rounds or 0) > 1 or (seen.windows or 0) > 1)
    loops = seen.distinct is not None and seen.distinct < LOOP and (seen.tokens or 0) >= 32
    if not full and not loops:
        return
    evidence = (
        [Evidence("accept length", round(length, 4), f"under {steps + 1}, which is every draft of every round")]
        if full and length and steps
        else []
    )
    if seen.distinct is not None:
        evidence.append(Evidence("different tokens / tokens", round(seen.distinct, 3), "0.3 to 0.7 in prose or code", "answers"))
    if full and (loops or seen.distinct is None):
        yield Finding(
            "FM-43",
            Severity.ERROR if loops else Severity.WARNING,
            "every draft of every round is accepted"
            + (", and the answers are one repeated token" if loops else ": non-finite logits look like this"),
            "With NaN logits the argmax is the same id on both sides (often 0, printed as `!`), so verification agrees with itself.",
            tuple(evidence),
            "Read an answer. If it is `!!!!`: serve in bfloat16, try another attention backend, and SGLANG_ENABLE_NAN_LOGITS_CHECK=1.",
            "An answer must be text, and the accept length below the maximum.",
        )
    elif loops:
        yield Finding(
            "FM-76",
            Severity.WARNING,
            "the answers run in a loop, which flatters the accept length",
            "A draft predicts a repeating text easily; the number says nothing about other text.",
            tuple(evidence),
            "Measure on prompts whose answers do not loop, in the target's chat template.",
            "eagle3diag probe with prompts of your own.",
        )


def _off(seen: Acceptance) -> Iterator[Finding]:
    if seen.rounds == 0 or seen.drafted == 0:
        yield Finding(
            "FM-03",
            Severity.ERROR,
            "no draft was proposed: speculation is off",
            "0 of 0 is not a low rate: the server ran, and the draft did not.",
            (Evidence("rounds of speculation", 0, "one for every few tokens", "server"),),
            "Start the server with a draft, and look in its log for the arguments as it resolved them.",
            "The counts must grow with every request.",
        )
