"""One safetensors file: its header checked by us, so that every way it can be broken has one clear error; its tensors
read in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import torch

from eagle3diag.errors import UnreadableFile
from eagle3diag.files import parse_json

#: safetensors' own limit on the header (``MAX_HEADER_SIZE`` in its Rust source).
MAX_HEADER_BYTES = 100_000_000
SMALL = 1 << 16
"""Bytes up to which a tensor is read and not mapped: of a file that is mapped the system reads megabytes around each place that is touched (8 MB
on some disks), which for the token ids of a folder of dumps is half the folder."""

_AGAIN = "copy or download the file again"

#: safetensors' dtype names -> torch's name and bits per element.
DTYPES: Mapping[str, tuple[str, int]] = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "U16": ("uint16", 16),
    "I16": ("int16", 16),
    "U32": ("uint32", 32),
    "I32": ("int32", 32),
    "U64": ("uint64", 64),
    "I64": ("int64", 64),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F32": ("float32", 32),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F4": ("float4_e2m1fn_x2", 4),
}


class Stored(NamedTuple):
    """What a header says of one tensor: ``dtype`` in safetensors' words, and where its bytes lie in the file."""

    shape: tuple[int, ...]
    dtype: str
    start: int
    stop: int


class SafeFile:
    """The header of one file, and its tensors on demand. ``entries``: name -> (shape, dtype in torch's words)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._file = os.fstat(file.fileno())
                stored = read_header(path, self._file.st_size, lambda start, stop: file.read(stop - start))  # asked for in order
        except OSError as error:
            raise UnreadableFile(f"cannot be read ({error.strerror})", where=path) from error
        self.entries = entries(stored)
        self._stored = stored
        self._map: torch.UntypedStorage | None = None  # made at the first read: a folder may have thousands of shards

    def read(self, name: str) -> torch.Tensor:
        """One tensor, memory-mapped if it is not small. Raises :class:`~eagle3diag.errors.UnreadableFile` when that is not possible."""
        self._check_whole()
        stored = self._stored[name]
        word, bits = DTYPES.get(stored.dtype, ("", 0))
        dtype = getattr(torch, word, None)
        if not isinstance(dtype, torch.dtype):
            message = f"tensor {name!r} is stored as {stored.dtype!r}, which torch {torch.__version__} does not have"
            raise UnreadableFile(message, where=self.path, hint="convert it, or install a newer torch")
        shape = stored.shape if bits >= 8 else (*stored.shape[:-1], stored.shape[-1] * bits // 8)  # several values to a byte
        size = stored.stop - stored.start
        if not size:
            return torch.empty(shape, dtype=dtype)
        try:
            held: torch.UntypedStorage = self._copied(stored) if size <= SMALL else self._mapped()[stored.start : stored.stop]
            return torch.empty(0, dtype=dtype).set_(held).view(shape)
        except (OSError, ValueError, RuntimeError) as error:
            hint = "rename it, or its folder: torch maps files with names in UTF-8 only" if isinstance(error, UnicodeError) else _AGAIN
            raise UnreadableFile(f"tensor {name!r} cannot be read: {_line(error)}", where=self.path, hint=hint) from error

    def _copied(self, stored: Stored) -> torch.UntypedStorage:
        with self._again() as file:
            file.seek(stored.start)
            data = bytearray(file.read(stored.stop - stored.start))
        if len(data) < stored.stop - stored.start:
            raise ValueError("the file ends before the tensor does")
        return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()

    def _mapped(self) -> torch.UntypedStorage:
        """The whole file, changes to which stay in this process. Not by safetensors, which touches the header once more; and not by ``mmap``, which
        keeps a file open for each, where a folder may have thousands."""
        if self._map is None:
            self._again().close()
            mapped = torch.UntypedStorage.from_file(os.fspath(self.path), False, self._file.st_size)
            assert isinstance(mapped, torch.UntypedStorage)  # as its annotation does not say
            self._again().close()
            self._map = mapped
        return self._map

    def _again(self) -> FileIO:
        """The file, if it is still the one whose header was read: places in another mean nothing."""
        file = self.path.open("rb", buffering=0)
        now = os.fstat(file.fileno())
        if (now.st_dev, now.st_ino) != (self._file.st_dev, self._file.st_ino):
            file.close()
            raise UnreadableFile(
                "another file took its place while it was read", where=self.path, hint="read it again when its writer is done"
            )
        return file

    def _check_whole(self) -> None:
        """Touching a mapped byte that a writer has cut off ends the process, beyond any exception: so the size is looked at before each tensor.
        Copying instead of mapping would close the gap that is left, at a tenth of the rate (0.7 against 7 GB/s, 1 GB in the page cache)."""
        try:
            now = self.path.stat()
        except OSError:
            return  # a mapped file outlives its name, and opening says what is wrong with another
        if now.st_ino == self._file.st_ino and now.st_size < self._file.st_size:
            message = f"was cut off while it was read: {self._file.st_size:,} bytes when it was opened, {now.st_size:,} now"
            raise UnreadableFile(message, where=self.path, hint="read it again when its writer is done")

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows of one tensor along its first axis, memory-mapped."""
        return self.read(name)[start:stop]


def entries(stored: Mapping[str, Stored]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of a header, in torch's words."""
    return {name: (s.shape, DTYPES.get(s.dtype, (s.dtype.lower(), 0))[0]) for name, s in stored.items()}


def read_header(path: Path, size: int, read: Callable[[int, int], bytes]) -> dict[str, Stored]:
    """The checked header of a file of ``size`` bytes; ``read(start, stop)`` gives them, asked twice and in order. Errors name ``path``."""
    prefix = read(0, 8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        raise UnreadableFile(_bad_length(prefix, length, size), where=path, hint=_AGAIN)
    found = parse_json(read(8, 8 + length), f"{path} (header)")
    if not isinstance(found, dict):
        raise UnreadableFile("the header is not a JSON object", where=path, hint=_AGAIN)
    found.pop("__metadata__", None)
    held = {name: _entry(path, name, entry, 8 + length) for name, entry in found.items()}
    _check_spans(path, sorted((s.start, s.stop, name) for name, s in held.items()), 8 + length, size)
    return held


def _bad_length(prefix: bytes, length: int, size: int) -> str:
    if len(prefix) < 8:
        return f"is cut off: {size} bytes, not even a whole header length"
    if length > MAX_HEADER_BYTES:
        return f"says that its header is {length:,} bytes long; this is not a safetensors file, or its first bytes are corrupt"
    return f"is cut off inside the header: {length:,} bytes of header are promised, {size - 8:,} are there"


def _entry(path: Path, name: str, entry: object, data: int) -> Stored:
    """One header entry; ``data`` is where the tensors begin."""
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, span = fields.get("dtype"), _whole(fields.get("shape")), _whole(fields.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or span is None or len(span) != 2 or span[0] > span[1]:
        raise UnreadableFile(f"the header entry of tensor {name!r:.100} is damaged", where=path, hint=_AGAIN)
    bits = DTYPES.get(dtype, ("", 0))[1]
    wanted = bits
    for n in () if 0 in shape else shape:
        wanted = min(wanted * n, 1 << 70)  # kept small when the header was made to hurt
    if bits and (0 if 0 in shape else wanted) != 8 * (span[1] - span[0]):
        message = f"tensor {name!r:.100} is {dtype} {list(shape)!r:.60}, but the header gives it {span[1] - span[0]:,} bytes"
        raise UnreadableFile(message, where=path, hint=_AGAIN)
    return Stored(shape, dtype, data + span[0], data + span[1])


def _whole(value: object) -> tuple[int, ...] | None:
    """A list of whole numbers from zero, as a tuple; None for anything else."""
    return tuple(value) if isinstance(value, list) and all(type(n) is int and n >= 0 for n in value) else None


def _check_spans(path: Path, spans: list[tuple[int, int, str]], data: int, size: int) -> None:
    """Tensors lie end to end and fill the file from ``data`` on, as the format demands: anything else means bytes were lost or added."""
    at = data
    for start, stop, name in spans:
        if stop > size:
            message = f"is cut off: tensor {name!r:.100} ends at byte {stop - data:,} of the data, {size - data:,} are there"
            raise UnreadableFile(message, where=path, hint=_AGAIN)
        if start != at:
            message = f"tensor {name!r:.100} starts at byte {start - data:,}, expected {at - data:,}"
            raise UnreadableFile(message, where=path, hint=_AGAIN)
        at = stop
    if at != size:
        raise UnreadableFile(f"has {size - at:,} bytes after its last tensor", where=path, hint=_AGAIN)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


__all__ = ["DTYPES", "MAX_HEADER_BYTES", "SafeFile", "Stored", "entries", "read_header"]
