"""The catalogue in code, and the judgement of any measurement. All thresholds live in this package, each with its reason."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3diag.findings import Finding, Result, Severity

if TYPE_CHECKING:
    from eagle3diag.audit import Audit
    from eagle3diag.case import Case
    from eagle3diag.compare import Sampled
    from eagle3diag.faults.base import Fault


def judge(result: Result) -> tuple[Finding, ...]:
    """Findings of one measurement, most severe first. A replay alone is a number, and a finding only where that number is next to nothing."""
    from eagle3diag.audit import Audit
    from eagle3diag.compare import Comparison, DumpCheck
    from eagle3diag.replay import Replay
    from eagle3diag.serving.probe import Probe
    from eagle3diag.weights import WeightReport

    if isinstance(result, Probe):
        from eagle3diag.faults.probed import judge_probe

        return judge_probe(result)
    if isinstance(result, WeightReport):
        from eagle3diag.faults.trained import judge_weights

        return judge_weights(result)
    if isinstance(result, Comparison):
        from eagle3diag.faults import states

        return _of_sample(ordered([j(result) for j in states.JUDGES]), result.sampled)
    if isinstance(result, DumpCheck):
        from eagle3diag.faults import one_dump

        return _of_sample(ordered([j(result) for j in one_dump.JUDGES]), result.sampled)
    if isinstance(result, Audit):
        return _judge_audit(result)
    if isinstance(result, Replay):
        from eagle3diag.faults.replayed import judge_replay

        return ordered([*judge_replay(result)])
    return ()


def _of_sample(findings: tuple[Finding, ...], sampled: Sampled | None) -> tuple[Finding, ...]:
    """The same, each saying that it was seen in a sample only."""
    if sampled is None:
        return findings
    return tuple(replace(f, because=f"{f.because} Measured on {sampled}.".lstrip()) for f in findings)


def _judge_audit(audit: Audit) -> tuple[Finding, ...]:
    from eagle3diag.faults import agreement, checkpoint, config, engine, general, names, shapes, vocabulary

    if (other := general.other_kind(audit)) is not None:  # the rest is about EAGLE-3
        return (other,)
    parts = (checkpoint, shapes, vocabulary, config, agreement)
    judges = [j for part in parts for j in part.JUDGES]
    judges += [*engine.JUDGES, *names.JUDGES, *general.JUDGES, *general.WITHOUT_WEIGHTS]
    return ordered([*(j(audit) for j in judges), *engine.known_bugs(audit)])


def ordered(findings: Sequence[Finding | None]) -> tuple[Finding, ...]:
    """Those that were made, most severe first."""
    return tuple(sorted((f for f in findings if f is not None), key=lambda f: -f.severity))


def catalogue() -> tuple[Fault, ...]:
    """Every fault once, in the order its evidence is cheapest to look at: what sees it, and what replays it, wherever that is written."""
    entries: dict[str, list[Fault]] = {}
    for fault in _entries():
        entries.setdefault(fault.id, []).append(fault)
    return tuple(_as_one(same) for same in entries.values())


def _as_one(same: list[Fault]) -> Fault:
    from eagle3diag.faults.base import no_changes

    return replace(
        same[0],
        changes=next((f.changes for f in same if f.changes is not no_changes), no_changes),
        shown_by=tuple(dict.fromkeys(kinds for f in same for kinds in f.shown_by)),
        typical=next((f.typical for f in same if f.typical is not None), None),
    )


def _entries() -> tuple[Fault, ...]:
    """What sees a fault, cheapest evidence first: the log and the dumps may each see the same one."""
    from eagle3diag.faults import checkpoint, config, launch, log, loop, packed, recorded, shapes, states, vocabulary

    modules = (launch, log, checkpoint, shapes, vocabulary, config, packed, states, loop, recorded)
    return tuple(fault for module in modules for fault in module.FAULTS)


@cache
def in_words() -> dict[str, dict[str, Any]]:
    """The whole catalogue in words, by id, in order: ``title``, ``group``, ``mechanism``, ``symptom``, ``measure``, ``fix``, ``not_it``,
    ``seen``. It is wider than :func:`catalogue`: not every fault can be judged by code."""
    words: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "catalogue.toml").read_text(encoding="utf-8"))
    return words


@cache
def tests_in_words() -> dict[str, dict[str, Any]]:
    """The tests that findings beside the catalogue are named after, by code: ``words``, ``measure``, ``fix``, and ``sign_of``, if of any fault."""
    words: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "tests.toml").read_text(encoding="utf-8"))
    return words


def named(code: str) -> str:
    """A code of a test with its words, which nobody knows by heart; one of the catalogue as it is, for its title stands beside it. Of a
    series each.

    >>> named("K1"), named("FM-05+H3")
    ('K1 names', 'FM-05+H3 scale')
    """
    tests = tests_in_words()
    return "+".join(f"{one} {tests[one]['words']}" if one in tests else one for one in code.split("+"))


def detect(case: Case) -> tuple[Finding, ...]:
    """Direct evidence of every fault in the case, and what the audit and the weights say besides, most severe first."""
    from eagle3diag.faults import agreement, config, copies, engine, general, names, shapes, sources, versions, vocabulary
    from eagle3diag.faults.trained import judge_weights

    if case.audit is not None and (other := general.other_kind(case.audit)) is not None:
        return (other,)
    found: list[Finding | None] = list(served(case))
    found += [fault.detect(case) for fault in _entries()]
    found += engine.detect(case)
    found += versions.in_older_versions(case)
    if case.audit is not None:
        parts = (shapes, vocabulary, config, agreement)
        found += [j(case.audit) for j in (*names.JUDGES, *general.JUDGES, *(j for part in parts for j in part.GENERAL))]
    if case.weights is not None:
        stray = any(f is not None and f.fault == "FM-09" for f in found)  # held against the target: the weights alone guess at it
        found += [f for f in judge_weights(case.weights) if not (stray and f.fault == "FM-09")]
    if not any(f is not None and f.severity > Severity.NOTE for f in found):
        from eagle3diag.faults.serving import symptoms

        found += symptoms(case)
    found.append(sources.disagree(case))
    return ordered(copies.told_apart(case, [f for f in found if f is not None]))


def served(case: Case) -> Iterator[Finding]:
    """What the server's own numbers say: the counts by themselves, and the log."""
    from eagle3diag.faults.log import judge_log
    from eagle3diag.faults.serving import judge_acceptance

    if case.observed is not None:
        yield from judge_acceptance(case.observed)
    if case.log is not None:
        yield from judge_log(case.log)
