"""A small sound draft in memory, for tests that break it in one place."""

from __future__ import annotations

import torch

from eagle3diag.checkpoints import Draft
from eagle3diag.checkpoints.config import read_config

H, INNER, V, VD = 32, 48, 128, 64


def small_draft(seed: int = 0) -> Draft:
    """Hidden 32, 4 heads of 8 with 2 key heads, vocabulary 128 reduced to 64, three aux states, SafeAILab's names."""
    g = torch.Generator().manual_seed(seed)

    def w(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g) * 0.1

    ids = torch.randperm(V, generator=g)[:VD].sort().values
    names = {
        "self_attn.q_proj": (32, 2 * H), "self_attn.k_proj": (16, 2 * H), "self_attn.v_proj": (16, 2 * H), "self_attn.o_proj": (H, 32),
        "mlp.gate_proj": (INNER, H), "mlp.up_proj": (INNER, H), "mlp.down_proj": (H, INNER),
    }  # fmt: skip
    tensors = {f"midlayer.{name}.weight": w(*shape) for name, shape in names.items()}
    tensors |= {
        f"midlayer.{name}.weight": torch.rand(H, generator=g) + 0.5
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    }
    tensors |= {"fc.weight": w(H, 3 * H), "norm.weight": torch.rand(H, generator=g) + 0.5, "lm_head.weight": w(VD, H)}
    tensors |= {"d2t": ids - torch.arange(VD), "t2d": torch.zeros(V, dtype=torch.bool).index_fill_(0, ids, True)}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": H, "intermediate_size": INNER, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 1, "vocab_size": V, "draft_vocab_size": VD, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 512, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
    }  # fmt: skip
    return Draft("small", read_config(config, None, where="small"), tensors)
