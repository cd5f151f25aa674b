"""FM-01: EAGLE named where EAGLE-3 is needed. FM-73: a biased rate read as acceptance. And what a command line says besides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from eagle3diag.case import Case
from eagle3diag.dumps import Record
from eagle3diag.engines import split_engine
from eagle3diag.engines.combos_vllm import method
from eagle3diag.faults import commands
from eagle3diag.faults.base import Fault
from eagle3diag.faults.serving import NEXT_TO_NOTHING, NOTHING_ACCEPTED
from eagle3diag.faults.widths import other_stage
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.replay import Change, Net
from eagle3diag.serving import Launch

EAGLE1_NAMES = ("EAGLE", "NEXTN")  # SGLang: NEXTN is an alias of EAGLE
DUMP_DISAGREES = 0.25
"""A live width this many hidden sizes away from what fc takes is another width, not rounding: widths are whole multiples of H."""

_SKIPPED = {
    "sglang": (
        "Only the exact string EAGLE3 arms the capture of aux states. Under EAGLE the draft gets the target's final state, one hidden size "
        "wide; the guard before fc compares that width with the embedding's, finds them equal, and passes the state around fc without a message.",
        "Start the server with --speculative-algorithm EAGLE3.",
    ),
    "vllm": (
        "Only the method eagle3 captures aux states, and only under it is fc run. Under eagle the draft gets the target's final state, one "
        "hidden size wide, without a message.",
        'Write "method": "eagle3" in --speculative-config.',
    ),
}
"""What EAGLE-1 does to an EAGLE-3 draft, and what to start instead. Source: SGLang 0.5.23 ``llama_eagle3.py``, vLLM 0.32
``gpu_model_runner.py`` and ``spec_decode/llm_base_proposer.py``."""


def _skipped(case: Case) -> tuple[str, str]:
    launch, _ = effective(case)
    return _SKIPPED["vllm" if (launch.engine if launch else split_engine(case.engine)[0]) == "vllm" else "sglang"]


def _eagle_flag(case: Case) -> Finding | None:
    """Named by the launch command, or seen in the live dump: one H-wide state where fc takes several, and fc never ran."""
    named = _named_eagle(case)
    evidence: list[Evidence] = [] if named is None else [named]
    wide = case.audit.needs_target_width if case.audit else (case.comparison.train.width_in_h if case.comparison else 0.0)
    if not wide > 1.5:  # an EAGLE-1/2 draft, where EAGLE is the right flag, or nothing known but a name
        return None if wide or named is None else _named_only(case, named)
    evidence.append(Evidence("fc takes, in hidden sizes of the target", wide, None, "checkpoint" if case.audit else "training dump"))
    fed = _live_width(case)
    narrow = fed is not None and abs(fed - 1) < DUMP_DISAGREES
    if narrow and case.live is not None:
        width = case.live[0].features.shape[-1]
        evidence.append(Evidence("width fed to the draft", width, f"{round(width * wide)} = {wide:g} x {width}", "live dump"))
        calls = (case.live.counters or {}).get("fc_calls")
        if calls is not None:
            evidence.append(Evidence("times fc ran", calls, "once per prefill and per verification", "live dump"))
    if case.comparison is not None and case.comparison.single:
        best = max(case.comparison.single, key=lambda b: b.standardised.median)
        what = "final normed state" if best.boundary == -1 else f"boundary {best.boundary}"
        evidence.append(Evidence(f"cosine of what is fed with the target's {what}", best.standardised.median, None, "compare"))
    if named is None and (not narrow or (case.comparison is not None and other_stage(case.comparison) is not None)):
        return None
    title = "EAGLE was named where EAGLE-3 is needed" if named else f"one hidden state reaches the draft where {wide:g} were trained"
    return Finding(
        "FM-01",
        Severity.ERROR,
        f"{title}, so fc is skipped",
        _skipped(case)[0] + ("" if named else _though_named(case)),
        tuple(evidence),
        _skipped(case)[1],
        "Measure the accept length again; a second fault may have been hiding behind this one.",
    )


def _though_named(case: Case) -> str:
    """What else it may be where the command that is known names the right algorithm."""
    launch, source = effective(case)
    if launch is None or not launch.algorithm:
        return ""
    return (
        f" The {source} names {launch.algorithm}: then it is not of the server that was recorded, or the target's class hands out no aux states "
        "(FM-02)."
    )


def effective(case: Case) -> tuple[Launch | None, str]:
    """What ran, and where that is said: where they differ, the arguments that the log shows resolved go before the pasted command."""
    logged = case.log.launch if case.log is not None else None
    differs = logged is not None and logged.algorithm and (case.launch is None or logged.algorithm != case.launch.algorithm)
    return (logged, "log") if differs else (case.launch, case.launch_source)


def _named_eagle(case: Case) -> Evidence | None:
    """The option that names EAGLE-1, as the engine takes it."""
    launch, source = effective(case)
    if launch is not None and launch.engine == "vllm" and method(launch) == "eagle":
        return Evidence("method", launch.algorithm or "eagle, by the draft's name", "eagle3", source)
    if launch is not None and launch.engine == "sglang" and (launch.algorithm or "").upper() in EAGLE1_NAMES:
        return Evidence("--speculative-algorithm", str(launch.algorithm), "EAGLE3", source)
    return None


def _named_only(case: Case, named: Evidence) -> Finding | None:
    """Without the checkpoint only the draft's name speaks, if that: for an EAGLE-1 or 2 draft EAGLE is right."""
    launch, source = effective(case)
    path = launch.draft_path if launch else None
    called = path is not None and re.search(r"eagle[-_]?3", path, re.IGNORECASE) is not None
    nothing = case.observed is not None and case.observed.length is not None and case.observed.length <= NEXT_TO_NOTHING
    if not called and not nothing:
        return None
    return Finding(
        "FM-01",
        Severity.WARNING,
        "the draft is called EAGLE-3, and the server is started with EAGLE"
        if called
        else "the server is started with EAGLE, and next to nothing is accepted: is the draft an EAGLE-3 one?",
        f"For an EAGLE-3 draft that is wrong. {_skipped(case)[0]}",
        (named, Evidence("draft", path or "not named", None, source)),
        _skipped(case)[1],
        "Give the draft too: the width of its fc decides.",
    )


def _live_width(case: Case) -> float | None:
    if case.live is None or not len(case.live):
        return None
    hidden = case.live.target.hidden_size or (case.audit.target_hidden_size if case.audit else 0)
    return case.live[0].features.shape[-1] / hidden if hidden else None


def _eagle_changes(case: Case) -> Iterator[Change]:
    """What SGLang runs under EAGLE: final normed state, fc passed by, the target's head cut to the draft's size, no map."""
    if case.train is None or case.target is None or case.train[0].final is None:
        return
    target = case.target

    def net(healthy: Net) -> Net:
        rows = len(healthy.head)
        return replace(healthy, head=target.head()[:rows].float(), draft_ids=torch.arange(rows))

    def features(record: Record, fed: Tensor) -> Tensor:
        final = record.final
        assert final is not None
        return final

    yield Change("FM-01", "flag EAGLE: final state past fc, target's head", net=net, features=features)


def _biased_rate(case: Case) -> Finding | None:
    seen, kind = case.observed, case.rate_kind
    length = None if seen is None else seen.length
    slots = case.num_draft_tokens
    if length is None or not kind.startswith("biased") or slots < 2:
        return None
    strict = (length - 1) / case.steps
    zero = length <= NOTHING_ACCEPTED
    return Finding(
        "FM-73",
        Severity.WARNING if zero else Severity.NOTE,
        f"the printed accept rate counts the bonus token: {length / slots:.2f} is {strict:.2f}" + (", nothing accepted" if zero else ""),
        f"This engine version divides accepted plus bonus tokens by the slots, so its floor is 1/{slots} = {1 / slots:.2f}, not 0.",
        (
            Evidence("accept length", length, f"above 1; 1.00 is nothing accepted, {case.steps + 1} is all"),
            Evidence("accept rate as printed", round(length / slots, 4), f"floor {1 / slots:.2f} at {slots} slots", case.engine),
            Evidence("strict accept rate", round(strict, 4), "accepted drafts / proposed drafts"),
        ),
        "Read the accept length, or convert: strict = (rate * slots - 1) / (slots - 1).",
        "SGLang prints the strict rate since 0.5.11.",
    )


FAULTS = (
    Fault("FM-01", _eagle_flag, _eagle_changes, (("launch",), ("train", "live")), (1.0, 1.05)),
    Fault("FM-73", _biased_rate, shown_by=(("acceptance",), ("log",))),
    *commands.FAULTS,
)
