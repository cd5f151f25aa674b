"""EAGLE's ge_data and its descendants: the last state alone (EAGLE, BaldEagle), three fused ones, or both (speculators' research code)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from eagle3diag.dumps.formats.base import Content, Facts, files, tensors


def _alone(value: Any) -> list[Content]:
    """``hidden_state`` [T, H] or [1, T, H] is the last state; [3, T, H] are the states that generate_data_fused_features.py captures."""
    states: Tensor = value["hidden_state"]
    ids = value["input_ids"]
    if states.dim() == 3 and states.shape[0] > 1:
        return [Content(ids, list(states), loss_mask=value.get("loss_mask"))]
    return [Content(ids, final=states, loss_mask=value.get("loss_mask"))]


# SafeAILab/EAGLE ge_data; NickL77/BaldEagle generate_data.py and generate_data_fused_features.py
ALONE = files(
    "EAGLE ge_data",
    lambda v: tensors(v, "input_ids", "hidden_state") and not {"aux_hidden_state", "aux_hidden_states", "target"} & set(v),
    _alone,
    Facts("eagle", assumed=("a lone hidden_state is the last state after the final norm", "input_ids are not shifted")),
)

# vllm-project/speculators research/eagle3/ge_data (0.1, 0.2): hidden_states[3], [n//2 + 1], [-3] of the n + 1 that Transformers gives
RESEARCH = files(
    "speculators research ge_data",
    lambda v: tensors(v, "input_ids", "hidden_state", "target"),
    lambda v: [Content(v["input_ids"], v["hidden_state"], final=v["target"], loss_mask=v.get("loss_mask"))],
    Facts(
        "speculators",
        defaults=lambda n: (3, n // 2 + 1, n - 2),
        assumed=("target is the last state after the final norm", "input_ids are not shifted"),
    ),
)
