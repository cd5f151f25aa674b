"""From an engine's forward to a thread that writes: copies that are safe to read there, and a queue that never makes the engine wait."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

#: Seconds without work after which what is finished is written, though the shard is not full.
REST = 0.5


class Copies:
    """Clones of tensors, made on the engine's own stream without waiting for it; :meth:`cpu` waits, and belongs on another thread.

    Engines reuse their buffers and write into them in place, so what is kept must be a copy; and a copy that is still being made when
    another stream reads it would be half a copy, so an event marks its end. ``owned`` are copies already.
    """

    def __init__(self, tensors: Mapping[str, Tensor], owned: Mapping[str, Tensor] | None = None) -> None:
        self._clones = {name: tensor.detach().clone() for name, tensor in tensors.items()} | dict(owned or {})
        self.bytes = sum(t.numel() * t.element_size() for t in self._clones.values())
        device = next((t.device for t in self._clones.values() if t.device.type != "cpu"), None)
        self._done: Any = None
        if device is not None:
            module = torch.get_device_module(device)
            self._done = module.Event()
            self._done.record(module.current_stream(device))

    def cpu(self) -> dict[str, Tensor]:
        """The copies in the CPU's memory."""
        if self._done is not None:
            self._done.synchronize()
        return {name: tensor.cpu() for name, tensor in self._clones.items()}


class Spool:
    """A thread that does the work that :meth:`put` leaves, in order.

    ``rest(seconds)`` is called whenever there was nothing to do for a while, with the time for which neither work came nor a module ran in
    this process; ``fail(error)`` once, when work or rest raised, after which everything is thrown away.
    """

    def __init__(self, rest: Callable[[float], None], fail: Callable[[Exception], None], *, queue_bytes: int) -> None:
        self._rest, self._fail, self._limit = rest, fail, queue_bytes
        self._queue: queue.SimpleQueue[tuple[Callable[[], None] | threading.Event | None, int]] = queue.SimpleQueue()
        self._put = self._taken = 0  # bytes; each counter is written by one thread only, so no lock is needed
        self._dead = False
        self._thread = threading.Thread(target=self._run, name="eagle3diag", daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None], size: int = 0) -> bool:
        """Leave work that holds so many bytes; False, and nothing is left, when too much is waiting already. Called by one thread only."""
        if size and self._put - self._taken + size > self._limit:
            return False
        self._put += size
        self._queue.put((work, size))
        return True

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until everything that was left before is done and ``rest`` has been called; False when time runs out."""
        reached, deadline = threading.Event(), None if timeout is None else time.monotonic() + timeout
        self._queue.put((reached, 0))
        while self._thread.is_alive() and not reached.wait(0.05):  # a thread that has ended has nothing left to do
            if deadline is not None and time.monotonic() > deadline:
                return False
        return True

    def end(self) -> None:
        """End the thread once it has done what was left before."""
        self._queue.put((None, 0))

    def _run(self) -> None:
        last = time.monotonic()
        while True:
            try:
                work, size = self._queue.get(timeout=REST)
            except queue.Empty:
                if a_module_is_running():
                    last = time.monotonic()
                self._guard(partial(self._rest, time.monotonic() - last))
                continue
            if work is None:
                return
            if isinstance(work, threading.Event):
                self._guard(partial(self._rest, time.monotonic() - last))
                work.set()
            else:
                last = time.monotonic()
                self._guard(work)
            self._taken += size
            del work  # or the copies in it would live until the next ones come

    def _guard(self, work: Callable[[], None]) -> None:
        if self._dead:
            return
        try:
            work()
        except Exception as error:  # whatever it is, it must not reach the engine
            self._dead = True
            self._fail(error)


def a_module_is_running() -> bool:
    """Whether some thread of this process is inside the call of a module: an engine that is slow is not an engine that is idle."""
    call: Any = nn.Module._call_impl
    frame: FrameType | None
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code is call.__code__:
                return True
            frame = frame.f_back
    return False
