"""The part that every engine's recorder shares: it is called from the forward, hands copies to the thread that writes, and never raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from eagle3diag.capture.identity import installed
from eagle3diag.capture.options import Options
from eagle3diag.capture.recording import Choice, Recording
from eagle3diag.capture.spool import Copies, Spool
from eagle3diag.dumps import TargetIdentity

logger = logging.getLogger(__name__)
R = TypeVar("R", bound="EngineRecorder")
P = ParamSpec("P")


def never_raise(method: Callable[Concatenate[R, P], None]) -> Callable[Concatenate[R, P], None]:
    """A broken recorder must not take the server with it: any error ends the recording. What runs while a graph is captured or traced is
    no forward of a request, and copying there would become part of the graph.
    """

    @wraps(method)
    def guarded(self: R, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.active and not _capturing():
            try:
                method(self, *args, **kwargs)
            except Exception as error:
                self.stop(error)

    return cast(Callable[Concatenate[R, P], None], guarded)


class EngineRecorder:
    """Counts on the engine's side, and hands what is to be written to its thread.

    ``active`` says whether anything is still recorded. ``counters`` are written by the engine's thread; the manifest gets a copy.
    """

    engine = "unknown"

    def __init__(self, options: Options) -> None:
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.rank, self.ranks = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if distributed else (0, 1)
        self.options, self.choice = options, Choice(options)
        self.folder = options.out if self.rank == 0 else f"{options.out}.rank{self.rank}"
        self.counters: dict[str, int] = {}
        self.active = self.rank == 0 or options.ranks == "all"
        self._recording: Recording | None = None
        self._spool = Spool(self._rest, self._failed, queue_bytes=options.queue_bytes) if self.active else None

    # -- the engine's side ---------------------------------------------------------------------------------------------------------

    def hand_over(self, work: Callable[[Mapping[str, Tensor]], None], copies: Copies, names: Mapping[str, str]) -> None:
        """Have the thread call ``work`` with the copies, on the CPU; when too much waits, the requests ``names`` are lost instead."""
        spool = self._spool
        if spool is None or spool.put(partial(self._work, work, copies), copies.bytes):
            return
        spool.put(lambda: self.recording.lose(tuple(names.values())))

    def stop(self, error: Exception) -> None:
        """End the recording because of an error on the engine's side."""
        self.active = False
        if self._spool is not None:
            self._spool.put(partial(self._failed, error))

    def count(self, name: str, by: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + by

    def count_fc(self, inputs: tuple[Tensor, ...]) -> None:
        """A call of the fusion, and how wide its input was."""
        self.count("fc_calls")
        self.counters["fc_input_width"] = int(inputs[0].shape[-1])

    def count_fed(self, width: int, hidden_size: int) -> None:
        """A forward of the draft that was fed the target's rows, wider than the target or exactly as wide."""
        self.count("draft_extends")
        self.count("wide_extends" if width > hidden_size else "narrow_extends")
        self.counters["fed_width"] = width

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until what was seen so far is written, as far as its requests have ended; False when time runs out."""
        return self._spool is None or self._spool.settle(timeout)

    def close(self, timeout: float | None = None) -> None:
        """End the recording, requests that still run included, and wait until it is written."""
        self.active = False
        if self._spool is not None:
            self._spool.put(self._finish)
            self._spool.settle(timeout)
            self._spool.end()
            self._spool = None

    # -- the thread's side ---------------------------------------------------------------------------------------------------------

    @property
    def recording(self) -> Recording:
        """Opened at the first use, on the thread: a folder that cannot be written ends the recording and nothing else."""
        if self._recording is None:
            self._recording = Recording(self.options, self.folder, self.engine, installed(self.engine, f"{self.engine}-cpu"), self.ranks)
            self.opened(self._recording)
        return self._recording

    def opened(self, recording: Recording) -> None:
        """What an engine has to say as soon as the dump exists."""

    def idle(self, recording: Recording) -> None:
        """Nothing has run for ``idle_seconds``, or nothing more will: hand out what still waits for a later forward."""

    def identify(self, identity: TargetIdentity, boundaries: tuple[int, ...]) -> None:
        """What the engine itself says of its target; what was read from the target's folder is kept, but for the dtype."""
        known = self.recording.identity
        if known.config_hash:
            identity = replace(known, dtype=identity.dtype)
        self.recording.identify(identity, boundaries)

    def _work(self, work: Callable[[Mapping[str, Tensor]], None], copies: Copies) -> None:
        work(copies.cpu())
        self._after()

    def _rest(self, seconds: float) -> None:
        recording = self.recording
        if seconds >= self.options.idle_seconds:
            self.idle(recording)
            recording.end_others(set())
        self._after()
        recording.flush()

    def _after(self) -> None:
        self.recording.counters.update(self.counters)
        if self.recording.closed and self.active:
            self.active = False
            assert self._spool is not None
            self._spool.end()

    def _finish(self) -> None:
        self.idle(self.recording)
        self.recording.counters.update(self.counters)
        self.recording.close()

    def _failed(self, error: Exception) -> None:
        self.active = False
        logger.warning("eagle3diag: recording into %s stopped: %s: %s", self.folder, type(error).__name__, error)
        if self._spool is not None:
            self._spool.end()
        if self._recording is None:
            return
        try:
            self._recording.counters.update(self.counters)
            self._recording.fail(error)
        except Exception as second:  # a disk so full that not even the manifest fits: the server goes on all the same
            logger.warning("eagle3diag: the manifest could not be written either: %s", second)


def _capturing() -> bool:
    return torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
