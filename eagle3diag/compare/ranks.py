"""Dumps of other tensor-parallel ranks beside a dump: every rank must have fed its part of the draft the very same rows (test H10)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3diag.compare.partial import Partial
from eagle3diag.compare.sampling import at_once, chunks
from eagle3diag.dumps import HiddenStates, Record, open_dump
from eagle3diag.dumps.places import is_url, natural


@dataclass(frozen=True)
class RankCheck:
    """One other rank against this dump: ``records`` and ``tokens`` that both hold, ``differing`` tokens whose states (or ids) are not the
    same bit for bit; ``missing`` records are not there."""

    name: str
    records: int
    missing: int
    tokens: int
    differing: int


def beside(dump: HiddenStates) -> dict[str, HiddenStates]:
    """The dumps that the recorder wrote for other ranks: ``live.rank1`` beside ``live``."""
    if dump.path is None or is_url(dump.path):
        return {}
    folder = Path(dump.path)
    names = natural(p.name for p in folder.parent.glob(f"{_plain(folder.name)}.rank*") if p.is_dir())
    return {name: open_dump(folder.parent / name) for name in names}


def _plain(name: str) -> str:
    """For glob: no sign of a folder's name is a pattern."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def on_ranks(record: Record, ranks: dict[str, HiddenStates]) -> dict[str, Record | None]:
    """The record of the same name on every rank that has it."""
    return {rank: dump[names.index(record.name)] if record.name in (names := dump.names) else None for rank, dump in ranks.items()}


def against(record: Record, others: dict[str, Record | None], device: torch.device) -> Partial:
    """One record and what other ranks have of it, held against each other on ``device``, as counts: here, missing, tokens, differing."""
    counts = {}
    for name, other in others.items():
        if other is None:
            counts[f"rank/{name}"] = torch.tensor([0, 1, 0, 0])
            continue
        n = min(record.tokens, other.tokens)
        apart = record.input_ids[:n] != other.input_ids[:n]
        one, two = record.features[:n], other.features[:n]
        differ = torch.ones(n, dtype=torch.bool, device=device)
        for part in chunks(n, at_once(one.shape[1], device)) if one.shape == two.shape else ():
            differ[part] = (one[part].to(device) != two[part].to(device)).any(-1)
        apart |= differ.cpu()
        counts[f"rank/{name}"] = torch.tensor([1, 0, n, int(apart.sum())])
    return Partial({}, counts)


def rank_checks(whole: Partial) -> tuple[RankCheck, ...]:
    """What all records say."""
    return tuple(
        RankCheck(name.removeprefix("rank/"), *(int(n) for n in count)) for name, count in whole.counts.items() if name.startswith("rank/")
    )
