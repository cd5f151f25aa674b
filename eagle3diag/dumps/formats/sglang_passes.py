"""SGLang's ``--debug-tensor-dump-output-folder``: outputs of every leaf module, one ``Pass*.pt`` a forward."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from torch import Tensor

from eagle3diag.dumps.formats import sglang_names
from eagle3diag.dumps.formats.base import Asked, Format
from eagle3diag.dumps.forwards import Forward
from eagle3diag.dumps.places import Place
from eagle3diag.dumps.records import HiddenStates
from eagle3diag.errors import UnreadableFile

_INFO = ".forward_batch_info."
_RANK = re.compile(r"TP(\d+)_PP(\d+)_Rank(\d+)_pid\d+")


def _fits(_: str, value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(k, str) and k.endswith(_INFO + "input_ids") for k in value)


def _read(place: Place, names: tuple[str, ...], asked: Asked) -> HiddenStates:
    """The passes of rank 0 of the target. A pass whose layers are fewer than another's is the draft's and left out."""
    folder = {n: n.rpartition("/")[0] for n in names}
    ranks = {m[3] for f in folder.values() if (m := _RANK.search(f))}
    kept = [n for n in names if (m := _RANK.search(folder[n])) is None or m[3] == min(ranks, key=int)]
    kept = [n for n in kept if "draft" not in folder[n].split("/")]
    kept = sorted(kept, key=place.names.index)
    value = lru_cache(maxsize=4)(place.open)

    forwards, parts = [], []
    for file in kept:
        held = value(file)
        found = _info(held, place.label(file))
        if found is None:  # the last file: only what came after the last forward
            continue
        where = {
            part: (key, i if isinstance(held[key], list) else None)
            for key in held
            for i, _ in enumerate(held[key] if isinstance(held[key], list) else [held[key]])
            if isinstance(key, str) and (part := sglang_names.state_of(key, i))
        }
        forwards.append(found)
        parts.append({part: partial(_rows, value, file, place.label(file), key, i) for part, (key, i) in where.items()})
    deepest = max((sglang_names.depth(p) for p in parts), default=-1)
    target = [i for i, p in enumerate(parts) if sglang_names.depth(p) == deepest]
    held_parts: list[Mapping[str, Callable[[], Tensor]]] = [parts[i] for i in target]
    assumed = (
        "states are what input_layernorm and norm of the target return alongside their normed output",
        "requests are told apart by positions and lengths, since passes do not name them",
        *((f"rank {min(ranks, key=int)} of {len(ranks)} ranks is read",) if len(ranks) > 1 else ()),
    )
    name = "SGLang debug tensor dump"
    return sglang_names.assemble(name, place, [forwards[i] for i in target], held_parts, asked, assumed, max(len(ranks), 1))


def _info(held: Any, where: str) -> Forward | None:
    if not isinstance(held, Mapping):
        raise UnreadableFile("is not a pass: a mapping of module outputs is expected", where=where, hint="dump again")
    found = {k.rpartition(".")[2]: held[k] for k in held if isinstance(k, str) and _INFO in k}
    if "input_ids" not in found:
        return None
    return sglang_names.forward(found["input_ids"], found.get("positions"), found.get("seq_lens"), where)


def _rows(value: Callable[[str], Any], file: str, where: str, key: str, index: int | None) -> Tensor:
    held = value(file)[key]
    found = held if index is None else held[index]
    if not isinstance(found, Tensor):
        raise UnreadableFile(f"{key:.200} is not a tensor", where=where, hint="dump again")
    return found


# sglang/srt/debug_utils/tensor_dump_forward_hook.py, 0.5.5 and later
FORMAT = Format("SGLang debug tensor dump", _fits, _read)
