"""A server's log, read as a stream: acceptance per window, the resolved arguments, and what was said of aux layers."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eagle3diag.errors import UnreadableFile
from eagle3diag.serving.acceptance import Acceptance
from eagle3diag.serving.launch import Launch, from_arguments

_LENGTH = re.compile(r"accept len: (\d+(?:\.\d+)?)")
_RATE = re.compile(r"accept rate: (\d+(?:\.\d+)?)")
_ARGUMENT = re.compile(r"(\w+)=(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|(\[[^\]]*\]|[^,()\s]+))")
_VERSION = re.compile(r"\b(sglang|vllm)[ =/v]{0,6}version[ =:]{0,3}v?(\d+\.\d+[\w.]*)|\b(sglang|vllm)==(\d+\.\d+[\w.]*)", re.IGNORECASE)
_AUX = re.compile(r"aux|layers_to_capture|eagle3", re.IGNORECASE)
LONGEST_LINE = 64 * 1024
KEPT_LINES = 4000


@dataclass(frozen=True)
class LogLine:
    """One decode line: accept length over its window, and the accept rate as printed (None where the version prints none)."""

    accept_length: float
    accept_rate: float | None


@dataclass(frozen=True)
class LogSeries:
    """What a log says. ``rate_kind``: ``strict`` (accepted / proposed), ``biased`` (bonus counted, 1/slots is zero) or ``unknown``."""

    engine: str | None
    engine_version: str | None
    launch: Launch | None
    lines: tuple[LogLine, ...]
    aux_lines: tuple[str, ...]
    rate_kind: str
    acceptance: Acceptance | None


def read_log(path: str | os.PathLike[str]) -> LogSeries:
    """Read a log of SGLang (0.4 to 0.5.23), plain or gzipped, in constant memory. Bytes that are no UTF-8 are replaced.

    Raises
    ------
    UnreadableFile: not there, or not readable.
    """
    file = Path(path)
    launch: Launch | None = None
    engine = version = None
    lines: list[LogLine] = []
    aux: list[str] = []
    total = windows = 0.0
    for line in _lines(file):
        if match := _LENGTH.search(line):
            rate = _RATE.search(line)
            total, windows = total + float(match[1]), windows + 1
            if len(lines) < KEPT_LINES:
                lines.append(LogLine(float(match[1]), float(rate[1]) if rate else None))
        elif launch is None and "server_args=" in line:
            launch = from_arguments("sglang", _server_args(line.split("server_args=", 1)[1]), None)
            engine = "sglang"
        elif len(aux) < 20 and _AUX.search(line) and "server_args" not in line:
            aux.append(line.strip()[:300])
        if version is None and (found := _VERSION.search(line)):
            engine, version = (found[1] or found[3]).lower(), found[2] or found[4]
    slots = launch.slots if launch else None
    steps = (launch.steps if launch else None) or (slots - 1 if slots else None)
    acceptance = Acceptance(steps=steps, slots=slots, accept_length=total / windows, engine=engine, engine_version=version) if windows else None
    return LogSeries(engine, version, launch, tuple(lines), tuple(aux), rate_kind(lines, slots), acceptance)


def rate_kind(lines: list[LogLine] | tuple[LogLine, ...], slots: int | None) -> str:
    """Which rate was printed, told by arithmetic (test M2): biased is length / slots, strict is (length - 1) / (slots - 1)."""
    pairs = [(line.accept_length, line.accept_rate) for line in lines if line.accept_rate is not None]
    if not pairs or not slots or slots < 2:
        return "unknown"
    biased = sum(abs(r - a / slots) for a, r in pairs) / len(pairs)
    strict = sum(abs(r - (a - 1) / (slots - 1)) for a, r in pairs) / len(pairs)
    return "biased" if biased < strict else "strict"


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as probe:
            zipped = probe.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else path.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                yield line.decode("utf-8", errors="replace")
    except FileNotFoundError:
        raise UnreadableFile("there is no such log", where=path, hint="check the path") from None
    except (OSError, EOFError) as error:
        raise UnreadableFile(f"cannot be read: {error}", where=path, hint="copy the log again") from None


def _server_args(text: str) -> dict[str, str]:
    return {m[1]: next(g for g in m.groups()[1:] if g is not None) for m in _ARGUMENT.finditer(text)}
