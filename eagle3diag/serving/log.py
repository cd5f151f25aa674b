"""A server's log, read as a stream: acceptance per window, the resolved arguments, and what else was said of the draft."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from eagle3diag.engines import logs_sglang, logs_vllm
from eagle3diag.engines.logs import Kind, Line
from eagle3diag.serving import lines as read
from eagle3diag.serving.acceptance import Acceptance
from eagle3diag.serving.launch import Launch
from eagle3diag.serving.lines import Window
from eagle3diag.serving.pieces import pieces, text
from eagle3diag.serving.prefixes import Names
from eagle3diag.serving.trends import Mean, mean_of

KEPT_WINDOWS = 4096
KEPT_NOTES = 64
_STARTS = (logs_sglang.START, logs_vllm.START)
_VLLM = (b"SpecDecoding metrics: ", b"Speculative metrics: ")
_AT_START = (*logs_sglang.LINES, *logs_vllm.LINES)
_ALWAYS = tuple(line for line in _AT_START if line.kind == "numbers")
STARTING = 1 << 26
"""Bytes after a start in which what a server says of its draft is looked for; later only what can come at any time."""
WIDEST = 32
"""Bytes of a length and a rate as they are printed (``2.46, accept rate: 0.37``), with room for odd ones."""
SURE = 1.6
"""Halves of a 95 % interval by which the windows of two servers must differ: 3.1 standard errors, for prompts wander."""
ALIKE = 0.1
"""Share of the accept length by which replicas may differ, since each is asked other things."""
# The bulk of a log: SGLang's batch lines, and one access line a request. Of these only the windows matter.
_BULK = (b"-req: ", b"HTTP/1.")
_BY_RANK = frozenset({"node_rank", "random_seed", "host", "nccl_port"})  # what the nodes of one server print differently


@dataclass(frozen=True)
class Note:
    """A line that says something of the draft: the first one as it stands, how often it came, and the ranks that printed it."""

    kind: Kind
    text: str
    means: str
    count: int = 1
    ranks: tuple[str, ...] = ()


@dataclass(frozen=True)
class LogSeries:
    """What a log says of the last server that it shows.

    ``windows`` are spread evenly over the log, at most 8192 of the ``n_windows`` that were read. ``starts``: servers that the log shows,
    one after the other. ``rate_kind``: ``strict`` (accepted / proposed), ``biased`` (bonus counted, 1/slots is zero), ``biased by steps``
    or ``unknown``. ``acceptance`` is over all windows: SGLang prints no counts, so a window weighs as many requests as were running;
    vLLM's counts are added up. ``later``: a start behind these windows that wrote none itself.
    ``servers``: where lines bear the names of several servers that differ, each by its name; nothing else is then told.
    """

    engine: str | None
    engine_version: str | None
    launch: Launch | None
    windows: tuple[Window, ...]
    n_windows: int
    starts: int
    notes: tuple[Note, ...]
    rate_kind: str
    acceptance: Acceptance | None
    later: LogSeries | None = None
    servers: Mapping[str, LogSeries] = field(default_factory=dict)

    def alike(self, other: LogSeries) -> bool:
        """Whether these may be replicas: the same engine, models and draft tree, and accept lengths within the noise of their windows."""
        one, two = self.launch, other.launch
        said = [(self.engine, other.engine), *([] if one is None or two is None else zip(_served(one), _served(two), strict=True))]
        apart, half = self.mean.above(other.mean)
        return all(a == b for a, b in said) and not abs(apart) > max(SURE * half, ALIKE * min(self.mean.mean, other.mean.mean))

    @property
    def mean(self) -> Mean:
        """Of the accept lengths of the windows, each weighing alike."""
        return mean_of([window.accept_length for window in self.windows])


@dataclass
class _Reading:
    """What has been read since the last start."""

    engine: str | None = None
    version: str | None = None
    launch: Launch | None = None
    starts: int = 0
    before: _Reading | None = None  # the last one that wrote a window, while this one has none
    idle: Launch | None = None  # a later start that drafts nothing, as of an embedding server: windows that follow are not its own
    windows: list[Window] = field(default_factory=list)
    stride: int = 1
    seen: int = 0
    lengths: float = 0.0
    rated: int = 0
    rates: float = 0.0
    rated_lengths: float = 0.0
    running: int | None = None
    bytes: int = 0
    rounds: float = 0.0  # where counts are printed, as are the next three
    accepted: int = 0
    reached: list[float] = field(default_factory=list)
    notes: dict[Line, Note] = field(default_factory=dict)

    def keep(self, window: Window) -> None:
        """Every ``stride``-th window; the stride doubles whenever twice the number to keep is there."""
        self.windows.append(window)
        if len(self.windows) >= 2 * KEPT_WINDOWS:
            del self.windows[1::2]
            self.stride *= 2

    def restart(self) -> _Reading:
        return _Reading(self.engine, self.version, starts=self.starts, before=self if self.seen else self.before)


def read_log(source: str | os.PathLike[str]) -> LogSeries:
    """Read a log of SGLang (0.4 to 0.5.23) or vLLM (0.9 on), plain or gzipped, in constant memory; a string of several lines is one.

    Bytes that are no UTF-8 are replaced, colours and what docker, Kubernetes or journald put before a line are passed over, lines over
    64 KiB are taken in pieces. Where a log shows several starts, it is read from the last one on that any window follows.

    Raises
    ------
    UnreadableFile: not there, not readable, UTF-16, or packed otherwise than with gzip.
    """
    names, readings = Names(), dict[bytes, _Reading]()
    for piece in pieces(source):
        for name, lines in names.apart(piece):
            readings[name] = _read_piece(readings.get(name) or _Reading(), lines)
    return _told_apart({name.decode("utf-8", "replace"): _series(reading) for name, reading in readings.items()})


def _told_apart(servers: dict[str, LogSeries]) -> LogSeries:
    """The one that drafts, with what the others said; of several alike the one with the most windows; of several that differ, no one."""
    drafting = {name: series for name, series in servers.items() if series.n_windows}
    most = max(
        (drafting or servers).values(), key=lambda series: (series.n_windows, series.launch is not None, len(series.notes)), default=None
    )
    if most is None:
        return _series(_Reading())
    if not all(most.alike(series) for series in drafting.values()):
        engines = {series.engine for series in drafting.values()}
        engine = most.engine if len(engines) == 1 else None
        n_windows = sum(series.n_windows for series in drafting.values())
        return LogSeries(engine, None, None, (), n_windows, most.starts, (), "unknown", None, servers=drafting)
    said = {(note.kind, note.means) for note in most.notes}
    others = [note for series in servers.values() for note in series.notes if (note.kind, note.means) not in said]
    return replace(most, notes=(*most.notes, *others)) if others else most


def _series(reading: _Reading) -> LogSeries:
    if reading.before is not None and not reading.seen:
        return replace(_series(reading.before), starts=reading.starts, later=_series(replace(reading, before=None)))
    launch = reading.launch if reading.seen or reading.idle is None else reading.idle
    slots = launch.num_draft_tokens if launch else None
    return LogSeries(
        reading.engine,
        reading.version,
        launch,
        tuple(reading.windows),
        reading.seen,
        reading.starts,
        tuple(reading.notes.values()),
        _rate_kind(reading, slots),
        _acceptance(reading, slots),
    )


def _served(launch: Launch) -> tuple[object, ...]:
    """What replicas have in common."""
    return launch.algorithm, launch.target_path, launch.draft_path, launch.steps, launch.topk, launch.num_draft_tokens


def _read_piece(reading: _Reading, piece: bytes) -> _Reading:
    """One piece of whole lines. A search for bytes rejects nearly all of it before any line is looked at by itself."""
    batch, access = _BULK
    lines = piece.split(b"\n")
    rest = [line for line in lines if batch not in line and access not in line]
    remaining = b"\n".join(rest)
    if not any(start in remaining for start in _STARTS):
        _read_lines(reading, piece, lines, rest, remaining)
        return reading
    run: list[bytes] = []
    for line in [*lines, None]:
        if line is None or any(start in line for start in _STARTS):
            rest = [other for other in run if batch not in other and access not in other]
            _read_lines(reading, b"\n".join(run), run, rest, b"\n".join(rest))
            run = []
        if line is not None:
            reading = _start(reading, text(line)) if not run and any(start in line for start in _STARTS) else reading
            run.append(line)
    return reading


def _start(reading: _Reading, line: str) -> _Reading:
    """A server prints its arguments: what came before belongs to an earlier one, which is kept until this one writes a window."""
    sglang = logs_sglang.START.decode() in line
    launch = read.sglang_arguments(line) if sglang else read.vllm_arguments(line)
    if launch is None or (not reading.seen and reading.launch is not None and _alike(reading.launch, launch)):
        return reading
    if not reading.seen and reading.launch is not None and reading.launch.algorithm and launch.algorithm is None:
        reading.starts, reading.idle = reading.starts + (reading.idle is None), launch
        return reading
    if reading.seen or reading.launch is not None:
        reading = reading.restart()
    reading.starts += 1
    reading.version = launch.version or (reading.version if reading.engine in (None, launch.engine) else None)
    reading.launch, reading.engine = launch, launch.engine
    return reading


def _alike(one: Launch, other: Launch) -> bool:
    """Whether these are lines of several ranks of one start."""
    mine, others = ({k: v for k, v in launch.arguments.items() if k not in _BY_RANK} for launch in (one, other))
    return (one.engine, one.version, mine) == (other.engine, other.version, others)


def _read_lines(reading: _Reading, piece: bytes, lines: list[bytes], rest: list[bytes], remaining: bytes) -> None:
    """``piece``: whole lines between two starts, ``lines``; ``rest``: those that are not bulk, joined in ``remaining``."""
    if b"accept len: " in piece:
        _read_sglang(reading, piece, lines)
    if b"metrics: " in remaining:
        _read_vllm(reading, rest)
    starting = reading.bytes < STARTING
    reading.bytes += len(piece)
    for known in _AT_START if starting else _ALWAYS:
        if known.marker in remaining:
            _note(reading, known, rest)
    if starting and reading.version is None and (b"ersion" in remaining or b"==" in remaining):
        for line in rest:
            if (b"ersion" in line or b"==" in line) and (found := read.version(text(line))):
                reading.engine, reading.version = found
                break


def _read_sglang(reading: _Reading, piece: bytes, lines: list[bytes]) -> None:
    """Counts what is printed, by value: a few hundred values make millions of windows."""
    if b"block accept len: " in piece:
        piece = piece.replace(b"block accept len: ", b"")
        lines = [line.replace(b"block accept len: ", b"") for line in lines]
    printed = Counter([part[:WIDEST] for part in piece.split(b"accept len: ")[1:]])
    found = [(match, n) for value, n in printed.items() if (match := read.LENGTH.match(value))]
    if not found:
        return
    reading.engine = reading.engine or "sglang"
    for match, n in found:
        reading.lengths += n * float(match[1])
        if match[2]:
            reading.rated += n
            reading.rates += n * float(match[2])
            reading.rated_lengths += n * float(match[1])
    windows = [line for line in lines if b"accept len: " in line]
    at = -reading.seen % reading.stride
    while at < len(windows):
        if window := read.sglang_window(text(windows[at])):
            reading.keep(window)
        at += reading.stride - (reading.seen + at) % reading.stride  # the stride may just have grown
    reading.seen += sum(n for _, n in found)


def _read_vllm(reading: _Reading, rest: Iterable[bytes]) -> None:
    for line in rest:
        if b"Running: " in line and (running := read.VLLM_RUNNING.search(line)):
            reading.running = int(running[1])
        if b"metrics: " not in line or not any(word in line for word in _VLLM):
            continue
        window = read.vllm_window(text(line), reading.running)
        if window is None:
            continue
        reading.engine = "vllm"
        if reading.seen % reading.stride == 0:
            reading.keep(window)
        reading.seen, reading.lengths = reading.seen + 1, reading.lengths + window.accept_length
        if window.rounds and window.accepted is not None:
            reading.rounds, reading.accepted = reading.rounds + window.rounds, reading.accepted + window.accepted
            reading.reached += [0.0] * (len(window.p) - len(reading.reached))
            for i, share in enumerate(window.p):
                reading.reached[i] += share * window.rounds


def _note(reading: _Reading, known: Line, rest: Iterable[bytes]) -> None:
    for line in rest:
        if known.marker not in line or any(start in line for start in _STARTS):
            continue
        said = text(line)
        note = reading.notes.get(known) or Note(known.kind, said.strip()[:300], known.means, 0)
        rank = read.rank(said)
        ranks = (*note.ranks, rank) if rank and rank not in note.ranks and len(note.ranks) < KEPT_NOTES else note.ranks
        reading.notes[known] = Note(note.kind, note.text, note.means, note.count + 1, ranks)


def _rate_kind(reading: _Reading, slots: int | None) -> str:
    """Which rate was printed, told by arithmetic (test M2), which is linear, so the means over all windows tell it."""
    if reading.engine == "vllm" and reading.seen:
        return "strict"
    if not reading.rated or not slots or slots < 2:
        return "unknown"
    rate, length = reading.rates / reading.rated, reading.rated_lengths / reading.rated
    steps = (reading.launch.steps if reading.launch else None) or slots - 1
    expected = {"strict": (length - 1) / (slots - 1), "biased": length / slots, "biased by steps": length / (steps + 1)}
    return min(expected, key=lambda kind: abs(expected[kind] - rate))


def _acceptance(reading: _Reading, slots: int | None) -> Acceptance | None:
    if not reading.seen:
        return None
    engine, version = reading.engine, reading.version
    if reading.rounds:
        steps = len(reading.reached) or (reading.launch.steps if reading.launch else None)
        return Acceptance(
            rounds=round(reading.rounds),
            accepted=reading.accepted,
            steps=steps,
            num_draft_tokens=steps + 1 if steps else None,
            p=tuple(min(1.0, hits / reading.rounds) for hits in reading.reached),
            accept_length=1 + reading.accepted / reading.rounds,
            engine=engine,
            engine_version=version,
            windows=reading.seen,
        )
    return Acceptance(
        steps=(reading.launch.steps if reading.launch else None) or (slots - 1 if slots else None),
        num_draft_tokens=slots,
        accept_length=_mean(reading),
        engine=engine,
        engine_version=version,
        printed_rate=reading.rates / reading.rated if reading.rated else None,
        windows=reading.seen,
    )


def _mean(reading: _Reading) -> float:
    """Mean over rounds: a window covers the same number of decode steps, so it holds rounds in proportion to the requests running, taken
    between this window's end and the one before. Where that is not printed, windows weigh alike."""
    running = [window.running for window in reading.windows]
    weights = (
        [(now + before) / 2 for now, before in zip(running, (running[0], *running), strict=False) if now and before] if running else []
    )
    if len(weights) < len(running) or not weights:
        return reading.lengths / reading.seen
    return sum(w * window.accept_length for w, window in zip(weights, reading.windows, strict=True)) / sum(weights)
