"""Where work is done: on which device, or by other processes, which open dumps themselves; and what must be the same to take it up again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from eagle3diag.compare.align import Pair
from eagle3diag.compare.chunked import Elsewhere, digest
from eagle3diag.compare.measure import Numbered, Plan, measure
from eagle3diag.compare.partial import Partial
from eagle3diag.compare.sources import Loaded, Rows, rows_of
from eagle3diag.devices import CPU, has_float64, usable
from eagle3diag.dumps import HiddenStates, open_dump, stamp
from eagle3diag.dumps.places import is_url
from eagle3diag.errors import BadArgument


def working_device(asked: str | torch.device | None, ray: str | None, *states: torch.device) -> torch.device:
    """Where to work: on the device that is asked for, or else on the first that states lie on apart from the CPU.

    Raises
    ------
    BadArgument: torch does not find it, it has no float64, or the work is a cluster's.
    """
    if asked is None:
        found = usable(next((d for d in states if d.type != "cpu"), CPU))
        return found if has_float64(found) else CPU
    found = usable(asked)
    if ray is not None and found.type != "cpu":
        raise BadArgument(f"device {str(asked)!r} on a cluster", hint="its nodes work on their processors: leave ray or the device away")
    if not has_float64(found):
        raise BadArgument(f"device {str(asked)!r} has no float64, in which norms and deviations are kept", hint="work on the cpu")
    return found


@dataclass(frozen=True)
class _Wanted:
    """One pair for another process: numbers of the records, and which rows belong together."""

    number: int
    seen: int
    train: int
    live: int
    train_rows: Tensor
    live_rows: Tensor
    positions: Tensor


def pairs_elsewhere(plan: Plan, pairs: Sequence[Numbered], sources: tuple[object, object]) -> Elsewhere:
    """The work of a comparison as tasks.

    Raises
    ------
    BadArgument: a side is not a path or a URL.
    """

    def wanted(numbers: range) -> list[_Wanted]:
        return [
            _Wanted(n.number, n.seen, n.pair.train.number, n.pair.live.number, n.pair.train_rows, n.pair.live_rows, n.pair.positions)
            for n in pairs[numbers.start : numbers.stop]
        ]

    return Elsewhere(_compare, (plan, shared_path(sources[0], "train"), shared_path(sources[1], "live")), wanted)


def _compare(shared: tuple[Plan, str, str], wanted: Iterable[_Wanted]) -> Partial:
    plan, train, live = shared
    return measure(plan, [Numbered(w.number, w.seen, _pair(w, kept_open(train), kept_open(live))) for w in wanted])


def _pair(w: _Wanted, train: HiddenStates, live: HiddenStates) -> Pair:
    return Pair(_rows(train, w.train), _rows(live, w.live), w.train_rows, w.live_rows, w.positions)


def _rows(dump: HiddenStates, number: int) -> Rows:
    return rows_of(dump[number], number)


@lru_cache(maxsize=4)
def kept_open(path: str, target: str | None = None) -> HiddenStates:
    """A dump as a worker keeps it from task to task: opening lists all files."""
    return open_dump(path, target=target)


def shared_path(source: object, side: str) -> str:
    """The path by which every node opens a dump."""
    if not isinstance(source, (str, PathLike)):
        raise BadArgument(
            f"a cluster needs the path of a dump, found {type(source).__name__}",
            where=side,
            hint="give a folder, a file or a URL that all nodes see; DumpWriter writes a dump that is in memory",
        )
    return str(source) if is_url(source) else str(Path(source).resolve())


def same_work(plan: Plan, pairs: Sequence[Numbered], sides: tuple[Loaded, Loaded]) -> str:
    """A digest of both dumps (their files, their rows that are compared) and of how they are compared.

    Raises
    ------
    BadArgument: a side is in memory.
    """
    stamps = [stamp(dump_path(side.path, side.side)) for side in sides]
    layout = plan.layout
    numbers = [[n.pair.train.number, n.pair.live.number, n.pair.tokens] for n in pairs]
    how = [plan.names, plan.rows, plan.stride, str(plan.device)]
    facts = [stamps, layout.hidden_size, layout.train_width, layout.live_width, *how, numbers]
    scale = [plan.scale.high, plan.scale.inverse]
    return digest("compare", facts, *scale, *(t for n in pairs for t in (n.pair.train_rows, n.pair.live_rows)))


def dump_path(path: str | None, side: str) -> str:
    """Where a dump lies whose work can be taken up again."""
    if path is None:
        raise BadArgument("only the comparison of dumps on disk can be taken up again", where=side, hint="write it with DumpWriter first")
    return path
