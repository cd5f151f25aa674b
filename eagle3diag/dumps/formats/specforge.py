"""SpecForge's offline features: ``data_*.ckpt`` or ``.ckpt.gz`` with the aux states side by side and the last state after the norm."""

from __future__ import annotations

from eagle3diag.dumps.formats.base import Content, Facts, files, tensors

# scripts/prepare_hidden_states.py (classic) and OfflineCaptureLayout, schema specforge_hidden_states_v1 (0.2.0)
FORMAT = files(
    "SpecForge offline features",
    lambda v: tensors(v, "input_ids", "loss_mask", "hidden_state") and "aux_hidden_state" in v,
    lambda v: [Content(v["input_ids"], v["aux_hidden_state"], final=v["hidden_state"], loss_mask=v["loss_mask"])],
    Facts(
        "specforge",
        assumed=(
            "hidden_state is the last state after the final norm",
            "input_ids are not shifted",
            "rows after the last token may be the padding of a batch, which the files do not mark",
        ),
    ),
)
