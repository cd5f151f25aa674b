"""The plainest dump: files with the token ids and the fused features of one sequence, under any of the names that people give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3diag.dumps.formats.base import Content, Facts, files, flat, shown, tensors, unread

IDS = ("input_ids", "token_ids", "tokens", "ids")
FEATURES = ("features", "hidden_states", "aux_hidden_states", "aux")
BESIDE = ("loss_mask", "positions")


def _one(value: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """Which of ``names`` is a tensor's; None unless exactly one of them is there."""
    found = [name for name in names if tensors(value, name)]
    return found[0] if len(found) == 1 else None


def _fits(value: Any) -> bool:
    """One row of numbers for each token and nothing unknown beside, so that there is nothing to guess but the names."""
    if not isinstance(value, Mapping) or not set(value) <= {*IDS, *FEATURES, *BESIDE}:
        return False
    ids, features = _one(value, IDS), _one(value, FEATURES)
    if ids is None or features is None:
        return False
    tokens, rows = (flat(shown(value, name), dims) for name, dims in ((ids, 1), (features, 2)))
    if tokens.is_floating_point() or not rows.is_floating_point():
        return False
    return tokens.dim() == 1 and rows.dim() == 2 and len(tokens) == len(rows)


def _content(value: Any) -> list[Content]:
    beside: dict[str, Any] = {name: unread(value, name) for name in BESIDE if name in value}
    return [Content(unread(value, _one(value, IDS) or ""), unread(value, _one(value, FEATURES) or ""), **beside)]


FORMAT = files(
    "plain ids and features",
    _fits,
    _content,
    Facts(
        "unknown",
        assumed=("the states are what the draft is fed, side by side", "input_ids are not shifted"),
    ),
)
