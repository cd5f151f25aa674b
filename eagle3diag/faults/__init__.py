"""The catalogue in code, and the judgement of any measurement. All thresholds live in this package, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from eagle3diag.findings import Finding, Result, Severity

if TYPE_CHECKING:
    from eagle3diag.case import Case
    from eagle3diag.faults.base import Fault


def judge(result: Result) -> tuple[Finding, ...]:
    """Findings of one measurement, most severe first. A replay alone is a number, not a fault: it is judged within a diagnosis."""
    from eagle3diag.audit import Audit
    from eagle3diag.compare import Comparison
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

        return ordered([j(result) for j in states.JUDGES])
    if isinstance(result, Audit):
        from eagle3diag.faults import checkpoint, general

        own = (checkpoint.dropped_names, checkpoint.missing_head, checkpoint.missing_map, checkpoint.misread_map)
        return ordered([j(result) for j in (*own, *general.JUDGES)])
    return ()


def ordered(findings: Sequence[Finding | None]) -> tuple[Finding, ...]:
    """Those that were made, most severe first."""
    return tuple(sorted((f for f in findings if f is not None), key=lambda f: -f.severity))


def catalogue() -> tuple[Fault, ...]:
    """Every fault, in the order its evidence is cheapest to look at."""
    from eagle3diag.faults import checkpoint, launch, log, states

    return (*launch.FAULTS, *log.FAULTS, *checkpoint.FAULTS, *states.FAULTS)


def detect(case: Case) -> tuple[Finding, ...]:
    """Direct evidence of every fault in the case, and what the audit and the weights say besides, most severe first."""
    from eagle3diag.faults import general
    from eagle3diag.faults.trained import judge_weights

    found: list[Finding | None] = list(served(case))
    found += [fault.detect(case) for fault in catalogue()]
    if case.audit is not None:
        found += [j(case.audit) for j in general.JUDGES]
    if case.weights is not None:
        found += judge_weights(case.weights)
    if not any(f is not None and f.severity > Severity.NOTE for f in found):
        from eagle3diag.faults.serving import symptoms

        found += symptoms(case)
    return ordered(found)


def served(case: Case) -> Iterator[Finding]:
    """What the server's own numbers say: the counts by themselves, and the log."""
    from eagle3diag.faults.log import judge_log
    from eagle3diag.faults.serving import judge_acceptance

    if case.observed is not None:
        yield from judge_acceptance(case.observed)
    if case.log is not None:
        yield from judge_log(case.log)
