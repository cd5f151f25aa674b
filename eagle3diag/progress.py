"""Progress on stderr: one line that redraws itself on a terminal, nothing at all where nobody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO, TypeVar

T = TypeVar("T")

# None: show on a terminal only; True and False: asked for, and asked not to. The command line sets it, libraries leave it.
_wanted: ContextVar[bool | None] = ContextVar("eagle3diag_progress", default=False)

_EVERY = 0.1  # seconds between redraws on a terminal
_EVERY_PLAIN = 5.0  # and between lines in a log


@contextmanager
def shown(wanted: bool | None) -> Iterator[None]:
    """Within this block progress is shown (True), not shown (False), or shown when stderr is a terminal (None).

    Outside of any such block nothing is shown: a script or a notebook stays quiet unless it asks.
    """
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def track(items: Iterable[T], label: str, total: int | None = None, *, stream: TextIO | None = None) -> Iterator[T]:
    """``items`` as they are, counted on stderr while they pass.

    >>> with shown(True):
    ...     list(track("abc", "letters", stream=sys.stdout))  # doctest: +ELLIPSIS
    letters 3/3...
    ['a', 'b', 'c']
    """
    out = sys.stderr if stream is None else stream
    terminal = out.isatty()
    wanted = _wanted.get()
    if not (terminal if wanted is None else wanted):
        yield from items
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    start = drawn = time.monotonic()
    count = 0
    try:
        for item in items:
            yield item
            count += 1
            now = time.monotonic()
            if now - drawn >= (_EVERY if terminal else _EVERY_PLAIN):
                drawn = now
                out.write(_line(label, count, total, now - start, terminal))
                out.flush()
    finally:
        # a terminal gets its line back; a log keeps the final count
        out.write("\r\x1b[2K" if terminal else _line(label, count, total, time.monotonic() - start, False))
        out.flush()


@contextmanager
def saying(*, stream: TextIO | None = None) -> Iterator[Callable[[str], None]]:
    """A function that tells which step a long call is at: on a terminal one line that is replaced, in a log a line each.

    >>> with shown(True), saying(stream=sys.stdout) as say:
    ...     say("reading")
    reading ...
    """
    out = sys.stderr if stream is None else stream
    terminal = out.isatty()
    wanted = _wanted.get()
    show = terminal if wanted is None else wanted

    def say(words: str) -> None:
        if show:
            out.write(f"\r\x1b[2K{words} ..." if terminal else f"{words} ...\n")
            out.flush()

    try:
        yield say
    finally:
        if show and terminal:
            out.write("\r\x1b[2K")
            out.flush()


def _line(label: str, count: int, total: int | None, seconds: float, terminal: bool) -> str:
    of = f"/{total}" if total is not None else ""
    left = f", {seconds / count * (total - count):.0f} s left" if total and 0 < count < total and seconds > 1 else ""
    words = f"{label} {count}{of}, {seconds:.0f} s{left}"
    return f"\r\x1b[2K{words}" if terminal else f"{words}\n"
