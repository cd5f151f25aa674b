"""The rounds of a server, which a live dump holds, on the records of another dump of the same tokens."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from eagle3diag.compare.align import Pair, align
from eagle3diag.compare.sources import load
from eagle3diag.dumps import HiddenStates, Record
from eagle3diag.dumps.records import LazyRecords
from eagle3diag.errors import MismatchedInputs


def with_rounds_of(live: HiddenStates, dump: HiddenStates) -> HiddenStates:
    """``dump`` with ``accepted`` [T] of the live records of the same tokens, so that a replay on it is held against what was served.

    A round is taken where the tokens of both sides agree to its end. Without any, ``dump`` as it is.
    """
    if all(r.accepted is None for r in live):
        return dump
    try:
        pairs = align(load(dump, "train"), load(live, "live")).pairs
    except MismatchedInputs:
        return dump
    rounds: dict[int, Tensor] = {}
    for pair in pairs:
        there = live[pair.live.number].accepted
        if there is not None:
            own = rounds.setdefault(pair.train.number, torch.full((dump[pair.train.number].tokens,), -1))
            _lay(pair, there, own)
    return replace(dump, records=LazyRecords(dump.names, lambda i: _with(dump.records[i], rounds.get(i))))


def _lay(pair: Pair, there: Tensor, own: Tensor) -> None:
    at, accepted = pair.train_rows, there[pair.live_rows]
    # rows that are stepped over on either side part what a round drafted from what it drafted for
    broken = ((at.diff() != 1) | (pair.live_rows.diff() != 1)).nonzero()
    end = int(at[int(broken[0])] if len(broken) else at[-1])
    # where the texts go on and part, the token behind the accepted ones must be the same too: the draft may have proposed the other
    bonus = 1 if len(broken) or (end + 1 < pair.train.tokens and int(pair.live_rows[-1]) + 1 < pair.live.tokens) else 0
    whole = (accepted >= 0) & (at + 1 + accepted + bonus <= end)
    own[at[whole]] = accepted[whole]


def _with(record: Record, accepted: Tensor | None) -> Record:
    if accepted is None:
        return record
    return replace(record, part=lambda name: accepted if name == "accepted" else record.part(name))
