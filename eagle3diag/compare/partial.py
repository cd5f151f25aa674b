"""What some of the records gave, so made that the whole is the same, bit for bit, however the records are cut and wherever parts are made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from eagle3diag.checkpoints.tensors import TensorFiles
from eagle3diag.findings import write_atomically

_WORDS = "words"  # a tensor of bytes: the JSON of what are no tensors


@dataclass(frozen=True)
class Top:
    """The ``most`` entries of the smallest keys, the earlier one first where keys are equal: ``(key, plain values)``."""

    most: int
    entries: tuple[tuple[float, Any], ...] = ()

    @classmethod
    def of(cls, most: int, entries: Sequence[tuple[float, Any]]) -> Top:
        return cls(most, tuple(sorted(entries, key=lambda e: e[0])[:most]))


@dataclass(frozen=True)
class Partial:
    """``rows`` are joined in the order of the records, ``counts`` (whole numbers) are added, of ``tops`` the best of all are kept.

    Floating-point numbers are never added up across parts, so joining is associative to the last bit:
    ``join([join([a, b]), c]) == join([a, join([b, c])]) == join([a, b, c])``.
    """

    rows: Mapping[str, Tensor] = field(default_factory=dict)
    counts: Mapping[str, Tensor] = field(default_factory=dict)
    tops: Mapping[str, Top] = field(default_factory=dict)

    def entries(self, name: str) -> list[Any]:
        """The values of one top, in their order; none where no record gave any."""
        return [value for _, value in self.tops[name].entries] if name in self.tops else []


def join(parts: Sequence[Partial]) -> Partial:
    """The parts of following records as one. A part may lack what its records did not give."""
    rows = {name: torch.cat([p.rows[name] for p in parts if name in p.rows]) for name in _names(p.rows for p in parts)}
    counts = {name: sum((p.counts[name] for p in parts if name in p.counts), torch.tensor(0)) for name in _names(p.counts for p in parts)}
    tops = {}
    for name in _names(p.tops for p in parts):
        held = [p.tops[name] for p in parts if name in p.tops]
        tops[name] = Top.of(held[0].most, [entry for top in held for entry in top.entries])
    return Partial(rows, counts, tops)


def _names(maps: Any) -> list[str]:
    return list(dict.fromkeys(name for one in maps for name in one))


def write(part: Partial, path: Path) -> None:
    """Into one safetensors file, atomically. The names go with it in their order, which safetensors does not keep."""
    tops = {name: [top.most, top.entries] for name, top in part.tops.items()}
    words = json.dumps({"rows": list(part.rows), "counts": list(part.counts), "tops": tops}).encode()
    tensors = {f"rows/{n}": t.contiguous() for n, t in part.rows.items()} | {f"counts/{n}": t.contiguous() for n, t in part.counts.items()}
    write_atomically(path, save(tensors | {_WORDS: torch.frombuffer(bytearray(words), dtype=torch.uint8)}))


def read(path: Path) -> Partial:
    """What :func:`write` wrote.

    Raises
    ------
    UnreadableFile: damaged. KeyError, TypeError, ValueError: of another make.
    """
    held = TensorFiles.open(path)
    words = json.loads(bytes(held[_WORDS].tolist()))
    tops = {name: Top(int(most), tuple((float(key), value) for key, value in entries)) for name, (most, entries) in words["tops"].items()}
    rows, counts = ({n: held[f"{kind}/{n}"].clone() for n in words[kind]} for kind in ("rows", "counts"))
    return Partial(rows, counts, tops)
