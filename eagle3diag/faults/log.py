"""What a log shows of a running draft: trends over its windows (M6 to M8), and lines that name a fault."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from eagle3diag.case import Case
from eagle3diag.engines import at, known_version
from eagle3diag.engines.logs import Kind
from eagle3diag.engines.sglang import ACCEPT_RATE
from eagle3diag.errors import BadArgument
from eagle3diag.faults.base import Fault, off_by_one, some_of
from eagle3diag.faults.copies import said_already
from eagle3diag.faults.serving import NOTHING_ACCEPTED
from eagle3diag.faults.sources import several_servers
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.serving import LogSeries, Note
from eagle3diag.serving.trends import Mean, by_context, by_load, drift

ENOUGH_WINDOWS = 20
"""Windows that a group of a log needs before its mean is compared: an SGLang window is 40 decode steps."""

SURE = 1.6
"""Halves of a 95 % interval that a loss must exceed: 3.1 standard errors. Three trends are looked at in every log, prompts wander, and the
correlation of neighbouring windows is itself estimated; of 200 logs that only wander, two are then suspected at most (tested)."""

CONTEXT_LOSS = 0.3
"""M6: accept length lost from one octave of context to the next; FM-55 as reported lost 0.6 a doubling, healthy drafts next to nothing."""

LOAD_LOSS = 0.10
"""M7: relative loss from one running request to eight or more. The catalogue's 5 % is for the same prompts; in a log they differ."""

DECAY = 0.25
"""M8: share of what was accepted at first that is gone in the last tenth. Prompts change over a day; faults reported took nearly all."""


def judge_log(log: LogSeries) -> Iterator[Finding]:
    """Trends over the windows of a log, lines that name a fault by themselves, and several servers in one log."""
    yield from several_servers(log)
    yield from _decay(log)
    yield from _context(log)
    yield from _load(log)
    yield from _named(log)


def _decay(log: LogSeries) -> Iterator[Finding]:
    seen = drift(log.windows)
    if seen is None or seen.first.n < ENOUGH_WINDOWS or seen.first.mean <= NOTHING_ACCEPTED:
        return
    lost, half = seen.first.above(seen.last)
    if seen.lost is None or min(lost, seen.lost) < max(SURE * half, DECAY * (seen.first.mean - 1)):  # what falls with load is FM-58's
        return
    hours = [] if seen.hours is None else [Evidence("hours between", round(seen.hours, 2), None, "log")]
    yield Finding(
        "FM-62",
        Severity.WARNING,
        f"the accept length falls over the log, from {seen.first.mean:.2f} to {seen.last.mean:.2f}",
        "Healthy at first and poor later, with the same files: the state of the engine, not the draft. Other prompts or longer contexts "
        "later on can look the same.",
        (_mean("accept length, first tenth", seen.first), _mean("accept length, last tenth", seen.last), *hours),
        "Restart the server and probe it: if that brings it back, probe it regularly and report the engine's version.",
        "eagle3diag probe at boot and after a day, with the same prompts.",
    )


def _context(log: LogSeries) -> Iterator[Finding]:
    groups = [g for g in by_context(log.windows) if g.lengths.n >= ENOUGH_WINDOWS]
    steps = [(a, b, a.lengths.above(b.lengths)) for a, b in pairwise(groups) if b.low == 2 * a.low]
    falls = [(a, b) for a, b, (lost, half) in steps if lost > max(CONTEXT_LOSS, SURE * half)]
    if not falls:
        return
    start = falls[0][0]
    yield Finding(
        "FM-55",
        Severity.WARNING,
        f"the accept length falls with the context, from about {2 * start.low:.0f} tokens on",
        "A draft trained on short texts loses its way beyond their length; a cos/sin table or a window that is too short does the same.",
        tuple(_mean(f"accept length at {g.low:.0f} to {2 * g.low:.0f} tokens a request", g.lengths) for g in groups),
        "Train on longer texts, or check max_position_embeddings, rope scaling and sliding_window of the draft.",
        "Replay a dump of long texts: eagle3diag replay shows whether the draft itself falls off.",
    )


def _load(log: LogSeries) -> Iterator[Finding]:
    groups = by_load(log.windows)
    alone = next((g.lengths for g in groups if g.low == 1), None)
    busy = max((g.lengths for g in groups if g.low >= 8), key=lambda m: m.n, default=None)
    if alone is None or busy is None or min(alone.n, busy.n) < ENOUGH_WINDOWS or alone.mean <= NOTHING_ACCEPTED:
        return
    lost, half = alone.above(busy)
    if lost < max(SURE * half, LOAD_LOSS * alone.mean):
        return
    yield Finding(
        "FM-58",
        Severity.WARNING,
        f"the accept length falls with load, from {alone.mean:.2f} alone to {busy.mean:.2f}",
        "Padding of CUDA graphs, or rows mixed up between requests (FM-59), show only in batches. Other prompts under load can look the same.",
        tuple(_mean(f"accept length at {g.low:.0f} to {2 * g.low - 1:.0f} running requests", g.lengths) for g in groups),
        "Send the same prompts alone and eight at a time, greedily; then once more with CUDA graphs disabled.",
        "The two accept lengths must agree within 5 %.",
    )


def _mean(name: str, mean: Mean) -> Evidence:
    return Evidence(name, f"{mean.mean:.2f} ± {mean.half:.2f}", None, f"{mean.n} windows")


#: Kinds of lines that are a finding by themselves: fault, severity, title, because, fix.
_NAMED: dict[Kind, tuple[str, Severity, str, str, str]] = {
    "capture": (
        "FM-02", Severity.ERROR, "the target's class cannot hand out aux states",
        "The engine's class for this target, or the wrapper around it, lacks the interface that EAGLE-3 needs.",
        "Use an engine version whose class for this target supports EAGLE-3.",
    ),
    "numbers": (
        "FM-43", Severity.ERROR, "the log reports values that are not finite",
        "Non-finite logits make a draft look dead or perfect, and the answers worthless.",
        "Serve in bfloat16, try another attention backend, and capture what the draft is fed.",
    ),
}  # fmt: skip
_DRAFTS_OWN = re.compile(r"eagle3|midlayer|hidden_norm|\bfc[._]|d2t|layers\.0\.|draft", re.IGNORECASE)


def _named(log: LogSeries) -> Iterator[Finding]:
    for kind, (fault, severity, title, because, fix) in _NAMED.items():
        said = [note for note in log.notes if note.kind == kind]
        if said:
            yield Finding(fault, severity, title, because, tuple(map(_quote, said)), fix, "The line must be gone from the log.")
    dropped = [note for note in log.notes if note.kind == "weights"]
    if dropped:
        yield Finding(
            "K1",
            Severity.WARNING if any(_DRAFTS_OWN.search(note.text) for note in dropped) else Severity.NOTE,
            "the loader says that weights were dropped",
            "A weight without a matching parameter is left out; the parameter that should have received it keeps its random start.",
            tuple(map(_quote, dropped)),
            "Rename the tensors to what this engine version expects.",
            "eagle3diag audit with the engine's version lists each of them.",
        )
    both = [part for part in ("embed_tokens", "lm_head") if _says(log, part, "identical to") and _says(log, part, "distinct")]
    if both:
        yield Finding(
            "FM-80",
            Severity.WARNING,
            f"ranks disagree on whether the draft has its own {' and '.join(both)}",
            "Each rank compares its own part of the tensor with the target's; some share it, others keep theirs.",
            tuple(_quote(note) for note in log.notes if note.kind == "sharing"),
            "Leave the tensor out of the checkpoint, so that all ranks share the target's.",
            "All ranks must print the same line; then measure again: it need not be the cause.",
        )


def _says(log: LogSeries, part: str, word: str) -> bool:
    return any(note.kind == "sharing" and part in note.text and word in note.text for note in log.notes)


def _quote(note: Note) -> Evidence:
    times = f"{note.count} times" if note.count > 1 else "once"
    return Evidence(note.means, note.text, None, f"log, {times}" + (f", {', '.join(note.ranks[:8])}" if note.ranks else ""))


def captured(log: LogSeries) -> tuple[int, ...] | None:
    """The boundaries that vLLM says it captures (its ids are boundaries); None where the log does not say."""
    for note in log.notes:
        if note.kind == "aux" and (match := re.search(r"auxiliary layers from [\w ]+: ([(\[][\d, ]{1,200}[)\]])", note.text)):
            value = ast.literal_eval(match[1])  # digits, commas and brackets only
            return tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return None


def _other_layers(case: Case) -> Finding | None:
    """FM-28, FM-29: what vLLM's log names is not what the draft was trained on."""
    if case.log is None or case.log.engine != "vllm" or case.audit is None or case.audit.aux_boundaries is None or not case.log.n_windows:
        return None
    if case.launch is not None and case.launch.algorithm not in (None, "eagle3"):
        return None
    used = captured(case.log)
    silent = used is None
    if silent and case.log.launch is not None:  # the start is in the log, so a line about configured ids would be too
        used = case.audit.default_boundaries
    wanted = tuple(sorted(case.audit.aux_boundaries))
    if used is None or tuple(sorted(used)) == wanted:
        return None
    by_one = off_by_one(wanted, sorted(used))
    found = Finding(
        "FM-29" if by_one else "FM-28",
        Severity.WARNING if by_one else Severity.ERROR,
        f"vLLM captures boundaries {_listed(used)}, the draft was trained on {_listed(wanted)}",
        "No line of the log names configured layers, so the default was taken." if silent else
        "vLLM takes ids as boundaries; SGLang's nested ids name the layer before." if by_one else
        "The ids that were read are not those of this draft.",
        (Evidence("boundaries captured", _listed(used), _listed(wanted), "vLLM's log" + (", by default" if silent else "")),),
        f'Put "eagle_aux_hidden_state_layer_ids": {list(wanted)} at the top level of the draft\'s config.json.',
        "The log must name these boundaries; then measure again.",
    )  # fmt: skip
    return said_already(case, found, wanted) if case.audit.engine == "vllm" else found


def _listed(ids: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, ids)) + ")"


def _wrong_head(case: Case) -> Finding | None:
    """FM-06 as vLLM's log shows it: the target's whole head under a reduced vocabulary."""
    if case.log is None or case.audit is None or case.audit.draft_vocab_size >= case.audit.vocab_size:
        return None
    said = [note for note in case.log.notes if "without its own lm_head" in note.text]
    if not said:
        return None
    if any(load.canonical == "lm_head.weight" for load in case.audit.outcome("loaded")):
        return Finding(
            "C0",
            Severity.WARNING,
            "the server found no lm_head, and this checkpoint has one: it serves another copy",
            "The log and the checkpoint contradict each other, so nothing about the checkpoint holds for what is served; a head that is missing "
            "there under a reduced vocabulary (FM-06) explains that nothing is accepted.",
            (*map(_quote, said), Evidence("lm_head.weight", "loaded", "not in the file, as the log says", "audit")),
            "Give the checkpoint that the launch command names, or serve this one.",
            "The log must say that the draft keeps its own lm_head.",
        )
    return Finding(
        "FM-06",
        Severity.ERROR,
        "the draft has no head of its own, and the target's is read with the draft's vocabulary",
        "Row i of the target's head is token i; row i of a reduced head is token i + d2t[i].",
        (
            *map(_quote, said),
            Evidence("draft vocabulary", case.audit.draft_vocab_size, f"{case.audit.vocab_size} to share a head", "config"),
        ),
        "Export the checkpoint with its lm_head.",
        "The log must say that the draft keeps its own lm_head.",
    )


def _other_version(case: Case) -> Finding | None:
    """M2: the rate in the log is not the one that the named version prints."""
    log = case.log
    if log is None or log.engine != "sglang" or log.rate_kind == "unknown" or not log.n_windows:
        return None
    named = log.engine_version or (case.launch.version if case.launch and case.launch.engine == "sglang" else None)
    if named is None:
        return None
    try:
        version, _ = known_version("sglang", named)
    except BadArgument:
        return None
    expected = at(ACCEPT_RATE, version).value
    alike = {expected, log.rate_kind} == {"biased", "biased by steps"}  # the same number in a chain
    length = log.acceptance.length if log.acceptance else None
    if expected == log.rate_kind or alike or length is None:
        return None
    return Finding(
        "C0",
        Severity.NOTE,
        f"the log is not from SGLang {version}: its accept rate is of another kind",
        "Each version has its own definition, and arithmetic tells which one was printed.",
        (
            Evidence("accept rate, kind", log.rate_kind, f"{expected} in {version}", "log"),
            Evidence("accept length", round(length, 3), None, "log"),
        ),
        "Give the version of the server that wrote this log.",
    )


def _later_start(case: Case) -> Finding | None:
    """C0: the last server of the log wrote no window, so the one before is what was read."""
    if case.log is None or case.log.later is None:
        return None
    was, now = ({} if log.launch is None else log.launch.arguments for log in (case.log, case.log.later))
    changed = dict.fromkeys(name for name in (*now, *was) if was.get(name) != now.get(name)) if was else {}
    shown = sorted(changed, key=lambda name: ("spec" not in name, name))[:6]
    return Finding(
        "C0",
        Severity.NOTE,
        "a later start in the log wrote no accept length; what is said of the log is of the start before it",
        "It crashed, was not asked anything yet, or drafts nothing. Windows and arguments are those of the last start that wrote a window.",
        (
            *(Evidence(name, f"{now.get(name, 'absent')}, before it {was.get(name, 'absent')}", None, "log") for name in shown),
            *(_quote(note) for note in case.log.later.notes if note.kind in (*_NAMED, "weights")),
        ),
        "Send the new server a few requests, or give its part of the log alone with --log.",
    )


def _would_not_start(case: Case) -> Finding | None:
    """C0: a server that answers did start, so a checkpoint that ends the start is not what it serves."""
    length = case.observed.length if case.observed is not None else None
    if length is None or case.audit is None or not case.version_said:
        return None
    ends = [load.name for outcome in ("raises", "shape_error") for load in case.audit.outcome(outcome)]
    if not ends:
        return None
    engine = f"{case.audit.engine} {case.audit.engine_version}"
    return Finding(
        "C0",
        Severity.NOTE,
        f"the server answers, and {engine} would not start with this checkpoint: it serves another copy, or is another version",
        "So the findings about the checkpoint do not explain the accept length.",
        (Evidence("accept length", round(length, 3), None, "server"), Evidence("start-up ends at", some_of(ends), "nothing", "audit")),
        "Give the checkpoint that the launch command names, and the version that serves.",
    )


FAULTS = (
    Fault("C0", _would_not_start, own_title="a server that runs with a checkpoint that ends its start"),
    Fault("FM-28", _other_layers),
    Fault("FM-06", _wrong_head),
    Fault("C0", _other_version, own_title="log and version disagree"),
    Fault("C0", _later_start, own_title="a later start that wrote no window"),
)
