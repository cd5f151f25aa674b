"""The sentences of a diagnosis: its verdict, what was looked at, what is missing and how to get it."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3diag.case import Case
from eagle3diag.diagnose.candidates import is_symptom
from eagle3diag.diagnose.result import Ranked, Suspect
from eagle3diag.engines import split_engine
from eagle3diag.faults import named
from eagle3diag.faults.base import Fault, no_changes
from eagle3diag.faults.replayed import ANOTHER_COPY, HARMLESS, REFUTED, UNLIKE, differs, not_accepted, share_of_rounds
from eagle3diag.findings import Severity
from eagle3diag.repair import map_is_lost
from eagle3diag.replay import Replay
from eagle3diag.serving import Acceptance

ROUNDS = ("draft", "target", "train", "live")
"""What it takes to hold each round of the server against a replay."""

HOW_TO_GET = {
    "launch": "--launch 'the command that starts the server'",
    "log": "--log server.log",
    "draft": "--draft FOLDER",
    "target": "--target FOLDER",
    "acceptance": "--acceptance 1.03, as the server shows it",
    "train": "--train train/, made with eagle3diag capture",
    "live": "--live live/, recorded with eagle3diag capture sglang, or vllm",
    "reference": "--reference reference/, made with eagle3diag capture",
}
"""How each kind of evidence is got, cheapest first."""

CAPTURE = "`eagle3diag capture --target TARGET --prompts prompts.jsonl --max-new 64 --out train/`"
REFERENCE = "`eagle3diag capture --target TARGET --prompts prompts.jsonl --boundaries all --out reference/`"
RECORD = {
    "sglang": "`eagle3diag capture sglang --out live/ -- python -m sglang.launch_server --model-path TARGET --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path DRAFT`",
    "vllm": "`eagle3diag capture vllm --out live/ -- vllm serve TARGET --speculative-config "
    """'{"method": "eagle3", "model": "DRAFT", "num_speculative_tokens": 3}'`""",
}
"""Whole commands, in which only the names in capitals and the server's own options are to be put in."""


def cheapest(case: Case, fault: Fault) -> str:
    """Of the sets of evidence that would show a fault, what is lacking of the cheapest; empty where nothing would show it.

    One that nothing but a replay shows is told from others by the server's rounds, each beside the replay's."""
    sets, order = fault.shown_by, list(HOW_TO_GET)
    if not sets and fault.changes is not no_changes and case.recorded is None:
        sets = (ROUNDS,)
    lacking = [[k for k in kinds if not case.has(k)] for kinds in sets]
    return min(("; ".join(HOW_TO_GET[k] for k in sorted(kinds, key=order.index)) for kinds in lacking), key=_cost, default="")


def verdict(
    ranked: tuple[Ranked, ...],
    suspects: tuple[Suspect, ...],
    healthy: Replay | None,
    observed: Acceptance | None,
    as_trained: float,
    by_rounds: frozenset[str] = frozenset(),
    none_of_these: float = 0.0,
) -> str:
    """One sentence, or two: what explains the number, or that nothing does, or between what it cannot be told."""
    serious = [r for r in ranked if r.finding.severity > Severity.NOTE]
    length = observed.length if observed else None
    if ranked and ranked[-1].finding.fault == "FM-25":
        assert healthy is not None  # it is judged by its replay
        if not_accepted(healthy):
            return f"Not accepted by itself: without any engine the replay of this file gives {healthy.accept_length:.2f}. Its training or its export."
        return "Weak but right: the server gives what the file gives. If that should be more, look at its training and its export."
    if serious:
        first = serious[0].finding
        another = first.fault == "M9"  # which asks for the file that is served, and for no cause
        if suspects and not another and all(is_symptom(r.finding.fault) for r in serious):
            return f"{first.fault}: {first.title.rstrip('.')}; {_undetermined(suspects)}."
        others = ", ".join(dict.fromkeys(named(r.finding.fault) for r in serious[1:] if r.finding.fault != first.fault))
        more = f" And {len(serious) - 1} more{f': {others}' if others else ''}." if len(serious) > 1 else ""
        copy = " Only its rounds show it, so make sure that the draft given is the one that is served." if first.fault in by_rounds else ""
        rest = f" But most of what is lost has a cause in no list ({none_of_these:.0%})." if none_of_these > 0.5 else ""
        return f"{first.fault}: {_end(first.title)}{copy}{more}{rest}"
    if as_trained < 0.5 and healthy is not None and length is not None:
        return _lost(healthy, length, suspects, as_trained, none_of_these)
    if as_trained < 0.5 and suspects:
        return f"No fault is in the evidence given; {_undetermined(suspects)}."
    if healthy is not None and length is not None:
        return _nothing_lost(healthy, length)
    others = (
        f" It does not rule out {len(suspects)} faults that it cannot show; what would tell: {tell}." if (tell := _tells(suspects)) else ""
    )
    return f"Nothing is wrong in the evidence given.{others}"


def _lost(healthy: Replay, length: float, suspects: tuple[Suspect, ...], as_trained: float, none_of_these: float) -> str:
    """Less is served than replayed, and no evidence shows why."""
    apart = f"{length:.2f} is served where the replay gives {healthy.accept_length:.2f}"
    rounds = share_of_rounds(healthy) is not None
    if rounds:
        apart += f", and {_rounds_alike(healthy)}"
    if none_of_these > 0.5:
        nearest = f"; of those listed {suspects[0].fault} ({suspects[0].title}) is nearest ({suspects[0].weight:.0%})" if suspects else ""
        return (
            f"No listed fault explains it: {apart}. Likelier ({none_of_these:.0%}) it is a cause in no list, or another copy of the draft than the "
            f"one given{nearest}."
        )
    if as_trained >= REFUTED and suspects:
        other = "rounding as strong as that" if rounds else "prompts as unlike as that"
        return (
            f"Cannot be told: {apart}; {other} would explain it ({as_trained:.0%}), and so would a fault that the evidence given does not show: "
            f"{_undetermined(suspects)}."
        )
    yet = f"No fault is in the evidence given, yet {apart}"
    return f"{yet}: {_undetermined(suspects)}." if suspects else f"{yet}: see what is missing."


def _rounds_alike(healthy: Replay) -> str:
    return f"{healthy.served_alike} of {healthy.served_rounds} of its rounds come out as replayed"


def _end(title: str) -> str:
    """A title as a sentence."""
    return title if title.endswith((".", "?", "!")) else f"{title}."


def _nothing_lost(healthy: Replay, length: float) -> str:
    alike, little = share_of_rounds(healthy), length > healthy.accept_length - HARMLESS
    if alike is not None and alike < UNLIKE:
        what = "Nothing is lost to speak of" if little else "Nothing is shown to be wrong"
        return (
            f"{what}: {length:.2f} is served, the replay gives {healthy.accept_length:.2f}. But only {_rounds_alike(healthy)}, fewer than rounding "
            "leaves: something differs a little, or another copy of the draft is served."
        )
    if little:
        return f"Nothing is wrong: {length:.2f} is served, the replay gives {healthy.accept_length:.2f}."
    if alike is not None:
        return (
            f"What was recorded is right: {_rounds_alike(healthy)}, accept length {healthy.accept_length:.2f}. But {length:.2f} is not of them: it is of "
            "other requests (prompts, sampling, load), or of another server."
        )
    records = f"{len(healthy.records)} records" if len(healthy.records) > 1 else "one record"
    return (
        f"Nothing is shown to be wrong: {length:.2f} is served where the replay of {records} gives {healthy.accept_length:.2f}, by which the "
        f"server's prompts may differ; a live dump that holds the server's rounds would tell: {HOW_TO_GET['live']}."
    )


def _undetermined(suspects: tuple[Suspect, ...]) -> str:
    if len(suspects) == 1:
        between = f"{suspects[0].fault} ({suspects[0].title}) would explain it"
    else:
        between = f"undetermined between {len(suspects)} faults, {suspects[0].fault} ({suspects[0].title}) first"
    tell = _tells(suspects)
    return between + (f"; what would tell{'' if len(suspects) == 1 else ' next'}: {tell}" if tell else "")


WORTH = 0.1
"""Share of what the suspects hold that evidence must tell of to be asked for first: below it is cheap, and tells next to nothing."""


def _tells(suspects: tuple[Suspect, ...]) -> str:
    """The cheapest evidence that tells a part of the suspects worth asking for; empty where nothing would."""
    share: dict[str, float] = {}
    for suspect in suspects:
        share[suspect.tell] = share.get(suspect.tell, 0.0) + suspect.weight
    worth = [tell for tell in share if tell and share[tell] >= WORTH * sum(share.values())]
    return min(worth or filter(None, share), key=_cost, default="")


def _cost(tell: str) -> int:
    """Of evidence as :func:`cheapest` words it: each kind costs more than all that are cheaper."""
    return sum(2**i for i, words in enumerate(HOW_TO_GET.values()) if words in tell.split("; "))


def trail(case: Case, healthy: Replay | None, live: Replay | None) -> Iterator[str]:
    """What was looked at, in order, one line each."""
    if case.launch is not None:
        said = (("{} steps", case.launch.steps), ("top-k {}", case.launch.topk), ("{} slots", case.launch.num_draft_tokens))
        drafted = "".join(f", {words.format(number)}" for words, number in said if number is not None)
        yield f"{case.launch_source}: {case.launch.engine}, algorithm {case.launch.algorithm or 'not named'}{drafted}"
    if case.log is not None:
        rate = "" if case.log.rate_kind in ("unknown", "none") else f", whose accept rate is of the {case.log.rate_kind} kind"
        yield f"log: {case.log.n_windows} {'window' if case.log.n_windows == 1 else 'windows'} with an accept length{rate}"
    if case.observed is not None and case.observed.length is not None:
        rounds = f" over {case.observed.rounds} rounds" if case.observed.rounds else ""
        yield f"observed: accept length {case.observed.length:.2f}{rounds} ({case.observed_source})"
    if case.audit is not None:
        counts = {o: len(case.audit.outcome(o)) for o in ("loaded", "borrowed", "dropped", "missing")}
        newest = "" if case.version_said else ", the newest known"
        yield f"audit under {case.audit.engine} {case.audit.engine_version}{newest}: " + ", ".join(
            f"{n} {o}" for o, n in counts.items() if n
        )
    if case.comparison is not None:
        c = case.comparison
        yield f"compare: {c.train.width} wide trained, {c.live.width} wide fed, over {c.aligned_tokens} tokens"
        if case.given.train is None:
            yield f"train: none given, so the target was run here on the live tokens; boundaries {', '.join(map(str, c.train.boundaries))}, as the config says"
        elif case.given.reference is None and c.reference:
            yield "reference: every boundary of the target captured here on the training tokens, to name what the live blocks are"
    if case.weights is not None:
        yield f"weights: {len(case.weights.tensors)} tensors, moments, norms and spectra"
    if healthy is not None:
        steps, source = case.steps_said
        drafted = f"{steps} drafts a round ({source or 'as none are named'})"
        gives = f"accept length {healthy.accept_length:.2f} over {healthy.rounds} rounds"
        yield f"replay on {healthy.dump}, {drafted}: {gives}, the draft as trained{_alike(healthy)}"
    if live is not None:
        yield f"replay on {live.dump}: accept length {live.accept_length:.2f} over {live.rounds} rounds, on what the server fed{_alike(live)}"


def _alike(replay: Replay) -> str:
    return f"; {replay.served_alike} of {replay.served_rounds} of the server's rounds come out so" if replay.served_rounds else ""


def missing(case: Case, ranked: tuple[Ranked, ...], live: Replay | None, by_rounds: frozenset[str] = frozenset()) -> Iterator[str]:
    """What was not given, what it would tell, and how to get it, cheapest first: a word, a file that is there, what must be run, what must be
    recorded in the server. Before it, what was given and does not belong together. ``by_rounds``: faults that nothing but the server's rounds shows."""
    yield from _not_of_one_server(case, ranked, live, by_rounds)
    yield from _files(case)
    yield from _unplayed(case)
    if case.given.train is None and case.train is not None:
        yield "no training dump: the boundaries that the config names were taken for those of the training; --train train/ shows whether they are"
    if case.net is not None and case.train is None:
        yield f"no training dump: the accept length to expect is unknown; capture one: {CAPTURE}"
    wants = any(r.finding.fault == "FM-28" and r.finding.severity is Severity.WARNING and r.predicted is None for r in ranked)
    if wants and case.comparison is not None and case.reference is None:
        yield f"no reference: cannot tell FM-28 from FM-29; {REFERENCE}"
    if case.live is None:
        recorder = RECORD.get(split_engine(case.engine)[0], RECORD["sglang"])
        yield (
            "no live dump: wrong layers (FM-28), a shift (FM-29) and another order (FM-33) cannot be seen; "
            f"record one, with the server's own options behind the two dashes: {recorder}"
        )


def _not_of_one_server(case: Case, ranked: tuple[Ranked, ...], live: Replay | None, by_rounds: frozenset[str]) -> Iterator[str]:
    length = case.observed.length if case.observed is not None else None
    if live is not None and length is not None and length > live.accept_length_interval[1] + HARMLESS:
        yield (
            f"one run of the server: {length:.2f} is observed, and on what the live dump holds the draft reaches {live.accept_length:.2f}; "
            "they are not of one server or not of like prompts; record the dump again and take the number from the same run"
        )
    shown = sum(r.weight for r in ranked if r.finding.fault not in by_rounds)
    if case.draft is not None and case.healthy is not None and differs(case.healthy, length) and shown < 0.5:
        path = next((launch.draft_path for launch in (case.log and case.log.launch, case.launch) if launch and launch.draft_path), None)
        yield (
            "the draft that is served: neither the weights nor the states explain what the server accepts, so it may have another copy of the draft"
            + (f" (it loads {path})" if path else "")
            + f"; {ANOTHER_COPY[:-1]}"
        )


def _files(case: Case) -> Iterator[str]:
    """What costs a word or the name of a file."""
    if case.log is not None and not case.log.n_windows:
        yield "no accept length in the log: is it the server's, from after the first requests? SGLang prints accept len, vLLM SpecDecoding metrics"
    if case.observed is None and case.log is not None and case.log.servers:
        yield f"one number: the log is of {len(case.log.servers)} servers that differ; pass the lines of one of them as --log"
    elif case.observed is None:
        yield "nothing observed: which fault explains the number cannot be weighed; pass --log server.log or --acceptance 1.03"
    if case.audit is not None and not case.version_said and (case.launch is not None or case.observed is not None):
        name, version = case.audit.engine, case.audit.engine_version
        yield f"no version of {name}: {version}, the newest known, was taken; older ones drop other names; pass --engine {name}==VERSION"
    if case.observed is not None and case.launch is None:
        log = "--log server.log, which shows the arguments too, or " if case.log is None else ""
        yield (
            "no launch command, and none in a log: the algorithm that is named (FM-01) and the settings are not known; "
            f"pass {log}{HOW_TO_GET['launch']}"
        )
    if (
        case.draft is None
        and case.launch is not None
        and case.launch.engine == "sglang"
        and (case.launch.algorithm or "").upper() == "EAGLE"
    ):
        yield "no draft: EAGLE is right for an EAGLE-1 or EAGLE-2 draft, and leaves an EAGLE-3 one without its states (FM-01); pass --draft FOLDER"
    elif case.draft is None:
        yield "no draft: names, shapes, map and weights were not checked; pass --draft FOLDER"
    elif case.target is None:
        without = f"{case.unplayable}, so nothing could be replayed; and" if case.unplayable else "no target:"
        yield (
            f"{without} which rows of head and embedding are the target's (FM-07, FM-09, FM-13), and whether rotation, dtype and vocabulary are, "
            "was not checked; pass --target FOLDER"
        )


def _unplayed(case: Case) -> Iterator[str]:
    """Why nothing was replayed, where files are there."""
    if case.draft is not None and map_is_lost(case.healthy_draft):
        yield "no vocabulary map, and no t2d to rebuild it from: nothing could be replayed; look for d2t next to the training data"
    elif case.draft is not None and case.target is not None and case.unplayable:
        yield f"{case.unplayable}, so nothing could be replayed"
    if case.net is not None and case.train is not None and case.healthy is None:
        yield f"no answer in {case.train.name} is long enough for a round of {case.steps} drafts, so nothing could be replayed; capture longer ones"
