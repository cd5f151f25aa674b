"""Forwards of an engine over flat rows of several requests, sorted into the sequences that the rows belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from torch import Tensor


@dataclass(frozen=True)
class Forward:
    """Token ids and positions of one forward's rows [N]; ``lengths`` [B] as the engine gives them, ``requests`` the B request ids."""

    ids: Tensor
    positions: Tensor
    lengths: tuple[int, ...] = ()
    requests: tuple[str, ...] = ()


@dataclass(eq=False)
class Sequenced:
    """One sequence: for each position from ``start`` on its token and where its row lies: (forward, row). A later row replaces an earlier
    one of the same position, as the verification of the next drafts does with rejected ones."""

    name: str
    start: int
    tokens: list[int] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


def sequences(forwards: Sequence[Forward]) -> tuple[tuple[Sequenced, ...], int]:
    """The sequences in the order they began, and how many rows were left out (trees, whose rows share positions).

    Rows go to the request the engine names; without names to the sequence that the place in the batch and the position continue.
    """
    made: list[Sequenced] = []
    named: dict[str, Sequenced] = {}
    slots: list[Sequenced] = []
    left_out = 0
    for number, forward in enumerate(forwards):
        positions, ids = forward.positions.tolist(), forward.ids.tolist()
        now: list[Sequenced] = []
        for slot, rows in enumerate(_runs(positions, forward.lengths)):
            if any(positions[b] <= positions[a] for a, b in pairwise(rows)):
                left_out += len(rows)
                continue
            first = positions[rows[0]]
            request = forward.requests[slot] if slot < len(forward.requests) else None
            into = named.get(request) if request is not None else _continued(slots, slot, first)
            if into is None or not into.start <= first <= into.stop:
                into = Sequenced(request if request is not None and request not in named else f"{len(made):06d}", first)
                made.append(into)
            if request is not None:
                named[request] = into
            now.append(into)
            for row in rows:
                at = positions[row] - into.start
                if at > len(into.tokens):
                    left_out += 1  # a gap: rows in between were never computed here
                    continue
                into.tokens[at:] = [ids[row]]  # what stood there and behind it was a draft that was not accepted
                into.rows[at:] = [(number, row)]
        slots = now + [s for s in slots if s not in now]  # a prompt in chunks may be away for a few forwards
    return tuple(s for s in made if s.tokens), left_out


def _runs(positions: list[int], lengths: tuple[int, ...]) -> list[range]:
    """The rows of each request. ``lengths`` are the sequences' lengths after a prefill; with one row each it is a decode step."""
    n, batch = len(positions), len(lengths)
    if batch == n:
        return [range(i, i + 1) for i in range(n)]
    made, at = [], 0
    for length in lengths:
        stop = next((i for i in range(at, n) if positions[i] == length - 1 and positions[i] - positions[at] == i - at), None)
        if stop is None:
            break
        made.append(range(at, stop + 1))
        at = stop + 1
    if batch and len(made) == batch and at == n:
        return made
    if batch and n % batch == 0:  # verification: every request has as many rows
        return [range(i, i + n // batch) for i in range(0, n, n // batch)]
    cuts = [0, *(i for i in range(1, n) if positions[i] != positions[i - 1] + 1), n]
    return [range(a, b) for a, b in pairwise(cuts) if b > a]


def _continued(slots: list[Sequenced], slot: int, first: int) -> Sequenced | None:
    """The open sequence of this place in the batch if the position continues it, else any that it does."""
    if first == 0:
        return None
    candidates = [*slots[slot : slot + 1], *slots]
    exact = next((s for s in candidates if s.stop == first), None)
    return exact or next((s for s in candidates if s.start < first < s.stop), None)
