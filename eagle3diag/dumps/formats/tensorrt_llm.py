"""TensorRT-LLM's SaveState files: a list of requests in each ``{prefix}_{iteration}.pt``."""

from __future__ import annotations

from typing import Any

from eagle3diag.dumps.formats.base import Content, Facts, files, tensors


def _requests(value: Any) -> list[Content]:
    made = []
    for request in value:
        aux, last = request.get("aux_hidden_states"), None
        hidden = request["hidden_state"].shape[-1]
        if aux is not None and aux.shape[-1] == 4 * hidden:  # id -1 was asked for too: the last block's output, before the norm
            aux, last = aux[..., : 3 * hidden], aux[..., 3 * hidden :]
        made.append(
            Content(request["input_ids"], aux, final=request["hidden_state"], last=last, name=str(request.get("id", ""))[:100] or None)
        )
    return made


# tensorrt_llm/_torch/speculative/save_hidden_state.py, SaveHiddenStatesDecodingConfig
FORMAT = files(
    "TensorRT-LLM SaveState list",
    lambda v: isinstance(v, list) and bool(v) and all(tensors(r, "input_ids", "hidden_state") for r in v[:2]),
    _requests,
    Facts(
        "tensorrt_llm",
        several=True,
        assumed=(
            "hidden_state is the last state after the final norm",
            "every request was one context chunk alone in its batch; rows of others start at the wrong place",
            "input_ids are not shifted",
        ),
    ),
)
