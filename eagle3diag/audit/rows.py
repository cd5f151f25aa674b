"""Whether a draft's embedding and head are the target's: rows of both sides compared, a thousand evenly spaced ones (tests K6 and K7)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.checkpoints import Draft, Target
from eagle3diag.errors import MissingPart

ROWS = 1000
SEARCHED, AMONG = 256, 16384
"""Rows of the head that are looked for, and rows of the target's head that they are looked for among, where the rows that the map names leave
their meaning open: of a vocabulary of 163,840 a tenth is looked at, and so a tenth of the 256 found if they are elsewhere."""

_SLAB = 2048
_ROUNDING = 2.0**-7
"""Of a row's largest entry: what one rounding to bfloat16 on either side leaves."""


@dataclass(frozen=True)
class RowsCheck:
    """One table of the draft against the target's.

    Attributes
    ----------
    tensor: ``embed_tokens.weight`` or ``lm_head.weight``. rows: how many were compared.
    copied: share of rows that are the target's within rounding. cosine: median cosine of a row with the target's row of the same token,
        of the head with the row of the token that the map gives it. other: the same with another token's row. Both are centred: the mean
        of the rows is taken off first.
    elsewhere: share of rows that resemble another token's row more than the named one, by more of cosine than chance could give, estimated
        from :data:`SEARCHED` rows among :data:`AMONG`; None where the sample left no doubt.
    """

    tensor: str
    rows: int
    copied: float
    cosine: float
    other: float
    elsewhere: float | None = None


MARGIN = 0.2
"""Of cosine, at least: words that are spelled alike have rows that are."""

DOUBT = 0.3
"""Below this median cosine the sample alone does not say that the map is the head's: trained heads have 0.1 to 0.9 (K7), copies 1."""


def rows_checks(draft: Draft, target: Target | None) -> tuple[RowsCheck, ...]:
    """For the embedding and the head that the file holds; empty where draft or target has none, or their widths differ."""
    found = []
    for name, read in (("embed_tokens.weight", "embedding"), ("lm_head.weight", "head")) if target is not None else ():
        ids = _ids(draft, name)
        try:
            theirs: Tensor = getattr(target, read)()
        except MissingPart:
            continue
        if ids is None or theirs.dim() != 2 or not theirs.is_floating_point() or not len(ids) or int(ids.max()) >= len(theirs):
            continue
        mine = draft.weight(name)
        if (
            mine.is_floating_point()
            and mine.dim() == 2
            and mine.shape[1] == theirs.shape[1]
            and len(mine) >= len(ids) > 1
            and len(theirs) > 1
        ):
            found.append(_check(name, mine, theirs, ids))
    return tuple(found)


def _ids(draft: Draft, name: str) -> Tensor | None:
    """The target's row of each of the draft's; None where the draft has no such table, or a map that names no rows."""
    if name not in draft:
        return None
    rows = (draft.shape(name) or (0,))[0]
    if name == "embed_tokens.weight" or rows >= draft.config.vocab_size:
        return torch.arange(min(rows, draft.config.vocab_size))
    vocabulary = draft.vocabulary
    if vocabulary is None or vocabulary.size != rows or int(vocabulary.draft_ids.min()) < 0:
        return None
    return vocabulary.draft_ids


def _check(name: str, mine: Tensor, theirs: Tensor, ids: Tensor) -> RowsCheck:
    place = torch.linspace(0, len(ids) - 1, min(ROWS, len(ids)), dtype=torch.float64).round().long()
    a, b = mine[place].float(), theirs[ids[place]].float()
    copied = ((a - b).abs().amax(-1) <= _ROUNDING * b.abs().amax(-1)).float().mean()
    mean = b.mean(0)
    a_unit, b_unit = _unit(a - a.mean(0)), _unit(b - mean)
    cosine, other = float((a_unit * b_unit).sum(-1).median()), float((a_unit * b_unit.roll(1, 0)).sum(-1).median())
    elsewhere = None
    if name == "lm_head.weight" and cosine < DOUBT:
        chosen = torch.linspace(0, len(place) - 1, min(SEARCHED, len(place)), dtype=torch.float64).round().long()
        elsewhere = _elsewhere(a_unit[chosen], (a_unit * b_unit).sum(-1)[chosen], theirs, mean)
    return RowsCheck(name, len(place), float(copied), cosine, other, elsewhere)


def _elsewhere(rows: Tensor, own: Tensor, theirs: Tensor, mean: Tensor) -> float:
    chance = math.sqrt(2 * math.log(len(theirs)) / theirs.shape[1])  # the largest cosine of a random row with so many others
    among = torch.linspace(0, len(theirs) - 1, min(AMONG, len(theirs)), dtype=torch.float64).round().long()
    best = torch.full((len(rows),), -1.0)
    for slab in among.split(_SLAB):
        best = torch.maximum(best, (rows @ _unit(theirs[slab].float() - mean).T).amax(-1))
    found = float((best > own + max(MARGIN, 1.5 * chance)).float().mean())
    return min(1.0, found * len(theirs) / len(among))


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows.nan_to_num(), dim=-1)


__all__ = ["RowsCheck", "rows_checks"]
