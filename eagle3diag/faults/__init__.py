"""The catalogue in code, and the judgement of any measurement. All thresholds live in this package, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3diag.findings import Finding, Result

if TYPE_CHECKING:
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
        from eagle3diag.faults import checkpoint, general

        own = (checkpoint.dropped_names, checkpoint.missing_head, checkpoint.missing_map, checkpoint.misread_map)
        return ordered([j(result) for j in (*own, *general.JUDGES)])
    return ()


def ordered(findings: list[Finding | None]) -> tuple[Finding, ...]:
    """Those that were made, most severe first."""
    return tuple(sorted((f for f in findings if f is not None), key=lambda f: -f.severity))


def catalogue() -> tuple[Fault, ...]:
    """Every fault, in the order its evidence is cheapest to look at."""
    from eagle3diag.faults import checkpoint, launch, loop, states

    return (*launch.FAULTS, *checkpoint.FAULTS, *states.FAULTS, *loop.FAULTS)


def detect(case: Case) -> tuple[Finding, ...]:
    """Direct evidence of every fault in the case, and what the audit and the weights say besides, most severe first."""
    from eagle3diag.faults import general
    from eagle3diag.faults.trained import judge_weights

    found = [fault.detect(case) for fault in catalogue()]
    if case.audit is not None:
        found += [j(case.audit) for j in general.JUDGES]
    if case.weights is not None:
        found += judge_weights(case.weights)
    return ordered(found)
