"""Rows of many requests that come in pieces, put together and written as one record per request; no engine is known here."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor

from eagle3diag.capture.options import Options
from eagle3diag.checkpoints import open_target
from eagle3diag.dumps import DumpWriter, TargetIdentity
from eagle3diag.dumps.parts import stored_boundaries

logger = logging.getLogger(__name__)
#: Room kept on the disk, so that a full one still takes the manifest that says so.
RESERVE, RESERVED_BYTES = ".reserve", 1 << 20
#: Small shards: a shard is serialised while the engine waits for the interpreter.
SHARD_BYTES = 16 * 1024**2


class Choice:
    """Which requests are recorded, and under which name: ``0000``, ``0001``, … in order of arrival."""

    def __init__(self, options: Options) -> None:
        self._limit, self._every = options.limit, options.every
        self._named: dict[str, str] = {}

    def name(self, rid: str) -> str | None:
        """The record's name, or None when the request is not recorded."""
        known = self._named.get(rid)
        if known is None and crc32(rid.encode()) % self._every == 0 and (self._limit is None or len(self._named) < self._limit):
            known = self._named[rid] = f"{len(self._named):04d}"
        return known

    def names(self, rids: Sequence[str]) -> dict[str, str]:
        """Those of ``rids`` that are recorded, with their names."""
        return {rid: name for rid in rids if (name := self.name(rid)) is not None}


@dataclass
class _Running:
    """One request while it runs: every token known by its position, and pieces of rows with the positions they are for."""

    tokens: dict[int, int] = field(default_factory=dict)
    positions: list[int] = field(default_factory=list)
    held: set[int] = field(default_factory=set)
    pieces: list[Mapping[str, Tensor]] = field(default_factory=list)
    prompt_length: int | None = None
    rounds: dict[int, int] = field(default_factory=dict)  # accepted drafts by the position that a round was drafted from


class Recording:
    """Collects the rows of requests by name and writes those that have ended. Used by one thread.

    ``counters`` and ``notes`` go to the manifest each time it is written (``counters``, ``assumed``). ``closed`` is true once the limit or the
    byte budget is reached, or :meth:`close` was called.
    """

    def __init__(self, options: Options, folder: str, engine: str, engine_version: str | None, ranks: int = 1) -> None:
        self.options, self.counters, self.closed = options, dict[str, int](), False
        self._running: dict[str, _Running] = {}
        self._ended: set[str] = set()
        self._bytes = 0
        self._dirty = False
        identity = TargetIdentity("unknown", "", "unknown", 0, 0)
        if options.target is not None:
            target = open_target(options.target)
            identity = TargetIdentity(target.name, target.config_hash, "unknown", target.n_layers, target.hidden_size)
        self._writer = DumpWriter(folder, "live", identity, engine, engine_version, max_shard_bytes=SHARD_BYTES, ranks=ranks)
        self.identify(identity)
        self._reserve = Path(folder) / RESERVE
        self._reserve.write_bytes(bytes(RESERVED_BYTES))

    @property
    def identity(self) -> TargetIdentity:
        return self._writer.target

    def identify(self, identity: TargetIdentity, boundaries: tuple[int, ...] | None = None) -> None:
        """Whose states these are, under the name that was asked for, and which boundaries the draft is fed."""
        self._writer.target = replace(identity, name=self.options.target_name or identity.name)
        if boundaries is not None:
            self._writer.boundaries = boundaries

    # -- what runs -----------------------------------------------------------------------------------------------------------------

    def learn(self, name: str, tokens: Mapping[int, int], prompt_length: int | None = None) -> None:
        """Token ids by position, and where the prompt ends as far as is known."""
        request = self._request(name)
        if request is not None:
            request.tokens.update(tokens)
            request.prompt_length = prompt_length if prompt_length is not None else request.prompt_length

    def rows(self, name: str, positions: Sequence[int], parts: Mapping[str, Tensor], accepted: int | None = None) -> None:
        """Rows [n, ·] of each part for ``positions``; those of a position that is there already (computed again) are left out.

        ``accepted``: these are the tokens of one round, of whose drafts so many were accepted; it was drafted from the row before.
        """
        request = self._request(name)
        if request is None:
            self.counters["late_rows"] = self.counters.get("late_rows", 0) + len(positions)
            return
        if accepted is not None:
            request.rounds.setdefault(positions[0] - 1, accepted)
        fresh = [i for i, p in enumerate(positions) if p not in request.held]
        if len(fresh) < len(positions):
            positions, parts = [positions[i] for i in fresh], {n: t[fresh] for n, t in parts.items()}
        if not positions:
            return
        request.positions += positions
        request.held.update(positions)
        request.pieces.append({n: t.clone() for n, t in parts.items()})  # clone: a view would keep the whole batch alive
        self._bytes += sum(t.numel() * t.element_size() for t in parts.values())
        if self._bytes > self.options.max_bytes:
            self.note(f"recording stopped at its budget of {self.options.max_bytes} bytes; the requests that ran then are cut off")
            self.close()

    def end(self, name: str) -> None:
        """The request has ended: write it. At the limit, close."""
        request = self._running.pop(name, None)
        if request is None:
            return
        self._ended.add(name)
        self._write(name, request)
        if self.options.limit is not None and len(self._ended) >= self.options.limit and not self._running:
            self.close()

    def end_others(self, present: set[str]) -> None:
        """End every running request that is not in ``present``."""
        for name in [n for n in self._running if n not in present]:
            self.end(name)

    def lose(self, names: Sequence[str]) -> None:
        """Rows of these requests were lost, so they cannot be put together any more."""
        for name in names:
            if self._running.pop(name, None) is not None or name not in self._ended:
                self._ended.add(name)
                self.counters["dropped_requests"] = self.counters.get("dropped_requests", 0) + 1

    @property
    def running(self) -> bool:
        return bool(self._running)

    # -- what is written -----------------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """A sentence for the manifest and the log, once."""
        if text not in self._writer.assumed:
            self._writer.assumed = (*self._writer.assumed, text)
            self._dirty = True
            logger.warning("eagle3diag: %s", text)

    def flush(self) -> None:
        """Bring the folder up to date, if anything has happened."""
        if not self.closed and (self._dirty or self._writer.counters != self.counters):
            self._writer.counters = dict(self.counters)
            self._writer.flush()
            self._dirty = False

    def close(self) -> None:
        """Write everything, what still runs included, and mark the dump complete."""
        if self.closed:
            return
        self.closed = True
        while self._running:
            self._write(*self._running.popitem())
        self._writer.counters = dict(self.counters)
        self._reserve.unlink(missing_ok=True)
        self._writer.close()

    def fail(self, error: Exception) -> None:
        """Give up after an error: keep what was finished, and say in the manifest why there is no more."""
        self.closed = True
        self._running.clear()
        self.note(f"recording stopped early: {type(error).__name__}: {error}")
        self._writer.counters = dict(self.counters)
        self._reserve.unlink(missing_ok=True)
        self._writer.abandon()

    def _request(self, name: str) -> _Running | None:
        """The running request; None once it has ended (one that was put back and comes again is not recorded twice)."""
        if self.closed or name in self._ended:
            return None
        return self._running.setdefault(name, _Running())

    def _write(self, name: str, request: _Running) -> None:
        self._dirty = True
        if not request.positions or any(p not in request.tokens for p in request.positions):
            self.counters["incomplete_requests"] = self.counters.get("incomplete_requests", 0) + 1
            return
        whole = request.positions == list(range(len(request.positions)))  # not so when a cached prefix was never computed
        parts = {n: torch.cat([piece[n] for piece in request.pieces]) for n in request.pieces[0] if all(n in p for p in request.pieces)}
        dropped = sorted({n for piece in request.pieces for n in piece} - parts.keys())
        if dropped:
            self.note(f"{', '.join(dropped)}: missing for some rows, so left out of some records")
        self._writer.add(
            name=name,
            input_ids=self._ids([request.tokens[p] for p in request.positions]),
            states={b: parts[f"boundary.{b}"] for b in stored_boundaries(parts)},
            features=parts.get("features"),
            final=parts.get("final"),
            prompt_length=request.prompt_length,
            positions=None if whole else torch.tensor(request.positions),
            accepted=torch.tensor([request.rounds.get(p, -1) for p in request.positions], dtype=torch.int16) if request.rounds else None,
        )

    def _ids(self, ids: list[int]) -> Tensor:
        if self.options.ids == "drop":
            self.note("token ids were dropped: every id is -1")
            return torch.full((len(ids),), -1)
        if self.options.ids == "hash":
            self.note("token ids are hashed: equal ids are equal, nothing else can be read from them")
            return torch.tensor([hashed(self.options.salt, i) for i in ids])
        return torch.tensor(ids)


@lru_cache(maxsize=1 << 16)
def hashed(salt: str, token: int) -> int:
    """A token id turned into 48 bits that only who has the salt can turn back, by trying all ids."""
    return int.from_bytes(blake2b(str(token).encode(), key=salt.encode()[:64], digest_size=6).digest(), "big")
