"""A repaired copy of a draft for a named engine: names, config and map as that engine reads them, and a list of everything changed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle3diag.audit import Audit, audit
from eagle3diag.checkpoints import Draft, DraftConfig, DraftSource, open_draft
from eagle3diag.checkpoints.names import IDLE, canonical
from eagle3diag.checkpoints.recognise import KIND_WORDS
from eagle3diag.checkpoints.write import write_folder
from eagle3diag.engines import DEFAULT_ENGINE, known_version, split_engine
from eagle3diag.engines.draftclass import HOLDS
from eagle3diag.errors import BadArgument
from eagle3diag.findings import Finding, Result
from eagle3diag.formats import FLAT_REASONS, flat, nested
from eagle3diag.repair import Repair, repairs, with_raw

__all__ = ["Conversion", "Edit", "convert"]


@dataclass(frozen=True)
class Edit:
    """One change, or one thing left alone: a tensor's name, a tensor, or a field of the config."""

    what: str
    before: str
    after: str
    why: str


@dataclass(frozen=True)
class Conversion(Result):
    """What was written, what was changed, and what was left alone and why.

    ``tensors``: how many were written; ``rewritten``: those whose bytes are new, all others are the source's, byte for byte.
    ``audit``: of the copy under the engine it was made for; None for the speculators format, which no one engine version is named with.
    """

    draft: str
    out: str
    to: str
    trainer: str
    changes: tuple[Edit, ...]
    left: tuple[Edit, ...]
    tensors: int
    rewritten: tuple[str, ...]
    audit: Audit | None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Those of the copy's audit."""
        return () if self.audit is None else self.audit.findings


def convert(draft: DraftSource, out: str | os.PathLike[str], to: str = DEFAULT_ENGINE) -> Conversion:
    """Write a copy of ``draft`` into the new folder ``out`` as ``to`` reads it: ``"sglang==0.5.8"``, ``"vllm==0.32.0"`` or ``"speculators"``.

    Only what is certain is changed. Tensors are copied one by one into as many files as the source has, and byte for byte unless the list of
    changes says otherwise. Files beside config and weights are not copied.

    Raises
    ------
    BadArgument: ``out`` is not empty, ``to`` is unknown, or the draft is not an EAGLE-3 draft. InputError: the draft cannot be read.
    """
    opened = open_draft(draft)
    if opened.config.kind != "eagle3":
        raise BadArgument(f"this is {KIND_WORDS[opened.config.kind]}", where=opened.path, hint="convert knows EAGLE-3 drafts")
    engine, version = split_engine(to)
    if engine not in ("sglang", "vllm", "speculators") or (engine == "speculators" and version):
        raise BadArgument(f"cannot convert to {to!r:.80}", hint='give "sglang==VERSION", "vllm==VERSION" or "speculators"')
    if engine == "speculators" and opened.config.latent is not None:
        raise BadArgument(
            "speculators' format has no MLA drafts", where=opened.path, hint='convert to "sglang==VERSION" or "vllm==VERSION"'
        )
    target = Path(out)
    source = opened
    mended, done, skipped = repairs(opened, only_certain=True)
    changes = [_edit(repair) for repair in done]
    left = [_edit(repair) for repair in skipped]
    mended, dropped = _without_idle(mended)
    changes += dropped
    layout = nested(mended.config) if engine == "speculators" else flat(mended.config, engine, known_version(engine, version)[0])
    left += [Edit(*note) for note in layout.left]
    changes += _config_changes(mended.config.raw, layout.raw)
    mended = with_raw(mended, layout.raw)
    mended, renamed = _named(mended, None if engine == "speculators" else to)
    changes += renamed
    if engine != "speculators":
        mended, added = _completed(mended, to)
        changes += added
    _same_boundaries(source.config, mended.config)
    files, rewritten = _files(source, mended)
    write_folder(target, mended.config.raw, mended.tensors, files)
    return Conversion(
        draft=source.name,
        out=target.name,
        to=to,
        trainer=source.config.trainer,
        changes=tuple(changes),
        left=tuple(left),
        tensors=len(mended.tensors),
        rewritten=rewritten,
        audit=None if engine == "speculators" else audit(open_draft(target), engine=to),
    )


def _edit(repair: Repair) -> Edit:
    return Edit(repair.what, repair.before, repair.after, repair.why)


def _without_idle(draft: Draft) -> tuple[Draft, list[Edit]]:
    idle = [name for name in draft.tensors if name.endswith(IDLE)]
    why = "computed by every engine, or the trainer's copy of a weight of the target; vLLM ends with an error over it"
    return draft.replace(tensors=dict.fromkeys(idle)), [Edit(name, "in the file", "left out", why) for name in idle]


def _completed(draft: Draft, engine: str) -> tuple[Draft, list[Edit]]:
    """Zeros, which change no number, for what this version would make up or end over: a bias that its class has, the map of a whole vocabulary."""
    names, added = draft.canonical(), {}
    for load in audit(draft, engine=engine).outcome("missing"):
        weight = names.get(f"{load.canonical.removesuffix('.bias')}.weight")
        if load.canonical.endswith(".bias") and weight is not None and load.note != HOLDS["zeros"]:
            like = draft.tensors[weight]
            added[f"{weight.removesuffix('.weight')}.bias"] = like.new_zeros(len(like)), load.note
        elif load.canonical == "d2t" and draft.config.draft_vocab_size == draft.config.vocab_size:
            added["d2t"] = torch.zeros(draft.config.vocab_size, dtype=torch.int64), load.note
    edits = [Edit(name, "absent", "zeros", f"this version has it, and without it in the file: {note}") for name, (_, note) in added.items()]
    return draft.replace(tensors={name: zeros for name, (zeros, _) in added.items()}), edits


# ---- names ----


def _plain(name: str) -> str:
    return name.removeprefix("model.")


def _midlayer(name: str) -> str:
    return re.sub(r"^(model\.)?layers\.0\.", "midlayer.", name).removeprefix("model.")


#: As they are if the engine loads them so; then the least change that makes it load them.
_STYLES: tuple[Callable[[str], str], ...] = (str, _plain, canonical, _midlayer)


def _named(draft: Draft, engine: str | None) -> tuple[Draft, list[Edit]]:
    """The draft under names that the engine loads, as its audit predicts; under canonical names where nothing predicts it."""
    chosen: Callable[[str], str] = canonical
    best: int | None = None
    for style in _STYLES if engine is not None else ():
        candidate = _renamed(draft, style)
        if candidate is None:
            continue
        lost = sum(load.outcome in ("dropped", "missing", "raises") for load in audit(candidate, engine=engine or "").loads)
        if best is None or lost < best:
            chosen, best = style, lost
    renamed = _renamed(draft, chosen) or draft
    why = "the names that the engine's loader knows" if engine else "the names of the format"
    return renamed, _rules(draft.tensors, chosen, why) if renamed is not draft else []


def _rules(names: Iterable[str], style: Callable[[str], str], why: str) -> list[Edit]:
    """Renamings by what differs at the front of the name: ``midlayer.*`` to ``layers.0.*`` with the number of tensors."""
    counted: dict[tuple[str, str], int] = {}
    for old in names:
        new = style(old)
        if old != new:
            was, now = old.split("."), new.split(".")
            while was and now and was[-1] == now[-1]:
                was.pop(), now.pop()
            key = ".".join([*was, "*"]), ".".join([*now, "*"])
            counted[key] = counted.get(key, 0) + 1
    return [Edit("names", old, new, f"{n} tensors; {why}") for (old, new), n in counted.items()]


def _renamed(draft: Draft, style: Callable[[str], str]) -> Draft | None:
    """None where two tensors would get one name."""
    try:
        return draft.replace(rename=style)
    except BadArgument:
        return None


# ---- files ----


def _files(source: Draft, made: Draft) -> tuple[dict[str, str], tuple[str, ...]]:
    """Which file each tensor goes into, as in the source and with safetensors' names; and which tensors have new bytes."""
    origin = {_identity(source, name): name for name in source.tensors}
    places = {name: source.tensors.info(name).file for name in source.tensors}
    shards = sorted(set(places.values()))
    if len(shards) == 1:
        named = {shards[0]: "model.safetensors"}
    else:
        named = {file: f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i, file in enumerate(shards)}
    files, fresh = {}, []
    for name in made.tensors:
        old = origin.get(_identity(made, name))
        if old is None:
            fresh.append(name)
        files[name] = named[places[old] if old is not None else shards[0]]
    if len(set(files.values())) == 1:  # a shard may have been left empty by what was left out
        files = dict.fromkeys(files, "model.safetensors")
    return files, tuple(sorted(fresh))


def _identity(draft: Draft, name: str) -> object:
    """The tensor itself, followed back through every renaming in memory."""
    return draft.tensors.origin(name)


# ---- config ----


def _config_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Edit]:
    """Fields that change; those that only move between the top level and ``transformer_layer_config`` are counted."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    differ = sorted(n for n in before.keys() | after.keys() if before.get(n, _ABSENT) != after.get(n, _ABSENT))
    moved = []
    for name in differ:
        other = name.removeprefix(_NESTED) if name.startswith(_NESTED) else _NESTED + name
        value = before.get(name, after.get(name))
        if (name in before) != (name in after) and other in differ and value in (before.get(other, _ABSENT), after.get(other, _ABSENT)):
            moved.append(name)
            continue
        leaf = name.rsplit(".", 1)[-1]
        why = FLAT_REASONS.get(leaf, _FORMAT) if name in after else _elsewhere(leaf, after)
        yield Edit(f"config: {name}", _shown(before.get(name, _ABSENT)), _shown(after.get(name, _ABSENT)), why)
    if moved:
        places = ("the top level", "transformer_layer_config")
        inside = any(name.startswith(_NESTED) and name in after for name in moved)
        yield Edit(f"config: {len(moved) // 2} fields", *(places if inside else places[::-1]), "the same values, where the format has them")


def _elsewhere(leaf: str, after: Mapping[str, Any]) -> str:
    """Why a field is gone: where the same is written now, if it is."""
    place = next((name for name in after if name.rsplit(".", 1)[-1] == leaf), None)
    return f"it stands in {place} now" if place is not None else "the format has no such field"


_FORMAT = "as the format has it"
_NESTED = "transformer_layer_config."
_ABSENT = object()


def _leaves(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in raw.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _shown(value: object) -> str:
    return (
        "absent"
        if value is _ABSENT
        else {None: "null", True: "true", False: "false"}[value]
        if isinstance(value, bool | None)
        else f"{value}"[:120]
    )


def _same_boundaries(old: DraftConfig, new: DraftConfig) -> None:
    """A copy that would read other states is never written: that would be our own fault, not the input's."""
    assert old.aux_boundaries == new.aux_boundaries, (old.aux_boundaries, new.aux_boundaries)
    assert new.kind == "eagle3", new.assumed[:1]
