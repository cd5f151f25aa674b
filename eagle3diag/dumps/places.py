"""Where the files of a dump lie: a folder or one file, listed once and opened when they are read."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from eagle3diag.checkpoints.tensors import TensorFiles
from eagle3diag.dumps.contents import read_contents
from eagle3diag.errors import InputError, UnreadableFile
from eagle3diag.files import RIGHTS, kind, read_json

T = TypeVar("T")
_URL = re.compile(r"([a-z][a-z0-9+.-]+(://[^:]*)?::)*[a-z][a-z0-9+.-]+://", re.IGNORECASE)
#: Folders below the one that is given; writers nest two or three.
DEEPEST = 32


def is_url(source: object) -> bool:
    """Whether ``source`` names a remote place, or one behind another as fsspec chains them. A single letter is a drive, not a protocol.

    >>> is_url("s3://bucket/dump"), is_url("simplecache::s3://bucket/dump"), is_url("/tmp/dump"), is_url("C://dump")
    (True, True, False, False)
    """
    return isinstance(source, str) and _URL.match(source) is not None


class Place:
    """A folder or a file on this machine. ``names``: its files relative to ``where``, in natural order, without hidden and lock files."""

    local = True

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._root = path if kind(path) == "folder" else path.parent
        self._list(_walk(path) if kind(path) == "folder" else [path.name])

    def _list(self, found: Iterable[str]) -> None:
        """Tells files from the locks beside them. ``locked``: files whose writer still held its lock when they were listed, or died holding
        it, so that they may be half written."""
        names = natural(found)
        self.names = tuple(n for n in names if not n.endswith(".lock"))
        self.locked = frozenset(n.removesuffix(".lock") for n in names if n.endswith(".lock"))

    def path(self, name: str) -> Path:
        """The file as a local path."""
        return self._root / name

    def label(self, name: str) -> str:
        """What errors call the file."""
        return str(self._root / name)

    def open(self, name: str) -> Any:
        """The contents of one file; see :func:`eagle3diag.dumps.contents.read_contents`. Errors name the file as the user knows it."""
        return self._relabelled(name, read_contents)

    def open_tensors(self, name: str) -> TensorFiles:
        """The tensors of one weight file."""
        return self._relabelled(name, TensorFiles.open)

    def read_json(self, name: str) -> dict[str, Any]:
        """The JSON object in one file."""
        return self._relabelled(name, read_json)

    def stamp(self) -> str:
        """A digest that changes when a file comes, goes or is written again: names, sizes and times, as the place tells them."""
        told = sorted((name, self._told(name)) for name in self.names)
        return hashlib.sha256(json.dumps([self.where, told]).encode()).hexdigest()

    def _told(self, name: str) -> list[str]:
        try:
            found = self.path(name).stat()
        except OSError as error:
            raise UnreadableFile(f"cannot be looked at ({error.strerror})", where=self.label(name), hint=RIGHTS) from error
        return [str(found.st_size), str(found.st_mtime_ns)]

    def _relabelled(self, name: str, read: Callable[[Path], T], path: Path | None = None) -> T:
        path = path or self.path(name)
        try:
            return read(path)
        except InputError as error:
            error.where = (error.where or str(path)).replace(str(path), self.label(name))
            raise


def natural(names: Iterable[str]) -> tuple[str, ...]:
    """Sorted with numbers by value: ``hs_2`` before ``hs_10``.

    >>> natural(["hs_10.pt", "hs_2.pt"])
    ('hs_2.pt', 'hs_10.pt')
    """
    return tuple(sorted(names, key=lambda n: [(0, int(p), p) if p.isdecimal() and len(p) < 20 else (1, 0, p) for p in _parts(n)]))


def _parts(name: str) -> list[str]:
    return re.split(r"(\d+)", name)


def _walk(folder: Path) -> Iterator[str]:
    """Names of all regular files below ``folder``; links to folders are not followed."""

    def refuse(error: OSError) -> None:
        raise UnreadableFile(f"the folder cannot be listed ({error.strerror})", where=error.filename or folder, hint=RIGHTS) from error

    for root, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [f for f in folders if not f.startswith(".")]
        inside = os.path.relpath(root, folder)
        if folders and inside.count(os.sep) > DEEPEST:
            raise UnreadableFile(f"holds folders more than {DEEPEST} deep", where=folder, hint="give the folder of the dump itself")
        yield from (f if inside == "." else f"{inside}/{f}".replace(os.sep, "/") for f in files if not f.startswith("."))


__all__ = ["Place", "is_url", "natural"]
