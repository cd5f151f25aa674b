"""Typed access to a raw config: a field is there and well formed, or derived with a note, or one clear error names it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from eagle3diag.errors import MissingPart, UnreadableFile

#: The fallback of ``rope_theta`` in SGLang, vLLM and Transformers' ``LlamaConfig``.
DEFAULT_ROPE_THETA = 10000.0


class Fields:
    """Reads ``raw``; everything that had to be assumed is collected in ``assumed``. A JSON null counts as absent."""

    def __init__(self, raw: Mapping[str, Any], where: object) -> None:
        self.raw, self.where = raw, where
        self.assumed: list[str] = []

    def note(self, text: str) -> None:
        """Remember something that had to be assumed."""
        if text not in self.assumed:
            self.assumed.append(text)

    def value(self, *names: str) -> Any:
        """The first of ``names`` that is there and not null; a dot descends into a nested object."""
        return self._first(names)[1]

    def _first(self, names: tuple[str, ...]) -> tuple[str, Any]:
        for name in names:
            at: Any = self.raw
            for part in name.split("."):
                at = at.get(part) if isinstance(at, Mapping) else None
            if at is not None:
                return name, at
        return names[0], None

    def integer(self, *names: str, most: int = 1 << 40) -> int | None:
        """A positive whole number up to ``most``, or None when absent."""
        name, found = self._first(names)
        if found is None:
            return None
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if type(found) is not int or not 0 < found <= most:
            raise self.wrong(name, found, "a positive whole number" + (f" up to {most}" if type(found) is int and found > most else ""))
        return found

    def number(self, *names: str) -> float | None:
        """A finite number above zero, or None when absent."""
        name, found = self._first(names)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise self.wrong(name, found, "a number")
        try:
            found = float(found)
        except OverflowError:
            found = math.inf
        if not (math.isfinite(found) and found > 0):
            raise self.wrong(name, found, "a finite number above zero")
        return found

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false; absent means ``default``."""
        name, found = self._first(names)
        if found is None:
            return default
        if not isinstance(found, (bool, int)):
            raise self.wrong(name, found, "true or false")
        return bool(found)

    def text(self, *names: str) -> str | None:
        """A string, or None when absent."""
        name, found = self._first(names)
        if found is None:
            return None
        if not isinstance(found, str):
            raise self.wrong(name, found, "a string")
        return found

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers; anything else is noted and counts as absent, as it does for the engines."""
        found = self.value(name)
        if found is None:
            return None
        if isinstance(found, list) and found and all(type(n) is int for n in found):
            return tuple(found)
        self.note(f"{name} is {found!r:.80}, not a list of whole numbers: taken as absent")
        return None

    def wrong(self, name: str, found: object, expected: str) -> UnreadableFile:
        """The error for a field of the wrong type."""
        return UnreadableFile(f"{name} is {found!r:.80}, expected {expected}", where=self.where)

    def missing(self, name: str, meaning: str) -> MissingPart:
        """The error for a field that is needed and cannot be derived."""
        return MissingPart(f"has no {name} ({meaning})", where=self.where, hint=f"add {name}, as it was in training, to this file")


def rope(fields: Fields) -> tuple[float, dict[str, Any] | None]:
    """RoPE base and scaling, from ``rope_theta`` + ``rope_scaling`` (Transformers 4) or ``rope_parameters`` (Transformers 5).

    Scaling is None for the plain rotation; its ``rope_type`` is always set (older files call it ``type``).
    """
    parameters = fields.value("rope_parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise fields.wrong("rope_parameters", parameters, "an object")
    if parameters and all(isinstance(v, Mapping) for v in parameters.values()):  # one entry per kind of layer (Gemma 3)
        kind = "full_attention" if "full_attention" in parameters else next(iter(parameters))
        fields.note(f"rope_parameters differ per kind of layer: took those of {kind}")
        parameters = parameters[kind]
    inner, outer = Fields(parameters or {}, fields.where).number("rope_theta"), fields.number("rope_theta")
    if inner is not None and outer is not None and inner != outer:
        fields.note(f"rope_parameters.rope_theta {inner:g} differs from rope_theta {outer:g}: took the first, as engines do")
    theta = inner if inner is not None else outer
    if theta is None:
        theta = DEFAULT_ROPE_THETA
        fields.note("no rope_theta (nor rope_parameters.rope_theta): 10000, the default of every engine")
    scaling = fields.value("rope_scaling") or parameters or {}
    if not isinstance(scaling, Mapping):
        raise fields.wrong("rope_scaling", scaling, "an object")
    scaling = {k: v for k, v in scaling.items() if k != "rope_theta"}
    kind = scaling.setdefault("rope_type", scaling.get("type") or "default")
    if not isinstance(kind, str):
        raise fields.wrong("rope_scaling.rope_type", kind, "a string")
    return theta, None if kind == "default" and not scaling.keys() - {"rope_type", "type"} else scaling


def dtype_of(fields: Fields) -> str | None:
    """``dtype`` (Transformers 5) or ``torch_dtype``, without the ``torch.`` prefix."""
    found = fields.text("dtype", "torch_dtype")
    return found.removeprefix("torch.") if found else None


__all__ = ["DEFAULT_ROPE_THETA", "Fields", "dtype_of", "rope"]
