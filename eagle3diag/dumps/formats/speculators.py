"""speculators' training data and what vLLM writes for it: ``data_*.pt`` (0.3, 0.4), ``hs_*.safetensors`` (0.5 and later), fp8 too."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from eagle3diag.dumps.formats.base import Asked, Content, Facts, Format, Unread, assemble, files, shown, tensors, unread
from eagle3diag.dumps.places import Place
from eagle3diag.dumps.records import HiddenStates
from eagle3diag.errors import InputError, UnreadableFile


def _config_boundaries(place: Place, names: tuple[str, ...]) -> tuple[int, ...] | None:
    """``layer_ids`` of data_config.json, which 0.3 and 0.4 write beside the data: outputs of layers, so boundary = id + 1; the last is the
    last block's and no aux state."""
    beside = next((n for n in place.names if n.rpartition("/")[2] == "data_config.json"), None)
    try:
        config = place.read_json(beside) if beside else {}
    except InputError:
        return None
    states = config.get("hidden_states")
    ids = states.get("layer_ids") if isinstance(states, dict) else None
    if not isinstance(ids, list) or len(ids) < 2 or not all(type(i) is int and 0 <= i < 1 << 16 for i in ids):
        return None
    return tuple(i + 1 for i in ids[:-1])


# speculators/data_generation/custom_worker.py (0.3, 0.4); format.file_pattern "data_{idx}.pt"
V1 = files(
    "speculators 0.3 / 0.4 data",
    lambda v: isinstance(v, dict) and isinstance(v.get("hidden_states"), list) and tensors(v, "input_ids"),
    lambda v: [Content(v["input_ids"], v["hidden_states"][:-1], last=v["hidden_states"][-1], loss_mask=v.get("loss_mask"))],
    lambda place, names: Facts(
        "speculators",
        defaults=lambda n: (3, n // 2 + 1, n - 2),  # layer_ids [2, n//2, n-3], captured after those layers
        boundaries=_config_boundaries(place, names),
        assumed=("the last of the hidden_states is the last block's output before the final norm", "input_ids are not shifted"),
    ),
)


def _read(place: Place, names: tuple[str, ...], asked: Asked) -> HiddenStates:
    """``hidden_states`` [T, L, H], ascending; L states of which the last is taken for the last block's unless the caller said otherwise."""
    said = len(asked.boundaries) if asked.boundaries is not None else None

    def opened(file: str) -> list[Content]:
        value = place.open(file)
        if not _is_sample(value):
            raise UnreadableFile("is not a file of hidden_states [T, L, H] and token_ids", where=place.label(file), hint="write it again")
        count, states = shown(value, "hidden_states").shape[1], _floating(value)
        apart = count > 1 and (count == said + 1 if said is not None else count != 3)
        return [
            Content(
                unread(value, "token_ids"),
                states.map(lambda s: (s[:, :-1] if apart else s).flatten(1)),
                last=states.map(lambda s: s[:, -1]) if apart else None,
                loss_mask=unread(value, "loss_mask") if "loss_mask" in value else None,
            )
        ]

    count = shown(place.open(names[0]), "hidden_states").shape[1]
    lone = count == said or (said is None and count == 3)
    facts = Facts(
        "vllm",
        assumed=(
            "hidden_states are un-normed residual streams in ascending order (vLLM's ids count the blocks before)",
            "all of them are aux states"
            if lone
            else "the last of them is the last block's, the others are aux states (speculators' launch_vllm)",
            *(("some files were still being written when they were listed",) if place.locked & set(names) else ()),
        ),
    )
    return assemble("speculators / vLLM hidden states", place, names, opened, facts, asked)


def _is_sample(value: Any) -> bool:
    return tensors(value, "hidden_states", "token_ids") and shown(value, "hidden_states").dim() == 3


def _floating(value: Any) -> Unread:
    """fp8 states times their scale per token (hs_connectors/fp8_utils.py); others as they are."""
    states = unread(value, "hidden_states")
    if "hidden_states_scales" not in value:
        return states
    scales = unread(value, "hidden_states_scales")

    def scaled(small: Tensor, by: Tensor) -> Tensor:
        return small.bfloat16() * by.bfloat16()

    return Unread(scaled(states.shown, scales.shown), lambda: scaled(states.read(), scales.read()))


# vllm/distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py; hs_connectors FileTransfer and FP8Transfer
V2 = Format("speculators / vLLM hidden states", lambda _, value: _is_sample(value), _read)
