"""Tencent AngelSlim's hidden states: ``rank_r/rows_*/data_*.ckpt``, where ``hidden_states`` are the aux states."""

from __future__ import annotations

from eagle3diag.dumps.formats.base import Content, Facts, files, tensors

# tools/generate_hidden_for_draft_model.py
FORMAT = files(
    "AngelSlim hidden states",
    lambda v: tensors(v, "input_ids", "hidden_states", "target_hiddens"),
    lambda v: [
        Content(
            v["input_ids"],
            v["hidden_states"],
            final=v["target_hiddens"],
            loss_mask=v.get("loss_mask"),
            positions=v.get("position_ids"),
        )
    ],
    Facts(
        "angelslim",
        assumed=(
            "target_hiddens is the last state after the final norm; the vLLM backend falls back to the one before it with a warning only: "
            "check_dump(dump, target=) decides",
            "input_ids are not shifted",
        ),
    ),
)
