"""TorchSpec's debug dump of what a training step was fed (``save_debug_train_data``): a batch in each file."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from eagle3diag.dumps.formats.base import Content, Facts, files, tensors


def _batch(value: Any) -> list[Content]:
    batch = value["batch"]
    ids: Tensor = batch["input_ids"]
    ids = ids[None] if ids.dim() == 1 else ids
    made = []
    for i in range(ids.shape[0]):
        # padded on either side: the mask says which columns are tokens
        mask = batch["attention_mask"].reshape(ids.shape)[i].bool() if batch.get("attention_mask") is not None else None

        def row(key: str, i: int = i, mask: Any = mask) -> Any:
            held = batch.get(key)
            if held is None:
                return None
            one = held[i] if held.dim() > (1 if key == "loss_mask" else 2) else held
            return one if mask is None or bool(mask.all()) else one[mask]

        kept = ids[i] if mask is None or bool(mask.all()) else ids[i][mask]
        made.append(Content(kept, row("hidden_states"), final=row("last_hidden_states"), loss_mask=row("loss_mask")))
    return made


# torchspec/utils/train_dump.py
FORMAT = files(
    "TorchSpec training batch",
    lambda v: isinstance(v, dict) and tensors(v.get("batch"), "input_ids", "hidden_states"),
    _batch,
    Facts(
        "torchspec",
        several=True,
        assumed=(
            "last_hidden_states is after the final norm, as the SGLang and Transformers engines give it; the vLLM engine gives it before: "
            "check_dump(dump, target=) decides",
            "input_ids are not shifted",
        ),
    ),
)
