"""The bytes of a log in pieces of whole lines, plain or gzipped, in constant memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from eagle3diag.errors import UnreadableFile
from eagle3diag.files import absent, kind

CHUNK = 1 << 22
LONGEST_LINE = 64 * 1024
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_PACKED = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def pieces(source: str | os.PathLike[str]) -> Iterator[bytes]:
    """A file, or a string of several lines, without colours. A line longer than 64 KiB is cut.

    Raises
    ------
    UnreadableFile: not there, not readable, UTF-16, or packed otherwise than with gzip.
    """
    lines = isinstance(source, str) and "\n" in source
    for piece in _whole_lines(io.BytesIO(str(source).encode("utf-8", "replace"))) if lines else _file(Path(source)):
        yield _COLOUR.sub(b"", piece) if b"\x1b[" in piece else piece


def text(line: bytes) -> str:
    """One line, without the JSON that docker wraps it in."""
    if line.startswith(b'{"') and b'"log":' in line[:200]:
        try:
            inner = json.loads(line)["log"]
            return inner if isinstance(inner, str) else ""
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
    return line[:LONGEST_LINE].decode("utf-8", errors="replace").rstrip("\r")


def _file(path: Path) -> Iterator[bytes]:
    if kind(path) != "file":  # a pipe without a writer would be waited for, a device would never end
        if not kind(path):
            raise absent(path, "there is no such log")
        raise UnreadableFile("is not a regular file", where=path, hint="write it to a file first")
    try:
        with path.open("rb") as probe:
            head = probe.read(8)
        for magic, name in _PACKED.items():
            if head.startswith(magic):
                raise UnreadableFile(f"is {name}", where=path, hint="give it as UTF-8 text, plain or with gzip")
        with gzip.open(path, "rb") if head[:2] == b"\x1f\x8b" else path.open("rb") as file:
            yield from _whole_lines(file)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UnreadableFile(f"cannot be read: {error}", where=repr(str(path)), hint="copy the log again") from None


def _whole_lines(file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    left = b""
    while block := file.read(CHUNK):
        end = block.rfind(b"\n") + 1
        if end:
            yield left + block[:end]
            left = block[end:]
        else:
            left += block
        if len(left) > LONGEST_LINE:
            yield left
            left = b""
    if left:
        yield left
