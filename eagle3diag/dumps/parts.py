"""The parts of one record as a caller gives them, checked before anything is kept or written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from eagle3diag.checkpoints.tensors import dtype_name
from eagle3diag.errors import BadArgument

#: Parts with one number per token, and parts with one row per token. ``boundary.{b}`` is of the second kind.
PER_TOKEN = ("input_ids", "positions", "loss_mask", "accepted")
_WHOLE = ("input_ids", "accepted")
PER_ROW = ("features", "final", "last")
BOUNDARY = "boundary."
#: Dtypes of states; torch turns each into float32.
FLOATS = ("bfloat16", "float16", "float32", "float64", *(f"float8_{kind}" for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")))


def checked_parts(name: object, prompt_length: object, *, states: Mapping[int, Any] | None = None, **given: Any) -> dict[str, Tensor]:
    """The stored names (``input_ids``, ``features``, ``boundary.2``, ...) of what is given, as detached tensors; None is left out.

    Raises
    ------
    BadArgument: an unusable name, no ids, ids that are no whole numbers, an unknown part, or a part without one row per token.
    """
    if not isinstance(name, str) or not name.isprintable() or not name or "/" in name:
        raise BadArgument(f"{name!r:.80} cannot name a record", hint="use a printable name without a slash")
    where = f"record {name}"
    unknown = sorted(given.keys() - {*PER_TOKEN, *PER_ROW})
    if unknown:
        known = ("name", "prompt_length", "states", *PER_TOKEN, *PER_ROW)
        raise BadArgument(f"there is no part {unknown[0]!r}", where=where, hint=f"known are {', '.join(known)}")
    for b in states or {}:
        if type(b) is not int or b < 0:
            raise BadArgument(
                f"states has the key {b!r}, expected a boundary: 0 for the embedding, i for the state after i blocks", where=where
            )
    if given.get("input_ids") is None:
        raise BadArgument("has no input_ids", where=where)
    parts = {n: torch.as_tensor(t).detach() for n, t in given.items() if t is not None}
    parts |= {f"{BOUNDARY}{b}": torch.as_tensor(t).detach() for b, t in (states or {}).items()}
    tokens = parts["input_ids"].numel()
    for part, tensor in parts.items():
        problem = misfit(part, tuple(tensor.shape), dtype_name(tensor), tokens)
        if problem:
            raise BadArgument(problem, where=where, hint="one row per token, in the order of input_ids")
    # Not bounded by the tokens: behind a prefix cache the record holds only the tail of its prompt.
    if prompt_length is not None and (type(prompt_length) is not int or prompt_length < 0):
        raise BadArgument(f"prompt_length is {prompt_length!r}, expected a whole number", where=where)
    return parts


def misfit(part: str, shape: tuple[int, ...], dtype: str, tokens: int) -> str | None:
    """What is wrong with a part's shape or dtype for a record of so many tokens; None when it fits. Headers are enough."""
    if part in PER_TOKEN:
        if shape != (tokens,):
            return f"{part} has shape {list(shape)}, expected [{tokens}]"
        if part in _WHOLE and not dtype.startswith(("int", "uint")):
            return f"{part} are {dtype}, expected whole numbers"
        return None
    if len(shape) != 2 or shape[0] != tokens or not shape[1]:
        return f"{part} has shape {list(shape)}, expected [{tokens}, width]: one row per token"
    if dtype not in FLOATS:
        return f"{part} is {dtype}, expected floating point"
    return None


def stored_boundaries(parts: Iterable[str]) -> tuple[int, ...]:
    """The boundaries among part names, ascending.

    >>> stored_boundaries(["final", "boundary.15", "boundary.2"])
    (2, 15)
    """
    return tuple(sorted(int(p.removeprefix(BOUNDARY)) for p in parts if p.startswith(BOUNDARY)))
