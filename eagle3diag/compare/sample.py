"""Some records of many, drawn so that they stand for all: evenly over the order of the files and over the lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from eagle3diag.errors import BadArgument


@dataclass(frozen=True)
class Sampled:
    """What was looked at: ``records`` of ``of``, drawn with ``seed``.

    >>> str(Sampled(100, 10_000, 0))
    'a sample of 100 of 10,000 records (seed 0)'
    """

    records: int
    of: int
    seed: int

    def __str__(self) -> str:
        return f"a sample of {self.records:,} of {self.of:,} records (seed {self.seed})"


def draw(lengths: Sequence[int], count: int | None, seed: int) -> tuple[tuple[int, ...], Sampled | None]:
    """The numbers of ``count`` records, ascending, and what to say of it; all of them, and nothing, when there are no more.

    Records are cut into about ``sqrt(count)`` runs of the dump's order, each sorted by length (up and down in turn, so that neighbours are
    alike across runs too); of every ``len(lengths) / count`` records that then follow one another one is drawn. The lengths are those of
    the records: their tokens.

    >>> draw([5, 900, 7, 950, 6, 980], 2, seed=0)[0]
    (3, 4)

    Raises
    ------
    BadArgument: ``count`` is not positive.
    """
    if count is not None and count < 1:
        raise BadArgument(f"sample={count}", hint="a positive number of records")
    total = len(lengths)
    if count is None or count >= total:
        return tuple(range(total)), None
    runs = max(math.isqrt(count), 1)
    ordered: list[int] = []
    for i in range(runs):
        run = sorted(range(i * total // runs, (i + 1) * total // runs), key=lambda n: (lengths[n], n))
        ordered += run if i % 2 == 0 else reversed(run)
    chance = Random(seed)
    drawn = [ordered[chance.randrange(i * total // count, (i + 1) * total // count)] for i in range(count)]
    return tuple(sorted(drawn)), Sampled(count, total, seed)
