"""Any file of tensors, read by a mapping that the caller gives: our part names to the names in the file."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from eagle3diag.dumps.formats.base import Asked, Content, Facts, Unread, assemble, shown, tensors, unread
from eagle3diag.dumps.places import Place
from eagle3diag.dumps.records import HiddenStates
from eagle3diag.errors import BadArgument, InputError, MissingPart

_NAMES = "give names as they stand in the file"
_PARTS = ("input_ids", "features", "final", "last", "loss_mask", "positions", "attention_mask")


def read_mapped(place: Place, asked: Asked) -> HiddenStates:
    """A dump by ``asked.mapping``: part -> name in the file, dotted where it is nested (``"batch.input_ids"``), with a ``*`` where one file
    holds many records (``"*.ids"``). ``boundary.B`` maps single states; ``attention_mask`` says which rows of a padded batch are tokens.

    Raises
    ------
    BadArgument: an unknown part, or no ``input_ids``. MissingPart: no file has the names.
    """
    mapping = checked_mapping(asked.mapping or {})
    names = _with_parts(place, mapping)
    boundaries = tuple(int(p.removeprefix("boundary.")) for p in mapping if p.startswith("boundary."))

    def opened(file: str) -> list[Content]:
        value = place.open(file)
        made = []
        for star in _stars(value, mapping["input_ids"]):
            found = {part: _at(value, name.replace("*", star)) for part, name in mapping.items()}
            lost = [mapping[p].replace("*", star) for p, v in found.items() if v is None]
            if lost:
                raise MissingPart(f"has no tensor {lost[0]!r:.100}; it holds {listed(value)}", where=place.label(file), hint=_NAMES)
            made += _rows({p: unread(*at) for p, at in found.items() if at is not None}, boundaries, star or None)
        return made

    facts = Facts("unknown", boundaries=boundaries or None, several=True, assumed=("the mapping is the caller's",))
    return assemble("files with a given mapping", place, names, opened, facts, asked)


def checked_mapping(mapping: Mapping[str, Any]) -> dict[str, str]:
    """The mapping with ``states={2: "layer2"}`` spelled out as ``boundary.2``."""
    given = dict(mapping)
    states = given.pop("states", {})
    if not isinstance(states, Mapping):
        raise BadArgument(f"mapping['states'] is {states!r:.80}, expected boundary -> name")
    given |= {f"boundary.{b}": name for b, name in states.items()}
    for part, name in given.items():
        number = str(part).removeprefix("boundary.")
        if part not in _PARTS and not (str(part).startswith("boundary.") and number.isdecimal()):
            raise BadArgument(
                f"there is no part {part!r:.80}", where="mapping", hint=f"known are {', '.join(_PARTS)}, states and boundary.B"
            )
        if not isinstance(name, str):
            raise BadArgument(f"mapping[{part!r:.80}] is {name!r:.80}, expected the name of a tensor", where="mapping")
    if "input_ids" not in given:
        raise BadArgument("the mapping names no input_ids", where="mapping", hint="every record needs its token ids")
    return given


def _with_parts(place: Place, mapping: dict[str, str]) -> tuple[str, ...]:
    """The files that hold the ids; all of the same ending are then taken for records."""
    seen = ""
    for name in place.names[:64]:
        try:
            value = place.open(name)
        except InputError as error:
            seen = seen or f"; the first {error.what}"
            continue
        if _stars(value, mapping["input_ids"]):
            ending = name.rpartition(".")[2]
            return (name, *(n for n in place.names if n != name and n.rpartition(".")[2] == ending))
        seen = seen or f"; the first holds {listed(value)}"
    message = f"no file holds {mapping['input_ids']!r:.100}, which the mapping names for input_ids{seen}"
    raise MissingPart(message, where=place.where, hint=_NAMES)


def _stars(value: Any, pattern: str) -> list[str]:
    """What ``*`` stands for in this file; one empty word when the pattern has none and the name is there."""
    if "*" not in pattern:
        return [""] if _at(value, pattern) is not None else []
    before, _, after = pattern.partition("*")
    keys = [str(k) for k in value] if isinstance(value, Mapping) else []
    return [
        k[len(before) : len(k) - len(after)] for k in keys if k.startswith(before) and k.endswith(after) and len(k) > len(before + after)
    ]


def _at(value: Any, name: str) -> tuple[Mapping[str, Any], str] | None:
    """Where the tensor of this name is, as it stands or along its dots: what holds it, and its name there."""
    if isinstance(value, Mapping) and name in value:
        return (value, name) if tensors(value, name) else None
    head, dot, rest = name.partition(".")
    return _at(value[head], rest) if dot and isinstance(value, Mapping) and head in value else None


def _rows(held: dict[str, Unread], boundaries: tuple[int, ...], name: str | None) -> list[Content]:
    """One record, or those of a batch [B, T] whose padding ``attention_mask`` marks."""
    ids = held["input_ids"].shown
    if ids.dim() != 2:
        return [_record(held, boundaries, name)]
    batch = range(ids.shape[0])
    cut = [{part: tensor.map(itemgetter(i)) for part, tensor in held.items()} for i in batch]
    return [_record(one, boundaries, name if len(batch) == 1 else f"{name or 'row'}.{i}") for i, one in enumerate(cut)]


def _record(held: dict[str, Unread], boundaries: tuple[int, ...], name: str | None) -> Content:
    parts: dict[str, Any] = dict(held)
    mask = parts.pop("attention_mask", None)
    if mask is not None:
        there = mask.read().flatten().bool()
        rows = there.nonzero()[:, 0]
        # a part of another length is left as it is, for the check that says so
        parts = {p: t.map(lambda x: x[rows] if x.dim() and len(x) == len(there) else x) for p, t in parts.items()}
    aux: Any = [parts.pop(f"boundary.{b}") for b in boundaries] or parts.pop("features", None)
    return Content(**parts, aux=aux, name=name)


def listed(value: Any) -> str:
    """The tensors of a file with their shapes, for a message."""
    if not isinstance(value, Mapping):
        return f"a {type(value).__name__}"
    found = [f"{k!s:.60}{list(shown(value, k).shape) if tensors(value, k) else ''}" for k in list(value)[:6]]
    return ", ".join(found) + (f" and {len(value) - 6} more" if len(value) > 6 else "")
