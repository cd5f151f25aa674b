"""A target on disk, as far as a draft needs it: sizes, embedding, head and final norm."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle3diag.checkpoints.files import read_json
from eagle3diag.checkpoints.tensors import TensorFiles
from eagle3diag.errors import MissingPart

#: Where the text model's parameters may lie inside plain and multimodal targets.
PREFIXES = ("model.", "language_model.model.", "model.language_model.", "")


class Target:
    """The target's config and the three tensors that drafts borrow. Multimodal targets are read through their ``text_config``."""

    def __init__(self, path: str, raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.path, self.config, self.tensors = path, raw, tensors
        nested = raw.get("text_config")
        self._text: Mapping[str, Any] = nested if isinstance(nested, Mapping) else raw

    @property
    def name(self) -> str:
        return Path(self.path).name or self.path

    def _integer(self, field: str) -> int:
        value = self._text.get(field)
        if not isinstance(value, int):
            raise MissingPart(f"the target's config has no whole number {field!r}", where=self.path, hint="give the folder of the target itself")
        return value

    @property
    def hidden_size(self) -> int:
        return self._integer("hidden_size")

    @property
    def n_layers(self) -> int:
        return self._integer("num_hidden_layers")

    @property
    def vocab_size(self) -> int:
        return self._integer("vocab_size")

    @property
    def rms_norm_eps(self) -> float:
        return float(self._text.get("rms_norm_eps", 1e-6))

    @cached_property
    def config_hash(self) -> str:
        """16 hex digits of the SHA-256 of the canonical config."""
        return hashlib.sha256(json.dumps(self.config, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()[:16]

    def _find(self, stem: str, prefixes: tuple[str, ...] = PREFIXES) -> Tensor:
        for prefix in prefixes:
            if prefix + stem in self.tensors:
                return self.tensors[prefix + stem]
        raise MissingPart(f"the target has no {stem!r}", where=self.path, hint="give the folder of the target itself")

    def embedding(self) -> Tensor:
        """Token embedding [V, H]."""
        return self._find("embed_tokens.weight")

    def final_norm(self) -> Tensor:
        """Weight of the last norm [H]."""
        return self._find("norm.weight")

    def head(self) -> Tensor:
        """Output head [V, H]; the embedding where the two are tied."""
        for prefix in ("", "language_model.", "model."):
            if prefix + "lm_head.weight" in self.tensors:
                return self.tensors[prefix + "lm_head.weight"]
        return self.embedding()

    def __repr__(self) -> str:
        return f"Target({self.name!r}, {self.n_layers} blocks, H={self.hidden_size}, vocabulary {self.vocab_size})"


def open_target(source: str | os.PathLike[str] | Target) -> Target:
    """The target in folder ``source``; an open one as it is. Only headers are read until a tensor is asked for.

    Raises
    ------
    UnreadableFile, MissingPart: see :class:`~eagle3diag.checkpoints.tensors.TensorFiles`.
    """
    if isinstance(source, Target):
        return source
    path = Path(source)
    tensors = TensorFiles.open(path)
    return Target(str(path), read_json((path if path.is_dir() else path.parent) / "config.json"), tensors)
