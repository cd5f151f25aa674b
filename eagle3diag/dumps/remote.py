"""Dumps behind a URL, through fsspec: of safetensors files only the bytes of what is asked for are fetched, of others the whole file."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from eagle3diag.checkpoints.safefile import SafeFile, entries, read_header
from eagle3diag.checkpoints.tensors import TensorFiles
from eagle3diag.dumps.places import DEEPEST, Place
from eagle3diag.errors import BadArgument, MissingDependency, UnreadableFile
from eagle3diag.files import MAX_JSON_BYTES

#: Bytes of fetched files kept on the local disk: a few of the largest files that trainers write.
KEPT_BYTES = 4 << 30
#: The latest files are kept whatever their size: readers hold a few open at a time.
KEPT_FILES = 8
#: The first request of a safetensors file: its header, and the token ids that lie right behind it (ids are 8 bytes wide, and safetensors
#: writes the widest first). At 10 MB/s it takes 13 ms, less than another request would.
HEAD_BYTES = 1 << 17
#: Bytes of one further request, which is what a tensor of any size takes in memory on its way to the disk.
PIECE_BYTES = 1 << 24
#: What is asked of every http server: it may pack all the same, and what it sends is then unpacked piece by piece.
_PLAIN = {"Accept-Encoding": "identity"}


class RemotePlace(Place):
    """A folder or a file behind a URL. What is fetched goes to a temporary folder, of which the latest ``KEPT_BYTES`` are kept.

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
        except ValueError as error:
            raise BadArgument(str(error), where=url, hint="fsspec.available_protocols() lists the known ones") from None
        except Exception as error:  # some protocols reach out at once, others miss what only their arguments say
            raise self._refused(error) from error
        whole = not url.endswith("/") and self._ask(lambda: self._fs.isfile(self._remote))  # over http every address is a file
        self._http = "http" in self._fs.protocol
        self._remote = self._remote.rstrip("/")
        self._base = self._remote.rpartition("/")[0] if whole else self._remote
        if whole:
            listed = {self._remote: self._ask(lambda: self._fs.info(self._remote))}
        else:
            listed = self._ask(lambda: self._fs.find(self._remote, maxdepth=DEEPEST + 2, withdirs=True, detail=True))
        found = {str(path).removeprefix(self._base).lstrip("/"): told for path, told in listed.items()}
        found = {n: told for n, told in found.items() if not any(part.startswith(".") for part in n.split("/"))}
        if any(n.count("/") > DEEPEST for n in found):
            raise UnreadableFile(f"holds folders more than {DEEPEST} deep", where=url, hint="give the folder of the dump itself")
        found = {n: told for n, told in found.items() if n and told.get("type") != "directory"}
        if not found:
            raise UnreadableFile("nothing is there; expected a dump", where=url, hint="check the address and your rights")
        self._sizes = {n: told.get("size") for n, told in found.items()}
        self._list(found)
        self._folder = Path(tempfile.mkdtemp(prefix="eagle3diag-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._kept: OrderedDict[Hashable, tuple[Path, int]] = OrderedDict()
        self._count = self._bytes = 0

    def path(self, name: str) -> Path:
        return self._keep(name, name, lambda into: self._copy(name, into))

    def _copy(self, name: str, into: Path) -> None:
        """The whole file; of a text no more than is read of one here, for a server may send without end."""
        if not name.endswith((".json", ".jsonl")):
            self._ask(lambda: self._fs.get_file(f"{self._base}/{name}", str(into)))
            return
        with into.open("wb") as out:
            if sum(map(out.write, self._stream(name, MAX_JSON_BYTES + 1))) > MAX_JSON_BYTES:
                raise UnreadableFile(
                    f"is larger than {MAX_JSON_BYTES:,} bytes", where=self.label(name), hint="is it the file that you meant?"
                )

    def _stream(self, name: str, most: int, headers: Mapping[str, str] = MappingProxyType({})) -> Iterator[bytes]:
        """The first bytes of a file in pieces, as they come: of what a server sends, and of what it says packed, no more is taken."""
        # block_size 0 asks for a stream, and a size, which a stream does not need, spares a request for it
        asked = {"block_size": 0, "size": 1, "headers": {**_PLAIN, **headers}} if self._http else {}
        with self._ask(lambda: self._fs.open(f"{self._base}/{name}", "rb", **asked)) as source:
            while most > 0 and (piece := self._ask(partial(source.read, min(most, PIECE_BYTES)))):
                most -= len(piece)
                yield piece

    def label(self, name: str) -> str:
        return self.where if self.names == (name,) and self.where.endswith(name) else f"{self.where}/{name}"

    def open(self, name: str) -> Any:
        return self._in_parts(name) or super().open(name)

    def open_tensors(self, name: str) -> TensorFiles:
        return self._in_parts(name) or super().open_tensors(name)

    def _in_parts(self, name: str) -> TensorFiles | None:
        """The tensors of a file that is a safetensors one, by its name and its first bytes; None when it is here, or has to be as a whole."""
        if not name.endswith(".safetensors") or name in self._kept:
            return None
        if self._sizes[name] is None:  # listings over http are without
            self._sizes[name] = self._ask(lambda: self._fs.size(f"{self._base}/{name}"))
        size = self._sizes[name]
        if type(size) is not int or size <= 8:
            return None
        asked = min(size, HEAD_BYTES)
        head = self._keep((name, "head"), name, lambda into: into.write_bytes(self._range(name, 0, asked))).read_bytes()
        if head[8:9] != b"{" or len(head) > asked:  # more came than was asked for: a server that knows no ranges
            return None

        def fetch(start: int, stop: int) -> bytes:
            return head[start:stop] if stop <= len(head) else self._fetch(name, start, stop)

        def part(tensor: str, rows: tuple[int, ...], write: Callable[[Path], object]) -> Tensor:
            kept = self._keep((name, tensor, rows), name, write)
            return self._relabelled(name, lambda path: SafeFile(path).read(tensor), kept)

        return self._relabelled(name, lambda path: TensorFiles(path, [_Parts(path, size, fetch, part)]), Path(name))

    def _range(self, name: str, start: int, stop: int) -> bytes:
        """These bytes; one more where the server knows no ranges, and sends the file from its beginning."""
        if self._http:  # whose cat_file takes whatever comes into memory
            return b"".join(self._stream(name, stop - start + 1, {"Range": f"bytes={start}-{stop - 1}"}))
        data: bytes = self._ask(lambda: self._fs.cat_file(f"{self._base}/{name}", start=start, end=stop))
        return data

    def _fetch(self, name: str, start: int, stop: int) -> bytes:
        data = self._range(name, start, stop)
        if len(data) != stop - start:
            message = f"bytes {start:,} to {stop:,} were asked for and {len(data):,} came: the file was cut off or written again"
            raise UnreadableFile(message, where=self.label(name), hint="open the dump again when its writer is done")
        return data

    def _keep(self, key: Hashable, name: str, write: Callable[[Path], object]) -> Path:
        """The local file of what was fetched under ``key``, written by ``write`` when it is not here."""
        if key not in self._kept:
            # numbered, not named: a remote name is no path of this machine; the ending helps readers that look at it
            self._count += 1
            into = self._folder / f"{self._count:06d}-{Path(name).name[-100:]}"
            write(into)
            self._kept[key] = into, into.stat().st_size
            self._bytes += self._kept[key][1]
            while self._bytes > KEPT_BYTES and len(self._kept) > KEPT_FILES:
                oldest, size = self._kept.popitem(last=False)[1]
                oldest.unlink(missing_ok=True)  # what is mapped stays readable until it is let go
                self._bytes -= size
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def _told(self, name: str) -> list[str]:
        found = self._ask(lambda: self._fs.info(f"{self._base}/{name}"))
        return [str(found[key]) for key in ("size", "ETag", "etag", "oid", "mtime", "LastModified", "created") if key in found]

    def _ask(self, call: Any) -> Any:
        try:
            return call()
        except Exception as error:  # every protocol brings its own exceptions: no rights, no network, no such bucket
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> MissingDependency | UnreadableFile:
        if isinstance(error, ImportError):
            return MissingDependency(str(error), where=self.where, hint="pip install the package that the message names")
        message = f"cannot be reached ({type(error).__name__}: {str(error)[:200]})"
        return UnreadableFile(message, where=self.where, hint="check the address, your rights and the network")


class _Parts(SafeFile):
    """A safetensors file of which each tensor, or some rows of it, are fetched when they are read. ``fetch(start, stop)`` gives bytes;
    ``part(tensor, rows, write)`` what ``write`` writes as a file of its own, or wrote before."""

    def __init__(
        self,
        path: Path,
        size: int,
        fetch: Callable[[int, int], bytes],
        part: Callable[[str, tuple[int, ...], Callable[[Path], object]], Tensor],
    ) -> None:
        self.path = path
        self._stored = read_header(path, size, fetch)
        self.entries = entries(self._stored)
        self._fetch, self._part = fetch, part

    def read(self, name: str) -> Tensor:
        held = self._stored[name]
        return self._part(name, (), lambda into: self._write(into, name, held.shape, held.start, held.stop))

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        held = self._stored[name]
        start, stop, _ = slice(start, stop).indices(held.shape[0])
        row = (held.stop - held.start) // max(1, held.shape[0])
        shape = (max(0, stop - start), *held.shape[1:])
        at = held.start + row * start
        return self._part(name, (start, stop), lambda into: self._write(into, name, shape, at, at + row * shape[0]))

    def _write(self, into: Path, name: str, shape: tuple[int, ...], start: int, stop: int) -> None:
        header = json.dumps({name: {"dtype": self._stored[name].dtype, "shape": shape, "data_offsets": [0, stop - start]}}).encode()
        header += b" " * (-len(header) % 8)  # tensors begin at a multiple of every dtype's size
        with into.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for at in range(start, stop, PIECE_BYTES):
                file.write(self._fetch(at, min(stop, at + PIECE_BYTES)))


__all__ = ["RemotePlace"]
