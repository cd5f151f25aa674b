"""Which target was captured: the identity that a dump carries, read off a loaded model and its config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import nn

from eagle3diag.capture.structure import Decoder
from eagle3diag.checkpoints.target import digest
from eagle3diag.checkpoints.tensors import dtype_name
from eagle3diag.dumps import TargetIdentity


def identify(model: nn.Module, decoder: Decoder) -> TargetIdentity:
    """Name, config hash, dtype and sizes of ``model``.

    The hash is that of the ``config.json`` the model was loaded from, where that folder is known and still there, so that it equals
    the hash of the same target opened from disk; otherwise that of the config in memory.
    """
    config = getattr(model, "config", None)
    name = str(getattr(config, "_name_or_path", "") or type(model).__name__)
    dtype = next((dtype_name(p) for p in decoder.blocks.parameters() if p.is_floating_point()), "unknown")
    return TargetIdentity(
        name=name, config_hash=config_hash(name, config), dtype=dtype, n_layers=decoder.n_layers, hidden_size=decoder.hidden_size
    )


def special_ids(model: nn.Module) -> tuple[frozenset[int], frozenset[int]]:
    """Token ids that the model pads with, and that it ends an answer with."""
    found: dict[str, set[int]] = {"pad_token_id": set(), "eos_token_id": set()}
    config = getattr(model, "config", None)
    for source in (getattr(model, "generation_config", None), config, getattr(config, "text_config", None)):
        for field, ids in found.items():
            value = getattr(source, field, None)
            ids.update(v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, int))
    return frozenset(found["pad_token_id"]), frozenset(found["eos_token_id"])


def config_hash(name: str, config: object) -> str:
    """16 hex digits of the SHA-256 of the canonical ``config.json`` in the folder ``name``, or of ``config`` where there is none."""
    file = Path(name) / "config.json"
    values: Any = None
    try:
        values = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    except (OSError, ValueError):  # gone or unreadable since the model was loaded: the config in memory stands in
        values = None
    if values is None:
        to_dict = getattr(config, "to_dict", None)
        values = to_dict() if to_dict is not None else config if isinstance(config, Mapping) else {}
    return digest(values)


def installed(*packages: str) -> str | None:
    """The version of the first of these packages that is installed, without importing it."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None
