"""Hidden states as values: a dump is a sequence of records, each of which reads its tensors when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor

from eagle3diag.errors import MissingPart

#: Reads one part of a record ("input_ids", "features", "final", "boundary.15", ...); None when it was not stored.
Part = Callable[[str], "Tensor | None"]


@dataclass(frozen=True)
class TargetIdentity:
    """Which target the states are of; ``config_hash`` is 16 hex digits of the SHA-256 of its canonical ``config.json``."""

    name: str
    config_hash: str
    dtype: str
    n_layers: int
    hidden_size: int


@dataclass(frozen=True)
class Record:
    """One sequence of ``T`` tokens.

    ``boundaries`` are those stored one by one; ``declared`` are the aux boundaries of the dump, in the order the draft takes them.
    """

    name: str
    tokens: int
    prompt_length: int | None
    boundaries: tuple[int, ...]
    declared: tuple[int, ...]
    part: Part

    def _need(self, name: str) -> Tensor:
        tensor = self.part(name)
        if tensor is None:
            raise MissingPart(f"the dump stores no {name!r} for this record", where=f"record {self.name}", hint="capture again with that part")
        return tensor

    @property
    def input_ids(self) -> Tensor:
        """Token ids [T], int64."""
        return self._need("input_ids").long()

    @property
    def positions(self) -> Tensor | None:
        """Positions [T] when stored; otherwise they run from 0."""
        return self.part("positions")

    @property
    def loss_mask(self) -> Tensor | None:
        """1 where the trainer took the loss [T], when stored."""
        return self.part("loss_mask")

    @property
    def final(self) -> Tensor | None:
        """The target's last state *after* its final norm [T, H], when stored."""
        return self.part("final")

    def state(self, boundary: int) -> Tensor:
        """The residual stream after ``boundary`` blocks [T, H]. Raises :class:`~eagle3diag.errors.MissingPart` if not stored."""
        return self._need(f"boundary.{boundary}")

    @property
    def features(self) -> Tensor:
        """What the draft is fed [T, W]: stored as such, or the declared boundaries side by side."""
        stored = self.part("features")
        if stored is not None:
            return stored
        if not self.declared:
            raise MissingPart("the dump declares no aux boundaries", where=f"record {self.name}", hint="capture with boundaries=[...]")
        return torch.cat([self.state(b) for b in self.declared], -1)


@dataclass(frozen=True)
class HiddenStates(Sequence[Record]):
    """A dump: records of one side, and what is known of where they came from.

    ``counters`` are what the recorder counted (``fc_calls``, ``draft_forwards``, ...). ``complete`` is False when the writer never
    closed the dump: what is listed is whole, but more was meant to come. ``assumed`` says what a reader had to take for granted.
    """

    records: tuple[Record, ...]
    side: str
    target: TargetIdentity
    engine: str = "unknown"
    engine_version: str | None = None
    boundaries: tuple[int, ...] = ()
    counters: Mapping[str, int] | None = None
    assumed: tuple[str, ...] = ()
    complete: bool = True
    path: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "counters", dict(self.counters or {}))

    @classmethod
    def from_tensors(cls, records: Iterable[Mapping[str, Any]], *, side: str, target: TargetIdentity, **facts: Any) -> HiddenStates:
        """A dump in memory. Each record is a mapping with ``name``, ``input_ids`` and any of ``features``, ``states`` (a mapping of
        boundary to [T, H]), ``final``, ``positions``, ``loss_mask``, ``prompt_length``."""
        declared = tuple(facts.get("boundaries", ()))
        return cls(tuple(_in_memory(r, declared) for r in records), side=side, target=target, **facts)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> HiddenStates: ...
    def __getitem__(self, index: int | slice) -> Record | HiddenStates:
        if isinstance(index, slice):
            return replace(self, records=self.records[index])
        return self.records[index]

    def __len__(self) -> int:
        return len(self.records)

    def select(self, indices: Iterable[int]) -> HiddenStates:
        """The same dump with these records only, in this order."""
        return replace(self, records=tuple(self.records[i] for i in indices))

    def map_features(self, change: Callable[[Record, Tensor], Tensor]) -> HiddenStates:
        """The same dump with ``features`` passed through ``change(record, features)`` when they are read; nothing is copied before."""

        def changed(record: Record) -> Record:
            def part(name: str) -> Tensor | None:
                return change(record, record.features) if name == "features" else record.part(name)

            return replace(record, part=part)

        return replace(self, records=tuple(changed(r) for r in self.records))

    def __repr__(self) -> str:
        tokens = sum(r.tokens for r in self.records)
        return f"HiddenStates({self.side}, {len(self)} records, {tokens} tokens, boundaries {list(self.boundaries)}, {self.engine})"


def _in_memory(record: Mapping[str, Any], declared: tuple[int, ...]) -> Record:
    ids = torch.as_tensor(record["input_ids"])
    parts: dict[str, Tensor] = {"input_ids": ids}
    parts |= {k: torch.as_tensor(record[k]) for k in ("features", "final", "positions", "loss_mask") if record.get(k) is not None}
    states: Mapping[int, Tensor] = record.get("states") or {}
    parts |= {f"boundary.{b}": t for b, t in states.items()}
    return Record(str(record["name"]), len(ids), record.get("prompt_length"), tuple(states), declared, parts.get)
