"""Whatever may be compared (paths, dumps, records, plain tensors), as rows with token ids that are read when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import TypeAlias, cast

import torch
from torch import Tensor

from eagle3diag.checkpoints.tensors import dtype_name
from eagle3diag.dumps import HiddenStates, Record, open_dump
from eagle3diag.dumps.records import DumpSource
from eagle3diag.errors import BadArgument, MismatchedInputs
from eagle3diag.progress import track

Source: TypeAlias = DumpSource | Record | Tensor | Sequence[Record] | Sequence[Tensor]


@dataclass(frozen=True)
class Side:
    """What one side of a comparison is: ``width`` of its features, in units of the target's hidden size too, and where it came from;
    ``n_layers`` of the target, 0 where the dump does not say it."""

    name: str
    side: str
    width: int
    width_in_h: float
    dtype: str
    records: int
    tokens: int
    engine: str
    engine_version: str | None
    boundaries: tuple[int, ...]
    counters: Mapping[str, int]
    n_layers: int = 0


@dataclass(frozen=True)
class Rows:
    """One sequence, the ``number``-th of its side: ``ids`` [T] and ``positions`` [T] when known; ``features()`` reads [T, W], whole or in
    columns side by side, ``state(b)`` [T, H], ``final()`` [T, H]."""

    number: int
    name: str
    tokens: int
    ids: Tensor | None
    positions: Tensor | None
    features: Callable[[], tuple[Tensor, ...]]
    final: Callable[[], Tensor | None]
    state: Callable[[int], Tensor]
    boundaries: tuple[int, ...]


@dataclass(frozen=True)
class Loaded:
    """One side, opened: its records, and the facts its dump states about itself. Ids and positions are on the CPU, states where they lie."""

    name: str
    side: str
    rows: tuple[Rows, ...]
    hidden_size: int | None = None
    engine: str = "unknown"
    engine_version: str | None = None
    boundaries: tuple[int, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    path: str | None = None
    n_layers: int = 0

    @cached_property
    def _fed(self) -> tuple[int, str, torch.device]:
        features = self.rows[0].features()
        return sum(int(part.shape[-1]) for part in features), dtype_name(features[0]), features[0].device

    @property
    def width(self) -> int:
        """Of the first record's features. A reference, which may hold separate boundaries only, is never asked for it."""
        return self._fed[0]

    @property
    def device(self) -> torch.device:
        """Where the first record's features lie."""
        return self._fed[2]

    def describe(self, hidden_size: int) -> Side:
        return Side(
            name=self.name,
            side=self.side,
            width=self.width,
            width_in_h=self.width / hidden_size,
            dtype=self._fed[1],
            records=len(self.rows),
            tokens=sum(r.tokens for r in self.rows),
            engine=self.engine,
            engine_version=self.engine_version,
            boundaries=self.boundaries,
            counters=dict(self.counters),
            n_layers=self.n_layers,
        )


def load(source: object, side: str) -> Loaded:
    """Open one side.

    Raises
    ------
    BadArgument: not a path, dump, record or [T, W] tensor of numbers. MismatchedInputs: a dump without records. Errors of
    :func:`eagle3diag.dumps.open_dump` pass through.
    """
    taped = getattr(source, "dump", None)  # a finished capture stands for what it captured
    if isinstance(taped, HiddenStates):
        source = taped
    if isinstance(source, (str, PathLike, HiddenStates)):
        return _from_dump(open_dump(source), side)
    items: Sequence[object] = source if isinstance(source, Sequence) else [source]
    if not items or not all(isinstance(item, (Tensor, Record)) for item in items):
        raise BadArgument(
            f"expected a dump folder, HiddenStates, records or tensors [T, W], found {type(source).__name__}",
            where=side,
            hint="eagle3diag.open_dump(path) shows what a path holds",
        )
    rows = tuple(rows_of(item, i) if isinstance(item, Record) else _plain_rows(cast(Tensor, item), i, side) for i, item in enumerate(items))
    return Loaded("tensor" if isinstance(items[0], Tensor) else "record", side, rows)


def _from_dump(dump: HiddenStates, side: str) -> Loaded:
    rows = tuple(rows_of(record, i) for i, record in enumerate(track(dump, f"{side}: reading ids")))
    if not rows:
        raise MismatchedInputs("the dump holds no records", where=f"{side}: {dump.name}", hint="capture at least one sequence")
    return Loaded(
        name=dump.name,
        side=dump.side,
        rows=rows,
        hidden_size=dump.target.hidden_size or None,
        engine=dump.engine,
        engine_version=dump.engine_version,
        boundaries=tuple(dump.boundaries),
        counters=dump.counters or {},
        path=dump.path,
        n_layers=dump.target.n_layers,
    )


def rows_of(record: Record, number: int) -> Rows:
    """The rows of one record. Its ids are copied: a mapped tensor would hold the file open, of which there may be 100,000."""
    positions = record.positions
    return Rows(
        number=number,
        name=record.name,
        tokens=record.tokens,
        ids=record.input_ids.clone(),
        positions=None if positions is None else positions.clone(),
        features=lambda: _columns(record),
        final=lambda: record.final,
        state=record.state,
        boundaries=tuple(record.boundaries),
    )


def _columns(record: Record) -> tuple[Tensor, ...]:
    """The features as they are stored: joining boundaries would copy a whole record."""
    if record.declared and record.part("features") is None:
        return tuple(record.state(b) for b in record.declared)
    return (record.features,)


def _plain_rows(tensor: Tensor, index: int, side: str) -> Rows:
    if tensor.dim() != 2 or not tensor.is_floating_point() or not tensor.numel():
        raise BadArgument(
            f"expected a tensor [tokens, width] of floating-point numbers, found {tensor.dtype} {list(tensor.shape)}",
            where=f"{side}[{index}]",
            hint="one sequence per tensor; pass a list for a batch",
        )
    detached = tensor.detach()

    def no_state(boundary: int) -> Tensor:
        raise BadArgument(f"a plain tensor has no boundary {boundary}", where=f"{side}[{index}]")

    return Rows(index, f"tensor-{index}", len(tensor), None, None, lambda: (detached,), lambda: None, no_state, ())
