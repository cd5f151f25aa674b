"""NVIDIA NeMo Automodel's EAGLE-3 cache: ``manifest.json`` and safetensors shards of padded samples, whose ids are already shifted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eagle3diag.dumps.formats.base import Asked, Content, Facts, Format, assemble, tensors
from eagle3diag.dumps.places import Place
from eagle3diag.dumps.records import HiddenStates
from eagle3diag.errors import MissingPart, UnreadableFile

_FIELDS = ("aux_hidden_dim", "shard_size", "num_samples")


def _samples(value: Any) -> list[Content]:
    """Row t of the states is token t; ``input_ids`` and ``loss_mask`` hold t + 1 there. Token 0 is not stored, so row 0 is left out."""
    made = []
    for i in range(value["input_ids"].shape[0]):
        ids, aux, mask = value["input_ids"][i], value["aux_hidden_states"][i], value.get("loss_mask")
        length = _tokens(value, i, len(ids))
        made.append(
            Content(
                ids[: length - 1],
                aux[1:length],
                loss_mask=None if mask is None else mask[i][: length - 1],
                positions=torch.arange(1, length),
            )
        )
    return made


def _tokens(value: Any, i: int, width: int) -> int:
    """Tokens of sample ``i`` before its padding on the right, at least two: one alone has no id."""
    mask: Tensor | None = value.get("attention_mask")
    return max(2, int(mask[i].bool().sum())) if mask is not None else width


def _read(place: Place, names: tuple[str, ...], asked: Asked) -> HiddenStates:
    manifest = place.open(names[0])
    folder = names[0].rpartition("/")[0]
    shards = tuple(n for n in place.names if n.rpartition("/")[0] == folder and n.rpartition("/")[2].startswith("shard-"))
    if not shards:
        raise MissingPart("no shard-*.safetensors next to the manifest", where=place.label(names[0]), hint="copy the whole folder")

    def opened(file: str) -> list[Content]:
        value = place.open(file)
        if not tensors(value, "input_ids", "aux_hidden_states") or value["aux_hidden_states"].dim() != 3 or value["input_ids"].dim() != 2:
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
