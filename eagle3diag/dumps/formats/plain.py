"""The plainest dump: files with the token ids and the fused features of one sequence, under any of the names that people give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from eagle3diag.dumps.formats.base import Content, Facts, files

IDS = ("input_ids", "token_ids", "tokens", "ids")
FEATURES = ("features", "hidden_states", "aux_hidden_states", "aux")
BESIDE = ("loss_mask", "positions")


def _one(value: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The tensor under one of ``names``; None unless exactly one of them is there."""
    found = [value[name] for name in names if isinstance(value.get(name), Tensor)]
    return found[0] if len(found) == 1 else None


def _flat(tensor: Tensor, dims: int) -> Tensor:
    return tensor[0] if tensor.dim() == dims + 1 and tensor.shape[0] == 1 else tensor


def _fits(value: Any) -> bool:
    """One row of numbers for each token and nothing unknown beside, so that there is nothing to guess but the names."""
    if not isinstance(value, Mapping) or not set(value) <= {*IDS, *FEATURES, *BESIDE}:
        return False
    ids, features = _one(value, IDS), _one(value, FEATURES)
    if ids is None or features is None or ids.is_floating_point() or not features.is_floating_point():
        return False
    ids, features = _flat(ids, 1), _flat(features, 2)
    return ids.dim() == 1 and features.dim() == 2 and len(ids) == len(features)


FORMAT = files(
    "plain ids and features",
    _fits,
    lambda v: [Content(_one(v, IDS), _one(v, FEATURES), loss_mask=v.get("loss_mask"), positions=v.get("positions"))],
    Facts(
        "unknown",
        assumed=("the states are what the draft is fed, side by side", "input_ids are not shifted"),
    ),
)
