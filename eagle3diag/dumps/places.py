"""Where the files of a dump lie: a folder or one file, on this machine or behind a URL, listed once and fetched when they are read."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from eagle3diag.checkpoints.tensors import TensorFiles
from eagle3diag.dumps.contents import read_contents
from eagle3diag.errors import BadArgument, InputError, MissingDependency, UnreadableFile
from eagle3diag.files import kind, read_json

T = TypeVar("T")
_URL = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
#: Folders below the one that is given; writers nest two or three.
DEEPEST = 32
#: Bytes of fetched files kept on the local disk: a few of the largest files that trainers write.
KEPT_BYTES = 4 << 30
#: The latest files are kept whatever their size: readers hold a few open at a time.
KEPT_FILES = 8


def is_url(source: object) -> bool:
    """Whether ``source`` names a remote place. A single letter is a drive, not a protocol.

    >>> is_url("s3://bucket/dump"), is_url("/tmp/dump"), is_url("C://dump")
    (True, False, False)
    """
    return isinstance(source, str) and _URL.match(source) is not None


class Place:
    """A folder or a file on this machine. ``names``: its files relative to ``where``, in natural order, without hidden and lock files."""

    local = True

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._root = path if kind(path) == "folder" else path.parent
        found = list(_walk(path)) if kind(path) == "folder" else [path.name]
        self.names = natural(n for n in found if not n.endswith(".lock"))
        #: Files whose writer still held its lock when the folder was listed, or died holding it: they may be half written.
        self.locked = frozenset(n.removesuffix(".lock") for n in found if n.endswith(".lock"))

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
            raise UnreadableFile(f"cannot be looked at ({error.strerror})", where=self.label(name)) from error
        return [str(found.st_size), str(found.st_mtime_ns)]

    def _relabelled(self, name: str, read: Callable[[Path], T]) -> T:
        path = self.path(name)
        try:
            return read(path)
        except InputError as error:
            error.where = (error.where or str(path)).replace(str(path), self.label(name))
            raise


class RemotePlace(Place):
    """The same behind a URL, through fsspec. Files are copied to a temporary folder, of which the latest ``KEPT_BYTES`` are kept.

    Raises
    ------
    MissingDependency: fsspec, or what it needs for this protocol, is not installed. UnreadableFile: the place cannot be reached.
    """

    local = False

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            hint = "pip install 'eagle3diag[remote]'"
            raise MissingDependency("reading remote dumps needs fsspec", where=url, hint=hint) from None
        self.where = url.rstrip("/")
        try:
            self._fs, self._remote = url_to_fs(url)
        except ImportError as error:
            raise MissingDependency(str(error), where=url, hint="pip install the package that the message names") from None
        except ValueError as error:
            raise BadArgument(str(error), where=url, hint="fsspec.available_protocols() lists the known ones") from None
        whole = self._ask(lambda: self._fs.isfile(self._remote))
        self._remote = self._remote.rstrip("/")
        self._base = self._remote.rpartition("/")[0] if whole else self._remote
        listed = [self._remote] if whole else self._ask(lambda: self._fs.find(self._remote))
        names = [str(p).removeprefix(self._base).lstrip("/") for p in listed]
        names = [n for n in names if not any(part.startswith(".") for part in n.split("/"))]
        if not names:
            raise UnreadableFile("nothing is there; expected a dump", where=url, hint="check the address and your rights")
        self.names = natural(n for n in names if not n.endswith(".lock"))
        self.locked = frozenset(n.removesuffix(".lock") for n in names if n.endswith(".lock"))
        self._folder = Path(tempfile.mkdtemp(prefix="eagle3diag-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._fetched: OrderedDict[str, Path] = OrderedDict()
        self._count = 0

    def _told(self, name: str) -> list[str]:
        found = self._ask(lambda: self._fs.info(f"{self._base}/{name}"))
        return [str(found[key]) for key in ("size", "ETag", "etag", "oid", "mtime", "LastModified", "created") if key in found]

    def path(self, name: str) -> Path:
        if name not in self._fetched:
            # numbered, not named: a remote name is no path of this machine; the ending helps readers that look at it
            self._count += 1
            local = self._folder / f"{self._count:06d}-{Path(name).name[-100:]}"
            self._ask(lambda: self._fs.get_file(f"{self._base}/{name}", str(local)))
            self._fetched[name] = local
            kept = 0
            for age, held in enumerate(reversed(list(self._fetched))):
                kept += self._fetched[held].stat().st_size
                if kept > KEPT_BYTES and age >= KEPT_FILES:
                    self._fetched.pop(held).unlink(missing_ok=True)  # what is mapped stays readable until it is let go
        self._fetched.move_to_end(name)
        return self._fetched[name]

    def label(self, name: str) -> str:
        return self.where if self.names == (name,) and self.where.endswith(name) else f"{self.where}/{name}"

    def _ask(self, call: Any) -> Any:
        try:
            return call()
        except ImportError as error:
            raise MissingDependency(str(error), where=self.where, hint="pip install the package that the message names") from None
        except Exception as error:  # every protocol brings its own exceptions: no rights, no network, no such bucket
            message = f"cannot be reached ({type(error).__name__}: {str(error)[:200]})"
            raise UnreadableFile(message, where=self.where, hint="check the address, your rights and the network") from error


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
        raise UnreadableFile(f"the folder cannot be listed ({error.strerror})", where=error.filename or folder) from error

    for root, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [f for f in folders if not f.startswith(".")]
        inside = os.path.relpath(root, folder)
        if folders and inside.count(os.sep) > DEEPEST:
            raise UnreadableFile(f"holds folders more than {DEEPEST} deep", where=folder, hint="give the folder of the dump itself")
        yield from (f if inside == "." else f"{inside}/{f}".replace(os.sep, "/") for f in files if not f.startswith("."))


__all__ = ["Place", "RemotePlace", "is_url", "natural"]
