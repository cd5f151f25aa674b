"""The draft's smaller vocabulary: which target token each draft token stands for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.errors import UnreadableFile


@dataclass(frozen=True, eq=False)
class VocabularyMap:
    """``d2t`` and ``t2d`` as stored, and what they mean.

    Attributes
    ----------
    draft_ids: int64 ``[Vd]``, the target id of every draft id: ``i + d2t[i]``. Out-of-range ids are kept: finding them is the audit's part.
    d2t: as stored: offsets, target id minus draft id (SafeAILab/EAGLE ``cnets.py``; SGLang ``hot_token_id = d2t + arange``).
    t2d: as stored, bool ``[V]``: True where a target id has a draft id. None when the checkpoint has none; no engine reads it.
    """

    draft_ids: Tensor
    d2t: Tensor
    t2d: Tensor | None

    @classmethod
    def from_tables(cls, d2t: Tensor, t2d: Tensor | None = None) -> VocabularyMap:
        """Add the offsets up. Raises :class:`~eagle3diag.errors.UnreadableFile` for a dtype that holds no numbers, such as packed codes.

        >>> VocabularyMap.from_tables(torch.tensor([0, 2, 2])).draft_ids.tolist()
        [0, 3, 4]
        """
        for name, table in (("d2t", d2t), ("t2d", t2d)):
            if table is not None and (table.is_complex() or "float4" in str(table.dtype) or "float8" in str(table.dtype)):
                raise UnreadableFile(f"{name} is {table.dtype}, expected whole numbers", hint="export the draft again")
        offsets = d2t.detach().to("cpu").reshape(-1).to(torch.int64)
        return cls(offsets + torch.arange(len(offsets)), d2t, t2d)

    @property
    def size(self) -> int:
        """Number of draft tokens, ``Vd``."""
        return len(self.draft_ids)

    def to_draft(self, vocab_size: int) -> Tensor:
        """int64 ``[vocab_size]``: the draft id of every target id, -1 where it has none; the first of two that share a target id."""
        inside = (self.draft_ids >= 0) & (self.draft_ids < vocab_size)
        found = torch.full((vocab_size,), self.size, dtype=torch.int64)
        found.scatter_reduce_(0, self.draft_ids[inside], torch.arange(self.size)[inside], "amin")
        found[found == self.size] = -1
        return found


__all__ = ["VocabularyMap"]
