"""Records that are drafted from together: what each row drafts for, and what a server accepted from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from eagle3diag.dumps import Record
from eagle3diag.errors import BadArgument
from eagle3diag.replay.acceptance import following, walk
from eagle3diag.replay.drafting import Text, pack
from eagle3diag.replay.loop import Loop
from eagle3diag.replay.net import Net
from eagle3diag.replay.sampling import Teacher


@dataclass(frozen=True)
class Sampling:
    """The target's ``head`` [V, H] and the temperature that it samples at."""

    head: Tensor
    temperature: float


@dataclass(frozen=True, eq=False)
class Item:
    """A record as it is drafted from: ``answers`` are its runs of the target's own text, each from the row that a server first drafts from
    to behind its last token."""

    record: Record
    ids: Tensor
    features: Tensor
    answers: tuple[tuple[int, int], ...]

    def whole(self, rows: int) -> Tensor:
        """Tokens of the answer that each of the first ``rows`` rows can draft for [rows]; -1 outside of answers."""
        left = torch.full((rows,), -1)
        for first, end in self.answers:
            at = torch.arange(min(first, rows), min(end, rows))
            left[at] = end - 1 - at
        return left

    def walk(self, accepted_at: list[int]) -> list[int]:
        """The rounds of a server, answer by answer."""
        return [m for first, _ in self.answers for m in walk(accepted_at, first)]


@dataclass(frozen=True, eq=False)
class Batch:
    """Records that are drafted from together. Per row of the ``text``: ``truth`` [T, steps], what it drafts for; ``whole`` [T], how many tokens
    of its answer those can be; ``served`` [T], what a server accepted from it, -1 where that is not recorded."""

    items: list[Item]
    text: Text
    truth: Tensor
    whole: Tensor
    served: Tensor
    teacher: Teacher | None

    @classmethod
    def of(cls, net: Net, items: list[Item], loop: Loop, steps: int, sampling: Sampling | None) -> Batch:
        text = pack(net, [(i.ids, i.features) for i in items], loop, [i.answers[0][0] for i in items])
        sizes = [b - a for a, b in pairwise(text.starts)]
        truth, whole, served = (
            torch.cat([make(i, n) for i, n in zip(items, sizes, strict=True)]).to(net.device)
            for make in (lambda i, n: following(i.ids, n, steps), Item.whole, lambda i, n: _served(i.record, n))
        )
        teacher = None
        if sampling is not None:
            teacher = Teacher.of(net, sampling.head, [_final(i.record) for i in items], text, sampling.temperature)
        return cls(items, text, truth, whole, served, teacher)

    def begins(self, steps: int) -> Tensor:
        """The first row from each on that a round of its record can start from [T], -1 where none is left."""
        begins = torch.full((len(self.text.tokens),), -1)
        for item, (a, b) in zip(self.items, pairwise(self.text.starts), strict=True):
            behind = a
            for first, end in item.answers:
                begin, last = a + first, a + min(b - a, end - 1 - steps)
                if begin < last:
                    begins[behind:begin], begins[begin:last] = begin, torch.arange(begin, last)
                    behind = last
        return begins.to(self.text.tokens.device)

    def by_item(self, rows: Tensor) -> Iterator[tuple[Item, list[int]]]:
        """One number per row [T], item by item."""
        for item, (a, b) in zip(self.items, pairwise(self.text.starts), strict=True):
            yield item, rows[a:b].tolist()


def answers_of(record: Record) -> tuple[tuple[int, int], ...]:
    """Runs of the target's own text: the row of the last token before each, and the row behind its last. All of it where nothing is said."""
    if record.prompt_length is not None:
        prompt, positions = record.prompt_length, record.positions
        rows = prompt if positions is None else int((positions < prompt).sum())
        return ((max(rows - 1, 0), record.tokens),)
    mask = record.loss_mask
    if mask is None or not bool(mask.any()):
        return ((0, record.tokens),)
    edges = torch.cat([mask.new_zeros(1), (mask != 0).to(mask.dtype), mask.new_zeros(1)]).diff()
    begins, ends = (edges > 0).nonzero()[:, 0].tolist(), (edges < 0).nonzero()[:, 0].tolist()
    return tuple((max(begin - 1, 0), end) for begin, end in zip(begins, ends, strict=True))


def _served(record: Record, rows: int) -> Tensor:
    """Accepted drafts of the server's rounds by the row that they were drafted from [rows]; -1 where none is recorded."""
    stored = record.accepted
    return torch.full((rows,), -1) if stored is None else stored[:rows]


def _final(record: Record) -> Tensor:
    final = record.final
    if final is None:
        raise BadArgument(
            "sampled acceptance needs the target's final states, which this dump does not store",
            where=f"record {record.name}",
            hint="capture with Transformers (eagle3diag capture), which stores them, or leave the temperature out",
        )
    return final
