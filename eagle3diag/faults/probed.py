"""What a probe says by itself: the same judges as in a diagnosis, on what the server told of itself."""

from __future__ import annotations

from dataclasses import replace

from eagle3diag.case import Case, Given
from eagle3diag.engines.rules import Version
from eagle3diag.errors import BadArgument
from eagle3diag.faults import catalogue, ordered, served
from eagle3diag.faults.serving import symptoms
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.serving.probe import Probe


def judge_probe(probe: Probe) -> tuple[Finding, ...]:
    """Findings of one probe, most severe first."""
    acceptance, engine = probe.acceptance, f"{probe.engine}=={probe.engine_version}"
    if not _is_version(probe.engine_version):  # a build of one's own, or a server that says anything
        acceptance, engine = replace(acceptance, engine_version=None), probe.engine
    case = Case(Given(launch=probe.launch, acceptance=acceptance, engine=engine))
    found: list[Finding | None] = [*served(case), *(fault.detect(case) for fault in catalogue())]
    if not any(f is not None and f.severity > Severity.NOTE for f in found):
        found += symptoms(case)
    return ordered([*found, _company(probe)])


def _is_version(text: str | None) -> bool:
    try:
        return text is not None and bool(Version.parse(text))
    except BadArgument:
        return False


def _company(probe: Probe) -> Finding | None:
    """Counters cannot tell one request from another."""
    if probe.source != "metrics" or not probe.strangers:
        return None
    return Finding(
        "FM-74",
        Severity.WARNING,
        f"{probe.strangers} other requests ended during the probe and are in its counts",
        "vLLM counts drafts for the whole server, so these numbers are not those of the probe's prompts alone.",
        (
            Evidence("requests sent", len(probe.answers), None, "probe"),
            Evidence("requests that ended", len(probe.answers) + probe.strangers, str(len(probe.answers)), "/metrics"),
        ),
        "Probe again when the server is idle.",
        "The number of requests that ended must be the number sent.",
    )
