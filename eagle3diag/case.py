"""The evidence of one investigation: each part is opened, and each measurement made, when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from torch import Tensor

from eagle3diag.audit import Audit, audit
from eagle3diag.capture.reference import affordable, capture_reference
from eagle3diag.checkpoints import Draft, Target, open_draft, open_target
from eagle3diag.checkpoints.recognise import EAGLE3
from eagle3diag.compare import Comparison, compare
from eagle3diag.compare.served import with_rounds_of
from eagle3diag.dumps import HiddenStates, open_dump
from eagle3diag.engines import ENGINES, at, known_version, split_engine
from eagle3diag.engines.sglang import ACCEPT_RATE
from eagle3diag.errors import BadArgument, MissingPart, UnreadableFile
from eagle3diag.faults.widths import MATCHES
from eagle3diag.repair import map_is_lost, repaired
from eagle3diag.replay import Change, Loop, Net, Replay, build, check_target, loop_of, run
from eagle3diag.replay.trees import candidates
from eagle3diag.serving import Acceptance, Launch, LogSeries, read_acceptance, read_launch, read_log
from eagle3diag.weights import WeightReport, weights

T = TypeVar("T")

DEFAULT_STEPS = 4


@dataclass(frozen=True)
class Given:
    """What the caller handed over, as it came; None is "not given"."""

    draft: Any = None
    target: Any = None
    train: Any = None
    live: Any = None
    reference: Any = None
    launch: Any = None
    log: Any = None
    acceptance: Any = None
    engine: str | None = None
    assume_fixed: frozenset[str] = frozenset()


class Case:
    """Lazy access to the evidence. Parts that were not given are None; opening a part that was given may raise an InputError."""

    def __init__(self, given: Given) -> None:
        self.given = given

    @property
    def assume_fixed(self) -> frozenset[str]:
        """Faults that the caller has mended: no longer weighed, whatever the evidence still shows of them."""
        return self.given.assume_fixed

    def has(self, kind: str) -> bool:
        """Whether this kind of evidence was given: a launch command without gaps, or a log that names the algorithm."""
        given = getattr(self.given, kind) is not None
        if kind != "launch":
            return given
        logged = self.log.launch if self.log is not None else None
        return (given and self.launch is not None and not self.launch.partial) or (logged is not None and logged.algorithm is not None)

    def would_show(self, sets: tuple[tuple[str, ...], ...]) -> bool:
        """Whether all evidence of any of these sets is there."""
        return any(all(map(self.has, kinds)) for kinds in sets)

    @cached_property
    def draft(self) -> Draft | None:
        return _open(open_draft, self.given.draft)

    @cached_property
    def target(self) -> Target | None:
        return _open(open_target, self.given.target)

    @cached_property
    def train(self) -> HiddenStates | None:
        """What the draft was trained on, as given; or else what its config says it was, of the live tokens, where the target is at hand."""
        if self.given.train is not None or self._every_state is None or self.draft is None:
            return self._dump(self.given.train)
        return replace(self._every_state.declare(self.draft.config.aux_boundaries or ()), side="train")

    @cached_property
    def _every_state(self) -> HiddenStates | None:
        """All boundaries of the target on the live tokens, captured here where no training dump was given and it is cheap. Not of records
        that begin in the middle, behind a cached prefix, or whose ids were dropped or hashed."""
        if self.given.train is not None or self.live is None or self.target is None or self.draft is None:
            return None
        declared = self.draft.config.aux_boundaries
        if not declared or max(declared) > self.target.n_layers or not affordable(self.target, self.live):
            return None
        whole = all(r.positions is None and _within(r.input_ids, self.target.vocab_size) for r in self.live)
        return capture_reference(self.target, self.live) if whole else None

    @cached_property
    def live(self) -> HiddenStates | None:
        return self._dump(self.given.live)

    def _dump(self, source: Any) -> HiddenStates | None:
        dump = _open(lambda given: open_dump(given, target=self.target), source)
        if dump is not None and self.target is not None:
            check_target(dump, self.target)
        return dump

    @cached_property
    def reference(self) -> HiddenStates | None:
        """All boundaries of the target on the training tokens: as given, or captured here when two dumps disagree and it is cheap."""
        given = _open(open_dump, self.given.reference) or self._every_state
        if given is not None or self.train is None or self.target is None or not self._needs_names:
            return given
        return capture_reference(self.target, self.train)

    @cached_property
    def _needs_names(self) -> bool:
        """Whether dumps of equal width disagree, so that a reference would name the boundary each live block is."""
        return self._unnamed is not None and any(b.standardised.median < MATCHES for b in self._unnamed.blocks)

    @cached_property
    def _unnamed(self) -> Comparison | None:
        """Train against live without a reference: all there is to say, unless the two disagree."""
        if self.train is None or self.live is None:
            return None
        return compare(self.train, self.live, target=self.target)

    @cached_property
    def log(self) -> LogSeries | None:
        """What the log says. A file in which no line is a server's is another file than was meant, and no evidence of health."""
        log = _open(read_log, self.given.log)
        if log is not None and log.engine is None and log.launch is None and not (log.n_windows or log.notes or log.servers):
            hint = "give what the server printed: SGLang's lines with accept len, vLLM's SpecDecoding metrics, or its start"
            raise UnreadableFile("no line in it is SGLang's or vLLM's", where=self.given.log, hint=hint)
        return log

    @cached_property
    def launch(self) -> Launch | None:
        """The launch command, or else the arguments that the log prints."""
        given = _open(read_launch, self.given.launch)
        return given or (self.log.launch if self.log else None)

    @property
    def launch_source(self) -> str:
        """What :attr:`launch` was read from, as evidence names it."""
        return "launch command" if self.given.launch is not None else "arguments in the log"

    @cached_property
    def observed(self) -> Acceptance | None:
        """What was accepted: counts where given, otherwise what the log says, otherwise what the live dump recorded."""
        given = _open(read_acceptance, self.given.acceptance)
        return given or (self.log.acceptance if self.log else None) or self.recorded

    @property
    def observed_source(self) -> str:
        """What :attr:`observed` was read from, as evidence names it."""
        if self.given.acceptance is not None:
            return "counts" if self.observed is not None and self.observed.rounds else "number given"
        return "log" if self.log is not None and self.log.acceptance is not None else "live dump"

    @cached_property
    def recorded(self) -> Acceptance | None:
        """What was accepted of the requests that are in the live dump, where its recorder kept the rounds."""
        kept = [r.accepted for r in self.live or () if r.accepted is not None]
        rounds = [m for accepted in kept for m in accepted.tolist() if m >= 0]
        if not rounds:
            return None
        # where nothing says how many were drafted, as many as were ever accepted: a round of more is then counted as one of these on both sides
        steps = max((self.launch and self.launch.steps) or 0, *rounds) or DEFAULT_STEPS
        slots = self.launch.num_draft_tokens if self.launch else None
        engine = {} if self.live is None else {"engine": self.live.engine, "engine_version": self.live.engine_version}
        return Acceptance.from_histogram([rounds.count(m) for m in range(steps + 1)], steps=steps, num_draft_tokens=slots, **engine)

    @cached_property
    def engine(self) -> str:
        """``name==version``: as named by the caller, the log, the counts, the live dump or the launch command, in this order; SGLang where
        nothing names one that rules are known of."""
        if self.given.engine:
            return self.given.engine
        said = [(part.engine, part.engine_version) for part in (self.log, self.observed, self.live) if part is not None]
        said += [(self.launch.engine, self.launch.version)] if self.launch is not None else []
        name = next((engine for engine, _ in said if engine in ENGINES), "sglang")
        version = next((version for engine, version in said if engine == name and version), None)
        return f"{name}=={version}" if version else str(name)

    @property
    def version_said(self) -> bool:
        """Whether anything names the engine's version; SGLang's log does not. The newest known is assumed where nothing does."""
        return "==" in self.engine

    @cached_property
    def audit(self) -> Audit | None:
        return None if self.draft is None else audit(self.draft, engine=self.engine, target=self.target)

    @cached_property
    def comparison(self) -> Comparison | None:
        if self.train is None or self.live is None or self.reference is None:
            return self._unnamed
        return compare(self.train, self.live, reference=self.reference, target=self.target)

    @cached_property
    def weights(self) -> WeightReport | None:
        """Of an EAGLE-3 draft; a whole model given for one is named by its kind, and not measured for minutes."""
        return None if self.draft is None or self.draft.config.kind not in EAGLE3 else weights(self.draft)

    @property
    def steps(self) -> int:
        """Drafts a round: as observed, as launched, as recorded, or four."""
        return self.steps_said[0]

    @property
    def steps_said(self) -> tuple[int, str | None]:
        """The same with the source that says it, as evidence names it; None where none does."""
        said = ((self.observed, self.observed_source), (self.launch, self.launch_source), (self.recorded, "live dump"))
        return next(((part.steps, source) for part, source in said if part is not None and part.steps), (DEFAULT_STEPS, None))

    @property
    def topk(self) -> int:
        """Width of the draft tree as launched; 1, a chain, where nothing says otherwise or no tree of this size can be drafted."""
        topk = (self.launch and self.launch.topk) or 1
        return topk if 1 < self.num_draft_tokens - 1 <= candidates(self.steps, topk) else 1

    @property
    def num_draft_tokens(self) -> int:
        return (self.observed and self.observed.num_draft_tokens) or (self.launch and self.launch.num_draft_tokens) or self.steps + 1

    @cached_property
    def rate_kind(self) -> str:
        """Which accept rate this engine version prints: ``strict``, ``biased``, ``biased by steps``, or ``none``."""
        if self.log is not None and self.log.rate_kind != "unknown":
            return self.log.rate_kind
        name, version = split_engine(self.engine)
        return at(ACCEPT_RATE, known_version(name, version)[0]).value if name == "sglang" else "strict"

    @cached_property
    def net(self) -> Net | None:
        """The draft as a healthy engine would run it; None when it cannot be built: see :attr:`unplayable`."""
        return None if isinstance(self._built, str) else self._built

    @property
    def unplayable(self) -> str | None:
        """Why there is no net, for want of a part of the draft or the target; None where there is one, or no draft."""
        return self._built if isinstance(self._built, str) and self._built else None

    @cached_property
    def _built(self) -> Net | str:
        if self.draft is None or map_is_lost(self.healthy_draft) or self.draft.config.kind != "eagle3":
            return ""
        if self.target is None and "embed_tokens.weight" not in self.draft.canonical():
            return "no target: the draft borrows its embedding"
        try:
            return build(self.healthy_draft, self.target, engine=self.engine)
        except (MissingPart, BadArgument) as error:  # a bad draft is a finding; the audit names it
            return error.what

    @cached_property
    def healthy_draft(self) -> Draft:
        """The draft with what is certainly repairable repaired: lost layer names are recognised by their ending, absolute ``d2t`` is
        taken as such. Replays start from it, so that a fault in the files does not hide what the weights can do."""
        assert self.draft is not None
        return repaired(self.draft)

    def play(self, *changes: Change, dump: HiddenStates | None = None) -> Replay | None:
        """Replay with changes on the training dump (or ``dump``); None when the evidence does not allow it."""
        states = dump or self._trained
        if self.net is None or states is None or self.draft is None:
            return None
        loop, engine = self._loop
        return run(
            self.net,
            states,
            steps=self.steps,
            topk=self.topk,
            num_draft_tokens=self.num_draft_tokens if self.topk > 1 else None,
            changes=changes,
            draft=self.draft.name,
            loop=loop,
            engine=engine,
        )

    @cached_property
    def _trained(self) -> HiddenStates | None:
        """The training dump, with the server's rounds on the same tokens where the live dump holds them."""
        return self.train if self.train is None or self.live is None else with_rounds_of(self.live, self.train)

    @cached_property
    def _loop(self) -> tuple[Loop, str | None]:
        """The draft loop of the engine, and its name; the newest SGLang's for one whose loop is not known."""
        try:
            return loop_of(self.engine, self.topk), self.engine
        except BadArgument:
            return loop_of(None, self.topk), None

    @cached_property
    def healthy(self) -> Replay | None:
        """The replay without any change, on what the draft was trained on; None where no text is long enough for a round."""
        played = self.play()
        return played if played is not None and played.rounds else None


def _within(ids: Tensor, size: int) -> bool:
    return bool(len(ids)) and 0 <= int(ids.min()) and int(ids.max()) < size


def _open(reader: Callable[[Any], T], source: Any) -> T | None:
    return None if source is None else reader(source)
