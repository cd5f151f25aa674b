"""Mapped tensors that are wanted soon: the system reads them from disk while something else is done."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import Tensor

PIECE = 1 << 17  # bytes asked for at once: Linux takes no more of one call than the device's own readahead, by default this much
SMALL = 1 << 22  # bytes of a part that is asked for whole: around a single row that is touched the system reads about as many


def read_ahead(part: Tensor) -> None:
    """Have the system begin to read a part [T, W] of a record. It is told, and no more: nothing is waited for, nothing is held, and where the
    part is in memory, or the system knows no ``madvise``, nothing happens."""
    _advise(part, "MADV_WILLNEED")


@contextmanager
def few_rows(part: Tensor, rows: Iterable[int]) -> Iterator[None]:
    """While some ``rows`` of a part [T, W] are read: they are asked for, and of a row that is touched nothing around it is read, which would
    be megabytes."""
    if part.nbytes <= SMALL:
        read_ahead(part)
        yield
        return
    _advise(part, "MADV_RANDOM")
    for row in rows:
        _advise(part[row : row + 1], "MADV_WILLNEED")
    try:
        yield
    finally:
        _advise(part, "MADV_NORMAL")


def _advise(part: Tensor, how: str) -> None:
    advise = _madvise()
    if advise is None or part.device.type != "cpu" or not part.is_contiguous():
        return
    begin, end = part.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE, part.data_ptr() + part.nbytes
    step = PIECE if how == "MADV_WILLNEED" else max(end - begin, 1)
    for start in range(begin, end, step):
        advise(start, min(step, end - start), getattr(mmap, how))


@cache
def _madvise() -> Callable[[int, int, int], Any] | None:
    try:
        found = ctypes.CDLL(None).madvise
    except (AttributeError, OSError, TypeError):  # Windows
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found if hasattr(mmap, "MADV_WILLNEED") else None
