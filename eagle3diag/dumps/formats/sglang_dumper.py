"""SGLang's dumper: one tensor in each file, whose name carries the step, the rank and what it is (``___`` between ``key=value``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from eagle3diag.dumps.formats import sglang_names
from eagle3diag.dumps.formats.base import Asked, Format
from eagle3diag.dumps.forwards import Forward
from eagle3diag.dumps.places import Place
from eagle3diag.dumps.records import HiddenStates
from eagle3diag.errors import MissingPart, UnreadableFile

_PREFIX = "non_intrusive__"


def tags(name: str) -> dict[str, str]:
    """The tags in a file's name, in both styles (``step=0___rank=0___dump_index=1___name=x.pt``; ``forward_pass_id=`` before 0.5.8).

    >>> tags("run/forward_pass_id=3___rank=0___name=aux___dump_index=7.pt")["step"]
    '3'
    """
    found = dict(piece.split("=", 1) for piece in name.rpartition("/")[2].removesuffix(".pt").split("___") if "=" in piece)
    if "forward_pass_id" in found:
        found.setdefault("step", found.pop("forward_pass_id"))
    return found


def _fits(name: str, value: Any) -> bool:
    """The current style says what it is inside; the older one is a bare tensor, known by its name alone."""
    if isinstance(value, dict) and isinstance(value.get("meta"), dict) and "value" in value:
        return "dump_index" in value["meta"]
    return not isinstance(value, Mapping) and {"name", "dump_index", "step"} <= set(tags(name))


def _read(place: Place, names: tuple[str, ...], asked: Asked) -> HiddenStates:
    """The target's forwards of the lowest rank. The first tensor of a name counts where a step holds several, as hooks see inputs first."""
    steps: dict[int, dict[str, str]] = defaultdict(dict)
    found = [(tags(n), n) for n in names]
    found = [(t, n) for t, n in found if t.get("step", "").isdecimal() and "name" in t and t.get("dump_index", "").isdecimal()]
    ranks = {t.get("rank", "0") for t, _ in found}
    lowest = min(ranks, key=lambda r: (not r.isdecimal(), r.zfill(9)), default="0")
    for t, n in sorted(found, key=lambda item: int(item[0]["dump_index"])):
        if t.get("rank", "0") == lowest:
            steps[int(t["step"])].setdefault(t["name"], n)
    parts = {step: _parts(held, asked.mapping) for step, held in steps.items()}
    deepest = max((sglang_names.depth(p) for p in parts.values()), default=-1)
    kept = [
        s for s in sorted(steps) if parts[s] and sglang_names.depth(parts[s]) == deepest and {"input_ids", "positions"} <= set(steps[s])
    ]
    if not kept:
        message = f"no step holds input_ids, positions and states; the first holds {', '.join(list(next(iter(steps.values()), {}))[:6])}"
        raise MissingPart(message, where=place.where, hint="run with DUMPER_NON_INTRUSIVE_MODE=all, or dump those too")
    forwards = [_forward(place, steps[s]) for s in kept]
    readers: list[Mapping[str, Callable[[], Tensor]]] = [
        {part: partial(_tensor, place, file) for part, file in parts[s].items()} for s in kept
    ]
    assumed = (
        "steps of the draft are told from the target's by their fewer layers",
        "states are what input_layernorm and norm return alongside their normed output",
        *((f"rank {lowest} of {len(ranks)} ranks is read",) if len(ranks) > 1 else ()),
    )
    return sglang_names.assemble("SGLang dumper", place, forwards, readers, asked, assumed, max(len(ranks), 1))


def _parts(held: Mapping[str, str], mapping: Mapping[str, Any] | None) -> dict[str, str]:
    """Part -> file of one step: ``{module}.output.{i}``, or ``.output`` where there is one only."""
    made = {}
    for name, file in held.items():
        module, dot, number = name.removeprefix(_PREFIX).rpartition(".output")
        if dot and name.startswith(_PREFIX):
            part = sglang_names.state_of(module, int(number[1:]) if number[1:].isdecimal() else 0)
            if part:
                made[part] = file
    return made


def _forward(place: Place, held: Mapping[str, str]) -> Forward:
    lengths, requests = (_value(place, held[name]) if name in held else () for name in ("seq_lens", "rids"))
    ids, positions = _value(place, held["input_ids"]), _value(place, held["positions"])
    return sglang_names.forward(ids, positions, lengths, place.label(held["input_ids"]), requests)


def _value(place: Place, file: str) -> Any:
    held = place.open(file)
    return held["value"] if isinstance(held, dict) and "value" in held else held


def _tensor(place: Place, file: str) -> Tensor:
    found = _value(place, file)
    if not isinstance(found, Tensor):
        raise UnreadableFile(f"holds a {type(found).__name__}, expected a tensor", where=place.label(file), hint="dump again")
    return found


# sglang/srt/debug_utils/dumper.py: DUMPER_* since 0.5.10, SGLANG_DUMPER_* before, bare tensors up to 0.5.7
FORMAT = Format("SGLang dumper", _fits, _read)
