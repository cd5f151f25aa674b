"""One dump alone: are its rows sound, and do its last states predict the tokens that follow?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from os import PathLike

import torch
from torch import Tensor

from eagle3diag.checkpoints import Target, TargetSource, open_target
from eagle3diag.compare.chunked import Elsewhere, digest, work
from eagle3diag.compare.comparison import Alike
from eagle3diag.compare.metrics import median, rows_largest, rows_norm, rows_relative_error
from eagle3diag.compare.on_cores import run
from eagle3diag.compare.partial import Partial, join
from eagle3diag.compare.ranks import RankCheck, against, beside, on_ranks, rank_checks
from eagle3diag.compare.readings import Reader, Reading, RecordReading, conclude
from eagle3diag.compare.sample import Sampled, draw
from eagle3diag.compare.sampling import at_once, chunks, same_rows
from eagle3diag.compare.there import dump_path, kept_open, shared_path, working_device
from eagle3diag.devices import CPU
from eagle3diag.dumps import HiddenStates, Record, open_dump, stamp
from eagle3diag.dumps.ahead import read_ahead
from eagle3diag.dumps.parts import BOUNDARY, PER_ROW, PER_TOKEN
from eagle3diag.dumps.places import is_url
from eagle3diag.dumps.records import DumpSource
from eagle3diag.errors import MismatchedInputs
from eagle3diag.findings import Result
from eagle3diag.progress import track

ROWS = 256  # tokens of each record whose norms and differences are taken, for their medians
KEPT_ROWS, LEAST_ROWS = 200_000, 8  # of all records, and of each where they are many


@dataclass(frozen=True)
class PartCheck:
    """The rows of one stored state: ``part`` is ``features`` block ``block``, ``boundary.15``, ``final`` or ``last``.

    ``zero_rows``, ``nonfinite_rows``; ``duplicate_rows`` equal the row before although the token is another; ``norm``: median, sink left out.
    """

    part: str
    block: int
    tokens: int
    zero_rows: int
    nonfinite_rows: int
    duplicate_rows: int
    norm: float


@dataclass(frozen=True)
class DumpCheck(Result):
    """What :func:`eagle3diag.check_dump` measured.

    Attributes
    ----------
    parts: soundness of each stored state. alike: every two blocks against each other (medians of the relative difference).
    readings: of the last states, when a target is given. declared: the reading that the dump claims (form, next token).
    final_rms: median root mean square of (final state / gain of the final norm): 1 when it is normed.
    by_record: agreement of each record under the declared reading, the worst twenty.
    ranks: the dumps of other ranks beside this one (``live.rank1`` beside ``live``), which must hold the same rows.
    sampled: which records were looked at, when not all of them; ``records`` and ``tokens`` count those that were.
    """

    name: str
    side: str
    engine: str
    records: int
    tokens: int
    boundaries: tuple[int, ...]
    assumed: tuple[str, ...]
    parts: tuple[PartCheck, ...]
    alike: tuple[Alike, ...]
    readings: tuple[Reading, ...] = ()
    declared: Reading | None = None
    final_rms: float | None = None
    by_record: tuple[RecordReading, ...] = ()
    ranks: tuple[RankCheck, ...] = ()
    sampled: Sampled | None = None


def check_dump(
    dump: DumpSource,
    *,
    target: TargetSource | None = None,
    sample: int | None = None,
    seed: int = 0,
    resume: str | PathLike[str] | None = None,
    ray: str | None = None,
    device: str | torch.device | None = None,
) -> DumpCheck:
    """Check one dump without another to compare it with.

    Parameters
    ----------
    dump: anything :func:`eagle3diag.open_dump` takes. target: the target (folder or open): then its last states must predict the tokens.
    sample, seed: look at this many records only, drawn evenly over the dump's order and, where they are on this machine, their lengths.
    resume, ray, device: as :func:`eagle3diag.compare` takes them; with ``ray`` both dump and target are paths.

    Raises
    ------
    MismatchedInputs: the dump's last states are not as wide as the target. BadArgument: not one of the above. Reading errors pass through.
    """
    opened = dump if isinstance(dump, HiddenStates) else open_dump(dump, target=target)
    if not len(opened):
        raise MismatchedInputs("the dump holds no records", where=opened.path)
    lengths = [1] * len(opened) if is_url(opened.path) else [r.tokens for r in track(opened, "reading lengths")]
    drawn, sampled = draw(lengths, sample, seed)
    known = None if target is None else open_target(target)
    other = beside(opened)
    first = [rows for _, _, rows in _states(opened[drawn[0]], opened.target.hidden_size)]
    on = working_device(device, ray, *(rows.device for rows in first))
    task = _Task(len(drawn), ROWS if len(drawn) * ROWS <= KEPT_ROWS else max(KEPT_ROWS // len(drawn), LEAST_ROWS), on)
    reader = None if known is None else Reader(known, len(drawn), on)
    whole = work(
        "checking",
        [lengths[i] for i in drawn],
        sum(rows.shape[1] for rows in first),
        lambda n: task.opened(opened, other, reader, n, drawn[n]),
        resume=resume,
        bound=lambda: _same_check(opened, known, drawn, task),
        ray=ray,
        elsewhere=lambda: _elsewhere(dump, target, task, drawn),
    )
    checked = DumpCheck(
        name=opened.path or opened.name,
        side=opened.side,
        engine=opened.engine,
        records=len(drawn),
        tokens=int(whole.counts["tokens"]),
        boundaries=opened.boundaries,
        assumed=opened.assumed,
        parts=tuple(_part(name, whole) for name in whole.rows if name.startswith("norm/")),
        alike=tuple(_alike(name, whole) for name in whole.rows if name.startswith("apart/")),
        ranks=rank_checks(whole),
        sampled=sampled,
    )
    found = None if known is None else conclude(whole)
    if found is None:
        return checked
    return replace(checked, readings=found.readings, declared=found.declared, final_rms=found.final_rms, by_record=found.by_record)


@dataclass(frozen=True)
class _Task:
    """How every record is checked: of ``records`` in all, with ``rows`` of each looked at in full, on ``device``."""

    records: int
    rows: int
    device: torch.device = CPU

    def opened(
        self, dump: HiddenStates, ranks: dict[str, HiddenStates], reader: Reader | None, number: int, at: int
    ) -> Callable[[], Partial]:
        """Record ``at`` of the dump, the ``number``-th of those that are checked, its states asked for; what is left to do gives the rest."""
        record = _read(dump[at])
        others = {name: None if one is None else _read(one) for name, one in on_ranks(record, ranks).items()}
        return lambda: join([self._check(record, dump.target.hidden_size, reader, number), against(record, others, self.device)])

    def _check(self, record: Record, hidden: int, reader: Reader | None, number: int) -> Partial:
        rows: dict[str, Tensor] = {}
        counts = {"tokens": torch.tensor(record.tokens)}
        ids = record.input_ids
        held = []
        for part, block, states in _states(record, hidden):
            some = states[1 :: -(-record.tokens // self.rows) or 1].to(self.device)
            rows[f"norm/{part}/{block}"] = rows_norm(some).float()
            counts[f"{part}/{block}"] = self._soundness(states, ids)
            held += [(block, some)] if block >= 0 else []
        for (i, x), (j, y) in combinations(held, 2):
            if x.shape == y.shape:
                rows[f"apart/{i}/{j}"] = rows_relative_error(x, y)
        read = Partial() if reader is None else reader.read(record, number)
        return Partial({**{name: values.cpu() for name, values in rows.items()}, **read.rows}, counts, read.tops)

    def _soundness(self, states: Tensor, ids: Tensor) -> Tensor:
        """Rows: all, zero, not finite, equal to the row before although the token is another."""
        step = at_once(states.shape[1], self.device)
        largest = torch.cat([rows_largest(states[part].to(self.device)) for part in chunks(len(states), step)]).cpu()
        alike = (largest[1:] == largest[:-1]) & (largest[1:] > 0) & (ids[1:] != ids[:-1])
        at = alike.nonzero().flatten()
        same = same_rows((states,), at, at + 1, 1).sum()
        return torch.stack([torch.tensor(len(states)), (largest == 0).sum(), (~largest.isfinite()).sum(), same])


def _part(name: str, whole: Partial) -> PartCheck:
    _, part, block = name.split("/")
    tokens, zero, odd, same = whole.counts[f"{part}/{block}"].tolist()
    return PartCheck(part, int(block), tokens, zero, odd, same, median(whole.rows[name]))


def _alike(name: str, whole: Partial) -> Alike:
    _, one, other = name.split("/")
    return Alike(int(one), int(other), median(whole.rows[name]), float("nan"))


def _same_check(dump: HiddenStates, target: Target | None, drawn: tuple[int, ...], task: _Task) -> str:
    known = None if target is None else [target.name, target.config_hash]
    how = [task.records, task.rows, str(task.device)]
    return digest("check", stamp(dump_path(dump.path, dump.side)), dump.boundaries, known, drawn, how)


def _elsewhere(dump: object, target: object, task: _Task, drawn: tuple[int, ...]) -> Elsewhere:
    known = None if target is None else shared_path(target, "target")
    return Elsewhere(_check_there, (task, shared_path(dump, "dump"), known), lambda numbers: [(n, drawn[n]) for n in numbers])


def _check_there(shared: tuple[_Task, str, str | None], numbers: list[tuple[int, int]]) -> Partial:
    task, dump, target = shared
    opened, ranks, reader = kept_open(dump, target), _ranks(dump, target), None if target is None else _reader(target, task.records)
    return join(list(run(lambda i: task.opened(opened, ranks, reader, *numbers[i]), range(len(numbers)))))


@lru_cache(maxsize=4)
def _ranks(dump: str, target: str | None) -> dict[str, HiddenStates]:
    return beside(kept_open(dump, target))


@lru_cache(maxsize=1)
def _reader(target: str, records: int) -> Reader:
    return Reader(open_target(target), records)


def _read(record: Record) -> Record:
    """The record with all its parts at hand, asked for ahead: readers are made for one thread."""
    names = (*PER_TOKEN, *PER_ROW, *(f"{BOUNDARY}{b}" for b in record.boundaries))
    parts = {name: part for name in names if (part := record.part(name)) is not None}
    for part in parts.values():
        read_ahead(part)
    return replace(record, part=parts.get)


def _states(record: Record, hidden_size: int) -> Iterator[tuple[str, int, Tensor]]:
    """Every state that is stored, block by block: (part, block, rows)."""
    features = record.part("features")
    if features is not None and not (record.declared and set(record.declared) <= set(record.boundaries)):
        h = hidden_size if hidden_size and features.shape[1] % hidden_size == 0 else features.shape[1]
        for i in range(features.shape[1] // h):
            yield "features", i, features[:, i * h : (i + 1) * h]
    for b in record.boundaries:
        yield f"boundary.{b}", record.declared.index(b) if b in record.declared else -1, record.state(b)
    for part in ("final", "last"):
        rows = record.part(part)
        if rows is not None:
            yield part, -1, rows


__all__ = ["DumpCheck", "PartCheck", "Reading", "RecordReading", "check_dump"]
