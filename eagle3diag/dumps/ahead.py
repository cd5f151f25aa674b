"""Mapped tensors that are wanted soon: the system reads them from disk while something else is done."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from torch import Tensor

PIECE = 1 << 17  # bytes asked for at once: Linux takes no more of one call than the device's own readahead, by default this much
SMALL = 1 << 22  # bytes of a part that is asked for whole: around a single row that is touched the system reads about as many


def read_ahead(part: Tensor, rows: Iterable[int] | None = None) -> None:
    """Have the system begin to read a part [T, W] of a record, or some of its rows. It is told, and no more: nothing is waited for, nothing
    is held, and where the part is in memory, or the system knows no ``madvise``, nothing happens."""
    advise = _madvise()
    if advise is None or part.device.type != "cpu" or not part.is_contiguous():
        return
    first, row = part.data_ptr(), part.nbytes // max(part.shape[0], 1)
    for at, size in [(first, part.nbytes)] if rows is None or part.nbytes <= SMALL else [(first + row * i, row) for i in rows]:
        for start in range(at // mmap.PAGESIZE * mmap.PAGESIZE, at + size, PIECE):
            advise(start, min(PIECE, at + size - start), mmap.MADV_WILLNEED)


@cache
def _madvise() -> Callable[[int, int, int], Any] | None:
    try:
        found = ctypes.CDLL(None).madvise
    except (AttributeError, OSError, TypeError):  # Windows
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found if hasattr(mmap, "MADV_WILLNEED") else None
