"""What a target's final norm multiplies by, which is not always the stored weight."""

from __future__ import annotations

from torch import Tensor

from eagle3diag.checkpoints import TargetSource, open_target

# model_type of every family whose RMS norm multiplies by (1 + weight): read off the modelling files of Transformers 5.24.0
_UNIT_OFFSET = (
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "minimax_m3_vl",
    "minimax_m3_vl_text",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_next",
    "recurrent_gemma",
    "step3p7",
    "vaultgemma",
)


def final_norm_gain(target: TargetSource | Tensor) -> Tensor:
    """The gain [H] of the final norm, float32 on the CPU, of a target (anything :func:`eagle3diag.open_target` takes) or given as a tensor."""
    if isinstance(target, Tensor):
        return target.detach().cpu().flatten().float()
    opened = open_target(target)
    weight = opened.final_norm().cpu().float()
    return weight + 1 if opened.text_config.get("model_type") in _UNIT_OFFSET else weight
