"""SGLang's forwards, put together into rows per request: what the target gave beside what the draft was fed of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.capture.recording import Recording


@dataclass(frozen=True)
class Seen:
    """One forward: how it ran, which requests it held in order, and which of them are recorded under which names."""

    mode: str
    rids: tuple[str, ...]
    names: Mapping[str, str]


class Rows:
    """Follows the events of SGLang's worker, and hands rows to a :class:`Recording`.

    A prefill of the target is followed by the draft's over the same rows; a verify by the draft's extend over the accepted ones, moved to
    the front of each request's slots. Row ``p`` of the draft holds the target's features of position ``p`` beside the embedding of token
    ``p + 1``. Without a draft the target prefills and decodes, one row at a time.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._prefilled: dict[str, tuple[list[int], dict[str, Tensor]]] = {}  # by name: what the draft's prefill has not yet joined
        self._verified: dict[str, dict[str, Tensor]] = {}

    def add(self, seen: Seen, tensors: Mapping[str, Tensor]) -> None:
        """Take in one forward; ``tensors`` are on the CPU, and empty when no request in it is recorded."""
        {
            "EXTEND": self._prefill,
            "DRAFT_PREFILL": self._draft_prefill,
            "TARGET_VERIFY": self._verify,
            "DRAFT_EXTEND_V2": self._draft_round,
            "DECODE": self._decode,
        }[seen.mode](seen, tensors)

    def _prefill(self, seen: Seen, tensors: Mapping[str, Tensor]) -> None:
        self.release()
        for name, rows in _by_length(seen, tensors):
            positions = tensors["positions"][rows].tolist()
            self._recording.learn(name, dict(zip(positions, tensors["ids"][rows].tolist(), strict=True)), positions[-1] + 1)
            self._prefilled[name] = positions, _parts(tensors, rows)

    def _draft_prefill(self, seen: Seen, tensors: Mapping[str, Tensor]) -> None:
        for name, rows in _by_length(seen, tensors):
            positions = tensors["positions"][rows].tolist()
            before, parts = self._prefilled.pop(name, ([], {}))
            self._next_tokens(name, positions, tensors["ids"][rows])
            self._recording.rows(name, positions, _parts(tensors, rows) | (parts if before == positions else {}))

    def _verify(self, seen: Seen, tensors: Mapping[str, Tensor]) -> None:
        self.release()
        self._verified = {name: _parts(tensors, rows) for name, rows in _by_slot(seen, tensors, "key")}

    def _draft_round(self, seen: Seen, tensors: Mapping[str, Tensor]) -> None:
        verified, self._verified = self._verified, {}
        if tensors:
            accepted = dict(zip(seen.rids, tensors["accepted"].tolist(), strict=False))
            counts = {name: accepted[rid] for rid, name in seen.names.items()}
            for name, slots in _by_slot(seen, tensors, "features"):
                rows = slice(slots.start, slots.start + counts[name])  # what lies behind the accepted ones is junk
                positions, parts = tensors["positions"][rows].tolist(), _parts(tensors, rows)
                self._next_tokens(name, positions, tensors["ids"][rows])
                parts |= _picked(verified.get(name, {}), parts["features"])
                self._recording.rows(name, positions, parts, accepted=counts[name] - 1)  # the other one is the bonus token
        self._recording.end_others(set(seen.names.values()))  # every running request is in every round

    def _decode(self, seen: Seen, tensors: Mapping[str, Tensor]) -> None:
        self.release()
        for name, rows in _by_slot(seen, tensors, "ids"):
            positions = tensors["positions"][rows].tolist()
            self._recording.learn(name, dict(zip(positions, tensors["ids"][rows].tolist(), strict=True)))
            self._recording.rows(name, positions, _parts(tensors, rows))
        self._recording.end_others(set(seen.names.values()))

    def _next_tokens(self, name: str, positions: list[int], ids: Tensor) -> None:
        self._recording.learn(name, {p + 1: token for p, token in zip(positions, ids.tolist(), strict=True)})

    def release(self) -> None:
        """A draft's prefill follows its target's at once; where something else does, there is no draft."""
        for name, (positions, parts) in self._prefilled.items():
            self._recording.rows(name, positions, parts)
        self._prefilled = {}


def _by_length(seen: Seen, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, slice]]:
    """Name and rows of each recorded prompt, or chunk of one, in a prefill; they lie one after another."""
    start = 0
    for rid, length in zip(seen.rids, tensors["lengths"].tolist() if tensors else (), strict=False):
        if rid in seen.names and length:
            yield seen.names[rid], slice(start, start + length)
        start += length


def _by_slot(seen: Seen, tensors: Mapping[str, Tensor], part: str) -> Iterator[tuple[str, slice]]:
    """Name and rows of each recorded request in a round, where all have equally many rows of ``part``."""
    if part in tensors:
        slots = len(tensors[part]) // len(seen.rids)
        for index, rid in enumerate(seen.rids):
            if rid in seen.names:
                yield seen.names[rid], slice(index * slots, (index + 1) * slots)


def _parts(tensors: Mapping[str, Tensor], rows: slice) -> dict[str, Tensor]:
    return {name: t[rows] for name, t in tensors.items() if name in ("features", "final", "key") or name.startswith("boundary.")}


def _picked(verified: Mapping[str, Tensor], features: Tensor) -> dict[str, Tensor]:
    """The verified rows that were accepted: those whose state is the one the draft was fed, bit for bit. A tree's path may be any of them,
    and the engine keeps no list of them that would outlive the verify.
    """
    if "key" not in verified:
        return {}
    key = verified["key"]
    same = (features[:, None, -key.shape[-1] :] == key[None]).all(-1)
    if not bool(same.any(-1).all()):
        return {}
    index = same.to(torch.uint8).argmax(-1)
    return {name: t[index] for name, t in verified.items() if name != "key"}
