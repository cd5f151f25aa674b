"""What one file of a dump holds, whatever its ending says: tensors by name, plain containers of them, or JSON. Nothing is ever run."""

from __future__ import annotations

import gzip
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eagle3diag.checkpoints import pickled
from eagle3diag.checkpoints.safefile import MAX_HEADER_BYTES, SafeFile
from eagle3diag.checkpoints.tensors import TensorFiles
from eagle3diag.errors import UnreadableFile, UnsafeFile
from eagle3diag.files import RIGHTS, check_not_pointer, kind, parse_json, read_bytes, read_up_to

#: A sample of 2,048 tokens x 4 states of 7,168 in bf16 is 0.12 GB, as JSON numbers 1 GB; more is not one sample, or is made to hurt.
MAX_UNPACKED = 4 << 30
_AGAIN = "copy the file again"
_KNOWN = "known are torch.save files, safetensors, .npz and JSON, plain or gzipped"


def read_contents(path: Path) -> Any:
    """A mapping or list with tensors, or a JSON value. Tensors of files that are not compressed are memory-mapped: treat as read-only.

    Raises
    ------
    UnreadableFile: truncated, corrupt, or of no known kind. UnsafeFile: a pickle that would have to run code.
    """
    if kind(path) != "file":
        if kind(path):
            raise UnreadableFile("is not a regular file", where=path, hint="leave only the files of the dump in its folder")
        raise UnreadableFile(
            "is not there", where=path, hint="a link to nothing, or removed since the folder was listed: copy the dump again"
        )
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise UnreadableFile(f"cannot be read ({error.strerror})", where=path, hint=RIGHTS) from error
    if not head:
        raise UnreadableFile("is empty", where=path, hint=_AGAIN)
    check_not_pointer(head, path)
    if head.startswith(b"\x1f\x8b"):
        return _unzipped(path)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= MAX_HEADER_BYTES:
        return TensorFiles(path, [SafeFile(path)])
    if head.lstrip()[:1] in (b"{", b"["):
        return _json(read_bytes(path, MAX_UNPACKED), path)
    if head.startswith(b"PK") and _is_npz(path):
        return NumpyArchive(path)
    if head.startswith((b"PK", b"\x80")) or path.suffix in (".pt", ".pth", ".ckpt", ".bin"):
        return pickled.load(path)
    if path.suffix == ".safetensors":
        return TensorFiles.open(path)  # which says what is wrong with it
    raise UnreadableFile(f"is not a file of tensors; {_KNOWN}", where=path, hint=_AGAIN)


def _unzipped(path: Path) -> Any:
    try:
        with gzip.open(path) as file:
            data = read_up_to(file, MAX_UNPACKED)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableFile(f"is damaged inside its gzip ({str(error)[:200]})", where=path, hint=_AGAIN) from error
    if data is None:
        hint = "unpack it yourself if you trust it"
        raise UnreadableFile(f"unpacks to more than {MAX_UNPACKED:,} bytes, far more than one sample", where=path, hint=hint)
    if data.lstrip()[:1] in (b"{", b"["):
        return _json(data, path)
    if data.startswith((b"PK", b"\x80")):
        return pickled.load(path, data)
    raise UnreadableFile(f"is not a file of tensors inside its gzip; {_KNOWN}", where=path, hint=_AGAIN)


def _json(data: bytes, path: Path) -> Any:
    """One JSON value, or the list of those that stand one a line."""
    first, _, rest = data.lstrip().partition(b"\n")
    if rest.strip() and first.lstrip()[:1] == b"{":
        try:
            json.loads(first)
        except ValueError:
            return parse_json(data, path)
        lines = enumerate(data.splitlines(), 1)
        return [parse_json(line, f"{path} (line {i})") for i, line in lines if line.strip()]
    return parse_json(data, path)


def _is_npz(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(n.endswith(".npy") for n in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False


class NumpyArchive(Mapping[str, Tensor]):
    """The arrays of an ``.npz`` as tensors, each read when asked for; arrays of Python objects are refused."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with zipfile.ZipFile(path) as archive:
                self._sizes = {i.filename.removesuffix(".npy"): i.file_size for i in archive.infolist() if i.filename.endswith(".npy")}
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise UnreadableFile(f"is a damaged .npz ({str(error)[:200]})", where=path, hint=_AGAIN) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, name: str) -> Tensor:
        if self._sizes[name] > MAX_UNPACKED:
            hint = "save its arrays as safetensors, which are read without unpacking"
            raise UnreadableFile(f"array {name!r:.100} unpacks to {self._sizes[name]:,} bytes", where=self._path, hint=hint)
        try:
            with np.load(self._path, allow_pickle=False) as archive:
                return torch.from_numpy(np.ascontiguousarray(archive[name]))
        except TypeError as error:  # a dtype that torch does not have: text, dates, records
            message = f"array {name!r:.100} holds no numbers: {str(error)[:200]}"
            raise UnreadableFile(message, where=self._path, hint="map the arrays of ids and states, and leave this one out") from error
        except Exception as error:  # numpy reads a header made by anybody: ValueError, EOFError, MemoryError, SyntaxError, zlib.error...
            if "pickle" in str(error).lower():
                hint = "save plain arrays: numpy.savez(path, **arrays) with one dtype each"
                raise UnsafeFile(
                    f"array {name!r:.100} holds Python objects, which reading would run", where=self._path, hint=hint
                ) from error
            raise UnreadableFile(f"array {name!r:.100} is damaged ({str(error)[:200]})", where=self._path, hint=_AGAIN) from error


__all__ = ["NumpyArchive", "read_contents"]
