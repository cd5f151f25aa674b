"""Small checkpoints, good and bad, of constant tensors: one number a tensor, so that a parameter tells what it was filled from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from builders import speculators_config
from small import VD, H, V, small_draft
from torch import Tensor

Tensors = dict[str, Tensor]
Checkpoint = tuple[Tensors, dict[str, Any]]

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": H, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 1, "vocab_size": V, "draft_vocab_size": VD, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": False, "dtype": "float32", "hidden_act": "silu",
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
}  # fmt: skip
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
#: As DeepSeek's and Kimi's drafts have it; SGLang on CPU builds its rotation of a scaling only.
YARN = {
    "type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip


def sound() -> Tensors:
    """SafeAILab's names; the maps of :func:`small_draft`."""
    return {name: tensor for name, tensor in small_draft().tensors.items()}


def constants(tensors: Mapping[str, Tensor]) -> Tensors:
    """Floats replaced by 2, 3, 4, ...: 1 and 0 are what engines themselves fill with. Integers and booleans are kept."""
    numbered = enumerate(tensors.items(), start=2)
    return {name: torch.full(t.shape, float(i)) if t.is_floating_point() else t for i, (name, t) in numbered}


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


def renamed(old: str, new: str) -> Tensors:
    return {name.replace(old, new): tensor for name, tensor in sound().items()}


def without(*parts: str) -> Tensors:
    return {name: tensor for name, tensor in sound().items() if not any(part in name for part in parts)}


def plus(**more: Tensor) -> Tensors:
    """Names with ``__`` for the dots."""
    return sound() | {name.replace("__", "."): tensor for name, tensor in more.items()}


def second_layer(prefix: str = "layers.1.") -> Tensors:
    """Another layer, whose attention takes H and not 2H."""
    layer = {name.replace("midlayer.", prefix): t for name, t in sound().items() if name.startswith("midlayer.")}
    return {
        name: t[:, :H].clone() if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")) else t for name, t in layer.items()
    }


def biases(prefix: str = "midlayer.") -> Tensors:
    parts = {"self_attn.q_proj": 32, "self_attn.k_proj": 16, "self_attn.v_proj": 16, "self_attn.o_proj": H}
    return {f"{prefix}{part}.bias": ones(size) for part, size in parts.items()}


def norms(prefix: str = "midlayer.") -> Tensors:
    return {f"{prefix}self_attn.{name}_norm.weight": ones(8) for name in "qk"}


def chunks(names: Callable[[int], str], count: int = 3, width: int = H) -> Tensors:
    return {names(k): ones(width) for k in range(count)}


def latent(prefix: str = "layers.0.") -> Tensors:
    """DeepSeek's attention in place of the plain one, under trainers' names for MLA drafts."""
    sizes = {
        "q_a_proj": (12, 2 * H), "q_a_layernorm": (12,), "q_b_proj": (4 * 12, 12), "kv_a_proj_with_mqa": (14, 2 * H), "kv_a_layernorm": (10,),
        "kv_b_proj": (4 * 16, 10), "o_proj": (H, 32),
    }  # fmt: skip
    rest = {n.replace("midlayer.", prefix): t for n, t in sound().items() if "self_attn" not in n}
    return rest | {f"{prefix}self_attn.{name}.weight": ones(*shape) for name, shape in sizes.items()}


def mla(tensors: Tensors, **changes: Any) -> Checkpoint:
    config = CONFIG | LATENT | {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "rope_scaling": YARN}
    return tensors, config | changes


def plain(tensors: Tensors, **changes: Any) -> Checkpoint:
    return tensors, CONFIG | changes


def leave_out(config: Checkpoint, *fields: str) -> Checkpoint:
    return config[0], {name: value for name, value in config[1].items() if name not in fields}


def speculators(tensors: Tensors, model_type: str = "llama", **changes: Any) -> Checkpoint:
    """As speculators 0.9 saves it: names without a prefix, its own embedding, and a nested config."""
    config = speculators_config(**changes)
    config["transformer_layer_config"]["model_type"] = model_type
    config["speculators_config"] = {
        "algorithm": "eagle3", "default_proposal_method": "greedy", "verifier": {"name_or_path": "target", "architectures": ["LlamaForCausalLM"]},
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 2}],
    }  # fmt: skip
    named = {name.replace("midlayer.", "layers.0."): t for name, t in tensors.items()}
    return named | {"embed_tokens.weight": ones(V, H)}, config


ABSOLUTE = small_draft().vocabulary.draft_ids  # type: ignore[union-attr]
WHOLE_MAP = {"d2t": torch.zeros(V, dtype=torch.int64), "t2d": torch.ones(V, dtype=torch.bool), "lm_head.weight": ones(V, H)}
FOUR = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}}

CASES: dict[str, Checkpoint] = {
    "midlayer": plain(sound()),
    "layers_0": plain(renamed("midlayer.", "layers.0.")),
    "model_midlayer": plain({f"model.{n}" if n not in ("d2t", "t2d", "lm_head.weight") else n: t for n, t in sound().items()}),
    "model_layers_0": plain(renamed("midlayer.", "model.layers.0.")),
    "draft_layers": plain(renamed("midlayer.", "draft_layers.0.")),
    "eagle_module": plain({f"eagle_module.{name}": tensor for name, tensor in sound().items()}),
    "no_layer": plain(without("midlayer.")),
    "no_head": plain(without("lm_head")),
    "no_fc": plain(without("fc.weight")),
    "no_norms": plain(without("norm")),
    "no_q": plain(without("q_proj")),
    "no_map": plain(without("d2t", "t2d")),
    "absolute_map": plain(sound() | {"d2t": ABSOLUTE}),
    "short_map": plain(sound() | {"d2t": sound()["d2t"][:-4]}),
    "nested_map": plain({f"draft.{n}" if n in ("d2t", "t2d") else n: t for n, t in sound().items()}),
    "equal_vocabularies": plain(sound() | WHOLE_MAP, draft_vocab_size=V),
    "equal_vocabularies_no_map": plain(without("d2t", "t2d") | {"lm_head.weight": ones(V, H)}, draft_vocab_size=V),
    "null_vocabulary": plain(without("lm_head", "d2t", "t2d"), draft_vocab_size=None),
    "null_vocabulary_own_head": plain(without("d2t", "t2d") | {"lm_head.weight": ones(V, H)}, draft_vocab_size=None),
    "absent_vocabulary": leave_out(plain(without("lm_head", "d2t", "t2d")), "draft_vocab_size"),
    "no_type": leave_out(plain(sound()), "model_type"),
    "no_type_known": plain(sound(), model_type="eagle3"),
    "no_architectures": leave_out(plain(sound()), "architectures"),
    "own_embedding": plain(plus(embed_tokens__weight=ones(V, H))),
    "tied": plain(sound(), tie_word_embeddings=True),
    "wider_target": plain(sound() | {"fc.weight": ones(H, 3 * 48), "embed_tokens.weight": ones(V, H)}, target_hidden_size=48),
    "wider_target_no_embedding": plain(sound() | {"fc.weight": ones(H, 3 * 48)}, target_hidden_size=48),
    "null_target_width": plain(sound(), target_hidden_size=None),
    "two_layers": plain(renamed("midlayer.", "layers.0.") | second_layer(), num_hidden_layers=2),
    "two_layers_one_in_file": plain(sound(), num_hidden_layers=2),
    "one_layer_two_in_file": plain(sound() | second_layer()),
    "biases": plain(sound() | biases(), attention_bias=True),
    "biases_unannounced": plain(sound() | biases()),
    "biases_not_in_file": plain(sound(), attention_bias=True),
    "mlp_biases": plain(plus(midlayer__mlp__up_proj__bias=ones(48), midlayer__mlp__down_proj__bias=ones(H)), mlp_bias=True),
    "fc_bias": plain(plus(fc__bias=ones(H))),
    "fc_bias_announced": plain(plus(fc__bias=ones(H)), bias=True),
    "qk_norms": plain(sound() | norms()),
    "fc_norm": plain(sound() | chunks("fc_norm.{}.weight".format), fc_norm=True),
    "fc_norm_unannounced": plain(sound() | chunks("fc_norm.{}.weight".format)),
    "fc_norm_not_in_file": plain(sound(), fc_norm=True),
    "aux_norms": plain(sound() | {f"aux_norm_{n}.weight": ones(H) for n in ("low", "mid", "high")}, use_aux_norm=True),
    "input_norm": plain(plus(input_norm__weight=ones(3 * H)), norm_before_fc=True),
    "input_norm_nested": plain(plus(input_norm__weight=ones(3 * H)), eagle_config=CONFIG["eagle_config"] | {"norm_before_fc": True}),
    "input_norm_unannounced": plain(plus(input_norm__weight=ones(3 * H))),
    "four_states": plain(sound() | {"fc.weight": ones(H, 4 * H)}, **FOUR),
    "four_states_counted": plain(sound() | {"fc.weight": ones(H, 4 * H)}, num_aux_hidden_states=4),
    "top_level_ids": plain(sound(), eagle_config=None, eagle_aux_hidden_state_layer_ids=[2, 3, 4]),
    "four_top_level_ids": plain(sound() | {"fc.weight": ones(H, 4 * H)}, eagle_config=None, eagle_aux_hidden_state_layer_ids=[2, 3, 4, 5]),
    "no_ids": leave_out(plain(sound()), "eagle_config"),
    "narrow_fc": plain(sound() | {"fc.weight": ones(H, 2 * H)}),
    "narrow_q": plain(sound() | {"midlayer.self_attn.q_proj.weight": ones(32, H)}),
    "long_head": plain(sound() | {"lm_head.weight": ones(VD + 8, H)}),
    "final_state_only": plain(without("fc."), eagle_config={"use_aux_hidden_state": False}),
    "bogus": plain(plus(bogus__weight=ones(3), bogus__bias=ones(3))),
    "verifier": plain(plus(verifier_norm__weight=ones(H), mask_hidden=ones(1, 1, 3 * H))),
    "rotary": plain(plus(midlayer__self_attn__rotary_emb__inv_freq=ones(4))),
    "scales": plain(plus(midlayer__mlp__up_proj__weight_scale=ones(48, 1), midlayer__self_attn__o_proj__weight_scale=ones(1))),
    "gelu": plain(sound(), hidden_act="gelu"),
    "plain_llama": plain(sound(), architectures=["LlamaForCausalLM"]),
    "angelslim": plain(
        plus(embed_tokens__weight=ones(V, H)),
        architectures=["Eagle3LlamaForCausalLM"], eagle_config=None, aux_hidden_states_layer_ids=[1, 2, 3],
    ),
    "automodel": plain(
        renamed("midlayer.", "model.layers.0.") | {"embed_tokens.weight": ones(V, H)}, architectures=["LlamaEagle3DraftModel"]
    ),
    "speculators": speculators(sound()),
    "speculators_norms": speculators(
        sound() | {"input_norm.weight": ones(3 * H)}, norm_before_fc=True, eagle_aux_hidden_state_layer_ids=[2, 3, 4],
    ),
    "speculators_fc_norm": speculators(sound() | chunks("fc_norm.{}.weight".format), fc_norm=True),
    "speculators_qwen3": speculators(sound() | norms(), "qwen3"),
    "speculators_qwen3_four": speculators(
        sound() | norms() | {"fc.weight": ones(H, 4 * H)}, "qwen3", eagle_aux_hidden_state_layer_ids=[2, 3, 4, 5]
    ),
    "speculators_four": speculators(sound() | {"fc.weight": ones(H, 4 * H)}, eagle_aux_hidden_state_layer_ids=[2, 3, 4, 5]),
    "speculators_other": speculators(sound(), "phi3"),
    "mla": mla(latent()),
    "mla_deepseek_v3": mla(latent(), model_type="deepseek_v3"),
    "mla_midlayer": mla(latent("midlayer.")),
    "mla_model_prefix": mla(latent("model.layers.0.")),
    "mla_lone_query": mla({n: t for n, t in latent().items() if "kv_a_proj" not in n}),
    "mla_bogus": mla(latent() | {"bogus.weight": ones(3), "layers.0.mlp.up_proj.bias": ones(48)}),
    "mla_fc_norm": mla(latent() | chunks("fc_norm.{}.weight".format), fc_norm=True),
    "mla_input_norm": mla(latent() | {"input_norm.weight": ones(3 * H)}, norm_before_fc=True),
    "mla_no_low_rank_query": mla(latent(), q_lora_rank=None),
}  # fmt: skip

#: Targets whose own code is asked what it captures: module and class in SGLang, blocks, configured ids.
TARGETS: tuple[tuple[str, str, int, list[int] | None], ...] = tuple(
    (module, name, blocks, ids)
    for module, name, blocks in (
        ("llama", "LlamaForCausalLM", 32), ("qwen3", "Qwen3ForCausalLM", 36), ("qwen3_moe", "Qwen3MoeForCausalLM", 48),
        ("qwen2", "Qwen2ForCausalLM", 28), ("glm4_moe", "Glm4MoeForCausalLM", 46), ("deepseek_v2", "DeepseekV3ForCausalLM", 61),
        ("gpt_oss", "GptOssForCausalLM", 24), ("minimax_m2", "MiniMaxM2ForCausalLM", 62),
        ("minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", 40), ("gemma3_causal", "Gemma3ForCausalLM", 26),
    )
    for ids in (None, [1, blocks // 2 - 1, blocks - 4], [2, blocks // 2, blocks - 3], [2, blocks // 2, blocks])
)  # fmt: skip


def checkpoint(name: str) -> Checkpoint:
    """The tensors, as constants, and the config of a case; a field set to None is null in the file."""
    tensors, config = CASES[name]
    return constants(tensors), config
