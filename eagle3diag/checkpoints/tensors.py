"""Weight files as one lazy mapping: names, shapes and dtypes from the headers, a tensor's data only when it is asked for."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle3diag.checkpoints import pickled, safefile
from eagle3diag.errors import MissingPart, UnreadableFile
from eagle3diag.files import check_not_pointer, existing, kind, listing, meant_hint, read_json, sibling

_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_HEAD = 64
_LONGEST_NAME = 1000  # characters; each name is matched against many patterns, and shown


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of one tensor: ``shape``, ``dtype`` in torch's words (``"bfloat16"``), and the ``file`` it lies in."""

    shape: tuple[int, ...]
    dtype: str
    file: str

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def dtype_name(of: torch.Tensor | torch.dtype) -> str:
    """torch's word for a dtype, without the prefix.

    >>> dtype_name(torch.zeros(1, dtype=torch.bfloat16))
    'bfloat16'
    """
    return str(of.dtype if isinstance(of, torch.Tensor) else of).removeprefix("torch.")


class Tensors(Mapping[str, torch.Tensor]):
    """A mapping of tensors that can say their shapes without reading them."""

    @abstractmethod
    def info(self, name: str) -> TensorInfo:
        """Shape, dtype and file of ``name``; raises :class:`~eagle3diag.errors.MissingPart` when it is not there."""

    def origin(self, name: str) -> object:
        """What the tensor is wherever it is mapped on under another name: equal for two names of one tensor, and for nothing else."""
        return id(self), name

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Tensors:
        """``tensors`` itself when it already is one, else a view of it."""
        return tensors if isinstance(tensors, Tensors) else MemoryTensors(tensors)


class MemoryTensors(Tensors):
    """Tensors in memory, over an optional lazy ``base`` of which ``names`` (new name -> base name) are kept."""

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        base: Tensors | None = None,
        names: Mapping[str, str] | None = None,
        where: str = "memory",
    ) -> None:
        self._own = dict(tensors)
        self._base, self._names, self._where = base, dict(names or {}), where

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self._own:
            return self._own[name]
        if self._base is not None and name in self._names:
            return self._base[self._names[name]]
        raise MissingTensor(f"has no tensor named {name!r}", where=self._where)

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from (n for n in self._names if n not in self._own)

    def __len__(self) -> int:
        return len(self._own.keys() | self._names.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._names

    def origin(self, name: str) -> object:
        if name not in self._own and self._base is not None and name in self._names:
            return self._base.origin(self._names[name])
        return id(self[name])

    def info(self, name: str) -> TensorInfo:
        if name not in self._own and self._base is not None and name in self._names:
            return self._base.info(self._names[name])
        tensor = self[name]
        return TensorInfo(tuple(tensor.shape), dtype_name(tensor), self._where)


class TensorFiles(Tensors):
    """The tensors of one weight file, or of all the weight files of a folder.

    Data stays on disk (memory-mapped) until a tensor is asked for. What is returned shares memory with the mapping:
    treat it as read-only. Changing it in place never reaches the file, but later reads of this object would see it.

    >>> sorted(TensorFiles.open("draft"))[:2]  # doctest: +SKIP
    ['d2t', 'fc.weight']
    """

    def __init__(self, path: Path, sources: Sequence[safefile.SafeFile | pickled.PickledFile]) -> None:
        self.path = path
        self._where: dict[str, safefile.SafeFile | pickled.PickledFile] = {}
        for source in sources:
            for name in source.entries:
                if len(name) > _LONGEST_NAME:
                    raise UnreadableFile(f"a tensor's name is {len(name):,} characters long: {name[:60]!r}…", where=source.path)
                if name in self._where:
                    both = f"{self._where[name].path.name} and {source.path.name}"
                    hint = "leave only one set of weights in the folder"
                    raise UnreadableFile(f"tensor {name!r} is in both {both}", where=path, hint=hint)
                self._where[name] = source

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TensorFiles:
        """Open a folder (``model.safetensors``, shards with an ``*.index.json``, ``pytorch_model.bin``) or one weight file.

        Raises
        ------
        UnreadableFile: nothing there, or a file that is truncated, corrupt or of another format.
        UnsafeFile: a pickle that would run code.
        MissingPart: no weights in the folder, or a shard that the index names is not there.
        """
        place = existing(path, "weights (a folder or a weight file)")
        if kind(place) == "folder":
            files, index = _weight_files(place)
        elif place.name.endswith(".index.json"):
            files, index = _indexed(place)
        else:
            files, index = [place], {}
        opened = cls(place, [_open(f) for f in files])
        for name, file in index.items():
            if name not in opened:
                message = f"the index places tensor {name!r} in {file}, which does not hold it"
                raise MissingPart(message, where=place, hint="copy that shard again")
        return opened

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._source(name).read(name)

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows of one tensor along its first axis, and nothing else of the file."""
        source = self._source(name)
        return source.rows(name, start, stop) if isinstance(source, safefile.SafeFile) else source.read(name)[start:stop]

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def info(self, name: str) -> TensorInfo:
        source = self._source(name)
        shape, dtype = source.entries[name]
        return TensorInfo(shape, dtype, source.path.name)

    def _source(self, name: str) -> safefile.SafeFile | pickled.PickledFile:
        try:
            return self._where[name]
        except KeyError:
            raise MissingTensor(f"has no tensor named {name!r}", where=self.path) from None


class MissingTensor(MissingPart, KeyError):
    """Also a ``KeyError``, so that ``tensors.get(name)`` and ``name in tensors`` work as they do for any mapping."""

    __str__ = MissingPart.__str__


def _open(path: Path) -> safefile.SafeFile | pickled.PickledFile:
    """By content first, then by name: files are often renamed, and pointers or web pages often lie in their place."""
    if kind(path) != "file":
        raise UnreadableFile("is not a regular file" if kind(path) else "is not there", where=path)
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise UnreadableFile(f"cannot be read ({error.strerror})", where=path) from error
    if not head:
        raise UnreadableFile("is empty", where=path, hint="copy the file again")
    check_not_pointer(head, path)
    if path.suffix == ".safetensors" or (path.suffix not in _PICKLED and head[8:9] == b"{"):
        return safefile.SafeFile(path)
    if path.suffix in _PICKLED or head.startswith(b"PK\x03\x04"):
        return pickled.PickledFile(path)
    if path.suffix == ".gguf" or head.startswith(b"GGUF"):
        raise UnreadableFile("is a GGUF file, which EAGLE-3 drafts do not come in", where=path, hint="use the safetensors checkpoint")
    raise UnreadableFile("is not a weight file: expected safetensors, or .bin/.pt written by torch.save", where=path)


def _weight_files(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """The files to read, in Transformers' order of preference, and the index (tensor -> file) when there is one."""
    names = listing(folder)
    for whole, index in (("model.safetensors", "model.safetensors.index.json"), ("pytorch_model.bin", "pytorch_model.bin.index.json")):
        if whole in names:
            return [folder / whole], {}
        if index in names:
            return _indexed(folder / index)
    other = [n for n in names if n.endswith(".index.json")]
    if len(other) == 1:
        return _indexed(folder / other[0])
    loose = [n for n in names if n.endswith(".safetensors") and not n.startswith(".")]
    if loose:
        _check_count(folder, loose)
        return [folder / n for n in loose], {}
    loose = [n for n in names if n.endswith((".bin", ".pt", ".pth")) and n not in ("training_args.bin", "optimizer.pt", "scheduler.pt")]
    if len(loose) == 1:
        return [folder / loose[0]], {}
    found = f"found {', '.join(names[:8])}" if names else "the folder is empty"
    hint = meant_hint(folder, "checkpoint") or "give the folder that holds config.json and the weights"
    raise MissingPart(f"no weights here (model.safetensors, *.index.json or pytorch_model.bin); {found}", where=folder, hint=hint)


def _indexed(path: Path) -> tuple[list[Path], dict[str, str]]:
    weight_map: Any = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UnreadableFile("has no weight_map (tensor name -> file name)", where=path)
    tensors_of: dict[Path, list[str]] = {}
    for name, file in weight_map.items():
        tensors_of.setdefault(sibling(path.parent, file, path), []).append(name)
    for file, inside in tensors_of.items():
        if not kind(file):
            message = f"shard {file.name} ({len(inside)} tensors, such as {inside[0]!r}) is not there"
            raise MissingPart(message, where=path.parent, hint="download it again")
    return sorted(tensors_of), weight_map


def _check_count(folder: Path, names: list[str]) -> None:
    """``model-00001-of-00004.safetensors`` says how many there should be, even without an index."""
    for name in names:
        parts = name.removesuffix(".safetensors").rsplit("-of-", 1)
        if len(parts) == 2 and parts[1].isdecimal() and len(parts[1]) < 8:
            present = sum(n.endswith(f"-of-{parts[1]}.safetensors") for n in names)
            if present < int(parts[1]):
                message = f"{present} of {int(parts[1])} shards are here (such as {name})"
                raise MissingPart(message, where=folder, hint="download the others")


__all__ = ["MemoryTensors", "MissingTensor", "TensorFiles", "TensorInfo", "Tensors", "dtype_name"]
