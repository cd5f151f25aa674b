"""Whatever may be compared (paths, dumps, records, plain tensors), as rows with token ids that are read when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TypeAlias, cast

from torch import Tensor

from eagle3diag.dumps import HiddenStates, Record, open_dump
from eagle3diag.errors import BadArgument, MismatchedInputs
from eagle3diag.progress import track

Source: TypeAlias = "str | PathLike[str] | HiddenStates | Record | Tensor | Sequence[Record] | Sequence[Tensor]"


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
    """One side, opened: its records, and the facts its dump states about itself."""

    name: str
    side: str
    rows: tuple[Rows, ...]
    width: int
    dtype: str
    hidden_size: int | None
    engine: str = "unknown"
    engine_version: str | None = None
    boundaries: tuple[int, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    path: str | None = None
    n_layers: int = 0

    def describe(self, hidden_size: int) -> Side:
        return Side(
            name=self.name,
            side=self.side,
            width=self.width,
            width_in_h=self.width / hidden_size,
            dtype=self.dtype,
            records=len(self.rows),
            tokens=sum(r.tokens for r in self.rows),
            engine=self.engine,
            engine_version=self.engine_version,
            boundaries=self.boundaries,
            counters=dict(self.counters),
            n_layers=self.n_layers,
        )


def load(source: object, side: str, *, features: bool = True) -> Loaded:
    """Open one side. ``features=False`` for a reference, which may hold separate boundaries only.

    Raises
    ------
    BadArgument: not a path, dump, record or [T, W] tensor of numbers. Errors of :func:`eagle3diag.dumps.open_dump` pass through.
    """
    taped = getattr(source, "dump", None)  # a finished capture stands for what it captured
    if isinstance(taped, HiddenStates):
        source = taped
    if isinstance(source, (str, PathLike, HiddenStates)):
        return _from_dump(open_dump(cast("str | PathLike[str] | HiddenStates", source)), side, features)
    items: list[object]
    if isinstance(source, (Tensor, Record)):
        items = [source]
    elif isinstance(source, Sequence) and len(source) and all(isinstance(s, (Tensor, Record)) for s in source):
        items = list(source)
    else:
        raise BadArgument(
            f"expected a dump folder, HiddenStates, records or tensors [T, W], found {type(source).__name__}",
            where=side,
            hint="eagle3diag.open_dump(path) shows what a path holds",
        )
    rows = tuple(rows_of(item, i) if isinstance(item, Record) else _plain_rows(cast(Tensor, item), i, side) for i, item in enumerate(items))
    kind = "tensor" if isinstance(items[0], Tensor) else "record"
    return _loaded(rows, features, name=kind, side=side, hidden_size=None)


def _from_dump(dump: HiddenStates, side: str, features: bool) -> Loaded:
    return _loaded(
        tuple(rows_of(record, i) for i, record in enumerate(track(dump, f"{side}: reading ids"))),
        features,
        name=Path(dump.path).name if dump.path else f"{dump.side} in memory",
        side=dump.side,
        hidden_size=dump.target.hidden_size or None,
        engine=dump.engine,
        engine_version=dump.engine_version,
        boundaries=tuple(dump.boundaries),
        counters=dump.counters or {},
        path=dump.path,
        n_layers=dump.target.n_layers,
    )


def _loaded(
    rows: tuple[Rows, ...],
    features: bool,
    *,
    name: str,
    side: str,
    hidden_size: int | None,
    engine: str = "unknown",
    engine_version: str | None = None,
    boundaries: tuple[int, ...] = (),
    counters: Mapping[str, int] | None = None,
    path: str | None = None,
    n_layers: int = 0,
) -> Loaded:
    if not rows:
        raise MismatchedInputs("the dump holds no records", where=f"{side}: {name}", hint="capture at least one sequence")
    first = rows[0].features() if features else ()
    return Loaded(
        name=name,
        side=side,
        rows=rows,
        width=sum(int(part.shape[-1]) for part in first),
        dtype=str(first[0].dtype).removeprefix("torch.") if first else "",
        hidden_size=hidden_size,
        engine=engine,
        engine_version=engine_version,
        boundaries=boundaries,
        counters={} if counters is None else counters,
        path=path,
        n_layers=n_layers,
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
