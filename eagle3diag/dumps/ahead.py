"""Mapped tensors that are wanted soon: the system reads them from disk while something else is done."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor

PIECE = 1 << 17  # bytes asked for at once: Linux takes no more of one call than the device's own readahead, by default this much


def read_ahead(rows: Tensor) -> None:
    """Have the system begin to read ``rows`` [T, W], one behind the other in a mapped file. It only tells: nothing is waited for, nothing
    is held, and where rows are in memory, or the system knows no ``madvise``, nothing happens."""
    advise = _madvise()
    if advise is None or rows.device.type != "cpu" or not rows.is_contiguous():
        return
    end = rows.data_ptr() + rows.numel() * rows.element_size()
    for start in range(rows.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE, end, PIECE):
        advise(start, min(PIECE, end - start), mmap.MADV_WILLNEED)


@cache
def _madvise() -> Callable[[int, int, int], Any] | None:
    try:
        found = ctypes.CDLL(None).madvise
    except (AttributeError, OSError, TypeError):  # Windows
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found if hasattr(mmap, "MADV_WILLNEED") else None
