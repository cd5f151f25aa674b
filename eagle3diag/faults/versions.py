"""Where nothing says which version of the engine serves: a checkpoint that the newest one loads, and older ones spoil without a word."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3diag.audit import Audit, audit
from eagle3diag.case import Case
from eagle3diag.engines import Version, rules_of
from eagle3diag.faults.serving import NEXT_TO_NOTHING
from eagle3diag.findings import Evidence, Finding, Severity


def in_older_versions(case: Case) -> Iterator[Finding]:
    """Errors of the checkpoint in versions before the newest, which was assumed: each with the version from which on it is gone. A server
    that accepts something has lost no layer, head or map; one that answers did start."""
    from eagle3diag.faults import judge

    length = case.observed.length if case.observed is not None else None
    if case.draft is None or case.audit is None or case.version_said or (length is not None and length > NEXT_TO_NOTHING):
        return
    told = {f.fault for f in judge(case.audit)}
    after: Version | None = None
    for version in reversed(rules_of(case.audit.engine).turns):
        then = audit(case.draft, engine=f"{case.audit.engine}=={version}", target=case.target)
        errors = [f for f in judge(then) if f.severity is Severity.ERROR and f.fault not in told]
        if after is not None and not _ends(then):
            told |= {f.fault for f in errors}
            yield from (_told(f, then, after, Severity.NOTE if length is None else Severity.WARNING) for f in errors)
        after = version


def _ends(audit: Audit) -> bool:
    return bool(audit.refused or audit.outcome("raises") or audit.outcome("shape_error"))


def _told(found: Finding, then: Audit, before: Version, severity: Severity) -> Finding:
    return Finding(
        found.fault,
        severity,
        f"before {then.engine} {before}, {found.title}; which version serves is not said",
        f"{then.engine} {before} and newer load this checkpoint. {found.because}",
        (Evidence("engine version", "not said", f"{before} or newer", "all that was given"), *found.evidence),
        f"Name the version (--engine {then.engine}==VERSION). If it is older than {before}: {found.fix}",
        found.check,
    )
