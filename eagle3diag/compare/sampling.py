"""Rows of aligned records: by chunk, or a few of them spread evenly over everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.compare.align import Alignment, Pair
from eagle3diag.compare.comparison import FINAL
from eagle3diag.devices import CPU
from eagle3diag.dumps.ahead import few_rows
from eagle3diag.errors import MismatchedInputs

CHUNK_VALUES = 1 << 18  # float32 values of one side worked on at once: 1 MB, of which a dozen are held
DEVICE_VALUES = 1 << 22  # the same on another device: to launch one of fifty operations takes as long there as a megabyte of work


@dataclass(frozen=True)
class Layout:
    """How wide the two sides are, in blocks of ``hidden_size``; 0 blocks when a width is not a multiple of it."""

    hidden_size: int
    train_width: int
    live_width: int

    @property
    def train_blocks(self) -> int:
        return 0 if self.train_width % self.hidden_size else self.train_width // self.hidden_size

    @property
    def live_blocks(self) -> int:
        return 0 if self.live_width % self.hidden_size else self.live_width // self.hidden_size

    @property
    def paired(self) -> bool:
        return self.train_blocks > 0 and self.train_width == self.live_width

    @property
    def single(self) -> bool:
        return self.live_blocks == 1 and self.train_blocks > 1


@dataclass(frozen=True)
class Spread:
    """Some rows of some pairs: ``rows[i]`` index the aligned rows of ``pairs[i]``."""

    pairs: tuple[Pair, ...]
    rows: tuple[Tensor, ...]

    def __len__(self) -> int:
        return sum(len(r) for r in self.rows)

    def live(self, layout: Layout) -> Tensor:
        """The live rows [R, m * H] in their own dtype, on the CPU, as all that is made of a spread."""
        return torch.cat([scattered(read(p, "live", layout), p.live_rows[r]) for p, r in zip(self.pairs, self.rows, strict=True)])

    def train(self, layout: Layout) -> Tensor:
        """The train rows [R, n * H] in their own dtype."""
        return torch.cat([scattered(read(p, "train", layout), p.train_rows[r]) for p, r in zip(self.pairs, self.rows, strict=True)])

    def state(self, boundary: int, hidden_size: int) -> Tensor:
        """One boundary of the train side (the reference's, mostly) [R, H]; -1 is the final normed state."""
        made = []
        for pair, rows in zip(self.pairs, self.rows, strict=True):
            whole = pair.train.final() if boundary == FINAL else pair.train.state(boundary)
            assert whole is not None
            if whole.shape[-1] != hidden_size:
                raise MismatchedInputs(
                    f"boundary {boundary} is {whole.shape[-1]} wide, but the target's hidden size is {hidden_size}",
                    where=f"reference record {pair.train.name!r}",
                    hint="capture the reference from the same target",
                )
            made.append(scattered((whole.detach(),), pair.train_rows[rows]))
        return torch.cat(made)

    def shifted(self, shift: int) -> tuple[Spread, Tensor]:
        """The rows ``shift`` tokens later that exist and are no sink, and the mask [R] of the rows that they belong to."""
        moved, masks = [], []
        for pair, rows in zip(self.pairs, self.rows, strict=True):
            there = rows + shift
            inside = (there >= 0) & (there < pair.tokens)
            position = pair.positions[there.clamp(0, pair.tokens - 1)]
            kept = inside & (position - pair.positions[rows] == shift) & (position != 0)
            moved.append(there[kept])
            masks.append(kept)
        return Spread(self.pairs, tuple(moved)), torch.cat(masks)


def spread(alignment: Alignment, most: int) -> Spread:
    """At most ``most`` of the rows that count (no sink tokens), evenly over all records; all of them when there are fewer."""
    total = sum(int(p.counted.sum()) for p in alignment.pairs)
    stride, seen = -(-total // most) or 1, 0
    pairs, rows = [], []
    for pair in alignment.pairs:
        counted = pair.counted
        number = counted.long().cumsum(0) - 1 + seen
        at = (counted & (number % stride == 0)).nonzero().flatten()
        seen += int(counted.sum())
        if len(at):
            pairs.append(pair)
            rows.append(at)
    return Spread(tuple(pairs), tuple(rows))


def read(pair: Pair, side: str, layout: Layout) -> tuple[Tensor, ...]:
    """The features of one side of a pair in columns, where they lie, checked to be as wide as the first record's."""
    rows = pair.train if side == "train" else pair.live
    width = layout.train_width if side == "train" else layout.live_width
    parts = tuple(p.detach() for p in rows.features())
    found = sum(p.shape[-1] for p in parts)
    if found != width:
        raise MismatchedInputs(
            f"features are {found} wide, but the first record's are {width}",
            where=f"{side} record {rows.name!r}",
            hint="one dump holds one layout; compare the records separately",
        )
    return parts


def take(parts: Sequence[Tensor], rows: Tensor, device: torch.device = CPU) -> Tensor:
    """``rows`` (rising) of columns side by side on ``device``, without a copy when they follow one another in one tensor that is there."""
    first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, -1)
    at: slice | Tensor = slice(first, last + 1) if last - first + 1 == len(rows) else rows
    moved = [p[at].to(device) for p in parts]
    return moved[0] if len(moved) == 1 else torch.cat(moved, -1)


def same_rows(parts: Sequence[Tensor], one: Tensor, other: Tensor, blocks: int) -> Tensor:
    """Whether row ``one[i]`` equals row ``other[i]`` (both rising) in each of so many blocks side by side [R, blocks]. They are held against
    each other where they lie."""
    there = parts[0].device
    found = []
    for part in chunks(len(one), at_once(sum(p.shape[-1] for p in parts), there)):
        a, b = (take(parts, rows[part], there) for rows in (one, other))
        found.append((a == b).unflatten(-1, (blocks, -1)).all(-1))
    return torch.cat(found).cpu() if found else torch.zeros(0, blocks, dtype=torch.bool)


def scattered(parts: Sequence[Tensor], rows: Tensor) -> Tensor:
    """The same of rows far apart, each asked for by itself."""
    with ExitStack() as open_:
        for part in parts:
            open_.enter_context(few_rows(part, rows.tolist()))
        return take(parts, rows)


def at_once(width: int, device: torch.device) -> int:
    """Rows of so many values to work on in one go."""
    return max((CHUNK_VALUES if device == CPU else DEVICE_VALUES) // max(width, 1), 1)


def chunks(tokens: int, chunk: int) -> Iterator[slice]:
    """Slices of at most ``chunk`` rows."""
    for start in range(0, tokens, chunk):
        yield slice(start, min(start + chunk, tokens))
