"""What a command line says besides FM-01: options the version lacks, combinations it refuses, options that do not fit this draft."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from eagle3diag.case import Case
from eagle3diag.engines import combos_sglang, combos_vllm, options_sglang, options_vllm, split_engine
from eagle3diag.engines.flags import Combination, Effect, OptionTable
from eagle3diag.engines.rules import Version
from eagle3diag.errors import BadArgument
from eagle3diag.faults.base import Fault
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.serving import Launch

_TABLES: Mapping[str, OptionTable] = {"sglang": options_sglang.TABLE, "vllm": options_vllm.TABLE}
_COMBINATIONS: Mapping[str, tuple[Combination, ...]] = {"sglang": combos_sglang.COMBINATIONS, "vllm": combos_vllm.COMBINATIONS}

_SEVERITY: Mapping[Effect, Severity] = {
    "refused": Severity.ERROR,  # a server with this command does not run
    "fails": Severity.ERROR,  # it runs, and the number that it prints means nothing
    "spoils": Severity.WARNING,  # known to cost acceptance on some hardware or target, which the command does not show
    "changes": Severity.NOTE,
}

_ONE_LETTER = 2
"""Options up to this length (``-tp``, ``-O``) are short forms that the tables of long names do not hold."""


def version_of(case: Case) -> Version | None:
    """The version of the launched engine, as the case's evidence says it; None where nothing does."""
    launch = case.launch
    if launch is None:
        return None
    name, _, given = (case.given.engine or "").partition("==")
    said = [given if name.strip() == launch.engine else None]
    said += [part.engine_version for part in (case.log, case.observed) if part is not None and part.engine in (launch.engine, None)]
    for text in (*said, launch.version):
        if text:
            try:
                return Version.parse(text)
            except BadArgument:
                continue
    return None


def _unknown_options(case: Case) -> Finding | None:
    """C0: options that this version has not: the command is of another version, or an option is misspelt."""
    launch, version = case.launch, version_of(case)
    table = _TABLES.get(launch.engine) if launch else None
    if launch is None or table is None or launch.resolved:
        return None
    version = version or Version.parse(table.read[-1])
    evidence = []
    for raw in launch.arguments:
        name = raw.partition(".")[0].replace("_", "-")
        if len(name) <= _ONE_LETTER or table.knows(name, version) is not False or table.knows(name.removeprefix("no-"), version) is True:
            continue
        evidence.append(Evidence(f"--{name}", "not an option of this version", _elsewhere(table, name), case.launch_source))
    evidence += _unknown_fields(launch, version, case.launch_source)
    if not evidence:
        return None
    return Finding(
        "C0",
        Severity.WARNING,
        f"not in {launch.engine} {version}: {', '.join(e.name for e in evidence[:3])}{' and more' if len(evidence) > 3 else ''}",
        "The engine ends with a usage error, so this is not the command that runs, or not its version.",
        tuple(evidence[:8]),
        "Give the version of the server (--engine NAME==VERSION), or write the option as that version has it.",
        "The server must start, and print the option among its arguments.",
    )


def _unknown_fields(launch: Launch, version: Version, source: str) -> list[Evidence]:
    if launch.engine != "vllm":
        return []
    table = options_vllm.CONFIG
    return [
        Evidence(f'"{name}" in --speculative-config', "not a field of this version", _elsewhere(table, name), source)
        for name in launch.speculative
        if table.knows(name, version) is False
    ]


def _elsewhere(table: OptionTable, name: str) -> str | None:
    span = table.ever(name)
    if span is not None:
        return f"there from {span[0]} on" + (f", gone in {span[1]}" if span[1] else "")
    near = table.near(name)
    return f"perhaps {near}" if near else None


def _unknown_version(case: Case) -> Finding | None:
    """C0: what was checked rests on a version; say when it was not known, or never read. The audit says so for itself, and a command of another
    engine than the rest of the evidence is of (M10) has to go, not to be completed."""
    launch = case.launch
    table = _TABLES.get(launch.engine) if launch else None
    if launch is None or case.audit is not None or launch.engine != split_engine(case.engine)[0]:
        return None
    version = version_of(case)
    first, last = (Version.parse(table.read[0]), Version.parse(table.read[-1])) if table else (None, None)
    if version is not None and first is not None and last is not None and first <= version <= last:
        return None
    range_read = f"{first} to {last}" if table else "none: no facts about this engine's options"
    return Finding(
        "C0",
        Severity.NOTE,
        f"the version of {launch.engine} is not known"
        if version is None
        else f"{launch.engine} {version} is outside the versions whose options are known",
        "Options and their effects change between versions; the newest known ones were used."
        if table
        else "Only names and numbers were read.",
        (Evidence("engine version", str(version or "not said"), range_read, case.launch_source),),
        f"Pass --engine {launch.engine}==VERSION"
        + (", or the log, which names it." if launch.engine == "vllm" and case.log is None else "."),
    )


def _unread(case: Case) -> Finding | None:
    if case.launch is None or not case.launch.unread:
        return None
    return Finding(
        "C0",
        Severity.NOTE,
        "the command takes options from a file that was not given",
        "Its contents are not known here.",
        tuple(Evidence("file of options", name, None, case.launch_source) for name in case.launch.unread),
        "Put the file beside the file that holds the command, and pass that file as --launch.",
    )


def _unknown(case: Case) -> Finding | None:
    """C0: variables of a script, which only the shell of that server could fill in. Where the log shows the arguments, nothing is lost."""
    launch = case.launch
    if launch is None or not launch.unknown or (case.log is not None and case.log.launch is not None):
        return None
    names = tuple(dict.fromkeys(name for word in launch.unknown for name in _named(word)))
    listed = ", ".join(names)
    return Finding(
        "C0",
        Severity.NOTE,
        f"cannot tell what {listed} holds" if len(names) == 1 else f"cannot tell what these hold: {listed}",
        "No line of the command assigns it, or only on a condition. An option that is not seen may stand there, so nothing is held against what "
        "is missing.",
        tuple(Evidence("variable", name, "assigned in the text", "launch command") for name in names),
        "Pass the command as the server got it: ps -ww -o args= -p PID, or the server's log as --log, which prints its arguments.",
    )


# What the shell fills in: a command, shown by its first word alone, or a variable, shown without what stands in for it. Arguments and
# defaults may be keys.
_FILLED = re.compile(r"(?:(?P<dollar>\$)\(|`)\s*(?P<program>[\w./-]*)(?P<rest>[^)`])?|\$\{[!#]?(?P<name>\w+)|\$(?P<plain>\w+|[@*])")
_PROGRAM = re.compile(r"[A-Za-z][\w.-]{0,19}")  # longer ones are no programs that anyone knows by name


def _named(word: str) -> Iterator[str]:
    """The variables and programs of a word of the command, without any value."""
    for found in _FILLED.finditer(word):
        if name := found["name"] or found["plain"]:
            yield f"${name}"
            continue
        program = found["program"].rpartition("/")[2]
        known = program if _PROGRAM.fullmatch(program) else ""
        inside = " ".join((*filter(None, [known]), *(["..."] if found["rest"] or not known else [])))
        yield f"$({inside})" if found["dollar"] else f"`{inside}`"
        return  # what follows are the arguments of that program


def _no_speculation(case: Case) -> Finding | None:
    """FM-03: a draft, and a command that asks for none. A log with accept lengths is of a server that drafts: of another command."""
    launch = case.launch
    drafts = case.log is not None and case.log.n_windows > 0
    if case.draft is None or launch is None or launch.engine not in _ASKED or launch.partial or drafts:
        return None
    names = {name.partition(".")[0].replace("_", "-") for name in launch.arguments}
    own = "speculators_config" in case.draft.config.raw  # vLLM takes such a draft in the target's place, and reads the rest there
    if launch.algorithm or launch.draft_path or own or any("spec" in n or n == "sc" for n in names):
        return None
    return Finding(
        "FM-03",
        Severity.ERROR,
        f"no speculative decoding is asked for in the {case.launch_source}: nothing is drafted",
        f"{launch.engine} then serves the target alone, whatever draft lies beside it.",
        (Evidence(_ASKED[launch.engine].partition(" ")[0], "not given", "given", case.launch_source),),
        f"Start the server with {_ASKED[launch.engine]}.",
        "The server must print accept lengths.",
    )


_ASKED = {
    "sglang": "--speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFT",
    "vllm": """--speculative-config '{"method": "eagle3", "model": "DRAFT", "num_speculative_tokens": 3}'""",
}
"""What asks for a draft."""


def _combination(row: Combination, engine: str, case: Case) -> Finding | None:
    launch = case.launch
    if launch is not None and launch.algorithm and launch.draft_path is None and case.given.draft is not None:
        launch = replace(launch, draft_path=str(case.given.draft))  # what the pasted command leaves out, the caller named
    if launch is None or launch.engine != engine or not row.when(launch):
        return None
    version = version_of(case) or Version.parse(_TABLES[engine].read[-1])
    if (
        not row.holds(version) or (row.absent and launch.partial) or (row.effect == "refused" and launch.resolved)
    ):  # a server that resolved its arguments has started
        return None
    shown = [
        Evidence(f"--{name}", launch.get(name) or "given", None, case.launch_source) for name in row.shown if launch.get(name) is not None
    ]
    shown += [
        Evidence(name, value, None, "environment")
        for name, value in launch.environment.items()
        if name in row.title + row.because + row.fix
    ]
    return Finding(
        row.fault,
        _SEVERITY[row.effect],
        row.title,
        row.because,
        (*shown, Evidence("engine", f"{engine} {version}", None, row.source)),
        row.fix,
        "Measure the accept length again." if row.effect != "refused" else "The server must start.",
    )


def _long_context(case: Case) -> Finding | None:
    """FM-54: served beyond the draft's positions, which SGLang allows only when told to."""
    launch = case.launch
    limit = case.draft.config.max_position_embeddings if case.draft is not None else None
    length = launch.number("context-length", "max-model-len") if launch else None
    allowed = launch is not None and launch.environment.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in ("1", "true")
    if launch is None or launch.engine != "sglang" or limit is None or length is None or length <= limit:
        return None
    return Finding(
        "FM-54",
        Severity.WARNING,
        f"the server takes {length:.0f} tokens of context, the draft was made for {limit}",
        "With SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN the draft's limit is overwritten: beyond it the draft works outside what it has seen."
        if allowed
        else "SGLang refuses to start here, unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 overwrites the draft's limit.",
        (
            Evidence("--context-length", int(length), f"at most {limit}", case.launch_source),
            Evidence("max_position_embeddings", limit, None, "config"),
        ),
        "Serve with --context-length of the draft's limit, or train the draft on longer texts.",
        "Measure the accept length at short and at long contexts.",
    )


def _window(case: Case) -> Finding | None:
    """FM-56: a window that the draft was not trained with, or the reverse."""
    launch = case.launch
    if launch is None or launch.engine != "sglang" or case.draft is None:
        return None
    served = launch.number("speculative-draft-window-size")
    layer = case.draft.config.raw.get("transformer_layer_config")
    config = layer if isinstance(layer, Mapping) else case.draft.config.raw
    trained = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    trained = trained if isinstance(trained, int) and not isinstance(trained, bool) else None
    if served is None or trained == served:
        return None
    return Finding(
        "FM-56",
        Severity.WARNING,
        f"the draft is served with a window of {served:.0f} tokens, and was trained with {trained or 'none'}",
        "A draft that was trained on the whole context loses what lies outside the window (2.30 fell to 1.58 in one report).",
        (Evidence("--speculative-draft-window-size", int(served), str(trained or "not given"), case.launch_source),),
        "Serve the window that the draft was trained with.",
        "Measure the accept length at contexts beyond the window.",
    )


def _more_steps(case: Case) -> Finding | None:
    """FM-69: more drafts a round than the draft was trained for."""
    launch = case.launch
    steps = launch.steps if launch else None
    if case.draft is None or steps is None:
        return None
    config = case.draft.config.raw.get("speculators_config")
    methods = config.get("proposal_methods") if isinstance(config, Mapping) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    trained = first.get("speculative_tokens") if isinstance(first, Mapping) else None
    if not isinstance(trained, int) or steps <= trained:
        return None
    return Finding(
        "FM-69",
        Severity.NOTE,
        f"{steps} drafts a round are asked for, the draft was trained for {trained}",
        "Beyond the trained steps the draft works on states that it has never seen; they cost time and are seldom accepted.",
        (Evidence("drafts a round", steps, f"at most {trained}", case.launch_source),),
        f"Serve {trained} drafts a round, or train more steps.",
        "The per-position rates must not fall off after the trained steps.",
    )


def _same_as_target(case: Case) -> Finding | None:
    launch = case.launch
    if launch is None or launch.draft_path is None or launch.draft_path != launch.target_path:
        return None
    if (launch.algorithm or "").lower() not in ("eagle3",):
        return None
    return Finding(
        "FM-27",
        Severity.ERROR,
        "the target is given as its own draft",
        "An EAGLE-3 head is a checkpoint of its own.",
        (Evidence("draft", launch.draft_path, "a path other than the target's", case.launch_source),),
        "Name the draft's checkpoint.",
        "Measure the accept length again.",
    )


FAULTS = (
    Fault("FM-03", _no_speculation),
    Fault("C0", _unknown_options, own_title="options that the version lacks"),
    Fault("C0", _unknown_version, own_title="version not known"),
    Fault("C0", _unread, own_title="options in a file that was not given"),
    Fault("C0", _unknown, own_title="variables whose value is not known"),
    Fault("FM-54", _long_context),
    Fault("FM-56", _window),
    Fault("FM-69", _more_steps),
    Fault("FM-27", _same_as_target),
    *(Fault(row.fault, partial(_combination, row, engine)) for engine, rows in _COMBINATIONS.items() for row in rows),
)
