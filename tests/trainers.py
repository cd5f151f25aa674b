"""The same small draft as each trainer writes it: names, config and file layout exactly as its export code has them, other values apart.

Sources and versions are in docs/checkpoints.md. Every builder holds the tensors of ``small_draft``; ``H`` 32, four heads of 8 with two key
heads, vocabulary 128 reduced to 64, boundaries 2, 3, 4 of six blocks (the default of every trainer for six blocks is 2, 3, 3, so that the
ids are always custom ones).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from builders import AUX, speculators_config, target_tensors, write_model
from safetensors.torch import save_file
from small import INNER, VD, H, V, small_draft
from torch import Tensor

OUTPUTS = [b - 1 for b in AUX]

#: What every flat config says of the layer.
SIZES: dict[str, Any] = {
    "hidden_size": H, "intermediate_size": INNER, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 1,
    "vocab_size": V, "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip


def tensors(layer: str = "midlayer.", prefix: str = "", **more: Tensor) -> dict[str, Tensor]:
    """The draft's tensors, bf16, under a trainer's names; ``more`` by name with dots written as ``__``."""
    renamed = {}
    for name, tensor in small_draft().tensors.items():
        place = name.replace("midlayer.", layer)
        place = place if place in ("d2t", "t2d", "lm_head.weight") else prefix + place
        renamed[place] = tensor.bfloat16() if tensor.is_floating_point() else tensor
    return renamed | {name.replace("__", "."): tensor for name, tensor in more.items()}


def without(found: Mapping[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {n: t for n, t in found.items() if n not in names}


def embedding() -> Tensor:
    return target_tensors()["model.embed_tokens.weight"]


def eagle(folder: Path) -> Path:
    """SafeAILab/EAGLE: pytorch_model.bin, midlayer names, no ids, no rope_theta, the target's architecture."""
    folder.mkdir(parents=True)
    raw = {
        "architectures": ["LlamaForCausalLM"],
        **SIZES,
        "draft_vocab_size": VD,
        "max_position_embeddings": 2048,
        "torch_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(raw))
    torch.save(tensors(), folder / "pytorch_model.bin")
    return folder


def specforge(folder: Path) -> Path:
    """SpecForge: SGLang's architecture, output ids in eagle_config, no embedding, training_state.pt beside."""
    raw = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", **SIZES, "draft_vocab_size": VD, "tie_word_embeddings": False,
        "rope_theta": 500000.0, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": OUTPUTS, "use_aux_hidden_state": True},
    }  # fmt: skip
    write_model(folder, raw, tensors())
    torch.save({"epoch": 1}, folder / "training_state.pt")
    return folder


def specforge_31(folder: Path) -> Path:
    """SpecForge 0.2 as EAGLE-3.1: fc_norm.{i} and norm_output."""
    specforge(folder)
    raw = json.loads((folder / "config.json").read_text()) | {"fc_norm": True, "norm_output": True}
    return write_model(folder, raw, tensors(**{f"fc_norm__{i}__weight": torch.ones(H).bfloat16() for i in range(3)}))


def modelopt(folder: Path) -> Path:
    """NVIDIA Model-Optimizer: layers.0 names, d2t in order of frequency, no t2d, no embedding, YaRN written at export."""
    ids = small_draft().vocabulary.draft_ids.flip(0)  # type: ignore[union-attr]
    raw = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", **SIZES, "draft_vocab_size": VD, "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}, "torch_dtype": "bfloat16",
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": OUTPUTS, "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True, "use_mtp_layernorm": False, "next_layer_regular": True,
        },
    }  # fmt: skip
    found = without(tensors("layers.0."), "t2d", "d2t", "lm_head.weight")
    head = small_draft().weight("lm_head.weight").bfloat16().flip(0)
    return write_model(folder, raw, found | {"d2t": ids - torch.arange(VD), "lm_head.weight": head})


def angelslim(folder: Path) -> Path:
    """Tencent AngelSlim: vLLM's architecture, its own name for the output ids, the embedding saved along."""
    raw = {
        "architectures": ["Eagle3LlamaForCausalLM"], "model_type": "llama", **SIZES, "draft_vocab_size": VD, "tie_word_embeddings": False,
        "rope_theta": 1000000.0, "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "aux_hidden_states_layer_ids": OUTPUTS,
    }  # fmt: skip
    return write_model(folder, raw, tensors(embed_tokens__weight=embedding()))


def speculators(folder: Path, **changes: Any) -> Path:
    """vLLM's speculators 0.9: nested layer, state ids at the top, the embedding saved along."""
    return write_model(folder, speculators_config(**changes), tensors("layers.0.", embed_tokens__weight=embedding()))


def speculators_01(folder: Path) -> Path:
    """speculators 0.1, converted from an EAGLE checkpoint: no ids, no later flags, Transformers 4's rope fields."""
    raw = speculators_config()
    layer = {k: v for k, v in raw["transformer_layer_config"].items() if k != "rope_parameters"} | {"rope_theta": 10000.0}
    kept = ("draft_vocab_size", "target_hidden_size", "tie_word_embeddings", "speculators_model_type")
    top = {
        "architectures": ["Eagle3Speculator"],
        "norm_before_residual": False,
        "torch_dtype": "bfloat16",
        "transformer_layer_config": layer,
    }
    return write_model(folder, top | {k: raw[k] for k in kept}, tensors("layers.0.", embed_tokens__weight=embedding()))


def torchspec(folder: Path) -> Path:
    """TorchSpec: SGLang's architecture and midlayer names with the embedding; the whole vocabulary, so no map."""
    g = torch.Generator().manual_seed(5)
    raw = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", **SIZES, "draft_vocab_size": V, "tie_word_embeddings": False,
        "rope_theta": 500000.0, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": OUTPUTS, "use_aux_hidden_state": True},
    }  # fmt: skip
    found = without(tensors(embed_tokens__weight=embedding()), "d2t", "t2d")
    return write_model(folder, raw, found | {"lm_head.weight": torch.randn(V, H, generator=g).bfloat16()})


def automodel(folder: Path) -> Path:
    """NVIDIA NeMo Automodel: the target's config with its number of layers, model. before every name, no ids, two shards with an index."""
    raw = {
        "architectures": ["LlamaEagle3DraftModel"], "model_type": "llama", **SIZES, "num_hidden_layers": 6, "draft_vocab_size": VD,
        "target_hidden_size": H, "tie_word_embeddings": False, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        "max_position_embeddings": 4096, "dtype": "bfloat16", "fc_norm": False, "norm_output": False,
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(raw))
    held = tensors("layers.0.", "model.", model__embed_tokens__weight=embedding())
    names = sorted(held)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, inside in files.items():
        save_file({n: held[n] for n in inside}, folder / file, metadata={"format": "pt"})
    weight_map = {n: file for file, inside in files.items() for n in inside}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


#: MLA's sizes in the small draft: query rank 12, key rank 16, heads of 6 + 4 and values of 8.
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8}


def mla(folder: Path, layer: str = "midlayer.", **changes: Any) -> Path:
    """A draft for a DeepSeek or Kimi target, as TorchSpec publishes them: latent attention, state ids in eagle_config."""
    g = torch.Generator().manual_seed(6)
    dense = ("q_proj", "k_proj", "v_proj", "o_proj")
    kept = {n: t for n, t in tensors(layer, embed_tokens__weight=embedding()).items() if not any(f".{d}." in n for d in dense)}
    shapes = {
        "q_a_proj": (12, 2 * H), "q_a_layernorm": (12,), "q_b_proj": (4 * 10, 12), "kv_a_proj_with_mqa": (16 + 4, 2 * H),
        "kv_a_layernorm": (16,), "kv_b_proj": (4 * (6 + 8), 16), "o_proj": (H, 4 * 8),
    }  # fmt: skip
    attention = {f"{layer}self_attn.{n}.weight": torch.randn(*s, generator=g).bfloat16() * 0.1 for n, s in shapes.items()}
    raw = {k: v for k, v in SIZES.items() if k != "head_dim"} | {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3", **LATENT, "draft_vocab_size": VD,
        "rope_theta": 50000.0, "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(AUX), "use_aux_hidden_state": True},
    }  # fmt: skip
    return write_model(folder, raw | changes, kept | attention)


#: Trainer -> (its name, a builder).
TRAINERS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "EAGLE": ("EAGLE", eagle),
    "SpecForge": ("SpecForge", specforge),
    "Model-Optimizer": ("Model-Optimizer", modelopt),
    "AngelSlim": ("AngelSlim", angelslim),
    "speculators 0.9": ("speculators", speculators),
    "speculators 0.1": ("speculators", speculators_01),
    "TorchSpec": ("TorchSpec", torchspec),
    "Automodel": ("Automodel", automodel),
}


# ---- what is no EAGLE-3 draft ----


def eagle1(folder: Path) -> Path:
    """EAGLE-1/2: fc over embedding and one state, with a bias; a layer without its first norm that reads one state."""
    layer = {
        n: t for n, t in tensors("layers.0.").items() if n.startswith("layers.0.") and "hidden_norm" not in n and "input_layer" not in n
    }
    narrow = {
        n: t[:, :H].contiguous() if "_proj" in n and n.split(".")[3] in ("q_proj", "k_proj", "v_proj") else t for n, t in layer.items()
    }
    raw = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES, "bias": True}
    return write_model(
        folder, raw, narrow | {"fc.weight": torch.randn(H, 2 * H), "fc.bias": torch.randn(H), "embed_tokens.weight": embedding()}
    )


def mtp(folder: Path) -> Path:
    """DeepSeek's NextN layer, as SGLang's export has it."""
    raw = {"architectures": ["DeepseekV3ForCausalLMNextN"], "hidden_size": H, "num_attention_heads": 4, "vocab_size": V}
    names = ("eh_proj", "enorm", "hnorm", "shared_head.norm", "self_attn.o_proj")
    return write_model(folder, raw, {f"model.layers.0.{n}.weight": torch.randn(H, 2 * H if n == "eh_proj" else H) for n in names})


def medusa(folder: Path) -> Path:
    """Medusa: heads by number, and a config without any size."""
    raw = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "target"}
    return write_model(folder, raw, {f"{i}.{j}.linear.weight": torch.randn(H, H) for i in range(2) for j in range(1)})


def dflash(folder: Path) -> Path:
    """DFlash: several layers that read one state, an fc, a block size."""
    raw = {
        "architectures": ["DFlashDraftModel"],
        **SIZES,
        "block_size": 16,
        "dflash_config": {"target_layer_ids": [1, 2, 3], "mask_token_id": 5},
    }
    return write_model(folder, raw, {"fc.weight": torch.randn(H, 3 * H), "hidden_norm.weight": torch.ones(H), "norm.weight": torch.ones(H)})


def whole_model(folder: Path) -> Path:
    """The target given in place of the draft."""
    layer = {n: t[:, :H].contiguous() if t.dim() == 2 and t.shape[1] == 2 * H else t for n, t in tensors("layers.0.", "model.").items()}
    kept = {n: t for n, t in layer.items() if n.startswith("model.layers.") and "hidden_norm" not in n}
    return write_model(folder, {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES}, kept | target_tensors())


OTHERS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "EAGLE-1": ("eagle", eagle1),
    "MTP": ("mtp", mtp),
    "Medusa": ("medusa", medusa),
    "DFlash": ("dflash", dflash),
    "a target": ("model", whole_model),
}
