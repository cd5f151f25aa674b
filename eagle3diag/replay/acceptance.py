"""From drafted chains to accept lengths: what a greedy server would have accepted, counted as it would have walked the text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eagle3diag.intervals import wilson

BOOTSTRAPS = 400


def following(ids: Tensor, rows: int, steps: int) -> Tensor:
    """The ``steps`` tokens that each row drafts for, [rows, steps]: token ``t + 2`` and on for row ``t``; -1 where the text has ended."""
    padded = torch.cat([ids[2:], ids.new_full((steps + 2,), -1)])
    return padded.unfold(0, steps, 1)[:rows]


def accepted(chains: Tensor, truth: Tensor) -> Tensor:
    """How many drafted tokens in a row equal the text: [N].

    The text must be the target's own greedy answer: then equality is what greedy verification tests.
    """
    return (chains == truth).long().cumprod(1).sum(1)


def walk(accepted_at: Sequence[int], first: int) -> list[int]:
    """Accepted drafts of every round of a server that starts at position ``first``: a round that accepts ``m`` moves on by ``m+1``.
    It ends where the text does: at the first position with -1."""
    rounds, at = [], first
    while at < len(accepted_at) and (m := accepted_at[at]) >= 0:
        rounds.append(m)
        at += m + 1
    return rounds


@dataclass(frozen=True)
class Tally:
    """Acceptance over rounds: unconditional ``p``, accept length, and their 95 % intervals. ``groups``: of each record what was accepted, and
    in how many rounds; of a lone one, each round by itself."""

    rounds: int
    p: tuple[float, ...]
    p_interval: tuple[tuple[float, float], ...]
    accept_length: float
    groups: tuple[tuple[int, int], ...]

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Of the accept length: a bootstrap over records (rounds of one text are not independent), seeded, so that the same input gives the
        same numbers."""
        if not self.groups:
            return 1.0, len(self.p) + 1.0
        draw, means = random.Random(0), []
        for _ in range(BOOTSTRAPS):
            chosen = draw.choices(self.groups, k=len(self.groups))
            means.append(1 + sum(a for a, _ in chosen) / sum(n for _, n in chosen))
        means.sort()
        return means[int(0.025 * BOOTSTRAPS)], means[int(0.975 * BOOTSTRAPS) - 1]


def tally(rounds_of: list[list[int]], steps: int) -> Tally:
    """Pool the rounds of several records. The interval of ``p`` is Wilson's."""
    every = [m for rounds in rounds_of for m in rounds]
    n = len(every)
    if not n:
        nan = float("nan")
        return Tally(0, (nan,) * steps, ((0.0, 1.0),) * steps, nan, ())
    hits = [sum(m >= i for m in every) for i in range(1, steps + 1)]
    groups = [(sum(r), len(r)) for r in rounds_of if r]
    groups = groups if len(groups) > 1 else [(m, 1) for m in every]
    return Tally(n, tuple(h / n for h in hits), tuple(wilson(h, n) for h in hits), 1 + sum(every) / n, tuple(groups))
