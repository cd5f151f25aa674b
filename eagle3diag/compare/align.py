"""Which row of one side belongs to which row of the other: by token ids, never by luck."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from eagle3diag.compare.sources import Loaded, Rows
from eagle3diag.errors import MismatchedInputs
from eagle3diag.progress import track

WINDOW = 8
"""Tokens that must go on unchanged behind a gap: shorter runs of text repeat by chance."""

MOST_LINES = 100


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
    """``pairs``, in the order of the live records; ``unaligned``: one line for each live record whose ids differ, or match nothing;
    ``absent``: what is stepped over, and the train records of which live has nothing."""

    pairs: tuple[Pair, ...]
    unaligned: tuple[str, ...]
    absent: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(p.tokens for p in self.pairs)


def align(train: Loaded, live: Loaded, *, sampled: bool = False) -> Alignment:
    """Pair every live record with the train record of the same tokens.

    A record of the same name is tried first, then the one that shares the longest prefix of ids. Either side may be the shorter one: the
    last tokens of an answer are never fed, and trainers cut long samples; the common part is compared. Records whose ids part after a
    common beginning are compared up to there if that is at least half of the shorter one (an answer that took another turn), and named in
    ``unaligned`` either way. Rows that a side lacks (a prefix found in the cache, a chunk that was not recorded) or has too many of
    (padding) are stepped over where the ids go on unchanged behind them, and said in ``absent``; positions place them where they are
    stated. A live record may hold several requests one behind the other. Plain tensors have no ids: they are paired by order, row by row.
    Of a ``sampled`` live side nothing is said about train records that it does not take.

    Raises
    ------
    MismatchedInputs: nothing aligns.
    """
    if any(r.ids is None for side in (train, live) for r in side.rows):
        return _align_by_row(train, live, sampled)
    by_name = {r.name: r for r in train.rows}
    index = _PrefixIndex(train.rows)
    pairs: list[Pair] = []
    unaligned: list[str] = []
    absent: list[str] = []
    for row in track(live.rows, "aligning"):
        at = 0
        while at < row.tokens:
            rest = row if not at else _tail(row, at)
            best = _best(rest, by_name.get(row.name) if not at else None, index)
            if best is None or not _enough(best):
                if not at:
                    closest = "" if best is None else f"; the closest, {best.train.name!r}, parts at token {int(best.positions[-1]) + 1}"
                    unaligned.append(f"{row.name}: no {train.side} record has these tokens{closest}")
                else:
                    absent.append(f"{row.name}: rows {at} to {row.tokens - 1} are in no {train.side} record")
                break
            best = Pair(best.train, row, best.train_rows, best.live_rows + at, best.positions)
            pairs.append(best)
            absent += _gaps(best, live.side)
            end = int(best.live_rows[-1]) + 1
            if not _whole(best):
                unaligned.append(f"{row.name}: parts from {best.train.name!r} at token {int(best.positions[-1]) + 1}; compared up to there")
                break
            # what follows is another request only where positions do not say that it is the same one
            at = end if end > at and _states_no_positions(row) else row.tokens
    if not pairs:
        raise MismatchedInputs(
            f"no record of {live.name!r} ({len(live.rows)} records) has the token ids of a record of {train.name!r} ({len(train.rows)}); "
            f"{(unaligned or ['they hold no tokens'])[0]}",
            where="input_ids",
            hint="dump both sides on the same token ids: render the prompts once and feed the ids, not the text",
        )
    taken = {p.train.name for p in pairs}
    absent += [f"{r.name}: no part of it is in {live.side}" for r in train.rows if r.name not in taken and not sampled]
    more = (f"and {len(absent) - MOST_LINES} more",) if len(absent) > MOST_LINES else ()
    return Alignment(tuple(pairs), tuple(unaligned), (*absent[:MOST_LINES], *more))


def _best(row: Rows, named: Rows | None, index: _PrefixIndex) -> Pair | None:
    first = None if named is None else _pair(named, row)
    if first is not None and _whole(first):
        return first
    found = [first] if first else []
    for candidates in (index.nearest, index.containing):
        found += [pair for other in candidates(row) if other is not named and (pair := _pair(other, row)) is not None]
        # of a flat batch the request that comes first: the others are found behind it
        best = max(found, key=lambda p: (_enough(p), -int(p.live_rows[0]), p.tokens), default=None)
        if (best is not None and _enough(best)) or not _states_no_positions(row):
            break
    return best


def _tail(row: Rows, at: int) -> Rows:
    """The ids of a record from one row on; states are read through the whole record."""
    assert row.ids is not None
    return replace(row, tokens=row.tokens - at, ids=row.ids[at:], positions=None)


def _gaps(pair: Pair, side: str) -> list[str]:
    """Rows that are stepped over inside a pair."""
    lines = []
    first = int(pair.positions[0])
    if first:
        lines.append(f"{pair.live.name}: {side} begins at token {first}")
    for t in ((pair.train_rows.diff() != 1) | (pair.live_rows.diff() != 1)).nonzero().flatten().tolist():
        lost = int(pair.train_rows[t + 1] - pair.train_rows[t]) - 1
        extra = int(pair.live_rows[t + 1] - pair.live_rows[t]) - 1
        what = f"{lost} tokens are not in {side}" if lost else f"{extra} rows of {side} have no token in it"
        lines.append(f"{pair.live.name}: {what}, after token {int(pair.positions[t])}")
    return lines


def _align_by_row(train: Loaded, live: Loaded, sampled: bool) -> Alignment:
    if sampled:
        train = replace(train, rows=tuple(train.rows[r.number] for r in live.rows if r.number < len(train.rows)))
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
    """The rows of the same tokens, up to where the two part for good; None when not even one agrees."""
    assert train.ids is not None and live.ids is not None
    if not train.tokens or not live.tokens:
        return None
    if _states_no_positions(train) and _states_no_positions(live):
        train_rows, live_rows = _walk(train.ids, live.ids)
        return Pair(train, live, train_rows, live_rows, train_rows) if len(train_rows) else None
    at_train, at_live = _positions(train), _positions(live)
    where = torch.searchsorted(at_train, at_live).clamp(max=len(at_train) - 1)
    live_rows = (at_train[where] == at_live).nonzero().flatten()
    train_rows = where[live_rows]
    agree = train.ids[train_rows] == live.ids[live_rows]
    n = len(agree) if bool(agree.all()) else int(agree.int().argmin())
    return Pair(train, live, train_rows[:n], live_rows[:n], at_live[live_rows[:n]]) if n else None


def _walk(train: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of equal ids, both rising, over rows that only one side has.

    Two texts that part and meet again are not the same sequence: behind a gap the ids must go on for ``WINDOW`` tokens, and only one
    side may have been stepped over.
    """
    i = j = 0
    runs: list[tuple[int, int, int]] = []
    while i < len(train) and j < len(live):
        n = min(len(train) - i, len(live) - j)
        agree = train[i : i + n] == live[j : j + n]
        run = n if bool(agree.all()) else int(agree.int().argmin())
        if run:
            runs.append((i, j, run))
            i, j = i + run, j + run
        if run == n:
            break
        lost, extra = _next(train[i:], live[j:]), _next(live[j:], train[i:])
        if lost is None and extra is None:
            break
        if extra is None or (lost is not None and lost <= extra):
            i += lost or 0
        else:
            j += extra
    rows = [torch.cat([torch.arange(r[k], r[k] + r[2]) for r in runs]) if runs else torch.arange(0) for k in (0, 1)]
    return rows[0], rows[1]


def _next(longer: Tensor, beginning: Tensor) -> int | None:
    """Where the beginning of one sequence stands in another."""
    if len(beginning) < WINDOW or len(longer) < WINDOW:
        return None
    found = (longer.unfold(0, WINDOW, 1) == beginning[:WINDOW]).all(-1).nonzero().flatten()
    return int(found[0]) if len(found) else None


def _states_no_positions(rows: Rows) -> bool:
    """No positions that could place the rows of one sequence; packed samples restart theirs, which then mean nothing here."""
    stated = rows.positions
    return not (stated is not None and stated.dim() == 1 and len(stated) == rows.tokens and bool((stated.diff() > 0).all()))


def _positions(rows: Rows) -> Tensor:
    if _states_no_positions(rows) or rows.positions is None:
        return torch.arange(rows.tokens)
    return rows.positions.long().contiguous()


def _whole(pair: Pair) -> bool:
    """No token differs: the pair ends where one of the two records does."""
    return int(pair.train_rows[-1]) + 1 == pair.train.tokens or int(pair.live_rows[-1]) + 1 == pair.live.tokens


def _enough(pair: Pair) -> bool:
    # half: a shared system prompt alone must not pass for the same sequence, an answer that took another turn late must
    return _whole(pair) or 2 * pair.tokens >= min(pair.train.tokens, pair.live.tokens)


class _PrefixIndex:
    """Train records by their ids, sorted, so that the longest common prefix is found among the neighbours of a place; made when needed."""

    def __init__(self, rows: Sequence[Rows]) -> None:
        self._rows = rows

    @cached_property
    def _sorted(self) -> tuple[list[bytes], list[Rows]]:
        keyed = sorted(((_key(r.ids), i) for i, r in enumerate(self._rows) if r.ids is not None), key=lambda item: item)
        return [key for key, _ in keyed], [self._rows[i] for _, i in keyed]

    @lru_cache(maxsize=8)  # noqa: B019 (an index lives as long as one alignment)
    def _from(self, position: int) -> dict[bytes, list[Rows]]:
        """Records by the tokens that they have from a position on."""
        made: dict[bytes, list[Rows]] = {}
        for r in self._rows:
            at = int(torch.searchsorted(_positions(r), position))
            if r.ids is not None and at < r.tokens:
                made.setdefault(_key(r.ids[at : at + WINDOW]), []).append(r)
        return made

    def nearest(self, row: Rows) -> Iterator[Rows]:
        """The records that can share the longest run of tokens with the beginning of ``row``."""
        assert row.ids is not None
        if not row.tokens:
            return
        first = int(_positions(row)[0])
        if first:  # starts in the middle: its ids are no prefix of anything
            yield from self._from(first).get(_key(row.ids[:WINDOW]), ())
            return
        keys, rows = self._sorted
        at = bisect_left(keys, _key(row.ids))
        near = rows[max(at - 1, 0) : at + 1]
        yield from near

    @cached_property
    def _joined(self) -> tuple[Tensor, Tensor]:
        """All ids one behind the other, and where each record ends."""
        ids = [r.ids if r.ids is not None else torch.arange(0) for r in self._rows]
        return torch.cat(ids), torch.tensor([len(i) for i in ids]).cumsum(0)

    def containing(self, row: Rows) -> Iterator[Rows]:
        """The records that have the first tokens of ``row`` anywhere; a run of one token at its beginning is taken for padding."""
        assert row.ids is not None
        differs = (row.ids != row.ids[0]).nonzero().flatten()
        start = int(differs[0]) if len(differs) and int(differs[0]) > 1 else 0
        window = row.ids[start : start + WINDOW]
        ids, ends = self._joined
        if len(window) < WINDOW or len(ids) < WINDOW:
            return
        at = (ids[: len(ids) - WINDOW + 1] == window[0]).nonzero().flatten()
        at = at[(ids[at[:, None] + torch.arange(WINDOW)] == window).all(-1)]
        for record in torch.searchsorted(ends, at, right=True).unique().tolist():
            yield self._rows[record]


def _key(ids: Tensor) -> bytes:
    """Sorts as the ids do."""
    return ids.numpy().astype(">i8").tobytes()
