"""Counterfactuals of what the draft is fed: states of other boundaries, blocks in another order, the rows of the live dump."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from typing import TypeAlias

import torch
from torch import Tensor

from eagle3diag.case import Case
from eagle3diag.dumps import HiddenStates, Record
from eagle3diag.engines.sglang import default_boundaries
from eagle3diag.faults.widths import block_order, found_boundaries
from eagle3diag.findings import Finding
from eagle3diag.replay import Change

ByIds: TypeAlias = Mapping[tuple[int, ...], Record]


def shifted(case: Case) -> Iterator[Change]:
    """FM-29: every state one boundary early or late."""
    if case.train is None:
        return
    reference, seen = _reference(case), _seen(case)
    for step, word in ((-1, "early"), (1, "late")):
        moved = tuple(b + step for b in case.train.boundaries)
        if seen is not None and moved != seen:  # the live dump shows which way, if any
            continue
        if moved and set(moved) <= _stored(reference):
            yield Change("FM-29", f"every state one boundary {word}", features=states_of(reference, moved))


def other_layers(case: Case) -> Iterator[Change]:
    """FM-28: the set that the live dump shows; without one the engine's default, when it is another."""
    if case.train is None:
        return
    reference, declared = _reference(case), case.train.boundaries
    wanted = _seen(case) or default_boundaries(case.train.target.n_layers)
    shifts = {tuple(b + s for b in declared) for s in (-1, 0, 1)}
    if reference and len(wanted) == len(declared) and wanted not in shifts and set(wanted) - {-1} <= _stored(reference):
        yield Change("FM-28", f"boundaries {', '.join(map(str, wanted))} instead", features=states_of(reference, wanted))


def reordered(case: Case) -> Iterator[Change]:
    """FM-33: the order that the live dump shows; without one all others of up to three blocks, of more the reverse and the rotations."""
    if case.train is None or not case.train.boundaries:
        return
    n = len(case.train.boundaries)
    seen = block_order(case.comparison) if case.comparison is not None else None
    for order in [seen] if seen is not None else _orders(n):
        if order != tuple(range(n)):
            names = ", ".join(str(case.train.boundaries[i]) for i in order)
            yield Change("FM-33", f"blocks in the order {names}", features=_permute(order))


def as_live(fault: str, detect: Callable[[Case], Finding | None]) -> Callable[[Case], Iterator[Change]]:
    """What the live dump shows is its own counterfactual: the training dump with each record's rows as they were fed."""

    def changes(case: Case) -> Iterator[Change]:
        c = case.comparison
        if c is None or case.live is None or case.train is None or c.train.width != c.live.width or detect(case) is None:
            return
        fed = by_ids(case.live)
        if _all_in(case.train, fed):
            yield Change(fault, "rows as in the live dump", features=lambda record, _: fed[_ids(record)].features)

    return changes


def by_ids(states: HiddenStates) -> ByIds:
    """The records of a dump by their token ids."""
    return {_ids(record): record for record in states}


def states_of(reference: ByIds, boundaries: tuple[int, ...]) -> Callable[[Record, Tensor], Tensor]:
    """Features of ``boundaries`` for the same record of the reference; -1 is the final normed state."""

    def features(record: Record, fed: Tensor) -> Tensor:
        known = reference.get(_ids(record))
        if known is None:
            return fed
        parts = [known.final if b == -1 else known.state(b) for b in boundaries]
        return torch.cat([p for p in parts if p is not None], -1)[: len(fed)]

    return features


def _ids(record: Record) -> tuple[int, ...]:
    return tuple(record.input_ids.tolist())


def _all_in(states: HiddenStates, known: ByIds) -> bool:
    """A replay of some changed and some unchanged records would say nothing."""
    return all(_ids(record) in known for record in states)


def _reference(case: Case) -> ByIds:
    """The records of the reference; none unless every training record is among them."""
    if case.reference is None or case.train is None:
        return {}
    known = by_ids(case.reference)
    return known if _all_in(case.train, known) else {}


def _stored(reference: ByIds) -> set[int]:
    """The boundaries that the reference holds."""
    return set(next(iter(reference.values())).boundaries) if reference else set()


def _seen(case: Case) -> tuple[int, ...] | None:
    """The boundaries that the live blocks are, when a reference names them."""
    found = found_boundaries(case.comparison) if case.comparison is not None else ()
    return tuple(best for best, _, _ in found) or None


def _orders(n: int) -> list[tuple[int, ...]]:
    if n <= 3:
        return list(permutations(range(n)))
    return [tuple((i + s) % n for i in range(n)) for s in range(1, n)] + [tuple(range(n))[::-1]]


def _permute(order: tuple[int, ...]) -> Callable[[Record, Tensor], Tensor]:
    def features(record: Record, fed: Tensor) -> Tensor:
        blocks = fed.chunk(len(order), -1)
        return torch.cat([blocks[i] for i in order], -1)

    return features
