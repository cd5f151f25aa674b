"""Every family of targets that EAGLE-3 drafts exist for, tiny and random: boundaries are the model's own hidden states, bit for bit.

The list is that of the engines' own target classes (SGLang 0.5.23, vLLM 0.33), as far as the installed Transformers has them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eagle3diag import CaptureError, capture
from eagle3diag.capture.structure import find_decoder

transformers = pytest.importorskip("transformers")

VOCABULARY, LAYERS = 101, 4
# One set of sizes for all; each config takes the fields it knows.
TEXT: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "max_position_embeddings": 64},
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8, "attention_chunk_size": 8, "intermediate_size_mlp": 48},
    **{"moe_intermediate_size": 16, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2},
    **{"n_group": 1, "topk_group": 1, "n_shared_experts": 1, "shared_expert_intermediate_size": 16, "first_k_dense_replace": 1},
    **{"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY, "global_head_dim": 8, "num_global_key_value_heads": 2},
    **{"num_kv_shared_layers": 0, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8},
    **{"linear_value_head_dim": 8},
}
# Latent attention: as many key heads as heads, and sizes of its own.
LATENT: dict[str, Any] = {k: v for k, v in TEXT.items() if k != "head_dim"}
LATENT |= {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
VISION: dict[str, Any] = {
    **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 6, "num_attention_heads": 2, "num_key_value_heads": 2},
    **{"head_dim": 8, "image_size": 28, "patch_size": 14, "depth": 6, "num_heads": 2, "out_hidden_size": 32, "embed_dim": 16},
    **{"fullatt_block_indexes": [1], "deepstack_visual_indexes": [0]},
}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}

FAMILIES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM"), TEXT),
    **dict.fromkeys(("Qwen3MoeForCausalLM", "Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Gemma3ForCausalLM", "Gemma4ForCausalLM"), TEXT),
    **dict.fromkeys(("GptOssForCausalLM", "Glm4MoeForCausalLM", "Llama4ForCausalLM", "MiniMaxM2ForCausalLM", "ExaoneMoeForCausalLM"), TEXT),
    **dict.fromkeys(("ApertusForCausalLM", "NemotronHForCausalLM", "Lfm2ForCausalLM"), TEXT),
    **dict.fromkeys(("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"), LATENT),
    # multimodal wrappers: the decoder is inside, beside towers that own blocks too
    **dict.fromkeys(("LlavaForConditionalGeneration", "Qwen3VLForConditionalGeneration", "Gemma3ForConditionalGeneration"), TEXT),
    **dict.fromkeys(("Gemma4ForConditionalGeneration", "Mistral3ForConditionalGeneration"), TEXT),
    "Qwen2_5_VLForConditionalGeneration": TEXT | MROPE,
    "Kimi_K25ForConditionalGeneration": LATENT,
}


def known(config: Any, wanted: dict[str, Any]) -> Any:
    """A config of the same type with those of the fields that it has."""
    return type(config)(**{k: v for k, v in wanted.items() if k in config.to_dict()})


def tiny(name: str, sizes: dict[str, Any]) -> Any:
    cls = getattr(transformers, name)
    config = cls.config_class()
    if hasattr(config, "text_config"):
        inner = {"text_config": sizes, "vision_config": VISION}
        config = cls.config_class(**{n: known(getattr(config, n), s).to_dict() for n, s in inner.items() if getattr(config, n) is not None})
        for field in vars(config):
            if field.endswith(("token_id", "token_index")) and isinstance(getattr(config, field), int):
                setattr(config, field, VOCABULARY - 1)
    else:
        config = known(config, sizes)
    torch.manual_seed(0)
    model = cls(config).eval()
    with torch.no_grad():  # initial norms are all ones, which would hide a norm that is applied twice
        for parameter_name, p in model.named_parameters():
            if "norm" in parameter_name:
                p.add_(torch.randn_like(p) * 0.3)
    return model


@pytest.mark.parametrize("name", [pytest.param(n, id=n.removesuffix("ForCausalLM")) for n in FAMILIES])
@torch.inference_mode()
def test_boundaries_equal_the_models_own_hidden_states(name: str) -> None:
    """Boundary b is hidden_states[b], but for the last: that one is un-normed, and the model's own norm makes it their last."""
    if not hasattr(transformers, name):
        pytest.skip("not in this version of Transformers")
    model = tiny(name, FAMILIES[name])
    ids = torch.randint(3, VOCABULARY - 1, (1, 9), generator=torch.Generator().manual_seed(7))
    with capture(model, range(LAYERS + 1)) as tape:
        model(input_ids=ids)
    expected = model(input_ids=ids, output_hidden_states=True).hidden_states
    record, decoder = tape.dump[0], find_decoder(model)
    assert len(expected) == LAYERS + 1 == decoder.n_layers + 1 and torch.equal(record.input_ids, ids[0])
    for b in range(LAYERS):
        assert torch.equal(record.state(b), expected[b][0]), b
    assert record.final is not None and torch.equal(record.final, expected[LAYERS][0])
    assert not torch.equal(record.state(LAYERS), expected[LAYERS][0])
    norms = [m for n, m in decoder.module.named_children() if "norm" in n and any(p.numel() == 32 for p in m.parameters())]
    assert any(torch.equal(norm(record.state(LAYERS)), expected[LAYERS][0]) for norm in norms)
    assert tape.dump.target.n_layers == LAYERS and tape.dump.target.hidden_size == 32


@torch.inference_mode()
def test_streams_that_are_no_rows_are_refused() -> None:
    """Gemma 3n carries four streams at once: which of them a draft would be fed is not for us to guess."""
    if not hasattr(transformers, "Gemma3nForCausalLM"):
        pytest.skip("not in this version of Transformers")
    model = tiny("Gemma3nForCausalLM", TEXT)
    with pytest.raises(CaptureError, match="cannot be paired"), capture(model, [2]):
        model(input_ids=torch.arange(5)[None])
