"""NVIDIA Model-Optimizer's hidden states: one ``{conversation_id}.pt`` a conversation."""

from __future__ import annotations

from typing import Any

from eagle3diag.dumps.formats.base import Content, Facts, files, tensors


def _content(value: Any) -> list[Content]:
    raw = bool(value.get("hidden_states_prenorm", False))
    last = {"last" if raw else "final": value["hidden_states"]}
    name = value.get("conversation_id")
    return [
        Content(
            value["input_ids"],
            value["aux_hidden_states"],
            loss_mask=value.get("loss_mask"),
            name=name if isinstance(name, str) else None,
            **last,
        )
    ]


# examples/speculative_decoding/collect_hidden_states/compute_hidden_states_{hf,trtllm,vllm}.py
FORMAT = files(
    "Model-Optimizer hidden states",
    lambda v: tensors(v, "input_ids", "hidden_states", "aux_hidden_states"),
    _content,
    Facts(
        "modelopt",
        assumed=(
            "hidden_states is the last state after the final norm, unless hidden_states_prenorm is set; the vllm script writes it before the "
            "norm and does not say so: check_dump(dump, target=) decides",
            "the blocks are those that the hf and trtllm scripts write; the vllm script captures each one boundary early",
            "input_ids are not shifted",
        ),
    ),
)
