"""A server's log, read as a stream: acceptance per window, the resolved arguments, and what was said of aux layers."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eagle3diag.errors import UnreadableFile
from eagle3diag.serving.acceptance import Acceptance
from eagle3diag.serving.launch import Launch, from_arguments

_NUMBER = r"(\d{1,6}(?:\.\d{1,9})?)"
_LENGTH = re.compile(rf"(?<!block )accept len: {_NUMBER}")
_RATE = re.compile(rf"accept rate: {_NUMBER}")
# vLLM prints labels in an order that differs between versions, so each is looked for by itself.
_VLLM = {
    "length": re.compile(rf"Mean acceptance length: {_NUMBER}"),
    "accepted": re.compile(r"Accepted: (\d{1,12}) tokens"),
    "drafted": re.compile(r"Drafted: (\d{1,12}) tokens"),
    "percent": re.compile(rf"Draft acceptance rate: {_NUMBER}%"),
    "positions": re.compile(r"Per-position acceptance rate: ((?:[01]\.\d{1,6}(?:, )?){1,64})"),
}
# server_args is printed as a dictionary since 0.5.x, and as ServerArgs(name=value, ...) before.
_VALUE = r"(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|(\[[^\]]*\]|[^,(){}\s]+))"
_ARGUMENT = re.compile(rf"(?:'(\w+)': |\b(\w+)=){_VALUE}")
_VERSION = re.compile(r"\b(sglang|vllm)[ =/v]{0,6}version[ =:]{0,3}v?(\d+\.\d+[\w.]*)|\b(sglang|vllm)==(\d+\.\d+[\w.]*)", re.IGNORECASE)
_VLLM_START = re.compile(r"V1 LLM engine \(v(\d+\.\d+[\w.]*)\)")
_AUX = re.compile(r"\baux(?:iliary)?[ _]|layers_to_capture", re.IGNORECASE)
LONGEST_LINE = 64 * 1024
KEPT_LINES = 4000


@dataclass(frozen=True)
class LogLine:
    """One window: its accept length, and the accept rate as printed (a share; None where the version prints none)."""

    accept_length: float
    accept_rate: float | None


@dataclass(frozen=True)
class LogSeries:
    """What a log says. ``rate_kind``: ``strict`` (accepted / proposed), ``biased`` (bonus counted, 1/slots is zero) or ``unknown``.

    ``acceptance`` is the mean over all windows; SGLang prints no counts, so they weigh alike, while vLLM's are added up. ``lines`` keeps
    the first 4000 windows.
    """

    engine: str | None
    engine_version: str | None
    launch: Launch | None
    lines: tuple[LogLine, ...]
    aux_lines: tuple[str, ...]
    rate_kind: str
    acceptance: Acceptance | None


@dataclass
class _Reading:
    """What has been read so far."""

    engine: str | None = None
    version: str | None = None
    launch: Launch | None = None
    lines: list[LogLine] = field(default_factory=list)
    aux: list[str] = field(default_factory=list)
    lengths: float = 0.0
    windows: int = 0
    rounds: float = 0.0  # vLLM only, as are the next three
    accepted: int = 0
    positions: list[float] = field(default_factory=list)
    drafts: int = 0  # a round


def read_log(source: str | os.PathLike[str]) -> LogSeries:
    """Read a log of SGLang (0.4 to 0.5.23) or vLLM (0.9 on), plain or gzipped, in constant memory; a string of several lines is one.

    Bytes that are no UTF-8 are replaced, lines over 64 KiB are taken in pieces.

    Raises
    ------
    UnreadableFile: not there, or not readable.
    """
    reading = _Reading()
    if isinstance(source, str) and "\n" in source:
        lines: Iterable[str] = source.splitlines()
    else:
        lines = _lines(Path(source))
    for line in lines:
        _read_line(reading, line)
    slots = reading.launch.slots if reading.launch else None
    kind = "strict" if reading.engine == "vllm" and reading.lines else rate_kind(reading.lines, slots)
    return LogSeries(
        reading.engine, reading.version, reading.launch, tuple(reading.lines), tuple(reading.aux), kind, _acceptance(reading, slots)
    )


def rate_kind(lines: list[LogLine] | tuple[LogLine, ...], slots: int | None) -> str:
    """Which rate was printed, told by arithmetic (test M2): biased is length / slots, strict is (length - 1) / (slots - 1)."""
    pairs = [(line.accept_length, line.accept_rate) for line in lines if line.accept_rate is not None]
    if not pairs or not slots or slots < 2:
        return "unknown"
    biased = sum(abs(r - a / slots) for a, r in pairs) / len(pairs)
    strict = sum(abs(r - (a - 1) / (slots - 1)) for a, r in pairs) / len(pairs)
    return "biased" if biased < strict else "strict"


def _read_line(reading: _Reading, line: str) -> None:
    if match := _LENGTH.search(line):
        rate = _RATE.search(line)
        reading.engine = reading.engine or "sglang"
        _add(reading, float(match[1]), float(rate[1]) if rate else None)
    elif "acceptance length" in line and "SpecDecoding metrics" in line:
        _read_vllm(reading, line)
    elif reading.launch is None and "server_args=" in line:
        reading.launch = from_arguments("sglang", _server_args(line.split("server_args=", 1)[1]), None)
        reading.engine = "sglang"
    elif len(reading.aux) < 20 and "server_args" not in line and _AUX.search(line):
        reading.aux.append(line.strip()[:300])
    if reading.version is None:
        if found := _VERSION.search(line):
            reading.engine, reading.version = (found[1] or found[3]).lower(), found[2] or found[4]
        elif found := _VLLM_START.search(line):
            reading.engine, reading.version = "vllm", found[1]


def _read_vllm(reading: _Reading, line: str) -> None:
    """One window of vLLM: it prints counts, so rounds can be told from them (reference: vllm/v1/spec_decode/metrics.py)."""
    found = {name: pattern.search(line) for name, pattern in _VLLM.items()}
    length, accepted, drafted, percent, positions = (found[name] for name in ("length", "accepted", "drafted", "percent", "positions"))
    if not length:
        return
    reading.engine = "vllm"
    _add(reading, float(length[1]), float(percent[1]) / 100 if percent else None)
    shares = [float(share) for share in positions[1].rstrip(", ").split(", ")] if positions else []
    if not (accepted and drafted and shares):
        return
    rounds = int(drafted[1]) / len(shares)
    reading.rounds, reading.accepted, reading.drafts = reading.rounds + rounds, reading.accepted + int(accepted[1]), len(shares)
    reading.positions += [0.0] * (len(shares) - len(reading.positions))
    for i, share in enumerate(shares):
        reading.positions[i] += share * rounds


def _add(reading: _Reading, length: float, rate: float | None) -> None:
    reading.lengths, reading.windows = reading.lengths + length, reading.windows + 1
    if len(reading.lines) < KEPT_LINES:
        reading.lines.append(LogLine(length, rate))


def _acceptance(reading: _Reading, slots: int | None) -> Acceptance | None:
    if not reading.windows:
        return None
    if reading.rounds:
        return Acceptance(
            rounds=round(reading.rounds),
            accepted=reading.accepted,
            steps=reading.drafts,
            slots=reading.drafts + 1,
            p=tuple(min(1.0, hits / reading.rounds) for hits in reading.positions),
            accept_length=1 + reading.accepted / reading.rounds,
            engine=reading.engine,
            engine_version=reading.version,
        )
    steps = (reading.launch.steps if reading.launch else None) or (slots - 1 if slots else None)
    mean = reading.lengths / reading.windows
    return Acceptance(steps=steps, slots=slots, accept_length=mean, engine=reading.engine, engine_version=reading.version)


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as probe:
            zipped = probe.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else path.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                yield line.decode("utf-8", errors="replace")
    except FileNotFoundError:
        raise UnreadableFile("there is no such log", where=path, hint="check the path") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UnreadableFile(f"cannot be read: {error}", where=repr(str(path)), hint="copy the log again") from None


def _server_args(text: str) -> dict[str, str]:
    found = {}
    for match in _ARGUMENT.finditer(text):
        value = next(group for group in match.groups()[2:] if group is not None)
        if value != "None":
            found[match[1] or match[2]] = value
    return found
