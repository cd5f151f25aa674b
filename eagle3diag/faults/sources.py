"""M10: evidence that is not of one server: what launch command, log, dumps, counts and caller say otherwise. It is never the cause of a number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from eagle3diag.case import Case
from eagle3diag.engines import ENGINES, Version, split_engine
from eagle3diag.errors import BadArgument
from eagle3diag.faults.launch import effective
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.serving import Launch, LogSeries

_COMMAND = "Give --launch and --log of one start. The log prints the server's own arguments when it starts, so --log alone will do."
_DUMP = {
    "sglang": "Record the dump in the server that wrote the log: `eagle3diag capture sglang --out live/ -- COMMAND`.",
    "vllm": "Record the dump in the server that wrote the log: `eagle3diag capture vllm --out live/ -- COMMAND`.",
}
_MIXED = (
    " Its rules judge the checkpoint. The number and the settings were taken from the sources named below and are held together all the same: of two "
    "servers, the number says nothing of the settings."
)
_OPEN = re.compile(r"\$|`|\{\{|://")
"""What a shell or a template fills in, and what an engine fetches into a folder of another name."""
DRAFTED = "drafts a round"
_HUB = re.compile(r"models--[^/]+--([^/]+)")


@dataclass(frozen=True)
class Disagreement:
    """One thing of which the sources say different values.

    ``said``: each value with its source, in the order in which they are believed. ``used``: the value that the diagnosis went on with; None
    where it needs none. ``grave``: one of the sources must be of another server or another start; else it may be another name of the same thing.
    """

    what: str
    said: tuple[tuple[str, str], ...]
    used: str | None
    instead: str
    grave: bool = True

    @property
    def went_on(self) -> str:
        source = next((source for value, source in self.said if value == self.used), None)
        return f"{self.what} {self.used} ({source})" if source else f"neither {self.what}, for nothing rests on it"


def disagree(case: Case) -> Finding | None:
    """The one finding of all that the sources contradict each other in."""
    engines = [*_engines(case)]
    found = engines or [*_arguments(case), *_versions(case), *_targets(case)]
    if not engines and not any(d.what == DRAFTED for d in found):
        found += _drafted(case)
    if not found:
        return None
    sources = list(dict.fromkeys(source for d in found for _, source in d.said))
    return Finding(
        "M10",
        Severity.WARNING if any(d.grave for d in found) else Severity.NOTE,
        f"{_and(sources)} disagree on {_and(list(dict.fromkeys(d.what for d in found)))}: are they of one server?",
        f"What follows rests on all of them, and holds for a server only as far as they are its own. Gone on with {'; '.join(d.went_on for d in found)}."
        + (_MIXED if engines else ""),
        (
            *(
                Evidence(d.what, value + (" (gone on with)" if value == d.used else ""), None, source)
                for d in found
                for value, source in d.said
            ),
            *(_whose(case) if engines else ()),
        ),
        " ".join(dict.fromkeys(d.instead for d in found)),
        "This finding must be gone; then read the others again.",
    )


def several_servers(log: LogSeries) -> Iterator[Finding]:
    """Servers that differ, in one log: their mean is that of none of them."""
    if not log.servers:
        return
    named = [(name or "lines without a name", series) for name, series in log.servers.items()]
    lengths = [(name, series, series.acceptance.length) for name, series in named if series.acceptance is not None]
    yield Finding(
        "M10",
        Severity.WARNING,
        f"{len(named)} servers in one log, which differ: give them apart",
        "Lines bear the names of several servers, which were started otherwise or accept differently. A mean over them is that of none, so nothing "
        "of the log is taken for the server in question.",
        tuple(
            Evidence(f"accept length of {name}", f"{length:.2f}{_as_started(series)}", None, f"{series.n_windows} windows")
            for name, series, length in lengths
            if length is not None
        ),
        "Give the lines of one server as --log: those that bear its name, or what `docker logs NAME` or `kubectl logs POD` prints of it.",
        "Diagnose each by itself; then compare what they were started with.",
    )


def _as_started(series: LogSeries) -> str:
    return f", {series.launch.algorithm}" if series.launch is not None and series.launch.algorithm else ""


def _differ(what: str, said: list[tuple[str | None, str]], used: str | None, instead: str, *, grave: bool = True) -> Iterator[Disagreement]:
    told = tuple((value, source) for value, source in said if value is not None)
    if len({value for value, _ in told}) > 1:
        yield Disagreement(what, told, used, instead, grave)


def _engines(case: Case) -> Iterator[Disagreement]:
    """Whose server it is; everything else is then said in two languages."""
    said: list[tuple[str | None, str]] = [(engine if engine in ENGINES else None, source) for engine, _, source in _servers(case)]
    used = split_engine(case.engine)[0]
    again = _DUMP.get(used) if case.live is not None else None
    yield from _differ("engine", said, used, f"{_COMMAND} {again}" if again else _COMMAND)


def _whose(case: Case) -> Iterator[Evidence]:
    """From which source the number comes, and the settings that it is held together with."""
    launch, source = effective(case)
    if case.observed is not None and case.observed.length is not None:
        yield Evidence("accept length", f"{case.observed.length:.2f}", None, case.observed_source)
    if launch is not None and launch.algorithm is not None:
        yield Evidence("algorithm", launch.algorithm, None, source)
    steps, told = case.steps_said
    if told is not None:
        yield Evidence("drafts a round", steps, None, told)
    if case.live is not None:
        yield Evidence("records of states", len(case.live), None, "live dump")


def _servers(case: Case) -> Iterator[tuple[str | None, str | None, str]]:
    """Engine, version and source, as believed by :attr:`Case.engine`."""
    if case.given.engine:
        yield *split_engine(case.given.engine), "--engine"
    if case.log is not None:
        yield case.log.engine, case.log.engine_version, "log"
    if case.given.acceptance is not None and case.observed is not None:
        yield case.observed.engine, case.observed.engine_version, case.observed_source
    if case.live is not None:
        yield case.live.engine, case.live.engine_version, "live dump"
    if case.given.launch is not None and case.launch is not None:
        yield case.launch.engine, case.launch.version, "launch command"


def _versions(case: Case) -> Iterator[Disagreement]:
    name, used = split_engine(case.engine)
    said = [(_version(version), source) for engine, version, source in _servers(case) if engine == name]
    instead = f"Name the version that serves: --engine {name}==VERSION."
    yield from _differ("version", said, _version(used), instead, grave=False)  # a what-if, or a dump that is a release older


def _version(text: str | None) -> str | None:
    try:
        return str(Version.parse(text)) if text else None
    except BadArgument:
        return None


def _arguments(case: Case) -> Iterator[Disagreement]:
    """The command as it was pasted against the arguments that the log shows."""
    if case.given.launch is None or case.launch is None or case.log is None or case.log.launch is None or not case.log.launch.arguments:
        return
    typed, logged, windows = case.launch, case.log.launch, case.log.n_windows
    own = logged.draft_path is not None and typed.draft_path is None and _name(logged.draft_path) == _name(typed.target_path)
    if not own:  # vLLM is given a speculators draft in the target's place, and finds the target in it
        one, other = _algorithms(typed, logged, windows)
        yield from _differ("algorithm", _both(one, other), _algorithm(logged) or one, _COMMAND)
        yield from _differ("target", _both(_name(typed.target_path), _name(logged.target_path)), None, _COMMAND)
    yield from _differ("draft", _both(_name(typed.draft_path), _name(logged.draft_path)), None, _COMMAND)
    chain = 1 in (typed.topk, logged.topk)  # SGLang then sets the slots to steps + 1 itself
    numbers = [(DRAFTED, typed.steps, logged.steps, case.steps), ("top-k", typed.topk, logged.topk, typed.topk)]
    numbers += [] if chain else [("slots", typed.num_draft_tokens, logged.num_draft_tokens, case.num_draft_tokens)]
    for what, asked, shown, used in numbers:
        yield from _differ(what, _both(_text(asked), _text(shown)), _text(used), _COMMAND)
    # a router's port is not that of the workers behind it
    yield from _differ("port", _both(_text(typed.number("port")), _text(logged.number("port"))), None, _COMMAND, grave=False)


def _drafted(case: Case) -> Iterator[Disagreement]:
    """Positions that were counted against steps that were asked for. In a tree, and with steps that adapt, these are different things."""
    launch = case.launch
    if launch is None or (launch.topk or 1) > 1 or launch.has("speculative-adaptive"):
        return
    said: list[tuple[str | None, str]] = []
    if case.given.acceptance is not None and case.observed is not None:
        said.append((_text(len(case.observed.p) or case.observed.steps), "counts"))
    if case.log is not None and case.log.acceptance is not None and case.log.acceptance.p:
        said.append((_text(len(case.log.acceptance.p)), "windows of the log"))
    said.append((_text(launch.steps), case.launch_source))
    yield from _differ(DRAFTED, said, _text(case.steps), f"{_COMMAND} Take the counts from that server too.")


def _both(typed: str | None, logged: str | None) -> list[tuple[str | None, str]]:
    """Only where both say something: what one leaves out, the engine chose."""
    return [] if typed is None or logged is None else [(logged, "log"), (typed, "launch command")]


def _algorithms(typed: Launch, logged: Launch, windows: int) -> tuple[str | None, str | None]:
    """Of SGLang's command without gaps that names none there is none; and so of a log without a window, but where states alone are served."""
    one, other = _algorithm(typed), _algorithm(logged)
    if typed.engine != "sglang":  # vLLM finds a method in the draft, and its log is not read to the last bracket
        return one, other
    states_only = typed.has("enable-return-aux-hidden-states")
    one = "none" if one is None and other is not None and not typed.partial else one
    other = "none" if other is None and one is not None and logged.target_path is not None and not windows and not states_only else other
    return one, other


def _algorithm(launch: Launch) -> str | None:
    """As the engine takes it: SGLang's NEXTN is EAGLE, vLLM's names of MTP are one."""
    if launch.algorithm is None or _OPEN.search(launch.algorithm):
        return None
    if launch.engine == "vllm":
        return "mtp" if launch.algorithm.lower().endswith("mtp") else launch.algorithm.lower()
    return "EAGLE" if launch.algorithm.upper() == "NEXTN" else launch.algorithm.upper()


def _name(path: str | None) -> str | None:
    """What a model is called, wherever it lies: the last part of a path, or the hub's name out of its cache."""
    if path is None or _OPEN.search(path):
        return None
    cached = _HUB.search(path)
    name = cached[1] if cached else path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return name.replace("___", ".").lower() or None  # ModelScope's cache writes dots so


def _text(number: float | None) -> str | None:
    return None if number is None else f"{number:g}"


def _targets(case: Case) -> Iterator[Disagreement]:
    """Of which target the states are: other configs under other names. A name without a digit is a folder's rather than a model's."""
    launch = case.launch
    known = [] if case.target is None else [(case.target.name, case.target.config_hash, "target given")]
    given = (case.live, case.train if case.given.train is not None else None)
    known += [(d.target.name, d.target.config_hash, f"{d.side} dump") for d in given if d is not None]
    known += [] if launch is None else [(launch.target_path or "", "", "launch command" if case.given.launch is not None else "log")]
    named = [(name, digest, source) for path, digest, source in known if (name := _name(path)) and re.search(r"\d", name)]
    if any(one[0] != other[0] and not (one[1] and one[1] == other[1]) for one in named for other in named):
        instead = "Give the target that is served as --target, and dumps of it. Of one model under two names nothing is wrong."
        yield from _differ("target", [(name, source) for name, _, source in named], None, instead, grave=False)


def _and(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]
