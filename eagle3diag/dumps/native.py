"""The native dump: a folder of safetensors shards and a manifest, readable at any moment of its writing."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3diag.checkpoints.files import read_json
from eagle3diag.checkpoints.tensors import TensorFiles
from eagle3diag.dumps.records import HiddenStates, Record, TargetIdentity
from eagle3diag.errors import BadArgument, MissingPart, UnreadableFile
from eagle3diag.findings import write_atomically

FORMAT, VERSION, MANIFEST = "eagle3diag-dump", 1, "manifest.json"
OPTIONAL_PARTS = ("features", "final", "positions", "loss_mask")


@dataclass
class DumpWriter:
    """Writes a dump into the new folder ``out``; use it as a context manager.

    A shard is written under another name and renamed, then the manifest is replaced: whatever is killed, and whenever, the folder
    holds a readable dump of what was finished, with ``complete`` false until :meth:`close`.

    Raises
    ------
    BadArgument: ``out`` exists and is not empty, a record's name is taken, or a tensor does not have one row per token.
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

    def __post_init__(self) -> None:
        self._folder = Path(self.out)
        if self._folder.exists() and (not self._folder.is_dir() or any(self._folder.iterdir())):
            raise BadArgument("the folder is not empty", where=self._folder, hint="give a new folder; a dump is never overwritten")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._listed: list[dict[str, Any]] = []
        self._waiting: list[dict[str, Any]] = []
        self._tensors: dict[str, Tensor] = {}
        self._bytes = self._shards = 0
        self._names: set[str] = set()
        self._write_manifest(complete=False)

    def add(
        self,
        *,
        name: str,
        input_ids: Tensor,
        states: Mapping[int, Tensor] | None = None,
        features: Tensor | None = None,
        final: Tensor | None = None,
        prompt_length: int | None = None,
        positions: Tensor | None = None,
        loss_mask: Tensor | None = None,
    ) -> None:
        """Add one sequence: ``input_ids`` [T] and parts with T rows. Tensors are copied to the CPU in their own dtype."""
        if name in self._names or "/" in name:
            raise BadArgument(f"the record name {name!r} is taken or holds a slash", where=self._folder, hint="name every record differently")
        parts: dict[str, Tensor | None] = {"input_ids": input_ids, "features": features, "final": final, "positions": positions, "loss_mask": loss_mask}
        parts |= {f"boundary.{b}": t for b, t in (states or {}).items()}
        for part, tensor in parts.items():
            if tensor is not None and len(tensor) != len(input_ids):
                raise BadArgument(f"{part} has {len(tensor)} rows for {len(input_ids)} tokens", where=f"record {name}", hint="one row per token")
        for part, tensor in parts.items():
            if tensor is not None:
                copy = tensor.detach().to("cpu", copy=True).contiguous()
                self._tensors[f"{name}/{part}"] = copy
                self._bytes += copy.numel() * copy.element_size()
        self._names.add(name)
        self._waiting.append({"name": name, "tokens": len(input_ids), "prompt_length": prompt_length, "boundaries": sorted(states or {})})
        if self._bytes >= self.max_shard_bytes:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting as a shard and list it in the manifest."""
        if self._waiting:
            shard = f"shard-{self._shards:05d}.safetensors"
            handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=".shard-")
            os.close(handle)
            try:
                save_file(self._tensors, temporary)
                os.chmod(temporary, 0o644)
                os.replace(temporary, self._folder / shard)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
            self._listed += [{**entry, "shard": shard} for entry in self._waiting]
            self._waiting, self._tensors, self._bytes = [], {}, 0
            self._shards += 1
        self._write_manifest(complete=False)

    def close(self, *, complete: bool = True) -> None:
        """Flush and, unless told otherwise, mark the dump complete."""
        self.flush()
        self._write_manifest(complete=complete)

    def _write_manifest(self, *, complete: bool) -> None:
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "side": self.side,
            "target": asdict(self.target),
            "engine": self.engine,
            "engine_version": self.engine_version,
            "boundaries": list(self.boundaries),
            "counters": self.counters,
            "assumed": list(self.assumed),
            "complete": complete,
            "records": self._listed,
        }
        write_atomically(self._folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(complete=kind is None)


def read_native(folder: Path) -> HiddenStates:
    """Open a native dump; shards are opened when a record is read.

    Raises
    ------
    UnreadableFile: no or a corrupt manifest, or one of a newer version. MissingPart: a listed shard or tensor is not there, or the
    dump lists no record.
    """
    where = folder / MANIFEST
    manifest = read_json(where)
    if manifest.get("format") != FORMAT:
        raise UnreadableFile(f"is not a native dump (format {manifest.get('format')!r})", where=where, hint="give the folder that capture wrote")
    if not isinstance(manifest.get("version"), int) or manifest["version"] > VERSION:
        raise UnreadableFile(f"has format version {manifest.get('version')!r}; this release reads {VERSION}", where=where, hint="upgrade eagle3diag")
    try:
        target = TargetIdentity(**manifest["target"])
        declared = tuple(int(b) for b in manifest["boundaries"])
        entries = [
            (str(e["name"]), str(e["shard"]), int(e["tokens"]), e["prompt_length"], tuple(int(b) for b in e["boundaries"])) for e in manifest["records"]
        ]
        facts = {
            "side": str(manifest["side"]),
            "engine": str(manifest["engine"]),
            "engine_version": manifest["engine_version"],
            "counters": {str(k): int(v) for k, v in manifest["counters"].items()},
            "assumed": tuple(map(str, manifest["assumed"])),
            "complete": bool(manifest["complete"]),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableFile(f"the manifest lacks or garbles a field: {error}", where=where, hint="capture again") from None
    if not entries:
        raise MissingPart(
            "the dump holds no records" + ("" if facts["complete"] else "; its writer was stopped before the first was finished"),
            where=folder,
            hint="capture again, with at least one sequence",
        )
    shards: dict[str, TensorFiles] = {}
    for name, shard, tokens, _, boundaries in entries:
        if Path(shard).name != shard:
            raise UnreadableFile(f"the manifest points outside its folder: {shard!r}", where=where, hint="capture again")
        if shard not in shards:
            if not (folder / shard).is_file():
                raise MissingPart(f"shard {shard} is listed but is not there", where=where, hint="copy the whole folder")
            shards[shard] = TensorFiles.open(folder / shard)
        _check_shapes(shards[shard], name, tokens, boundaries, folder / shard)
    records = tuple(
        Record(name, tokens, prompt if isinstance(prompt, int) else None, boundaries, declared, _reader(shards[shard], name))
        for name, shard, tokens, prompt, boundaries in entries
    )
    return HiddenStates(records, target=target, boundaries=declared, path=str(folder), **facts)


def _check_shapes(shard: TensorFiles, name: str, tokens: int, boundaries: tuple[int, ...], where: Path) -> None:
    for part in ("input_ids", *(f"boundary.{b}" for b in boundaries), *OPTIONAL_PARTS):
        key = f"{name}/{part}"
        if key not in shard:
            if part in OPTIONAL_PARTS:
                continue
            raise MissingPart(f"tensor {key!r} is listed but is not in the shard", where=where, hint="capture again")
        shape = shard.info(key).shape
        if not shape or shape[0] != tokens:
            raise UnreadableFile(f"tensor {key!r} has shape {list(shape)} for {tokens} tokens", where=where, hint="capture again")


def _reader(shard: TensorFiles, name: str) -> Any:
    def part(which: str) -> torch.Tensor | None:
        key = f"{name}/{which}"
        return shard[key] if key in shard else None

    return part
