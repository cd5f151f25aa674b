"""Run what the evidence allows, in order of cost, and rank what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from eagle3diag.case import Case, Given
from eagle3diag.diagnose.explain import LISTED, NEGLIGIBLE, SURE, Explanation, explain
from eagle3diag.diagnose.restore import restore, taken_over
from eagle3diag.diagnose.result import Diagnosis, Ranked, Suspect
from eagle3diag.diagnose.waterfall import waterfall
from eagle3diag.diagnose.words import cheapest, missing, trail, verdict
from eagle3diag.errors import BadArgument
from eagle3diag.faults import catalogue, detect
from eagle3diag.faults.replayed import HARMLESS, WEAK, judge_beaten, judge_less, judge_rounds, judge_weak
from eagle3diag.findings import Finding, Severity
from eagle3diag.replay import Replay
from eagle3diag.serving import Acceptance


def diagnose(
    *,
    draft: Any = None,
    target: Any = None,
    train: Any = None,
    live: Any = None,
    reference: Any = None,
    launch: Any = None,
    log: Any = None,
    acceptance: Any = None,
    engine: str | None = None,
    assume_fixed: Iterable[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Say which fault explains the accept length that you see, from whatever evidence there is.

    Parameters
    ----------
    draft, target: checkpoint folders. train, live: dumps of the same prompts from training and from the server. reference: a dump of
        every boundary of the target. launch: the server's command line, its words as a list, or a file with it. log: the server's log,
        gzipped or not.
    acceptance: counts (an :class:`~eagle3diag.serving.Acceptance`, a JSON file) or a bare accept length.
    engine: such as ``"sglang==0.5.8"``; otherwise taken from the log, the live dump or the command.
    assume_fixed: faults that were mended since the evidence was taken, such as ``["FM-05"]``: everything is judged without them.
    progress: called with one line before each step.

    Raises
    ------
    BadArgument: no evidence at all. Any InputError that opening a given part raises.
    """
    if all(part is None for part in (draft, train, live, launch, log, acceptance)):
        raise BadArgument("no evidence was given", hint="give at least one of draft, train, live, launch, log, acceptance")
    case = Case(Given(draft, target, train, live, reference, launch, log, acceptance, engine, frozenset(assume_fixed)))
    say = progress or (lambda _: None)
    say("reading the launch command, the log and the checkpoint")
    observed, checked = case.observed, case.audit
    if acceptance is not None and observed is not None and observed.length is not None and observed.length > case.steps + 1.001:
        raise BadArgument(
            f"an accept length of {observed.length:.2f} is more than {case.steps} drafts a round and the bonus token",
            where="acceptance",
            hint="give the number of the server that the command starts",
        )
    say("comparing train with live")
    comparison = case.comparison
    say("analysing the weights")
    weights = case.weights
    say("replaying the draft on the training dump")
    healthy = case.healthy
    say("collecting direct evidence")
    found = tuple(f for f in detect(case) if f.fault not in case.assume_fixed)
    if healthy is not None and observed is not None:
        found = (*found, *judge_beaten(healthy, observed))
    explanation = explain(case, found, say)
    live_replay = _replay_live(case, say)
    restored = restore(case, explanation, say)
    if restored is not None:
        taken = taken_over(explanation, restored.finding.fault)
        explanation = replace(explanation, weight={f: w for f, w in explanation.weight.items() if f not in taken}, as_trained=0.0)
    made = tuple(_by_rounds(found, explanation, healthy))
    found, by_rounds = tuple(sorted((*found, *made), key=lambda f: -f.severity)), frozenset(f.fault for f in made)
    suspects = tuple(_suspects(case, found, explanation))
    ranked = _ranked(found, explanation, restored, healthy, {s.fault for s in suspects})
    ranked = (*ranked, *_weak(ranked, healthy, observed))
    said = verdict(ranked, suspects, healthy, observed, explanation.as_trained, by_rounds, explanation.none_of_these)
    return Diagnosis(
        verdict=said,
        observed=observed,
        replay=healthy,
        live_replay=live_replay,
        counterfactuals=explanation.counterfactuals,
        ranked=(*ranked, *_less(ranked, healthy, observed, explanation.as_trained)),
        none_of_these=explanation.none_of_these,
        audit=checked,
        comparison=comparison,
        weights=weights,
        trail=tuple(trail(case, healthy, live_replay)),
        missing=tuple(missing(case, ranked, live_replay, by_rounds)),
        as_trained=explanation.as_trained,
        series=explanation.series,
        suspects=suspects,
        waterfall=tuple(waterfall(case, explanation, live_replay)),
    )


def _replay_live(case: Case, say: Callable[[str], None]) -> Replay | None:
    """The draft on what the server really fed it. Narrow features pass by fc, as they do in the engine."""
    if case.net is None or case.live is None or case.draft is None:
        return None
    width = case.live[0].features.shape[-1]
    if width not in (case.net.weights["fc.weight"].shape[1], case.net.embedding.shape[1]):
        return None
    say("replaying the draft on the live dump")
    replay = case.play(dump=case.live)
    return replay if replay is not None and replay.rounds else None


def _ranked(
    found: tuple[Finding, ...], explanation: Explanation, restored: Ranked | None, healthy: Replay | None, suspected: set[str]
) -> tuple[Ranked, ...]:
    """Findings by their share of the explanation. Of several findings of one fault the most severe carries its share, and of a suspect none."""
    weak = healthy is not None and healthy.accept_length < WEAK  # what is in the file is in its own replay too, which it then costs nothing
    rows, told = [], set(suspected)
    if restored is not None:
        rows, told = [restored], {*suspected, restored.finding.fault}
    for finding in found:
        fault, first = finding.fault, finding.fault not in told
        told.add(fault)
        cost, nearest = explanation.cost.get(fault), explanation.nearest.get(fault)
        if cost is not None and cost < HARMLESS:
            finding, cost, nearest = (finding, None, None) if weak else (_harmless(finding, cost), cost, nearest)
        weight = explanation.weight.get(fault, 0.0) if first else 0.0
        rows.append(Ranked(finding, weight, nearest, cost, explanation.certainty.get(fault, 0.0)))
    # of equals, a fault before the test that sees the same thing (K2, C2)
    return tuple(sorted(rows, key=lambda r: (-round(r.weight, 9), -r.finding.severity, not r.finding.fault.startswith("FM-"))))


def _by_rounds(found: tuple[Finding, ...], explanation: Explanation, healthy: Replay | None) -> Iterator[Finding]:
    """Faults of which there is no other evidence than that their replay makes the rounds that the server made."""
    seen = {f.fault for f in found if f.severity > Severity.NOTE}
    for fault in catalogue():
        replay, sure = explanation.nearest.get(fault.id), explanation.certainty.get(fault.id, 0.0) > SURE
        if healthy is not None and replay is not None and sure and fault.id not in seen:
            yield from judge_rounds(fault, replay.name, replay.served_alike, replay.served_rounds, healthy)


def _weak(ranked: tuple[Ranked, ...], healthy: Replay | None, observed: Acceptance | None) -> Iterator[Ranked]:
    if healthy is not None and not any(r.finding.severity > Severity.NOTE for r in ranked):
        for finding in judge_weak(healthy, observed.length if observed else None):
            yield Ranked(finding, 0.0, None, None)


def _less(ranked: tuple[Ranked, ...], healthy: Replay | None, observed: Acceptance | None, as_trained: float) -> Iterator[Ranked]:
    if healthy is not None and observed is not None and not any(r.finding.severity > Severity.NOTE for r in ranked):
        for finding in judge_less(healthy, observed, as_trained):
            yield Ranked(finding, 0.0, None, None)


def _suspects(case: Case, found: tuple[Finding, ...], explanation: Explanation) -> Iterator[Suspect]:
    """Faults without direct evidence that hold a share of the explanation, likeliest first, and what would show them."""
    seen = {f.fault for f in found if f.severity > Severity.NOTE}
    weights = explanation.weight
    unseen = [f for f in catalogue() if weights.get(f.id) and f.id not in seen and not case.would_show(f.shown_by)]
    left = LISTED * sum(weights[f.id] for f in unseen)
    if left < NEGLIGIBLE * (1 - explanation.as_trained):
        return
    for fault in sorted(unseen, key=lambda f: -weights[f.id]):
        if left > 0:
            weight = weights[fault.id]
            left -= weight
            yield Suspect(fault.id, fault.title, weight, explanation.nearest.get(fault.id), cheapest(case, fault))


def _harmless(finding: Finding, cost: float) -> Finding:
    if finding.severity < Severity.ERROR:
        return finding
    return replace(
        finding,
        severity=Severity.WARNING,
        because=f"{finding.because} Present, but on this pair it costs {max(cost, 0.0):.2f} accept length: not the explanation of a collapse.",
    )
