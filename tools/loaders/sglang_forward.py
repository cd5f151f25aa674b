"""Runs a real SGLang's target and draft classes once over a prompt, without its kernels, under our recorder, and writes what each was given.

    python tools/loaders/sglang_forward.py FOLDER

``FOLDER`` holds ``target`` and ``draft``, two checkpoints. What replaces the attention kernel is plain and causal; all else is the engine's own:
decoder layers, norms, and what the target's model gives for its ``layers_to_capture``. Written are ``live``, the dump, and ``truth.safetensors``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sglang_load  # which puts stand-ins where kernels are missing
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import scaled_dot_product_attention

from eagle3diag.capture.sglang import record_runner

IDS = [3, 17, 4, 80, 55, 21, 9, 63]


def attend(self: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """One sequence, causal, heads side by side."""
    query, key, value = (t.view(len(t), -1, self.head_dim).transpose(0, 1) for t in (q, k, v))
    return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True).transpose(0, 1).reshape(len(q), -1)


def loaded(folder: Path) -> Any:
    sglang_load.own_norm()
    model = sglang_load.build(folder)
    tensors = load_file(folder / "model.safetensors")
    model.load_weights(iter(tensors.items()))
    return model.eval()


class Batch(SimpleNamespace):
    """A prefill of one prompt; whatever else a version asks of it is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def batch(ids: list[int], **fields: Any) -> Batch:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    where = {"rids": ["a"], "input_ids": torch.tensor(ids), "positions": torch.arange(len(ids)), "extend_seq_lens_cpu": [len(ids)]}
    return Batch(forward_mode=ForwardMode.EXTEND, batch_size=1, contains_mm_inputs=lambda: False, **where, **fields)


def main(folder: Path) -> None:
    sglang_load.start(folder / "target")
    from sglang.srt.layers.radix_attention import RadixAttention

    RadixAttention.forward = attend
    target, draft = loaded(folder / "target"), loaded(folder / "draft")
    target.set_eagle3_layers_to_capture([1, 2, 4])
    options: dict[str, Any] = {"boundaries": range(len(target.model.layers) + 1), "target": str(folder / "target")}
    with torch.no_grad(), record_runner(target, str(folder / "live"), draft=draft, **options):
        one = batch(IDS)
        final, aux = target.model(one.input_ids, one.positions, one)
        fed = torch.cat(list(aux), -1)
        truth = {"final": final.clone(), "fed": fed.clone()}
        two = batch([*IDS[1:], 50], spec_info=SimpleNamespace(hidden_states=fed))
        if hasattr(draft.model, "set_embed"):
            draft.model.set_embed(target.model.embed_tokens.weight)
        draft.model(two.input_ids, two.positions, two)
    save_file({**truth, "layers": torch.tensor(sorted(target.model.layers_to_capture))}, folder / "truth.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
