"""A folder of evidence: which part of a case each of its files is."""

from __future__ import annotations

from pathlib import Path

from eagle3diag.errors import BadArgument
from eagle3diag.files import kind_of_folder

EVIDENCE = {
    "draft": ("draft",),
    "target": ("target",),
    "train": ("train",),
    "live": ("live",),
    "reference": ("reference",),
    "launch": ("launch.txt", "launch.sh"),
    "log": ("server.log", "server.log.gz"),
    "acceptance": ("acceptance.json",),
}
"""What each part of a case is called in a folder; the first name that is there counts."""


def evidence(folder: Path) -> dict[str, str]:
    """The parts of a case that are in ``folder``, by the name under which :func:`eagle3diag.diagnose` takes them.

    Raises
    ------
    BadArgument: none of them is there.
    """
    found = {part: str(folder / name) for part, names in EVIDENCE.items() for name in reversed(names) if (folder / name).exists()}
    if not found:
        looked = ", ".join(names[0] for names in EVIDENCE.values())
        is_draft = kind_of_folder(folder) == "checkpoint"
        hint = f"this is a checkpoint: eagle3diag audit {folder}" if is_draft else f"it may hold {looked}"
        raise BadArgument("nothing to look at in this folder", where=folder, hint=hint)
    return found


__all__ = ["EVIDENCE", "evidence"]
