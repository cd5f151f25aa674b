"""What a live dump says of its own recording: forwards that no hook saw."""

from __future__ import annotations

from eagle3diag.case import Case
from eagle3diag.faults.base import Fault
from eagle3diag.findings import Evidence, Finding, Severity


def _silent_hooks(case: Case) -> Finding | None:
    """The recorder saw prompts and no round after them, and said so (``rounds_missed``); one round is enough to know that hooks fire."""
    counters = case.live.counters or {} if case.live is not None else {}
    missed = counters.get("rounds_missed", 0)
    if not missed or counters.get("target_rounds"):
        return None
    return Finding(
        "C11",
        Severity.WARNING,
        "The recording holds prompts only: no hook fired in any round",
        "Replayed CUDA graphs run no Python, so a hook sees eager prefills at most. What the draft was fed after the prompts is not in the "
        "dump. That is complete only if every request asked for a single token.",
        (
            Evidence("prefills seen", missed, None, "live dump"),
            Evidence("rounds seen (verify or decode)", 0, "about one per accepted run of tokens", "live dump"),
        ),
        "Record again with --disable-cuda-graph (or --cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled); "
        "the command of eagle3diag capture sglang sets it.",
        "The new dump's target_rounds must be above 0.",
    )


FAULTS = (Fault("C11", _silent_hooks, own_title="hooks that replayed graphs never called"),)
