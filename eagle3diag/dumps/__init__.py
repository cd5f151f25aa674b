"""Hidden states on disk, read into the same records whatever wrote them."""

from __future__ import annotations

import os

from eagle3diag.checkpoints.files import existing, kind
from eagle3diag.dumps.native import MANIFEST, DumpWriter, read_native
from eagle3diag.dumps.records import HiddenStates, Record, TargetIdentity
from eagle3diag.errors import UnreadableFile

__all__ = ["DumpWriter", "HiddenStates", "Record", "TargetIdentity", "open_dump"]


def open_dump(source: str | os.PathLike[str] | HiddenStates) -> HiddenStates:
    """The dump at ``source``; an open one is returned as it is.

    Raises
    ------
    UnreadableFile, MissingPart: see :func:`eagle3diag.dumps.native.read_native`.
    """
    if isinstance(source, HiddenStates):
        return source
    path = existing(source, "a dump (a folder with manifest.json)")
    folder = path.parent if path.name == MANIFEST else path
    if kind(folder) != "folder" or not kind(folder / MANIFEST):
        hint = "give the folder that eagle3diag capture wrote"
        raise UnreadableFile(f"holds no {MANIFEST}, so it is not a native dump", where=path, hint=hint)
    return read_native(folder)
