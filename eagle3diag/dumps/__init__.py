"""Hidden states on disk, read into the same records whatever wrote them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from eagle3diag.checkpoints import TargetSource, open_target
from eagle3diag.dumps.formats import read_foreign
from eagle3diag.dumps.formats.base import Asked
from eagle3diag.dumps.native import FORMAT, MANIFEST, DumpWriter, read_native
from eagle3diag.dumps.places import Place, is_url
from eagle3diag.dumps.records import SIDES, DumpSource, HiddenStates, Record, TargetIdentity
from eagle3diag.dumps.remote import RemotePlace
from eagle3diag.errors import BadArgument, InputError
from eagle3diag.files import existing

__all__ = ["DumpWriter", "HiddenStates", "Record", "TargetIdentity", "open_dump", "stamp"]


def open_dump(
    source: DumpSource,
    *,
    mapping: Mapping[str, Any] | None = None,
    boundaries: Sequence[int] | None = None,
    side: str | None = None,
    target: TargetSource | TargetIdentity | None = None,
) -> HiddenStates:
    """The dump at ``source``: a folder, a file, or a URL that fsspec knows; an open one is returned as it is. Tensors stay on disk.

    The format is recognised by what is in the files: our own, those of speculators and vLLM, SpecForge, EAGLE, Model-Optimizer,
    AngelSlim, TorchSpec, NeMo Automodel, TensorRT-LLM, and what SGLang's dumper, tensor dump and responses give. ``assumed`` of the
    result says what had to be taken for granted.

    Parameters
    ----------
    mapping: for files of no known format: our part names (``input_ids``, ``features``, ``final``, ``last``, ``loss_mask``, ``positions``,
        ``boundary.2``, ``attention_mask``) to the names in the file, dotted where nested, ``*`` where a file holds many records.
    boundaries: which boundaries the blocks of the features are, in their order, where the files do not say it.
    side: ``train``, ``live`` or ``reference``, where it is another than the format's own.
    target: the target (a folder, an open one, or its identity), for its sizes: default boundaries and the last block's follow from them.

    Raises
    ------
    UnreadableFile: nothing there, damaged, or of no known format. UnsafeFile: reading it would run code. MissingPart: a file, tensor or
    id that is needed is not there. BadArgument: an argument that does not fit the dump. MissingDependency: a remote path without fsspec.
    """
    asked = Asked(_boundaries(boundaries), _side(side), _identity(target), mapping)
    if isinstance(source, HiddenStates):
        return _as_asked(source, asked)
    place = _place(source)
    if mapping is None and MANIFEST in place.names and _is_ours(place):
        return _as_asked(read_native(place), asked)
    return read_foreign(place, asked)


def stamp(path: str | os.PathLike[str]) -> str:
    """A digest of the files at ``path`` by their names, sizes and times: another one when the dump there is no longer the same."""
    return _place(path).stamp()


def _place(source: str | os.PathLike[str]) -> Place:
    if is_url(source):
        return RemotePlace(str(source))
    path = existing(source, "a dump (a folder, or one of its files)")
    return Place(path.parent if path.name == MANIFEST else path)


def _as_asked(dump: HiddenStates, asked: Asked) -> HiddenStates:
    """An open dump with another side, or with its aux boundaries declared otherwise."""
    if asked.boundaries not in (None, dump.boundaries):
        dump = dump.declare(asked.boundaries)
    return dump if asked.side in (None, dump.side) else replace(dump, side=asked.side)


def _is_ours(place: Place) -> bool:
    """Whether manifest.json is ours, or so damaged that our reader should say so; other tools write one of that name too."""
    try:
        value = place.open(MANIFEST)
    except InputError:
        return True
    return not isinstance(value, dict) or value.get("format") == FORMAT or "aux_hidden_dim" not in value


def _boundaries(given: Sequence[int] | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    made = tuple(given)
    if not made or not all(type(b) is int and b >= 0 for b in made) or len(set(made)) < len(made):
        raise BadArgument(
            f"boundaries={given!r:.80}", hint="different numbers of blocks, in the order of the features, such as (2, 15, 27)"
        )
    return made


def _side(given: str | None) -> str | None:
    if given is not None and given not in SIDES:
        raise BadArgument(f"side is {given!r}, expected one of {', '.join(SIDES)}")
    return given


def _identity(target: TargetSource | TargetIdentity | None) -> TargetIdentity | None:
    if target is None or isinstance(target, TargetIdentity):
        return target
    opened = open_target(target)
    return TargetIdentity(opened.name, opened.config_hash, opened.dtype or "", opened.n_layers, opened.hidden_size)
