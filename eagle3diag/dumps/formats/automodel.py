"""NVIDIA NeMo Automodel's EAGLE-3 cache: ``manifest.json`` and safetensors shards of padded samples, whose ids are already shifted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eagle3diag.dumps.formats.base import Asked, Content, Facts, Format, Unread, assemble, shown, tensors, unread
from eagle3diag.dumps.places import Place
from eagle3diag.dumps.records import HiddenStates
from eagle3diag.errors import MissingPart, UnreadableFile

_FIELDS = ("aux_hidden_dim", "shard_size", "num_samples")


def _samples(value: Any) -> list[Content]:
    """Row t of the states is token t; ``input_ids`` and ``loss_mask`` hold t + 1 there. Token 0 is not stored, so row 0 is left out."""
    count, width = shown(value, "input_ids").shape
    mask: Tensor | None = value.get("attention_mask")
    return [_sample(value, i, width if mask is None else max(2, int(mask[i].bool().sum()))) for i in range(count)]


def _sample(value: Any, i: int, length: int) -> Content:
    """Sample ``i`` of so many tokens before its padding on the right: at least two, as one alone has no id."""

    def shifted(name: str) -> Unread:
        return unread(value, name, i).map(lambda t: t[: length - 1])

    return Content(
        shifted("input_ids"),
        unread(value, "aux_hidden_states", i).map(lambda t: t[1:length]),
        loss_mask=shifted("loss_mask") if "loss_mask" in value else None,
        positions=torch.arange(1, length),
    )


def _read(place: Place, names: tuple[str, ...], asked: Asked) -> HiddenStates:
    manifest = place.open(names[0])
    folder = names[0].rpartition("/")[0]
    shards = tuple(n for n in place.names if n.rpartition("/")[0] == folder and n.rpartition("/")[2].startswith("shard-"))
    if not shards:
        raise MissingPart("no shard-*.safetensors next to the manifest", where=place.label(names[0]), hint="copy the whole folder")

    def opened(file: str) -> list[Content]:
        value = place.open(file)
        axes = {"input_ids": 2, "aux_hidden_states": 3}
        if not tensors(value, *axes) or any(shown(value, part).dim() != n for part, n in axes.items()):
            message = "is not a shard of the cache: input_ids [n, S] and aux_hidden_states [n, S, W] are expected"
            raise UnreadableFile(message, where=place.label(file), hint="precompute the cache again")
        return _samples(value)

    ids = manifest.get("aux_layer_ids")
    known = ids if isinstance(ids, list) and ids and all(type(i) is int and 0 <= i < 1 << 16 for i in ids) else None
    facts = Facts(
        "automodel",
        boundaries=None if known is None else tuple(i + 1 for i in known),
        several=True,
        assumed=(
            "input_ids and loss_mask are shifted left by one and were put back; token 0 is not stored, so its row is left out",
            "aux_layer_ids are outputs of layers, in their listed order",
            "no last state is stored, only the target's probabilities, which are not read",
        ),
    )
    return assemble("NeMo Automodel cache", place, shards, opened, facts, asked)


# nemo_automodel/components/speculative/precompute_eagle3.py, format_version 2
FORMAT = Format("NeMo Automodel cache", lambda _, v: isinstance(v, dict) and all(f in v for f in _FIELDS) and "format" not in v, _read)
