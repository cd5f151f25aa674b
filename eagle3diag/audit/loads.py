"""What a named engine version would load of a draft, tensor by tensor, without running it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from eagle3diag.checkpoints import Draft
from eagle3diag.checkpoints.names import PACKED, SCALES, canonical
from eagle3diag.checkpoints.tensors import Tensors
from eagle3diag.engines.draftclass import HOLDS, HOT_TOKEN_ID, DraftClass, Reading, Slot
from eagle3diag.engines.engine import Engine, Unloadable
from eagle3diag.engines.rules import Version, at

_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_UNKNOWN = {
    "dropped": "no parameter of this name, and no message",
    "warned": "no parameter of this name; one line in the log says so",
    "raises": "no parameter of this name: start-up ends",
}


@dataclass(frozen=True)
class TensorLoad:
    """What becomes of one tensor, or of one parameter that no tensor fills.

    ``outcome``: ``loaded``, ``dropped`` (no parameter takes it), ``missing`` (parameter left as allocated), ``borrowed`` (the target's is
    used), ``overwritten`` (loaded, then replaced by the target's), ``ignored`` (not used in serving), ``shape_error`` (a parameter of
    another shape: start-up ends), ``raises`` (start-up ends). ``into``: the engine's own name, with the part of a stacked parameter.
    """

    name: str
    canonical: str
    outcome: str
    into: str | None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Unserved:
    """A field of the config that the engine version does not honour. ``since``: the versions that do; None: none. ``source``: where read."""

    field: str
    fault: str
    since: str | None
    source: str


@dataclass(frozen=True)
class Simulation:
    """The draft class that an engine version builds, what it loads, the fields it does not honour, and why it would not start at all (one
    sentence each)."""

    draft_class: str
    loads: tuple[TensorLoad, ...]
    unserved: tuple[Unserved, ...]
    refused: tuple[str, ...]


def simulate(draft: Draft, version: Version, engine: Engine) -> Simulation:
    """One :class:`TensorLoad` for every tensor of the file, and for every parameter that none fills.

    Where the engine builds no draft at all, the loads are those of the class that the tensors look like.
    """
    raw = draft.config.raw
    found = engine.draft_class(raw, version)
    refused: tuple[str, ...] = ()
    if isinstance(found, Unloadable):
        refused, found = (found.reason,), _likely(draft, engine)
    refused += tuple(r.message for r in found.refusals if version in r.versions and r.when(raw))
    reading = found.reading(draft.config, version)
    loads = _Loads(draft, found, reading, version)
    unserved = (Unserved(f.name, f.fault, None if f.versions is None else str(f.versions), f.source) for f in found.unserved(raw, version))
    return Simulation(found.name, tuple(loads.run()), tuple(unserved), refused)


def _likely(draft: Draft, engine: Engine) -> DraftClass:
    latent = any("kv_a_proj_with_mqa" in name for name in draft.tensors)
    named = [c for c in engine.classes if any("kv_a_proj_with_mqa" in part for row in c.rows for part, _ in row.parts)]
    return named[0] if latent and named else engine.classes[0]


class _Loads:
    def __init__(self, draft: Draft, found: DraftClass, reading: Reading, version: Version) -> None:
        self.draft, self.reading = draft, reading
        self.tensors = Tensors.of(draft.tensors)
        self.slots = found.slots(reading, version)
        self.names = at(found.names, version).value
        self.quantised = draft.config.quantization is not None
        self.packed = {PACKED.sub(".weight", canonical(name)) for name in draft.tensors if self.quantised and PACKED.search(name)}
        self.embedding, self.head = at(found.embedding, version).value, at(found.head, version).value

    def run(self) -> Iterator[TensorLoad]:
        loads = [self._tensor(name) for name in self.tensors]
        loads = list(self._together(loads))
        filled = {load.into for load in loads if load.outcome in ("loaded", "shape_error", "overwritten")}
        yield from loads
        for slot in self.slots.values():
            if slot.label not in filled and slot.canonical not in self.packed and (load := self._unfilled(slot)) is not None:
                yield load
        if "tied" in self.reading.flags:
            yield TensorLoad(_HEAD, _HEAD, "borrowed", "model.embed_tokens.weight", note="tied to the embedding")

    def _tensor(self, name: str) -> TensorLoad:
        info = self.tensors.info(name)
        outcome, slot = self.names.place(name, self.slots, self.reading.flags)
        load = TensorLoad(name, canonical(name), outcome, slot.label if slot else None, info.shape, info.dtype)
        if slot is None and self.quantised and SCALES.search(name):
            return replace(load, outcome="ignored", note="belongs to a quantised layer, which is not simulated")
        if slot is None:
            note = _UNKNOWN.get(outcome, "used in training only" if "t2d" in name else "skipped by name")
            return replace(load, outcome="dropped" if outcome == "warned" else outcome, note=note)
        load = replace(load, canonical=slot.canonical)
        if slot.parameter != HOT_TOKEN_ID and not _fits(info.shape, slot.shape):
            return replace(load, outcome="shape_error", note=f"the parameter is {list(slot.shape)}: start-up ends")
        if slot.canonical == _EMBEDDING and self._target_embeds(in_file=True):
            return replace(load, outcome="overwritten", note="the target's embedding takes its place")
        if slot.canonical == _HEAD and self._target_heads(in_file=True):
            return replace(load, outcome="overwritten", note="the target's head takes its place")
        return load

    def _together(self, loads: list[TensorLoad]) -> Iterator[TensorLoad]:
        """Parts that a loader joins before it loads them wait for each other in vain where one is not in the file."""
        needed: dict[str, set[str]] = {}
        for slot in self.slots.values():
            if slot.together:
                needed.setdefault(slot.parameter, set()).add(slot.label)
        have = {load.into for load in loads}
        lone = {label for labels in needed.values() if not labels <= have for label in labels}
        for load in loads:
            if load.into in lone:
                yield replace(load, outcome="dropped", into=None, note="waits for the part it is joined with, which is not in the file")
            else:
                yield load

    def _unfilled(self, slot: Slot) -> TensorLoad | None:
        load = TensorLoad(slot.canonical, slot.canonical, "missing", slot.label, note=HOLDS[slot.holds])
        if slot.canonical == "d2t":
            return load if slot.holds == "unset" or self._reduced else None
        if slot.canonical == _EMBEDDING and self._target_embeds(in_file=False):
            return replace(load, outcome="borrowed", note="the target's, shared by design")
        if slot.canonical == _HEAD and self._target_heads(in_file=False):
            whole = "; its rows are not those of the reduced vocabulary" if self._reduced else ""
            return replace(load, outcome="borrowed", note=f"the target's whole head{whole}")
        return load

    @property
    def _reduced(self) -> bool:
        return self.reading.sizes["Vd"] != self.reading.sizes["V"]

    def _target_embeds(self, *, in_file: bool) -> bool:
        same_width = self.reading.sizes["H"] == self.reading.sizes["Ht"]
        return same_width and not (in_file and self.embedding == "own if in the file")

    def _target_heads(self, *, in_file: bool) -> bool:
        if self.head == "the target's if draft_vocab_size is null":
            return self.draft.config.raw.get("draft_vocab_size") is None
        if self.head == "the target's if shapes agree":
            return not self._reduced and self.reading.sizes["H"] == self.reading.sizes["Ht"]
        return self.head == "own if in the file" and not in_file


def _fits(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Equal, or both of one element, which default_weight_loader accepts in any shape."""
    return found == wanted or (_elements(found) == _elements(wanted) == 1)


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


__all__ = ["Simulation", "TensorLoad", "Unserved", "simulate"]
