"""Hidden states on disk, read into the same records whatever wrote them."""

from __future__ import annotations

import os
from pathlib import Path

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
    path = Path(source)
    if not path.exists():
        raise UnreadableFile("there is no such dump", where=path, hint="check the path")
    folder = path.parent if path.name == MANIFEST else path
    if not (folder / MANIFEST).is_file():
        raise UnreadableFile(f"holds no {MANIFEST}, so it is not a native dump", where=path, hint="give the folder that eagle3diag capture wrote")
    return read_native(folder)
