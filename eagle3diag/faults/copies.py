"""What tells that the server has another copy of the draft than was given: it accepts more than this file lets it (M9), or reads other ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eagle3diag.case import Case
from eagle3diag.faults import catalogue, judge
from eagle3diag.faults.base import IN_FILES
from eagle3diag.faults.replayed import ANOTHER_COPY, BEATEN
from eagle3diag.findings import Evidence, Finding, Severity

NO_START = ("FM-17", "FM-18", "FM-23", "FM-27")
"""Faults of the file under which no engine starts: whatever a server accepts, it is not this file that it serves."""


def told_apart(case: Case, found: Sequence[Finding]) -> tuple[Finding, ...]:
    """``found``; where the number that is served refutes an error of the file, M9 before all, and what the file shows as notes: it is of the
    copy that was given, and explains nothing of the server."""
    length = None if case.observed is None else case.observed.length
    if length is None or case.audit is None:
        return tuple(found)
    mended = case.assume_fixed
    ends = {c.id: c.typical[1] for c in catalogue() if c.typical is not None and c.shown_by == IN_FILES and c.id not in mended}
    ends |= {fault: 1.0 for fault in NO_START if fault not in mended}
    if any(load.canonical.startswith("layers.0.") for load in case.audit.outcome("loaded")):
        ends.pop("FM-05", None)  # a layer of which a norm is missing may do well
    doubtful = [f for f in found if f.severity is Severity.ERROR and length >= ends.get(f.fault, length) + BEATEN]
    if not doubtful:
        return tuple(found)
    of_file = {f for part in (case.audit, case.weights) if part is not None for f in judge(part) if f.severity > Severity.NOTE}
    refuted = [f for f in doubtful if f in of_file]
    if not refuted:
        return tuple(found)
    engine = f"{case.audit.engine} {case.audit.engine_version}"
    first = Finding(
        "M9",
        Severity.ERROR,
        f"the server accepts {length:.2f}, and the draft given cannot: another copy, or another version, is served",
        f"With what {engine} makes of this file next to nothing is accepted. So the server loads another copy of the draft, or is not {engine}; what "
        "is found in the file says nothing of the server, and stands below as notes.",
        (
            Evidence("accept length, observed", round(length, 3), None, "server"),
            *(
                Evidence(
                    f"accept length with {f.fault}",
                    "none: no start" if f.fault in NO_START else f"at most {ends[f.fault]:g}",
                    None,
                    "reports",
                )
                for f in refuted
            ),
        ),
        f"{ANOTHER_COPY[0].upper()}{ANOTHER_COPY[1:]} Name the version that serves: --engine {case.audit.engine}==VERSION.",
        "`eagle3diag audit` of the folder that is served must be silent about its tensors.",
    )
    notes = (
        replace(f, severity=Severity.NOTE, because=f"{f.because} It is so in the file given, and not in what is served.")
        if f in of_file
        else f
        for f in found
    )
    return (first, *notes)


def said_already(case: Case, found: Finding, trained: Sequence[int]) -> Finding:
    """``found``, of other boundaries than ``trained``; where the config that was given asks this engine for ``trained``, writing the ids into it
    would change nothing: another one is loaded."""
    audit, launch = case.audit, case.launch
    if audit is None or not audit.captures or any(capture.boundaries != tuple(sorted(set(trained))) for capture in audit.captures):
        return found
    engine = f"{audit.engine} {audit.engine_version}"
    loads = f" It was started with {launch.draft_path} ({case.launch_source})." if launch is not None and launch.draft_path else ""
    return replace(
        found,
        because=f"{found.because} The config given already asks {engine} for the trained ones, in {audit.captures[0].source}: so the server loads "
        "another config or copy than this, or is another version.",
        fix=f"Hold the config.json that the server loads against the one given, and serve the one given.{loads}",
    )
