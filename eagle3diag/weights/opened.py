"""A draft, or tensors alone, ready to be measured under canonical names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from eagle3diag.checkpoints import Draft, DraftSource, open_draft

Source: TypeAlias = DraftSource | Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Opened:
    """``names`` maps canonical names to those of ``tensors``; ``draft`` is None when only tensors were given."""

    label: str
    names: Mapping[str, str]
    tensors: Mapping[str, Tensor]
    draft: Draft | None

    def weight(self, name: str) -> Tensor | None:
        """The tensor as stored; 8-bit floats, with which torch does not compute, as float32."""
        if name not in self.names:
            return None
        tensor = self.tensors[self.names[name]]
        return tensor.float() if str(tensor.dtype).startswith("torch.float8") else tensor


def opened(source: Source) -> Opened:
    """Open a folder or a file, take an opened draft, or a mapping of canonical names to tensors as it is.

    Raises
    ------
    UnreadableFile, UnsafeFile, MissingPart: as :func:`~eagle3diag.checkpoints.open_draft`.
    """
    if isinstance(source, Mapping):
        return Opened("tensors in memory", {name: name for name in source}, source, None)
    draft = open_draft(source)
    return Opened(draft.name, draft.canonical(), draft.tensors, draft)
