"""Drafting from every position at once.

Row ``t`` of a record holds the pair (embedding of token ``t+1``, features of position ``t``) and its output predicts token ``t+2``. A
server that has committed tokens up to ``t+1`` drafts from row ``t``: the first forward reads the true features, each later one the draft's
own output and own token, at RoPE positions ``t+1``, ``t+2``, ... Keys of earlier rows are those of true features, since engines make them
anew after every verification (SGLang ``eagle_worker_v2.py::_draft_extend_for_decode``): so they are the same for every row that drafts,
and are made once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from eagle3diag.replay.attention import Keys, gather
from eagle3diag.replay.loop import NEWEST, Loop
from eagle3diag.replay.net import Net


@dataclass(frozen=True, eq=False)
class Text:
    """The rows of one or more records, one record after the other.

    ``tokens`` [T]: the token that each row embeds. ``hidden`` [T, H]: its fused features. ``place`` [T]: its position in its record.
    ``first``, ``last`` [T]: the rows whose keys it finds. ``starts``: where each record begins, and where the last one ends.
    """

    tokens: Tensor
    hidden: Tensor
    place: Tensor
    first: Tensor
    last: Tensor
    starts: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Keys of the longest record: what one row may attend to; at least 1."""
        return max((b - a for a, b in pairwise(self.starts)), default=1) or 1


def pack(net: Net, records: Sequence[tuple[Tensor, Tensor]], loop: Loop = NEWEST, answers: Sequence[int] | None = None) -> Text:
    """Rows of records given as (ids [T], features [F, W]): a row wherever there are features and a next token.

    ``answers``: the first row of each record that a server drafts from; ``loop.prefix`` of ``"answer"`` and ``"half"`` look at it.
    """
    lengths = [min(len(features), max(len(ids) - 1, 0)) for ids, features in records]
    starts = [0]
    for n in lengths:
        starts.append(starts[-1] + n)
    places = [torch.arange(n) for n in lengths]
    first, last = [], []
    for i, (place, start) in enumerate(zip(places, starts, strict=False)):
        if loop.prefix == "another":  # of the record before; the first finds the last one's
            base, limit = starts[i - 1 if i else len(lengths) - 1], lengths[i - 1]
            first.append(torch.full_like(place, base))
            last.append(base + place.clamp(max=max(limit - 1, 0)))
        else:
            boundary = answers[i] // {"answer": 1, "half": 2}[loop.prefix] if loop.prefix != "own" and answers is not None else 0
            first.append(start + place.clamp(max=boundary))
            last.append(start + place)
    hidden = [net.fuse(features[:n]) for (_, features), n in zip(records, lengths, strict=True)]
    tokens = [ids[1 : n + 1] for (ids, _), n in zip(records, lengths, strict=True)]
    tokens_of, place_of, first_of, last_of = (torch.cat(x).to(net.device) for x in (tokens, places, first, last))
    return Text(tokens_of, torch.cat(hidden), place_of, first_of, last_of, tuple(starts))


@dataclass
class Memory:
    """What a batch of rows finds: keys of the text, which all share, and those of each row's own earlier steps, per layer."""

    prefix: list[Keys]
    place: Tensor
    first: Tensor
    last: Tensor
    own: list[list[Keys]] = field(default_factory=list)

    @classmethod
    def at(cls, prefix: list[Keys], text: Text, rows: Tensor) -> Memory:
        return cls(prefix, text.place[rows], text.first[rows], text.last[rows], [[] for _ in prefix])

    def take(self, rows: Tensor, *, own: bool = True) -> Memory:
        """The memory of some rows, in this order; ``own=False`` leaves each slot's own keys where they are."""
        kept = [[(k[rows], v[rows]) for k, v in layer] for layer in self.own] if own else self.own
        return Memory(self.prefix, self.place[rows], self.first[rows], self.last[rows], kept)

    def find(self, net: Net, layer: int, queries: Tensor, step: int) -> Tensor:
        """Attention of the rows at their ``step``-th forward."""
        window, first, own = net.windows[layer], self.first, self.own[layer]
        if window is not None:
            first, own = torch.maximum(first, self.last + step - window + 1), own[-window:]
        low, high = min(int(first.min()), int(self.last.max())), int(self.last.max()) + 1
        span = torch.arange(low, high, device=first.device)
        visible = (span >= first[:, None]) & (span <= self.last[:, None])
        keys, values = self.prefix[layer]
        return gather(queries, (keys[low:high], values[low:high]), visible, own, net.attention.scale(net))


def forward(net: Net, tokens: Tensor, hidden: Tensor, memory: Memory, step: int, loop: Loop) -> Tensor:
    """One forward of every row: tokens [N] and hidden [N, H] to raw outputs [N, H]; after the first step it leaves its own keys."""
    position = memory.place + step + (loop.position_offset if step else 0)
    for layer in range(net.layers):
        mixed = net.mix(layer, tokens, hidden)
        if step:
            memory.own[layer].append(net.keys(layer, mixed, position))
        found = memory.find(net, layer, net.queries(layer, mixed, position), step)
        hidden = net.finish(layer, tokens, hidden, found)
    return hidden


@torch.inference_mode()
def read(net: Net, text: Text, rows: Tensor, loop: Loop = NEWEST) -> tuple[list[Keys], Tensor]:
    """The first forward, a layer at a time: the keys of all rows per layer, and the raw outputs [N, H] of ``rows`` [N]."""
    prefix: list[Keys] = []
    hidden, every = text.hidden, torch.arange(len(text.tokens), device=net.device)
    size = net.rows_at_once(text.longest)
    for layer in range(net.layers):
        made = [net.keys(layer, net.mix(layer, text.tokens[part], hidden[part]), text.place[part]) for part in _parts(every, size)]
        if not made:
            return [], hidden
        prefix.append((torch.cat([k for k, _ in made]), torch.cat([v for _, v in made])))
        wanted, out = rows if layer == net.layers - 1 else every, []
        for part in _parts(wanted, size):
            mixed = net.mix(layer, text.tokens[part], hidden[part])
            memory = Memory.at(prefix, text, part)
            found = memory.find(net, layer, net.queries(layer, mixed, text.place[part]), 0)
            out.append(net.finish(layer, text.tokens[part], hidden[part], found))
        hidden = torch.cat(out) if out else hidden[:0]
    return prefix, hidden


def _parts(rows: Tensor, size: int) -> Sequence[Tensor]:
    return rows.split(size) if len(rows) else ()


def batches(net: Net, text: Text, rows: Tensor, raw: Tensor, prefix: list[Keys], wide: int = 1) -> Iterator[tuple[Tensor, Tensor, Memory]]:
    """Rows [n], their raw outputs and what they find, so many at a time as the budget allows."""
    size = net.rows_at_once(text.longest, wide)
    for part, out in zip(_parts(rows, size), _parts(raw, size), strict=True):
        yield part, out, Memory.at(prefix, text, part)


@torch.inference_mode()
def draft_chains(net: Net, text: Text, rows: Tensor, steps: int, loop: Loop = NEWEST, truth: Tensor | None = None) -> Tensor:
    """Greedy chains of ``steps`` tokens from ``rows`` [N], in ``steps`` forwards: target ids [N, steps], int64.

    ``truth`` [N, steps], the tokens that follow in the text: a chain is drafted only as far as it says them; what comes after the first
    other token is -1, and costs nothing.
    """
    prefix, raw = read(net, text, rows, loop)
    chains = torch.full((len(rows), steps), -1, dtype=torch.int64, device=net.device)
    done = 0
    for part, out, memory in batches(net, text, rows, raw, prefix):
        at = torch.arange(done, done + len(part), device=net.device)
        done += len(part)
        for step in range(steps):
            tokens, hidden = net.speak(out)
            chains[at, step] = tokens
            if truth is not None:
                right = (tokens == truth[at, step]).nonzero()[:, 0]
                if len(right) < len(at):
                    at, tokens, hidden, memory = at[right], tokens[right], hidden[right], memory.take(right)
            if not len(at):
                break
            if step + 1 < steps:
                out = forward(net, tokens, hidden, memory, step + 1, loop)
    return chains


def draft_everywhere(net: Net, ids: Tensor, features: Tensor, steps: int, loop: Loop = NEWEST) -> Tensor:
    """Greedy chains from every position of one record: row ``t`` of [N, steps] is the chain that a server drafts from position ``t``.

    Parameters
    ----------
    ids: token ids [T]. features: [F, W] with F <= T; position ``t`` is drafted from while ``t < F`` and token ``t+1`` exists.
    """
    text = pack(net, [(ids, features)], loop)
    return draft_chains(net, text, torch.arange(len(text.tokens), device=net.device), steps, loop)
