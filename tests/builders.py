"""Small drafts, targets and dumps on disk and in memory, seeded: hidden 32, vocabulary 128 reduced to 64, six blocks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from safetensors.torch import save_file
from small import VD, H, V, small_draft
from torch import Tensor

from eagle3diag.checkpoints import Draft, Target, TensorFiles
from eagle3diag.dumps import DumpWriter, HiddenStates, TargetIdentity

#: Property tests: repeatable, light, and free to share a folder that no example changes.
LIGHT = settings(deadline=None, derandomize=True, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])

BLOCKS = 6
#: What ``small_draft`` declares as output ids [1, 2, 3].
AUX = (2, 3, 4)
IDENTITY = TargetIdentity("small", "0123456789abcdef", "bfloat16", BLOCKS, H)


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """``config.json`` and ``model.safetensors`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_draft(folder: Path, draft: Draft | None = None, **config: Any) -> Path:
    """A draft's folder; ``config`` overrides raw fields, None leaves one out."""
    draft = draft or small_draft()
    raw = {k: v for k, v in {**draft.config.raw, **config}.items() if v is not None}
    return write_model(folder, raw, dict(draft.tensors.items()))


def speculators_config(**changes: Any) -> dict[str, Any]:
    """A config as speculators 0.9 writes it, for the tensors of ``small_draft``; the aux ids are STATE ids."""
    layer = {
        "model_type": "llama", "hidden_size": H, "head_dim": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
        "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "vocab_size": V,
        "max_position_embeddings": 512, "attention_bias": False, "hidden_act": "silu",
    }  # fmt: skip
    top = {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "draft_vocab_size": VD, "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": list(AUX), "norm_before_residual": True, "norm_before_fc": False, "fc_norm": False,
        "norm_output": True, "tie_word_embeddings": False, "dtype": "bfloat16", "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy", "verifier": {"name_or_path": None, "architectures": []},
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5, "accept_tolerance": 0.0, "verifier_accept_k": 1}],
        },
    }  # fmt: skip
    return top | changes


TARGET_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": H, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": BLOCKS, "vocab_size": V, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def target_tensors(seed: int = 1, prefix: str = "model.", head: str | None = "lm_head.weight") -> dict[str, Tensor]:
    """The three tensors that a draft borrows; ``head=None`` for a target that ties them."""
    g = torch.Generator().manual_seed(seed)
    tensors = {
        f"{prefix}embed_tokens.weight": torch.randn(V, H, generator=g).bfloat16(),
        f"{prefix}norm.weight": (torch.rand(H, generator=g) + 0.5).bfloat16(),
    }
    return tensors if head is None else tensors | {head: torch.randn(V, H, generator=g).bfloat16()}


def small_target(seed: int = 1) -> Target:
    """The target in memory."""
    return Target("small", TARGET_CONFIG, target_tensors(seed))


def record_tensors(index: int, tokens: int = 12) -> dict[str, Any]:
    """One record's parts: ids, the aux states in bf16, the final state."""
    g = torch.Generator().manual_seed(100 + index)
    return {
        "name": f"r{index}",
        "input_ids": torch.randint(V, (tokens,), generator=g),
        "states": {b: torch.randn(tokens, H, generator=g).bfloat16() for b in AUX},
        "final": torch.randn(tokens, H, generator=g).bfloat16(),
        "prompt_length": 4,
    }


def small_dump(records: int = 3, side: str = "train", tokens: int = 12) -> HiddenStates:
    """A dump in memory, of random states."""
    return HiddenStates.from_tensors([record_tensors(i, tokens) for i in range(records)], side=side, target=IDENTITY, boundaries=AUX)


def write_dump(folder: Path, records: int = 3, side: str = "train", **facts: Any) -> Path:
    """The same dump on disk; ``max_shard_bytes=1`` gives a shard per record."""
    with DumpWriter(folder, side=side, target=IDENTITY, engine="transformers", engine_version="5.24.0", boundaries=AUX, **facts) as writer:
        for i in range(records):
            writer.add(**record_tensors(i))
    return folder


def tensors_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tensors that are read from files from now on, as they are read."""
    read: list[str] = []
    real = TensorFiles.__getitem__

    def noted(self: TensorFiles, name: str) -> Tensor:
        read.append(name)
        return real(self, name)

    monkeypatch.setattr(TensorFiles, "__getitem__", noted)
    return read
