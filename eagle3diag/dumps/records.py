"""Hidden states as values: a dump is a sequence of records, each of which reads its tensors when asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor

from eagle3diag.dumps.parts import checked_parts, stored_boundaries
from eagle3diag.errors import BadArgument, MissingPart

SIDES = ("train", "live", "reference")

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
    """One sequence of ``T`` tokens. What is read shares memory with the file's map or the caller's tensors: treat it as read-only.

    ``boundaries`` are those stored one by one; ``declared`` are the aux boundaries of the dump, in the order the draft takes them.
    """

    name: str
    tokens: int
    prompt_length: int | None
    boundaries: tuple[int, ...]
    declared: tuple[int, ...]
    part: Part

    def _part(self, name: str) -> Tensor | None:
        """As stored; 8-bit floats, which torch can neither join nor compare, as float32."""
        tensor = self.part(name)
        return tensor.float() if tensor is not None and str(tensor.dtype).startswith("torch.float8") else tensor

    def _numbers(self, name: str) -> Tensor | None:
        """One number per token, on the CPU wherever the states lie: rows are counted and put together there."""
        tensor = self.part(name)
        return None if tensor is None else tensor.cpu()

    def need(self, name: str) -> Tensor:
        """One part by its name; raises :class:`~eagle3diag.errors.MissingPart` when it was not stored."""
        tensor = self._part(name)
        if tensor is None:
            raise MissingPart(
                f"the dump stores no {name!r} for this record", where=f"record {self.name}", hint="capture again with that part"
            )
        return tensor

    @property
    def input_ids(self) -> Tensor:
        """Token ids [T], int64, not shifted."""
        return self.need("input_ids").long().cpu()

    @property
    def positions(self) -> Tensor | None:
        """Positions [T] when stored; otherwise they run from 0."""
        return self._numbers("positions")

    @property
    def loss_mask(self) -> Tensor | None:
        """1 where the trainer took the loss [T], when stored."""
        return self._numbers("loss_mask")

    @property
    def accepted(self) -> Tensor | None:
        """How many drafts the server accepted in the round that it drafted from row ``t``, -1 where it drafted from another [T], int64, when
        stored. The round's drafts were for the tokens ``t + 2`` and on; what is said of tokens that the record does not have is -1 too."""
        stored = self._numbers("accepted")
        if stored is None:
            return None
        left = self.tokens - torch.arange(self.tokens)
        made: Tensor = stored.long()
        return torch.where((made >= 0) & (made < left), made, -1)

    @property
    def final(self) -> Tensor | None:
        """The target's last state *after* its final norm [T, H], when stored."""
        return self._part("final")

    @property
    def last(self) -> Tensor | None:
        """The target's last state *before* its final norm [T, H], when it is stored apart from the boundaries, as trainers do that do
        not say how many blocks the target has. With a known target it is the boundary ``n_layers`` too."""
        return self._part("last")

    def state(self, boundary: int) -> Tensor:
        """The residual stream after ``boundary`` blocks [T, H]. Raises :class:`~eagle3diag.errors.MissingPart` if not stored."""
        return self.need(f"boundary.{boundary}")

    @property
    def features(self) -> Tensor:
        """What the draft is fed [T, W]: stored as such, or the declared boundaries side by side.

        Raises
        ------
        MissingPart: no features are stored, and the dump declares no aux boundaries, or one of them is not stored.
        """
        stored = self._part("features")
        if stored is not None:
            return stored
        if not self.declared:
            raise MissingPart("the dump declares no aux boundaries", where=f"record {self.name}", hint="capture with boundaries=[...]")
        return torch.cat([self.state(b) for b in self.declared], -1)


class LazyRecords(Sequence[Record]):
    """Records of known names that are made when they are asked for: a folder of 100,000 files opens without opening them."""

    def __init__(self, names: Sequence[str], make: Callable[[int], Record]) -> None:
        self.names, self._make = tuple(names), make

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> LazyRecords: ...
    def __getitem__(self, index: int | slice) -> Record | LazyRecords:
        at = range(len(self))[index]
        if isinstance(at, int):
            return self._make(at)
        return LazyRecords([self.names[i] for i in at], lambda i: self._make(at[i]))

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class HiddenStates(Sequence[Record]):
    """A dump: records of one side, and what is known of where they came from.

    ``counters`` are what the recorder counted (``fc_calls``, ``draft_forwards``, ...). ``complete`` is False when the writer never
    closed the dump: what is listed is whole, but more was meant to come. ``assumed`` says what a reader had to take for granted.
    """

    records: Sequence[Record]
    side: str
    target: TargetIdentity
    engine: str = "unknown"
    engine_version: str | None = None
    boundaries: tuple[int, ...] = ()
    counters: Mapping[str, int] | None = None
    assumed: tuple[str, ...] = ()
    complete: bool = True
    path: str | None = None
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise BadArgument(f"side is {self.side!r}, expected one of {', '.join(SIDES)}")
        object.__setattr__(self, "counters", dict(self.counters or {}))

    @classmethod
    def from_tensors(cls, records: Iterable[Mapping[str, Any]], *, side: str, target: TargetIdentity, **facts: Any) -> HiddenStates:
        """A dump in memory; the tensors are kept, not copied. Each record is a mapping with ``name``, ``input_ids`` [T] and any of
        ``features`` [T, W], ``states`` (boundary to [T, H]), ``final`` [T, H], ``positions``, ``loss_mask`` and ``accepted`` [T], ``prompt_length``.

        >>> target = TargetIdentity("tiny", "", "float32", 4, 2)
        >>> record = {"name": "a", "input_ids": [5, 6, 7], "states": {1: torch.ones(3, 2), 3: torch.zeros(3, 2)}}
        >>> HiddenStates.from_tensors([record], side="train", target=target, boundaries=(3, 1))[0].features[0]
        tensor([0., 0., 1., 1.])

        Raises
        ------
        BadArgument: an unknown side or key, a name twice, a part without one row per token, or ids that are no whole numbers.
        """
        declared = tuple(int(b) for b in facts.pop("boundaries", ()))
        made = tuple(_in_memory(i, r, declared) for i, r in enumerate(records))
        names = [r.name for r in made]
        if len(set(names)) < len(names):
            raise BadArgument(
                f"two records are named {next(n for n in names if names.count(n) > 1)!r}", hint="name every record differently"
            )
        return cls(made, side=side, target=target, boundaries=declared, **facts)

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

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the records, without opening any."""
        return self.records.names if isinstance(self.records, LazyRecords) else tuple(r.name for r in self.records)

    def select(self, indices: Iterable[int | str]) -> HiddenStates:
        """The same dump with these records only, by number or name, in this order.

        Raises
        ------
        BadArgument: there is no such record.
        """
        numbers = {name: i for i, name in enumerate(self.names)}
        chosen: list[int] = []
        for index in indices:
            number = numbers.get(index) if isinstance(index, str) else int(index)
            if number is None or not -len(self) <= number < len(self):
                raise BadArgument(f"there is no record {index!r} among the {len(self)}", where=self.path)
            chosen.append(number)
        return replace(self, records=LazyRecords([self.names[i] for i in chosen], lambda i: self.records[chosen[i]]))

    @property
    def name(self) -> str:
        """The last part of its path: enough to tell dumps apart, and no path of anybody's machine."""
        return self.path.rstrip("/").rpartition("/")[2] if self.path else f"{self.side} in memory"

    def declare(self, boundaries: Sequence[int]) -> HiddenStates:
        """The same dump with these aux boundaries declared, in this order, whatever it declared before."""
        declared = tuple(boundaries)
        lazy = LazyRecords(self.names, lambda i: replace(self.records[i], declared=declared))
        return replace(self, records=lazy, boundaries=declared)

    def map_features(self, change: Callable[[Record, Tensor], Tensor]) -> HiddenStates:
        """The same dump with ``features`` passed through ``change(record, features)`` when they are read; nothing is copied before."""

        def changed(record: Record) -> Record:
            def part(name: str) -> Tensor | None:
                return change(record, record.features) if name == "features" else record.part(name)

            return replace(record, part=part)

        return replace(self, records=LazyRecords(self.names, lambda i: changed(self.records[i])))

    def __repr__(self) -> str:
        # counting the tokens of a folder of files would open every one of them
        tokens = "" if isinstance(self.records, LazyRecords) else f", {sum(r.tokens for r in self.records)} tokens"
        return f"HiddenStates({self.side}, {len(self)} records{tokens}, boundaries {list(self.boundaries)}, {self.engine})"


DumpSource: TypeAlias = str | os.PathLike[str] | HiddenStates
"""The path or URL of a dump, or an open one."""


def _in_memory(index: int, record: Mapping[str, Any], declared: tuple[int, ...]) -> Record:
    given = {"name": f"{index:06d}", **record}
    name, prompt = given.pop("name"), given.pop("prompt_length", None)
    parts = checked_parts(name, prompt, **given)
    return Record(name, len(parts["input_ids"]), prompt, stored_boundaries(parts), declared, parts.get)
