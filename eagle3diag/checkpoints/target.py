"""A target on disk, as far as a draft needs it: sizes, embedding, head and final norm."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from eagle3diag.checkpoints.fields import Fields, dtype_of, rope
from eagle3diag.checkpoints.tensors import TensorFiles, Tensors
from eagle3diag.errors import MissingPart, UnreadableFile
from eagle3diag.files import existing, kind, read_json

#: Where the text model's parameters may lie inside plain and multimodal targets.
PREFIXES = ("model.", "language_model.model.", "model.language_model.", "language_model.", "thinker.model.", "transformer.", "")


class Target:
    """The target's config and the three tensors that drafts borrow. Multimodal targets are read through their ``text_config``."""

    def __init__(self, path: str, raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.path, self.config = path, raw
        self.tensors: Tensors = Tensors.of(tensors)
        self.text_config: Mapping[str, Any] = text_config(raw)
        self._fields = Fields(self.text_config, f"{path} (config)")
        self._fields.text("model_type")  # looked up as it stands

    @property
    def name(self) -> str:
        """``org/name`` inside Hugging Face's cache, else the folder's name: no path of anybody's machine."""
        for part in Path(self.path).parts:
            if part.startswith("models--"):
                return part.removeprefix("models--").replace("--", "/", 1)
        return Path(self.path).name or self.path

    def _integer(self, field: str) -> int:
        value = self._fields.integer(field)
        if value is None:
            hint = "give the folder of the target itself"
            raise MissingPart(f"the target's config has no whole number {field!r}", where=self.path, hint=hint)
        return value

    @property
    def hidden_size(self) -> int:
        """``H``, the width of the residual stream."""
        return self._integer("hidden_size")

    @property
    def n_layers(self) -> int:
        """Blocks, ``num_hidden_layers``: the highest boundary."""
        return self._integer("num_hidden_layers")

    @property
    def vocab_size(self) -> int:
        """Tokens of the tokenizer's side, ``V``."""
        return self._integer("vocab_size")

    @property
    def rms_norm_eps(self) -> float:
        """Epsilon of the norms; 1e-6, LlamaConfig's default, when the config has none."""
        return self._fields.number("rms_norm_eps", "norm_eps", "layer_norm_eps") or 1e-6

    @property
    def rope(self) -> tuple[float, Mapping[str, Any] | None]:
        """RoPE base and scaling, as :func:`~eagle3diag.checkpoints.fields.rope` reads them."""
        return rope(self._fields)

    @property
    def max_position_embeddings(self) -> int | None:
        """The longest context that the config names."""
        return self._fields.integer("max_position_embeddings")

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The ``quantization_config``, wherever a multimodal config has it; empty for plain weights."""
        for part in (self.config, self.text_config):
            found = part.get("quantization_config")
            if isinstance(found, Mapping):
                return found
        return {}

    @cached_property
    def end_tokens(self) -> tuple[int, ...]:
        """Ids that end an answer: of ``generation_config.json`` where there is one that names some, else of the config.

        Raises
        ------
        UnreadableFile: ``generation_config.json`` is there and is no JSON object.
        """
        return _ids(self._beside("generation_config.json").get("eos_token_id")) or _ids(self.text_config.get("eos_token_id"))

    @cached_property
    def special_tokens(self) -> Mapping[int, str]:
        """Id -> word of the special tokens that ``tokenizer_config.json`` lists (chat marks among them); empty where it lists none."""
        listed = self._beside("tokenizer_config.json").get("added_tokens_decoder")
        if not isinstance(listed, Mapping):
            return {}
        return {
            int(i): str(entry.get("content"))
            for i, entry in listed.items()
            if isinstance(entry, Mapping) and entry.get("special") is True and i.isdecimal() and len(i) < 10
        }

    def _beside(self, name: str) -> Mapping[str, Any]:
        """A JSON file in the target's folder; empty where there is none, as for a target in memory."""
        path = Path(self.path)
        file = (path if kind(path) == "folder" else path.parent) / name
        return read_json(file) if kind(file) == "file" else {}

    @property
    def dtype(self) -> str | None:
        """The dtype that the config names, such as ``"bfloat16"``."""
        return dtype_of(self._fields) or dtype_of(Fields(self.config, self.path))

    @cached_property
    def config_hash(self) -> str:
        """16 hex digits of the SHA-256 of the canonical config."""
        return digest(self.config)

    def _find(self, stem: str, prefixes: tuple[str, ...] = PREFIXES) -> Tensor:
        for prefix in prefixes:
            if prefix + stem in self.tensors:
                return self.tensors[prefix + stem]
        hint = "give the folder of the target itself" + ("" if len(self.tensors) else ": this one holds a config but no weights")
        raise MissingPart(f"the target has no {stem!r} under any usual prefix", where=self.path, hint=hint)

    def _table(self, tensor: Tensor, what: str) -> Tensor:
        if tensor.dim() != 2 or not tensor.numel():
            hint = "give the target's full checkpoint"
            raise UnreadableFile(f"{what} is {list(tensor.shape)}, expected [tokens, hidden size]", where=self.path, hint=hint)
        return tensor

    def embedding(self) -> Tensor:
        """Token embedding [V, H]. Raises :class:`~eagle3diag.errors.MissingPart`."""
        return self._table(self._find("embed_tokens.weight"), "the embedding")

    def final_norm(self) -> Tensor:
        """Weight of the last norm [H], as stored (some families multiply by one plus it)."""
        return self._find("norm.weight")

    def head(self) -> Tensor:
        """Output head [V, H]; the embedding where the two are tied.

        Raises
        ------
        MissingPart: no head is stored although the config says that it is not tied (a quantised head, or a shard left out).
        """
        for prefix in ("", "language_model.", "model.", "thinker."):
            if prefix + "lm_head.weight" in self.tensors:
                return self._table(self.tensors[prefix + "lm_head.weight"], "the head")
        said = [c.get("tie_word_embeddings") for c in (self.text_config, self.config)]
        if False in said and True not in said:
            hint = "give the target's full checkpoint, not quantised"
            raise MissingPart("the target has no 'lm_head.weight', and tie_word_embeddings is false", where=self.path, hint=hint)
        return self.embedding()

    def __repr__(self) -> str:
        return f"Target({self.name!r}, {self.n_layers} blocks, H={self.hidden_size}, vocabulary {self.vocab_size})"


TargetSource: TypeAlias = str | os.PathLike[str] | Target
"""The folder of a target, or an open one."""


def open_target(source: TargetSource) -> Target:
    """The target in folder ``source``; an open one as it is. Only headers are read until a tensor is asked for.

    Raises
    ------
    UnreadableFile, MissingPart: see :class:`~eagle3diag.checkpoints.tensors.TensorFiles`.
    """
    if isinstance(source, Target):
        return source
    path = existing(source, "a target (a folder with config.json and weights)")
    raw = read_json((path if kind(path) == "folder" else path.parent) / "config.json")
    return Target(str(path), raw, TensorFiles.open(path))


def digest(config: object) -> str:
    """16 hex digits of the SHA-256 of a config written canonically: what tells two targets apart."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()[:16]


def _ids(value: object) -> tuple[int, ...]:
    """One id or a list of them, as tuple; what is neither counts as none."""
    listed = value if isinstance(value, list) else [value]
    return tuple(i for i in listed if type(i) is int and i >= 0)


def text_config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a multimodal config; a plain config as it is."""
    found: Mapping[str, Any] | None = raw
    while found is not None:
        raw = found
        inside = [raw.get(key) for key in ("text_config", "thinker_config", "llm_config", "language_config")]
        found = next((i for i in inside if isinstance(i, Mapping) and ("hidden_size" in i or "text_config" in i)), None)
    return raw
