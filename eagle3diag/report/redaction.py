r"""What a report does not tell: keys never, and what names a person or a machine only when asked to; the table of kinds is applied once.

>>> clean("HF_TOKEN=abc vllm serve /home/alice/m --host 10.0.0.7 --port 80")
'HF_TOKEN=(key removed) vllm serve (home)/m --host (address removed) --port 80'
>>> clean("sglang==0.5.5.post3, layers.0.self_attn.q_proj.weight, 12.8.4.1 is no address here: cublas==12.8.4.1")
'sglang==0.5.5.post3, layers.0.self_attn.q_proj.weight, (address removed) is no address here: cublas==12.8.4.1'
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from eagle3diag.report.private import HOST_NAME, KINDS, LOCAL, NO_SECRET, SECRET_NAME

T = TypeVar("T")

_TEXT_MARK = "(text removed)"
_ALWAYS = tuple(kind for kind in KINDS if kind.always)
_OF_MARK = {kind.mark: kind.name for kind in KINDS} | {_TEXT_MARK: "text"}
_MARK = re.compile("|".join(map(re.escape, _OF_MARK)))
# The name alone says what its value is: an option, an item of a mapping, a piece of evidence.
_NAMED = ((re.compile(rf"-*(?:{SECRET_NAME})"), "(key removed)", True), (re.compile(rf"-*(?:{HOST_NAME}|host)"), "(host removed)", False))
_VERSION = re.compile(r"v?\d+(?:\.\d+){0,4}(?:[.+-]?(?:post|rc|dev|alpha|beta|a|b)\d+){0,3}(?:\+\w{1,24})?")
REASONS: Mapping[str, str] = {kind.name: kind.reason for kind in reversed(KINDS)} | {"text": "prompts and answers belong to their writers"}


def clean(text: str, *, private: bool = False) -> str:
    """``text`` without what :data:`KINDS` describe; with ``private`` only keys go. Cleaning twice changes nothing more."""
    if text.isalnum() and len(text) < 16:  # most strings: no kind is so short
        return text
    for kind in _ALWAYS if private else KINDS:
        text = kind.remove(text)
    return text


def cleaned(value: T, *, private: bool = False) -> T:
    """A copy of plain values (dataclasses, tuples, mappings) with every string cleaned; what fields marked as
    :data:`~eagle3diag.findings.TEXT` hold is left out unless ``private``."""
    return _walk(value, private, "")  # type: ignore[no-any-return]


def _walk(value: Any, private: bool, name: str) -> Any:
    if isinstance(value, str):
        return _named(name, value, private)
    if is_dataclass(value) and not isinstance(value, type):
        copy = object.__new__(type(value))  # no __init__ and no __post_init__: the values are those of a whole one
        own = str(getattr(value, "name", ""))  # of an Evidence: its name says what its value is
        for field in fields(value):
            item = getattr(value, field.name)
            if field.metadata.get("text") and not private:
                item = _hidden(item)
            object.__setattr__(copy, field.name, _walk(item, private, own if field.name == "value" else field.name))
        return copy
    if isinstance(value, Mapping):
        return {_walk(k, private, ""): _walk(v, private, str(k)) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_walk(v, private, name) for v in value)
    return value


def _named(name: str, value: str, private: bool) -> str:
    if name.endswith("version") and _VERSION.fullmatch(value):
        return value
    for names, mark, always in _NAMED:
        if (always or not private) and names.fullmatch(name) and not (NO_SECRET.fullmatch(value) or LOCAL.fullmatch(value)):
            return mark
    return clean(value, private=private)


def _hidden(value: Any) -> Any:
    if isinstance(value, str):
        return _TEXT_MARK if value else value
    return type(value)(_hidden(v) for v in value) if isinstance(value, (tuple, list)) else value


def removed(value: Any) -> dict[str, int]:
    """What is not in cleaned values any more: kind and number of places, by name. Read from the marks, so it survives a saved file."""
    counts: Counter[str] = Counter()
    _count(value, counts)
    return dict(sorted(counts.items()))


def _count(value: Any, counts: Counter[str]) -> None:
    if isinstance(value, str):
        counts.update(_OF_MARK[mark] for mark in _MARK.findall(value))
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            _count(getattr(value, field.name), counts)
    elif isinstance(value, Mapping):
        for item in (*value.keys(), *value.values()):
            _count(item, counts)
    elif isinstance(value, (tuple, list)):
        for item in value:
            _count(item, counts)
