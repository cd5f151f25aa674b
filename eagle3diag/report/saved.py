"""A saved result opened again: out of its JSON, or out of the page that carries it. Data only: nothing in a file is run or imported."""

from __future__ import annotations

import json
import os
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from eagle3diag.bounds import broken
from eagle3diag.errors import InputError, UnreadableFile
from eagle3diag.files import existing, read_text
from eagle3diag.findings import Result, plain
from eagle3diag.report.views import view

KINDS: Mapping[str, str] = {
    "Audit": "eagle3diag.audit",
    "BeforeAfter": "eagle3diag.before_after",
    "Comparison": "eagle3diag.compare",
    "Conversion": "eagle3diag.convert",
    "Diagnosis": "eagle3diag.diagnose",
    "DumpCheck": "eagle3diag.compare.one_dump",
    "Investigation": "eagle3diag.investigation",
    "Probe": "eagle3diag.serving.probe",
    "Replay": "eagle3diag.replay",
    "WeightReport": "eagle3diag.weights",
}
"""Every kind of result, and the module that has it: a file can name these and nothing else."""

_INSIDE = re.compile(r'<script type="application/json" id="result">(.*?)</script>', re.DOTALL)
_HINT = "open what result.save() or result.to_html() wrote"
_LARGEST_NUMBER = 1 << 80  # beyond what is ever counted, and within a float
_NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def load(path: str | os.PathLike[str]) -> Result:
    """The result that ``result.save(path)`` or ``result.to_html(path)`` wrote, of the same kind and with the same values.

    ``findings`` of a measurement are judged anew, by the rules of the version that opens it; the ranking of a diagnosis is kept, since it
    rests on replays. What a report leaves out (keys, hosts, home folders) was never in the file.

    Raises
    ------
    UnreadableFile: missing, cut off, not ours, of a kind or shape that this version does not know; the message names the place inside.
    """
    where = existing(path, "a saved result")
    return opened(_json(read_text(where), where), where)


def opened(body: Any, where: object) -> Result:
    """The result whose :meth:`~eagle3diag.findings.Result.to_dict` is ``body``. Raises :class:`UnreadableFile`, as :func:`load`."""
    kind = body.get("kind") if isinstance(body, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        found = f"of the unknown kind {kind!r:.60}" if isinstance(kind, str) else "not a result of eagle3diag"
        raise UnreadableFile(f"is {found}", where=where, hint=f"{_HINT}; known are {', '.join(KINDS)}")
    hint = f"{_HINT} with this version"
    try:
        result = _result(body, kind.lower())
    except _Unfit as error:
        raise UnreadableFile(f"does not hold a whole {kind}: {error}", where=where, hint=hint) from None
    try:
        view(result)  # judged and laid out once: each value may have its type, and still not fit the others
    except (InputError, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        message = f"holds a {kind} whose values do not fit together ({type(error).__name__}: {str(error)[:200]})"
        raise UnreadableFile(message, where=where, hint=hint) from error
    return result


def _json(text: str, path: Path) -> Any:
    inside = None if text.lstrip()[:1] == "{" else _INSIDE.search(text)
    if inside is None and "<html" in text[:2000].lower():
        raise UnreadableFile("is a page without the numbers of a result: not one of our reports, or cut off", where=path, hint=_HINT)
    try:
        return json.loads(inside[1] if inside else text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise UnreadableFile("is neither the JSON of a result nor a report, or it is cut off", where=path, hint=_HINT) from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


class _Unfit(Exception):
    """A value that its field cannot hold; the words say where."""


def _whole(kind: type[Any], body: Mapping[str, Any], where: str) -> Any:
    hints = get_type_hints(kind)
    values = {}
    for field in fields(kind):
        if field.name in body:
            values[field.name] = _value(hints[field.name], body[field.name], f"{where}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise _Unfit(f"{where}.{field.name} is missing")
    made = kind(**values)
    if said := broken(made, where):
        raise _Unfit(said)
    return made


def _result(body: Mapping[str, Any], where: str) -> Result:
    kind = body.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise _Unfit(f"{where} is of the unknown kind {kind!r:.60}")
    return cast(Result, _whole(getattr(import_module(KINDS[kind]), kind), body, where))


def _value(hint: Any, value: Any, where: str) -> Any:
    """``value`` as the type that the field declares, or :class:`_Unfit`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _one_of(inner, value, where)
    if origin is tuple:
        return _tuple(inner, value, where)
    if origin is Literal:
        if value not in inner:
            raise _Unfit(f"{where} is {value!r:.40}, not one of {', '.join(map(str, inner))}")
        return value
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise _unfit(where, value, "an object")
        return {(int(k) if inner[0] is int else k): _value(inner[1], v, f"{where}[{k!r:.40}]") for k, v in value.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        members = {plain(member): member for member in hint}
        if not isinstance(value, (str, int)) or value not in members:
            raise _unfit(where, value, " or ".join(map(str, members)))
        return members[value]
    if is_dataclass(hint) or hint is Result:
        if not isinstance(value, dict):
            raise _unfit(where, value, "an object")
        if hint is Result:  # any kind but a further notebook: depth is for files that mean harm
            if value.get("kind") == "Investigation":
                raise _Unfit(f"{where} is a notebook inside a notebook")
            return _result(value, where)
        return _whole(cast("type[Any]", hint), value, where)
    return _plain(hint, value, where)


def _plain(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    fits = {
        float: isinstance(value, (int, float)) and not isinstance(value, bool),
        int: isinstance(value, int) and not isinstance(value, bool),
        bool: isinstance(value, bool),
        str: isinstance(value, str),
        type(None): value is None,
        Any: True,
    }
    if not fits.get(hint, False) or (isinstance(value, int) and abs(value) > _LARGEST_NUMBER):
        raise _unfit(where, value, getattr(hint, "__name__", str(hint)))
    return value


def _one_of(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    inside: _Unfit | None = None
    for hint in sorted(hints, key=lambda h: (h is float and isinstance(value, str), h is not type(None))):
        try:
            return _value(hint, value, where)
        except _Unfit as error:
            inside = error if is_dataclass(hint) else inside or error  # of several, the one that says more
    raise inside or _unfit(where, value, "nothing")


def _tuple(inner: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if isinstance(value, dict) and set(value) == {"left_out"}:
        raise _Unfit(f"the {value['left_out']!r:.12} values of {where} did not fit into the page: open the saved JSON instead")
    if not isinstance(value, list):
        raise _unfit(where, value, "a list")
    if inner[-1:] == (...,):
        inner = inner[:1] * len(value)
    if len(value) != len(inner):
        raise _Unfit(f"{where} has {len(value)} values, not {len(inner)}")
    return tuple(_value(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(inner, value, strict=True)))


def _unfit(where: str, value: Any, expected: str) -> _Unfit:
    return _Unfit(f"{where} is {value!r:.40}, not {expected}")
