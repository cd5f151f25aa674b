"""Run what the evidence allows, in order of cost, and rank what it says: which fault explains the acceptance that is seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from eagle3diag.audit import Audit
from eagle3diag.case import Case, Given
from eagle3diag.compare import Comparison
from eagle3diag.errors import BadArgument
from eagle3diag.faults import catalogue, detect
from eagle3diag.findings import Evidence, Finding, Result, Severity
from eagle3diag.repair import map_is_lost
from eagle3diag.replay import Replay
from eagle3diag.serving import Acceptance
from eagle3diag.weights import WeightReport

__all__ = ["Counterfactual", "Diagnosis", "Ranked", "diagnose"]

TOLERANCE = 0.05
"""Accept length within which a counterfactual reproduces what was observed (test D3)."""

HARMLESS = 0.10
"""Accept length that a present fault must cost to be offered as an explanation: one boundary early served 1.62 against 1.60 on the
sample pair, and two runs of an engine differ by up to that much on a hundred rounds."""

WEAK = 1.5
"""Accept length under which a draft barely pays for itself: each round costs a verification and the draft's own forwards."""

NONE_OF_THESE = 0.1
"""Weight kept for a cause that is not among the findings, beside 1 for a fault that is directly seen and reproduces the number."""


@dataclass(frozen=True)
class Counterfactual:
    """A replay with one thing broken. ``distance``: its accept length from the observed one; None when nothing was observed."""

    fault: str
    name: str
    accept_length: float
    accept_length_interval: tuple[float, float]
    p: tuple[float, ...]
    distance: float | None


@dataclass(frozen=True)
class Ranked:
    """A finding with its share of the explanation, the counterfactual nearest to what was observed, and what the fault costs here."""

    finding: Finding
    weight: float
    predicted: Counterfactual | None
    cost: float | None


@dataclass(frozen=True)
class Diagnosis(Result):
    """What was found, most likely explanation first, with every measurement it rests on."""

    verdict: str
    observed: Acceptance | None
    replay: Replay | None
    live_replay: Replay | None
    counterfactuals: tuple[Counterfactual, ...]
    ranked: tuple[Ranked, ...]
    none_of_these: float
    audit: Audit | None
    comparison: Comparison | None
    weights: WeightReport | None
    trail: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(r.finding for r in self.ranked)


def diagnose(
    draft: Any = None,
    target: Any = None,
    train: Any = None,
    live: Any = None,
    reference: Any = None,
    launch: Any = None,
    log: Any = None,
    acceptance: Any = None,
    *,
    engine: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Say which fault explains the accept length that you see, from whatever evidence there is.

    Parameters
    ----------
    draft, target: checkpoint folders. train, live: dumps of the same prompts from training and from the server. reference: a dump of
        every boundary of the target. launch: the server's command line, or a file with it. log: the server's log, gzipped or not.
    acceptance: counts (an :class:`~eagle3diag.serving.Acceptance`, a JSON file) or a bare accept length.
    engine: such as ``"sglang==0.5.8"``; otherwise taken from the log, the live dump or the command.
    progress: called with one line before each step.

    Raises
    ------
    BadArgument: no evidence at all. Any InputError that opening a given part raises.
    """
    if all(part is None for part in (draft, train, live, launch, log, acceptance)):
        raise BadArgument("no evidence was given", hint="give at least one of draft, train, live, launch, log, acceptance")
    case = Case(Given(draft, target, train, live, reference, launch, log, acceptance, engine))
    say = progress or (lambda _: None)
    say("reading the launch command, the log and the checkpoint")
    observed, checked = case.observed, case.audit
    say("comparing train with live")
    comparison = case.comparison
    say("analysing the weights")
    weights = case.weights
    say("replaying the draft on the training dump")
    healthy = case.healthy
    say("collecting direct evidence")
    found = detect(case)
    played = tuple(_counterfactuals(case, found, say))
    live_replay = _replay_live(case, say)
    ranked, rest = _rank(found, played, healthy, observed)
    ranked = (*ranked, *_weak_but_right(ranked, healthy, observed))
    return Diagnosis(
        verdict=_verdict(ranked, healthy, observed),
        observed=observed,
        replay=healthy,
        live_replay=live_replay,
        counterfactuals=played,
        ranked=ranked,
        none_of_these=rest,
        audit=checked,
        comparison=comparison,
        weights=weights,
        trail=tuple(_trail(case, healthy, live_replay)),
        missing=tuple(_missing(case, ranked)),
    )


def _counterfactuals(case: Case, found: tuple[Finding, ...], say: Callable[[str], None]) -> Iterator[Counterfactual]:
    """Those of the faults that are directly seen; of all others too, while an observed number is not explained by these."""
    if case.healthy is None:
        return
    length = case.observed.length if case.observed else None
    seen = {f.fault for f in found if f.severity > Severity.NOTE}
    explained = length is None or abs(length - case.healthy.accept_length) <= HARMLESS
    for direct in (True, False):
        if not direct and explained:
            return
        for fault in catalogue():
            if (fault.id in seen) is not direct:
                continue
            for change in fault.changes(case):
                say(f"counterfactual {fault.id}: {change.name}")
                played = case.play(change)
                assert played is not None
                distance = None if length is None else abs(played.accept_length - length)
                explained = explained or (direct and distance is not None and distance <= TOLERANCE)
                yield Counterfactual(fault.id, change.name, played.accept_length, played.accept_length_interval, played.p, distance)


def _replay_live(case: Case, say: Callable[[str], None]) -> Replay | None:
    """The draft on what the server really fed it. Narrow features pass by fc, as they do in the engine."""
    if case.net is None or case.live is None or case.draft is None:
        return None
    width = case.live[0].features.shape[-1]
    if width not in (case.net.weights["fc.weight"].shape[1], case.net.embedding.shape[1]):
        return None
    say("replaying the draft on the live dump")
    return case.play(dump=case.live)


def _rank(
    found: tuple[Finding, ...], played: tuple[Counterfactual, ...], healthy: Replay | None, observed: Acceptance | None
) -> tuple[tuple[Ranked, ...], float]:
    """Weight = strength of the direct evidence x whether the fault's replay gives the observed number, shared out to one.

    A finding whose fault costs nothing here keeps a tenth: it is present, and it is not the explanation.
    """
    length = observed.length if observed else None
    raw = []
    for finding in found:
        own = [c for c in played if c.fault == finding.fault]
        nearest = min(own, key=lambda c: (c.distance or 0.0, c.accept_length), default=None)
        cost = None if nearest is None or healthy is None else healthy.accept_length - nearest.accept_length
        weight = {Severity.ERROR: 1.0, Severity.WARNING: 0.5, Severity.NOTE: 0.0}[finding.severity]
        if cost is not None and cost < HARMLESS:
            weight *= 0.1
            finding = _harmless(finding, cost)
        elif nearest is not None and length is not None:
            weight *= 0.2 + 0.8 * _fit(nearest, observed)
        elif cost is None and finding.severity is Severity.WARNING:
            weight *= 0.5
        raw.append(Ranked(finding, weight, nearest, cost))
    low = length is not None and (healthy is None or healthy.accept_length - length > HARMLESS)
    rest = NONE_OF_THESE if low or raw else 0.0
    total = sum(r.weight for r in raw) + rest
    shared = [replace(r, weight=r.weight / total if total else 0.0) for r in raw]
    return tuple(sorted(shared, key=lambda r: (-r.weight, -r.finding.severity))), rest / total if total else 0.0


def _fit(predicted: Counterfactual, observed: Acceptance | None) -> float:
    """1 where the counterfactual lands on the observed accept length, falling off over the uncertainty of both and the tolerance."""
    if observed is None or predicted.distance is None:
        return 0.0
    half = (predicted.accept_length_interval[1] - predicted.accept_length_interval[0]) / 3.92
    seen = observed.interval
    other = (seen[1] - seen[0]) / 3.92 if seen else 0.0
    return math.exp(-0.5 * predicted.distance**2 / (half**2 + other**2 + TOLERANCE**2))


def _harmless(finding: Finding, cost: float) -> Finding:
    if finding.severity < Severity.ERROR:
        return finding
    return replace(
        finding,
        severity=Severity.WARNING,
        because=f"{finding.because} Present, but on this pair it costs {max(cost, 0.0):.2f} accept length: not the explanation of a collapse.",
    )


def _weak_but_right(ranked: tuple[Ranked, ...], healthy: Replay | None, observed: Acceptance | None) -> Iterator[Ranked]:
    """FM-77/FM-25: the server gives what the replay gives, and it is little."""
    length = observed.length if observed else None
    if any(r.finding.severity > Severity.NOTE for r in ranked) or healthy is None or not healthy.accept_length < WEAK:
        return
    if length is not None and length < healthy.accept_length - HARMLESS:
        return
    evidence = [Evidence("accept length, replayed", healthy.accept_length, f"at least {WEAK}", "replay")]
    if length is not None:
        evidence.append(Evidence("accept length, observed", length, f"{healthy.accept_length:.2f}, as replayed", "server"))
    finding = Finding(
        "FM-25",
        Severity.NOTE,
        "weak but right: the draft is served as it was trained, it just predicts little",
        "Nothing between trainer and engine is wrong. More answers, more epochs or a larger draft vocabulary raise what the replay gives.",
        tuple(evidence),
        "Train on more of the target's own answers, and choose the epoch by replay, not by loss.",
        "eagle3diag.replay on held-out dumps, per epoch.",
    )
    yield Ranked(finding, 0.0, None, None)


def _verdict(ranked: tuple[Ranked, ...], healthy: Replay | None, observed: Acceptance | None) -> str:
    serious = [r for r in ranked if r.finding.severity > Severity.NOTE]
    length = observed.length if observed else None
    if serious:
        first = serious[0].finding
        more = f" And {len(serious) - 1} more: {', '.join(r.finding.fault for r in serious[1:4])}." if len(serious) > 1 else ""
        return f"{first.fault}: {first.title}.{more}"
    if ranked and ranked[-1].finding.fault == "FM-25":
        return "Weak but right: nothing is wrong between trainer and engine."
    if healthy is not None and length is not None and healthy.accept_length - length > HARMLESS:
        return f"No fault is in the evidence given, yet {length:.2f} is served where the replay gives {healthy.accept_length:.2f}: see what is missing."
    if healthy is not None and length is not None:
        return f"Nothing is wrong: {length:.2f} is served, the replay gives {healthy.accept_length:.2f}."
    return "Nothing is wrong in the evidence given."


def _trail(case: Case, healthy: Replay | None, live: Replay | None) -> Iterator[str]:
    if case.launch is not None:
        yield f"launch command: {case.launch.engine}, algorithm {case.launch.algorithm or 'not named'}, {case.steps} steps, {case.slots} slots"
    if case.log is not None:
        yield f"log: {case.log.n_windows} windows with an accept length, accept rate of the {case.log.rate_kind} kind"
    if case.observed is not None and case.observed.length is not None:
        yield f"observed: accept length {case.observed.length:.2f}" + (
            f" over {case.observed.rounds} rounds" if case.observed.rounds else ""
        )
    if case.audit is not None:
        counts = {o: len(case.audit.outcome(o)) for o in ("loaded", "borrowed", "dropped", "missing")}
        yield f"audit under {case.audit.engine} {case.audit.engine_version}: " + ", ".join(f"{n} {o}" for o, n in counts.items() if n)
    if case.comparison is not None:
        c = case.comparison
        yield f"compare: {c.train.width} wide trained, {c.live.width} wide fed, over {c.aligned_tokens} tokens"
        if case.given.reference is None and c.reference:
            yield "reference: every boundary of the target captured here on the training tokens, to name what the live blocks are"
    if case.weights is not None:
        yield f"weights: {len(case.weights.tensors)} tensors, moments, norms and spectra"
    if healthy is not None:
        yield f"replay on {healthy.dump}: accept length {healthy.accept_length:.2f} over {healthy.rounds} rounds, the draft as trained"
    if live is not None:
        yield f"replay on {live.dump}: accept length {live.accept_length:.2f} over {live.rounds} rounds, on what the server fed"


def _missing(case: Case, ranked: tuple[Ranked, ...]) -> Iterator[str]:
    if case.draft is None:
        yield "no draft: names, shapes, map and weights were not checked; pass --draft FOLDER"
    if case.draft is not None and map_is_lost(case.healthy_draft):
        yield "no vocabulary map, and no t2d to rebuild it from: nothing could be replayed; look for d2t beside the training data"
    elif case.draft is not None and case.net is None:
        yield "no target: the draft borrows its embedding, so nothing could be replayed; pass --target FOLDER"
    if case.net is not None and case.train is None:
        yield "no training dump: the accept length to expect is unknown; capture one: eagle3diag capture --target TARGET --prompts PROMPTS --out train/"
    if case.live is None:
        yield "no live dump: wrong layers (FM-28), a shift (FM-29) and another order (FM-33) cannot be seen; record one in the server (docs/capture.md)"
    if case.observed is None:
        yield "nothing observed: which fault explains the number cannot be weighed; pass --log server.log or --acceptance 1.03"
    wants = any(r.finding.fault == "FM-28" and r.finding.severity is Severity.WARNING and r.predicted is None for r in ranked)
    if wants and case.reference is None:
        yield "no reference: cannot tell FM-28 from FM-29; eagle3diag capture --target TARGET --prompts PROMPTS --boundaries all --out reference/"
