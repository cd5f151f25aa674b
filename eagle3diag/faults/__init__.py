"""The catalogue in code, and the judgement of any measurement. All thresholds live in this package, each with its reason."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3diag.findings import Finding, Result

if TYPE_CHECKING:
    from eagle3diag.audit import Audit
    from eagle3diag.case import Case
    from eagle3diag.faults.base import Fault


def judge(result: Result) -> tuple[Finding, ...]:
    """Findings of one measurement, most severe first. A replay alone is a number, not a fault: it is judged within a diagnosis."""
    from eagle3diag.audit import Audit
    from eagle3diag.compare import Comparison
    from eagle3diag.weights import WeightReport

    if isinstance(result, WeightReport):
        from eagle3diag.faults.trained import judge_weights

        return judge_weights(result)
    if isinstance(result, Comparison):
        from eagle3diag.faults import states

        return ordered([j(result) for j in states.JUDGES])
    if isinstance(result, Audit):
        return _judge_audit(result)
    return ()


def _judge_audit(audit: Audit) -> tuple[Finding, ...]:
    from eagle3diag.faults import agreement, checkpoint, config, general, shapes, vocabulary

    if (other := general.other_kind(audit)) is not None:  # the rest is about EAGLE-3
        return (other,)
    parts = (checkpoint, shapes, vocabulary, config, agreement)
    judges = [j for part in parts for j in part.JUDGES]
    return ordered([j(audit) for j in (*judges, *general.JUDGES, *general.WITHOUT_WEIGHTS)])


def ordered(findings: list[Finding | None]) -> tuple[Finding, ...]:
    """Those that were made, most severe first."""
    return tuple(sorted((f for f in findings if f is not None), key=lambda f: -f.severity))


def catalogue() -> tuple[Fault, ...]:
    """Every fault, in the order its evidence is cheapest to look at."""
    from eagle3diag.faults import checkpoint, config, launch, shapes, states, vocabulary

    return (*launch.FAULTS, *checkpoint.FAULTS, *shapes.FAULTS, *vocabulary.FAULTS, *config.FAULTS, *states.FAULTS)


def in_words() -> dict[str, dict[str, Any]]:
    """The whole catalogue in words, by id, in order: ``title``, ``group``, ``mechanism``, ``symptom``, ``measure``, ``fix``, ``not_it``,
    ``seen``. It is wider than :func:`catalogue`: not every fault can be judged by code."""
    words: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "catalogue.toml").read_text(encoding="utf-8"))
    return words


def detect(case: Case) -> tuple[Finding, ...]:
    """Direct evidence of every fault in the case, and what the audit and the weights say besides, most severe first."""
    from eagle3diag.faults import agreement, config, general, shapes, vocabulary
    from eagle3diag.faults.trained import judge_weights

    if case.audit is not None and (other := general.other_kind(case.audit)) is not None:
        return (other,)
    found = [fault.detect(case) for fault in catalogue()]
    if case.audit is not None:
        parts = (shapes, vocabulary, config, agreement)
        found += [j(case.audit) for j in (*general.JUDGES, *(j for part in parts for j in part.GENERAL))]
    if case.weights is not None:
        found += judge_weights(case.weights)
    return ordered(found)
