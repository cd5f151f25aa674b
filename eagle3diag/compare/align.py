"""Which row of one side belongs to which row of the other: by token ids, never by luck."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.compare.sources import Loaded, Rows
from eagle3diag.errors import MismatchedInputs


@dataclass(frozen=True)
class Pair:
    """Two records of the same tokens: row ``train_rows[i]`` of one and row ``live_rows[i]`` of the other are token ``positions[i]``."""

    train: Rows
    live: Rows
    train_rows: Tensor
    live_rows: Tensor
    positions: Tensor

    @property
    def tokens(self) -> int:
        return len(self.positions)

    @property
    def counted(self) -> Tensor:
        """Mask [T] of the rows that enter statistics: all but the first token, which the target uses as an attention sink."""
        return self.positions != 0


@dataclass(frozen=True)
class Alignment:
    """``pairs``, in the order of the live records, and ``unaligned``: one line for each live record whose ids differ, or match nothing."""

    pairs: tuple[Pair, ...]
    unaligned: tuple[str, ...]
    absent: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(p.tokens for p in self.pairs)


def align(train: Loaded, live: Loaded) -> Alignment:
    """Pair every live record with the train record of the same tokens.

    A record of the same name is tried first, then the one that shares the longest prefix of ids. Either side may be the shorter one: the
    last tokens of an answer are never fed, and trainers cut long samples; the common part is compared. Records whose ids part after a
    common beginning are compared up to there if that is at least half of the shorter one (an answer that took another turn), and named in
    ``unaligned`` either way. Live rows that start later (a prefix found in the cache) are placed by their positions.
    Plain tensors have no ids: they are paired by order, row by row.

    Raises
    ------
    MismatchedInputs: nothing aligns.
    """
    if any(r.ids is None for side in (train, live) for r in side.rows):
        return _align_by_row(train, live)
    by_name = {r.name: r for r in train.rows}
    index = _PrefixIndex(train.rows)
    pairs: list[Pair] = []
    unaligned: list[str] = []
    for row in live.rows:
        named = by_name.get(row.name)
        first = None if named is None else _pair(named, row)
        best = first
        if first is None or not _whole(first):
            others = [pair for other in index.nearest(row) if other is not named and (pair := _pair(other, row)) is not None]
            best = max([*([first] if first else []), *others], key=lambda p: p.tokens, default=None)
        if best is None or not _enough(best):
            closest = "" if best is None else f"; the closest, {best.train.name!r}, parts at token {int(best.positions[-1]) + 1}"
            unaligned.append(f"{row.name}: no {train.side} record has these tokens{closest}")
            continue
        pairs.append(best)
        if not _whole(best):
            unaligned.append(f"{row.name}: parts from {best.train.name!r} at token {int(best.positions[-1]) + 1}; compared up to there")
    if not pairs:
        raise MismatchedInputs(
            f"no record of {live.name!r} ({len(live.rows)} records) has the token ids of a record of {train.name!r} ({len(train.rows)}); "
            f"{unaligned[0]}",
            where="input_ids",
            hint="dump both sides on the same token ids: render the prompts once and feed the ids, not the text",
        )
    return Alignment(tuple(pairs), tuple(unaligned))


def _align_by_row(train: Loaded, live: Loaded) -> Alignment:
    if len(train.rows) != len(live.rows):
        raise MismatchedInputs(
            f"{len(train.rows)} train sequences but {len(live.rows)} live ones, and no token ids to pair them by",
            where=f"{train.name} / {live.name}",
            hint="pass lists of the same length and order, or dumps, which carry ids",
        )
    pairs = []
    for a, b in zip(train.rows, live.rows, strict=True):
        rows = torch.arange(min(a.tokens, b.tokens))
        pairs.append(Pair(a, b, rows, rows, rows))
    lengths = tuple(
        f"{b.name}: {b.tokens} rows against {a.tokens}; compared the first {min(a.tokens, b.tokens)}"
        for a, b in zip(train.rows, live.rows, strict=True)
        if a.tokens != b.tokens
    )
    return Alignment(tuple(pairs), lengths)


def _pair(train: Rows, live: Rows) -> Pair | None:
    """The rows at equal positions, up to the first token that differs; None when not even one agrees."""
    assert train.ids is not None and live.ids is not None
    if not train.tokens or not live.tokens:
        return None
    at_train, at_live = _positions(train), _positions(live)
    where = torch.searchsorted(at_train, at_live).clamp(max=len(at_train) - 1)
    live_rows = (at_train[where] == at_live).nonzero().flatten()
    train_rows = where[live_rows]
    agree = train.ids[train_rows] == live.ids[live_rows]
    n = len(agree) if bool(agree.all()) else int(agree.int().argmin())
    return Pair(train, live, train_rows[:n], live_rows[:n], at_live[live_rows[:n]]) if n else None


def _positions(rows: Rows) -> Tensor:
    """Positions that a record states, where they can index a sequence; packed samples restart theirs, which then mean nothing here."""
    stated = rows.positions
    if stated is not None and stated.dim() == 1 and len(stated) == rows.tokens and bool((stated.diff() > 0).all()):
        return stated.long().contiguous()
    return torch.arange(rows.tokens)


def _whole(pair: Pair) -> bool:
    """No token differs: the pair ends where one of the two records does."""
    return int(pair.train_rows[-1]) + 1 == pair.train.tokens or int(pair.live_rows[-1]) + 1 == pair.live.tokens


def _enough(pair: Pair) -> bool:
    # half: a shared system prompt alone must not pass for the same sequence, an answer that took another turn late must
    return _whole(pair) or 2 * pair.tokens >= min(pair.train.tokens, pair.live.tokens)


class _PrefixIndex:
    """Train records sorted by their ids, so that the longest common prefix is found among the neighbours of a place."""

    def __init__(self, rows: Sequence[Rows]) -> None:
        keyed = [(tuple(r.ids.tolist()), i, r) for i, r in enumerate(rows) if r.ids is not None]
        keyed.sort(key=lambda item: item[:2])
        self._keys = [key for key, _, _ in keyed]
        self._rows = [r for _, _, r in keyed]

    def nearest(self, row: Rows) -> Iterator[Rows]:
        """The records that can share the longest prefix with ``row``."""
        assert row.ids is not None
        if row.tokens and int(_positions(row)[0]):
            yield from self._rows  # starts in the middle: its ids are no prefix of anything
            return
        at = bisect_left(self._keys, tuple(row.ids.tolist()))
        yield from self._rows[max(at - 1, 0) : at + 1]
