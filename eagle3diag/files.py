"""Opening what the user names: every way a path or a JSON file can be wrong ends in one clear error."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

from eagle3diag.errors import BadArgument, MissingPart, UnreadableFile

#: A config is a few kilobytes, a shard index a few megabytes; anything near this is not what it claims to be.
MAX_JSON_BYTES = 256 * 1024 * 1024
_PIECE = 1 << 20
#: The hint of what the system refuses: no rights, a loop of links, a disk that fails.
RIGHTS = "check the path, your rights to it, and the disk"
_ADDRESS = re.compile(r"((?:[a-z][a-z0-9+.-]+::)*[a-z][a-z0-9+.-]+):/{1,2}(?!/)", re.IGNORECASE)  # a single letter is a drive
_LFS = b"version https://git-lfs"


def existing(source: object, what: str) -> Path:
    """The path that ``source`` names; ``what`` ("a draft", "a dump") goes into the error.

    Raises
    ------
    BadArgument: ``source`` is not a path at all.
    UnreadableFile: nothing is there, or it cannot be looked at.
    """
    try:
        path = Path(os.fspath(source))  # type: ignore[call-overload]
    except TypeError:
        found = type(source).__name__
        raise BadArgument(f"{found} is not {what}", hint="pass a path, or an object that eagle3diag opened") from None
    if not str(source):
        raise BadArgument(f"the path of {what} is empty")
    if not kind(path):
        raise absent(source, f"nothing is there; expected {what}", _absent_hint(str(source)))
    return path


def kind(path: Path) -> str:
    """``"folder"``, ``"file"``, ``"special"`` (a pipe, a socket, a device), or ``""`` when nothing is there."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:  # no permission, name too long, a loop of links, a NUL in the name
        raise UnreadableFile(f"cannot be looked at ({error})", where=repr(str(path))[:300], hint=RIGHTS) from error
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "special"


def listing(folder: Path) -> list[str]:
    """Names of what lies in ``folder``, sorted."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise UnreadableFile(f"the folder cannot be listed ({error.strerror})", where=folder, hint=RIGHTS) from error


def unused(folder: Path, why: str) -> Path:
    """``folder``, where nothing is yet; ``why`` it has to be new goes into the hint.

    Raises
    ------
    BadArgument: a file is there, or a folder that is not empty.
    """
    there = kind(folder)
    if there and (there != "folder" or listing(folder)):
        raise BadArgument("the folder is not empty", where=folder, hint=f"give a new folder; {why}")
    return folder


def sibling(folder: Path, name: object, where: object) -> Path:
    """``folder/name`` where ``name`` came out of a file: a plain file name, so that a file cannot point elsewhere on the disk."""
    if not isinstance(name, str) or not name or Path(name).name != name or name in (".", "..") or "\\" in name or "\0" in name:
        raise UnreadableFile(
            f"{name!r:.200} is not the name of a file in this folder", where=where, hint="write it again, with names of files beside it"
        )
    return folder / name


def below(folder: Path, name: str) -> Path | None:
    """``folder/name`` where ``name`` came out of a file and may name folders; None where that, links followed, is not below ``folder``."""
    try:
        path, root = (folder / name).resolve(), folder.resolve()
    except (OSError, RuntimeError, ValueError):  # longer than any name may be, a loop of links, a NUL
        return None
    return path if path.is_relative_to(root) else None


def read_bytes(path: Path, limit: int) -> bytes:
    """The whole file, at most ``limit`` bytes; a pipe or a device, which may never end, is not read at all."""
    if kind(path) != "file":
        found = {"folder": "is a folder", "special": "is not a regular file", "": "is not there"}[kind(path)]
        raise UnreadableFile(f"{found}, expected a file", where=path, hint="check the path")
    try:
        with path.open("rb") as file:
            data = read_up_to(file, limit)
    except OSError as error:
        raise UnreadableFile(f"cannot be read ({error.strerror})", where=path, hint=RIGHTS) from error
    if data is None:
        raise UnreadableFile(f"is larger than {limit:,} bytes, far more than such a file holds", where=path, hint="check the path")
    return data


def read_up_to(file: BinaryIO | gzip.GzipFile, limit: int) -> bytes | None:
    """What is left of ``file``; None when that is more than ``limit`` bytes. Asked for in pieces: a ``read(limit)`` would set the memory
    for all of it aside, however small the file is."""
    data = bytearray()
    while len(data) <= limit and (piece := file.read(_PIECE)):
        data += piece
    return bytes(data) if len(data) <= limit else None


def read_text(path: Path, limit: int = MAX_JSON_BYTES, *, errors: str = "strict") -> str:
    """The whole file as UTF-8, or as UTF-16 where a byte order mark says so; ``errors`` as of ``bytes.decode``."""
    data = read_bytes(path, limit)
    marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # as PowerShell writes; engines read no config in it
    return _decoded(data, path, errors, "UTF-16" if marked else "UTF-8")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``.

    Raises
    ------
    MissingPart: the file is not there.
    UnreadableFile: not UTF-8, not JSON, nested too deep, or not an object.
    """
    if not kind(path):
        raise MissingPart(f"{path.name} is not there", where=path, hint="copy it next to the weights")
    data = read_bytes(path, MAX_JSON_BYTES)
    check_not_pointer(data, path)
    value = parse_json(data, path)
    if not isinstance(value, dict):
        raise UnreadableFile(f"holds a JSON {type(value).__name__}, expected an object", where=path, hint="check the path")
    return value


def parse_json(data: bytes, where: object) -> Any:
    """``data`` as JSON; whatever is wrong with it is an :class:`~eagle3diag.errors.UnreadableFile`."""
    if not data.strip():
        raise UnreadableFile("is empty, expected JSON", where=where, hint="copy the file again")
    text = _decoded(data, where)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        message = f"is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise UnreadableFile(message, where=where, hint="copy the file again") from error
    except ValueError as error:  # a number of thousands of digits
        raise UnreadableFile(f"is not usable JSON: {error}", where=where, hint="write the file again") from error
    except RecursionError:
        raise UnreadableFile("nests its JSON too deep to be read", where=where, hint="write the file again") from None


def _decoded(data: bytes, where: object, errors: str = "strict", encoding: str = "UTF-8") -> str:
    try:
        return data.decode("utf-8-sig" if encoding == "UTF-8" else encoding, errors)
    except UnicodeDecodeError as error:
        message = f"is not {encoding} text (byte {error.start})"
        raise UnreadableFile(message, where=where, hint="copy the file again, in binary mode") from error


def check_not_pointer(head: bytes, path: Path) -> None:
    """Two things that often lie where a weight file should: a Git LFS pointer, and a web page saved by a failed download."""
    if head.startswith(_LFS):
        raise UnreadableFile("is a Git LFS pointer, the real file was never downloaded", where=path, hint="git lfs pull")
    if head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        raise UnreadableFile("is a web page, not the file it is named after", where=path, hint="the download failed; fetch the file again")


def kind_of_folder(folder: Path) -> str:
    """``"checkpoint"`` or ``"dump"`` by the names in it, ``""`` for neither. A look, not a check: it is for the hint of an error."""
    try:
        names = {entry.name for entry in folder.iterdir()}
    except OSError:
        return ""
    if "manifest.json" in names:
        return "dump"
    weights = any(n.endswith((".safetensors", ".bin", ".safetensors.index.json")) for n in names)
    return "checkpoint" if weights and "config.json" in names else ""


def meant_hint(folder: Path, wanted: str) -> str | None:
    """What was probably meant where ``folder`` is not the ``wanted`` "checkpoint" or "dump": it is the other, or holds one. None: no idea."""
    if folder.is_dir():
        found = kind_of_folder(folder)
        if found and found != wanted:
            other = {"checkpoint": "a checkpoint, not a dump of hidden states", "dump": "a dump of hidden states, not a checkpoint"}[found]
            return f"this is {other}; were two arguments swapped?"
        inside = [p for p in sorted(folder.iterdir())[:64] if p.is_dir() and kind_of_folder(p) == wanted]
        if inside:
            return f"did you mean {' or '.join(str(p) for p in inside[:3])}?"
    return None


def absent(source: object, found: str, hint: str = "check the path") -> UnreadableFile:
    """The error of a path at which nothing is: ``found``, or that it is an address, whose second slash a path loses."""
    if match := _ADDRESS.match(str(source)):
        where = f"{match[1]}://{str(source)[match.end() :]}"[:300]
        return UnreadableFile(
            "is a remote address, from which only dumps are read", where=where, hint="download it, then pass the local path"
        )
    return UnreadableFile(found, where=source, hint=hint)


def _absent_hint(source: str) -> str:
    if source.count("/") == 1 and not source.startswith((".", "/", "~")) and not source.endswith("/"):
        return f"if this is a Hugging Face name, download it first: hf download {source}, then pass the folder"
    return "check the path"


__all__ = [
    "RIGHTS",
    "absent",
    "below",
    "check_not_pointer",
    "existing",
    "kind",
    "kind_of_folder",
    "listing",
    "meant_hint",
    "parse_json",
    "read_bytes",
    "read_json",
    "read_text",
    "read_up_to",
    "sibling",
    "unused",
]
