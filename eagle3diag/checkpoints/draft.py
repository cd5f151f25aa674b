"""A draft: its normalised config, its tensors under one set of names, and its vocabulary map."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from eagle3diag.checkpoints.config import DraftConfig, read_config
from eagle3diag.checkpoints.names import canonical_names
from eagle3diag.checkpoints.tensors import MemoryTensors, TensorFiles, Tensors
from eagle3diag.checkpoints.vocabulary import VocabularyMap
from eagle3diag.checkpoints.write import write_folder
from eagle3diag.errors import BadArgument, MissingPart
from eagle3diag.files import existing, kind, meant_hint, read_json


class Draft:
    """An EAGLE-3 draft, from disk or changed in memory. Tensors are read when asked for.

    Attributes
    ----------
    path: where it was opened; ``config``: a :class:`DraftConfig`.
    tensors: checkpoint names to tensors, lazily. Those of a file share its memory map: treat them as read-only.
    """

    def __init__(self, path: str, config: DraftConfig, tensors: Mapping[str, Tensor]) -> None:
        self.path, self.config = path, config
        self.tensors: Tensors = Tensors.of(tensors)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], config: Mapping[str, Any], *, path: str = "memory") -> Draft:
        """A draft from a state dict and a raw config, which is what ``config.json`` would hold."""
        mapped = Tensors.of(tensors)
        return cls(path, read_config(config, mapped, where=f"{path} (config)"), mapped)

    @property
    def name(self) -> str:
        """The folder's name: enough to tell drafts apart, and no path of anybody's machine."""
        return Path(self.path).name or self.path

    @cached_property
    def _names(self) -> dict[str, str]:
        return canonical_names(self.tensors)

    def canonical(self) -> dict[str, str]:
        """Canonical name to checkpoint name, for every tensor."""
        return dict(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def weight(self, name: str) -> Tensor:
        """The tensor of a canonical name, in its own dtype. Raises :class:`~eagle3diag.errors.MissingPart`."""
        stored = self._names.get(name)
        if stored is None:
            hint = "`eagle3diag audit` lists what is there and what is missing"
            raise MissingPart(f"the draft has no {name!r}", where=self.path, hint=hint)
        return self.tensors[stored]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a canonical name's tensor, without reading it where that can be avoided; None when it is not there."""
        stored = self._names.get(name)
        return None if stored is None else self.tensors.info(stored).shape

    @cached_property
    def vocabulary(self) -> VocabularyMap | None:
        """The map of a reduced vocabulary, or None when the checkpoint has no ``d2t``."""
        if "d2t" not in self:
            return None
        return VocabularyMap.from_tables(self.weight("d2t"), self.weight("t2d") if "t2d" in self else None)

    def replace(
        self,
        *,
        tensors: Mapping[str, Tensor | None] | None = None,
        config: Mapping[str, Any] | None = None,
        rename: Callable[[str], str] | None = None,
    ) -> Draft:
        """A changed copy in memory; what is not changed stays on disk until it is read, and nothing on disk is touched.

        ``tensors``: by checkpoint name, None removes one. ``config``: raw top-level fields to set, None removes one.
        ``rename``: applied to every checkpoint name afterwards.

        Raises
        ------
        BadArgument: a tensor to remove is not there (the change would be none), or ``rename`` gives two tensors one name.
        """
        changed = dict(tensors or {})
        unknown = [name for name, tensor in changed.items() if tensor is None and name not in self.tensors]
        if unknown:
            hint = "use the checkpoint's own names"
            raise BadArgument(f"cannot remove {unknown[0]!r}: the draft has no such tensor", where=self.path, hint=hint)
        own: dict[str, Tensor] = {}
        kept: dict[str, str] = {}
        for name in [*self.tensors, *(n for n in changed if n not in self.tensors)]:
            place = name if rename is None else rename(name)
            replacement = changed.get(name)
            if name in changed and replacement is None:
                continue
            if place in own or place in kept:
                raise BadArgument(f"rename gives two tensors the name {place!r}", where=self.path)
            if replacement is None:
                kept[place] = name
            else:
                own[place] = replacement
        mapped = MemoryTensors(own, base=self.tensors, names=kept, where=f"{self.path} (changed)")
        overrides = config or {}  # a null that the file itself holds is kept: engines tell it from an absent field
        raw = {k: v for k, v in {**self.config.raw, **overrides}.items() if v is not None or k not in overrides}
        return Draft(self.path, read_config(raw, mapped, where=f"{self.path} (changed config)"), mapped)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``config.json`` and ``model.safetensors`` into a new folder, all or nothing. Raises
        :class:`~eagle3diag.errors.BadArgument` when the folder exists and is not empty."""
        return write_folder(Path(folder), self.config.raw, self.tensors, dict.fromkeys(self.tensors, "model.safetensors"))

    def __repr__(self) -> str:
        return f"Draft({self.name!r}, {len(self.tensors)} tensors, fc {self.shape('fc.weight')}, vocabulary {self.config.draft_vocab_size})"


DraftSource: TypeAlias = str | os.PathLike[str] | Draft
"""A folder or a weight file of a draft, or an open one."""


def open_draft(source: DraftSource) -> Draft:
    """The draft in folder ``source`` (``config.json`` beside safetensors, sharded or not, or ``.bin``), or in one weight file; an open
    one as it is.

    Raises
    ------
    UnreadableFile, UnsafeFile, MissingPart: see :class:`~eagle3diag.checkpoints.tensors.TensorFiles` and
    :func:`~eagle3diag.checkpoints.config.read_config`.
    """
    if isinstance(source, Draft):
        return source
    path = existing(source, "a draft (a folder with config.json and weights)")
    tensors = TensorFiles.open(path)
    file = (path if kind(path) == "folder" else path.parent) / "config.json"
    if not kind(file):
        hint = meant_hint(file.parent, "checkpoint") or "copy it from the trainer's output folder"
        raise MissingPart("there is no config.json next to the weights", where=file.parent, hint=hint)
    return Draft(str(path), read_config(read_json(file), tensors, where=file), tensors)
