"""The native dump: a folder of safetensors shards and a manifest, readable at any moment of its writing."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from safetensors.torch import save_file
from torch import Tensor

from eagle3diag.checkpoints.tensors import TensorFiles
from eagle3diag.dumps.parts import PER_ROW, PER_TOKEN, checked_parts, misfit, stored_boundaries
from eagle3diag.dumps.places import Place
from eagle3diag.dumps.records import SIDES, HiddenStates, LazyRecords, Part, Record, TargetIdentity
from eagle3diag.errors import BadArgument, MissingPart, UnreadableFile
from eagle3diag.files import sibling, unused
from eagle3diag.findings import write_atomically

FORMAT, VERSION, MANIFEST = "eagle3diag-dump", 1, "manifest.json"
T = TypeVar("T")


@dataclass
class DumpWriter:
    """Writes a dump into the new folder ``out``; use it as a context manager.

    A shard is written under another name and renamed, then the manifest is replaced: whatever is killed, and whenever, the folder
    holds a readable dump of what was finished, with ``complete`` false until :meth:`close`. Records wait in memory until a shard is
    full: :meth:`flush` finishes them at once.

    Raises
    ------
    BadArgument: ``out`` exists and is not empty, or ``side`` is none of ``train``, ``live``, ``reference``.
    """

    out: str | os.PathLike[str]
    side: str
    target: TargetIdentity
    engine: str
    engine_version: str | None = None
    boundaries: tuple[int, ...] = ()
    assumed: tuple[str, ...] = ()
    max_shard_bytes: int = 64 * 1024 * 1024
    counters: dict[str, int] = field(default_factory=dict)
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise BadArgument(f"side is {self.side!r}, expected one of {', '.join(SIDES)}")
        self._folder = unused(Path(self.out), "a dump is never overwritten")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._listed: list[dict[str, Any]] = []
        self._waiting: list[dict[str, Any]] = []
        self._tensors: dict[str, Tensor] = {}
        self._bytes = self._shards = 0
        self._names: set[str] = set()
        self._closed = False
        self._write_manifest(complete=False)

    def add(
        self,
        *,
        name: str,
        input_ids: Tensor,
        states: Mapping[int, Tensor] | None = None,
        features: Tensor | None = None,
        final: Tensor | None = None,
        last: Tensor | None = None,
        prompt_length: int | None = None,
        positions: Tensor | None = None,
        loss_mask: Tensor | None = None,
        accepted: Tensor | None = None,
    ) -> None:
        """Add one sequence: ``input_ids`` [T] and parts with T rows. Tensors are copied to the CPU in their own dtype.

        Raises
        ------
        BadArgument: the name is taken or unusable, a part does not have one row per token, or the writer is closed.
        """
        if self._closed:
            raise BadArgument("the writer is closed", where=self._folder, hint="write the other records into a new folder")
        if name in self._names:
            raise BadArgument(f"the record name {name!r} is taken", where=self._folder, hint="name every record differently")
        parts = checked_parts(
            name,
            prompt_length,
            input_ids=input_ids,
            states=states,
            features=features,
            final=final,
            last=last,
            positions=positions,
            loss_mask=loss_mask,
            accepted=accepted,
        )
        for part, tensor in parts.items():
            copy = tensor.to("cpu", copy=True).contiguous()  # engines reuse their buffers: what is kept must be ours
            self._tensors[f"{name}/{part}"] = copy
            self._bytes += copy.numel() * copy.element_size()
        self._names.add(name)
        stored = list(stored_boundaries(parts))
        self._waiting.append({"name": name, "tokens": len(parts["input_ids"]), "prompt_length": prompt_length, "boundaries": stored})
        if self._bytes >= self.max_shard_bytes:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting as a shard and list it in the manifest."""
        if self._closed:
            return
        if self._waiting:
            shard = f"shard-{self._shards:05d}.safetensors"
            handle, name = tempfile.mkstemp(dir=self._folder, prefix=".shard-")
            os.close(handle)
            temporary = Path(name)
            try:
                save_file(self._tensors, temporary)
                temporary.chmod(0o644)
                temporary.replace(self._folder / shard)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            self._listed += [{**entry, "shard": shard} for entry in self._waiting]
            self._waiting, self._tensors, self._bytes = [], {}, 0
            self._shards += 1
        self._write_manifest(complete=False)

    def close(self, *, complete: bool = True) -> None:
        """Flush and, unless told otherwise, mark the dump complete. Closing again does nothing."""
        if not self._closed:
            self.flush()
            self._write_manifest(complete=complete)
            self._closed = True

    def abandon(self) -> None:
        """Forget the records that wait, and close: what a full disk no longer takes must not be tried again. ``complete`` stays false."""
        self._waiting, self._tensors, self._bytes, self._closed = [], {}, 0, True
        self._write_manifest(complete=False)

    def _write_manifest(self, *, complete: bool) -> None:
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "side": self.side,
            "target": asdict(self.target),
            "engine": self.engine,
            "engine_version": self.engine_version,
            "ranks": self.ranks,
            "boundaries": list(self.boundaries),
            "counters": self.counters,
            "assumed": list(self.assumed),
            "complete": complete,
            "records": self._listed,
        }
        write_atomically(self._folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(complete=error_type is None)


def read_native(place: Place) -> HiddenStates:
    """Open a native dump: the manifest and the headers of its shards are read and checked, tensors when a record is asked for them.
    Behind a URL a shard is fetched, and checked, when a record of it is asked for.

    Raises
    ------
    UnreadableFile: a corrupt manifest or shard, or a manifest of a newer version. MissingPart: a listed shard or tensor is not
    there, or the dump lists no record.
    """
    where = place.label(MANIFEST)
    manifest = _Manifest(place.read_json(MANIFEST), where)
    if manifest.values.get("format") != FORMAT:
        found = f"{manifest.values.get('format')!r:.80}"
        raise UnreadableFile(f"is not a native dump (format {found})", where=where, hint="give the folder that eagle3diag capture wrote")
    version = manifest.integer("version")
    if version > VERSION:
        raise UnreadableFile(f"has format version {version}; this release reads {VERSION}", where=where, hint="upgrade eagle3diag")
    complete = manifest.of("complete", bool)
    entries = [_Manifest(e, f"{where} (record {i})") for i, e in enumerate(manifest.of("records", list))]
    if not entries:
        stopped = "" if complete else "; its writer was stopped before the first was finished"
        notes = "".join(f"; {note}" for note in manifest.of("assumed", list))  # a recorder that saw nothing says there why
        raise MissingPart(f"the dump holds no records{stopped}{notes}", where=place.where, hint="capture again, with at least one sequence")
    side = manifest.of("side", str)
    if side not in SIDES:
        raise manifest.garbled("side", side)
    declared = manifest.integers("boundaries")
    names = [e.of("name", str) for e in entries]
    if len(set(names)) < len(names):
        raise UnreadableFile("lists two records of one name", where=where, hint="capture again")
    shards = {e.of("shard", str) for e in entries}

    @lru_cache(maxsize=None if place.local else 4)
    def opened(shard: str) -> TensorFiles:
        sibling(Path(), shard, where)
        if shard not in present:
            raise MissingPart(f"shard {shard} is listed but is not there", where=where, hint="copy the whole folder")
        return place.open_tensors(shard)

    present = set(place.names)
    lazy = LazyRecords(names, lambda i: _record(entries[i], declared, opened))
    lost = [n for n in place.names if n.startswith("shard-") and n.endswith(".safetensors") and n not in shards]
    return HiddenStates(
        tuple(lazy) if place.local else lazy,
        side=side,
        target=manifest.target(),
        engine=manifest.of("engine", str),
        engine_version=manifest.optional("engine_version", str),
        boundaries=declared,
        counters={k: manifest.child("counters").integer(k) for k in manifest.of("counters", dict)},
        assumed=(
            *(str(a) for a in manifest.of("assumed", list)),
            *(f"{n} is left out: the writer was stopped before it was listed" for n in lost),
        ),
        complete=complete,
        path=place.where,
        ranks=manifest.integer("ranks") if "ranks" in manifest.values else 1,
    )


def _record(entry: _Manifest, declared: tuple[int, ...], opened: Callable[[str], TensorFiles]) -> Record:
    """One record, its shard opened on the way, its parts checked against the shard's header."""
    name, shard, tokens = entry.of("name", str), entry.of("shard", str), entry.integer("tokens")
    boundaries = entry.integers("boundaries")
    held = opened(shard)
    for part in (*PER_TOKEN, *PER_ROW, *(f"boundary.{b}" for b in boundaries)):
        key = f"{name}/{part}"
        if key in held:
            info = held.info(key)
            problem = misfit(part, info.shape, info.dtype, tokens)
            if problem:
                raise UnreadableFile(f"record {name!r}: {problem}", where=f"{entry.where}: {shard}", hint="capture again")
        elif part == "input_ids" or part.startswith("boundary."):
            raise MissingPart(f"tensor {key!r} is listed but is not in {shard}", where=entry.where, hint="capture again")
    prompt = None if entry.values.get("prompt_length") is None else entry.integer("prompt_length")
    return Record(name, tokens, prompt, boundaries, declared, _reader(opened, shard, name))


def _reader(opened: Callable[[str], TensorFiles], shard: str, name: str) -> Part:
    def part(which: str) -> Tensor | None:
        key, held = f"{name}/{which}", opened(shard)
        return held[key] if key in held else None

    return part


class _Manifest:
    """Typed access to one JSON object of the manifest; anything else than what we write is an UnreadableFile that names the field."""

    def __init__(self, values: object, where: object) -> None:
        if not isinstance(values, dict):
            raise UnreadableFile("the manifest is garbled: expected an object", where=where, hint="capture again")
        self.values: dict[str, Any] = values
        self.where = where

    def of(self, name: str, expected: type[T]) -> T:
        value = self.values.get(name)
        if type(value) is not expected:
            raise self.garbled(name, value)
        return value

    def optional(self, name: str, expected: type[T]) -> T | None:
        return None if self.values.get(name) is None else self.of(name, expected)

    def integer(self, name: str) -> int:
        value = self.of(name, int)
        if not 0 <= value < 1 << 48:
            raise self.garbled(name, value)
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        values = self.of(name, list)
        if not all(type(v) is int and 0 <= v < 1 << 32 for v in values):
            raise self.garbled(name, values)
        return tuple(values)

    def child(self, name: str) -> _Manifest:
        return _Manifest(self.values.get(name), f"{self.where} ({name})")

    def target(self) -> TargetIdentity:
        t = self.child("target")
        words = (t.of("name", str), t.of("config_hash", str), t.of("dtype", str))
        return TargetIdentity(*words, t.integer("n_layers"), t.integer("hidden_size"))

    def garbled(self, name: str, value: object) -> UnreadableFile:
        found = "is not there" if name not in self.values else f"is {value!r:.80}"
        return UnreadableFile(f"the manifest is garbled: {name} {found}", where=self.where, hint="capture again")
