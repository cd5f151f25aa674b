"""Writing a draft's folder: tensors streamed one at a time, all files or none, never over anything that is there."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from eagle3diag.checkpoints.safefile import DTYPES
from eagle3diag.checkpoints.tensors import Tensors
from eagle3diag.errors import BadArgument
from eagle3diag.files import unused

_CODES = {word: code for code, (word, bits) in DTYPES.items() if bits >= 8}
_CHUNK = 1 << 26  # bytes of one tensor that are copied at once


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Tensors, files: Mapping[str, str]) -> Path:
    """``config.json`` and safetensors files into a new folder; ``files``: tensor name -> file name. More than one file gets an index.

    Every tensor's bytes are written as they are. At most one tensor is in memory at a time, less of it where it is memory-mapped.

    Raises
    ------
    BadArgument: the folder exists and is not empty.
    """
    unused(folder, "a draft is never changed in place").parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        (staging / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")
        held: dict[str, list[str]] = {}
        for name in tensors:
            held.setdefault(files[name], []).append(name)
        for file, names in held.items():
            with (staging / file).open("wb") as out:
                _write(out, tensors, names)
        if len(held) > 1:
            total = sum(_bytes(tensors, name) for name in tensors)
            index = {"metadata": {"total_size": total}, "weight_map": {name: files[name] for name in sorted(tensors)}}
            (staging / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        for path in staging.iterdir():
            path.chmod(0o644)
        staging.chmod(0o755)
        staging.replace(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return folder


def _write(out: BinaryIO, tensors: Tensors, names: list[str]) -> None:
    """One file: wide dtypes first, so that every tensor is aligned, and without gaps, as the format demands."""
    ordered = sorted(names, key=lambda n: (-_width(tensors, n), n))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in ordered:
        info, size = tensors.info(name), _bytes(tensors, name)
        header[name] = {"dtype": _CODES[info.dtype], "shape": list(info.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    out.write(len(text).to_bytes(8, "little"))
    out.write(text)
    for name in ordered:
        flat = tensors[name].detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        for part in flat.split(_CHUNK):
            out.write(part.numpy().data)


def _width(tensors: Tensors, name: str) -> int:
    dtype = tensors.info(name).dtype
    if dtype not in _CODES:
        raise BadArgument(f"tensor {name!r} is {dtype}, which safetensors cannot hold", hint="leave it out, or convert it first")
    return max(1, DTYPES[_CODES[dtype]][1] // 8)


def _bytes(tensors: Tensors, name: str) -> int:
    info = tensors.info(name)
    return info.count * _width(tensors, name)


__all__ = ["write_folder"]
