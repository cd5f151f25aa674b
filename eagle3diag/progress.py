"""Progress: one line that redraws itself on a terminal or in a notebook once something takes long, nothing at all where nobody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

# None: show where somebody watches; True and False: asked for, and asked not to. The command line sets it, libraries leave it.
_wanted: ContextVar[bool | None] = ContextVar("eagle3diag_progress", default=None)

_AFTER = 2.0  # seconds that nobody needs to be told of
_EVERY = 0.1  # seconds between redraws where somebody watches
_EVERY_PLAIN = 5.0  # and between lines in a log


@contextmanager
def shown(wanted: bool | None) -> Iterator[None]:
    """Within this block progress is shown (True), not shown (False), or shown in terminals and notebooks (None, as outside of any block)."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def track(
    items: Iterable[T],
    label: str,
    total: int | None = None,
    *,
    size: Callable[[T], int] = lambda _: 1,
    unit: str = "",
    stream: TextIO | None = None,
) -> Iterator[T]:
    """``items`` as they are, counted on stderr while they pass: each as ``size(item)`` of ``total`` (by default one, of their number).

    >>> with shown(True):
    ...     list(track("abc", "letters", stream=sys.stdout))  # doctest: +ELLIPSIS
    letters 3/3...
    ['a', 'b', 'c']
    """
    line = _Line(sys.stderr if stream is None else stream)
    if not line.shows:
        yield from items
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    start = time.monotonic()
    drawn = start + (_AFTER - _EVERY if _wanted.get() is None else 0.0)
    count = 0
    try:
        for item in items:
            yield item
            count += size(item)
            now = time.monotonic()
            if now - drawn >= (_EVERY if line.redraws else _EVERY_PLAIN):
                drawn = now
                line.draw(_words(label, count, total, now - start, unit))
    finally:
        # whoever watches gets the line back; a log keeps the final count
        line.end(_words(label, count, total, time.monotonic() - start, unit))


@contextmanager
def saying(*, stream: TextIO | None = None) -> Iterator[Callable[[str], None]]:
    """A function that tells which step a long call is at: on a terminal one line that is replaced, in a log a line each.

    >>> with shown(True), saying(stream=sys.stdout) as say:
    ...     say("reading")
    reading ...
    """
    line = _Line(sys.stderr if stream is None else stream)
    try:
        yield (lambda words: line.draw(f"{words} ...")) if line.shows else lambda words: None
    finally:
        if line.shows:
            line.end(None)


class _Line:
    """One line of words: redrawn in a terminal, shown anew in a notebook's cell, written one below the other in a log."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._cell: Any = None
        self._terminal, self._notebook = out.isatty(), type(out).__module__ == "ipykernel.iostream"
        self._drawn = False
        self.redraws = self._terminal or self._notebook
        wanted = _wanted.get()
        self.shows = self.redraws if wanted is None else wanted

    def draw(self, words: str) -> None:
        self._drawn = True
        if self._notebook:
            self._in_cell(words)
        else:
            self._out.write(f"\r\x1b[2K{words}" if self._terminal else f"{words}\n")
            self._out.flush()

    def end(self, words: str | None) -> None:
        """Give the line back; a log gets ``words``."""
        if self._notebook:
            if self._drawn:
                self._in_cell("")
        elif not self._terminal and words is not None:
            self.draw(words)
        elif self._terminal and self._drawn:
            self._out.write("\r\x1b[2K")
            self._out.flush()

    def _in_cell(self, words: str) -> None:
        from IPython.display import display

        shown = {"text/plain": words}
        if self._cell is None:
            self._cell = display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]  # IPython's own
        else:
            self._cell.update(shown, raw=True)


def _words(label: str, count: int, total: int | None, seconds: float, unit: str) -> str:
    of = f"/{total:,}" if total is not None else ""
    rate = f", {count / seconds:,.0f} {unit}/s" if unit and seconds > 1 else ""
    left = f", {seconds / count * (total - count):.0f} s left" if total and 0 < count < total and seconds > 1 else ""
    return f"{label} {count:,}{of}{' ' + unit if unit else ''}, {seconds:.0f} s{rate}{left}"
