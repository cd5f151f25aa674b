"""Rotations and attention against Transformers' own modules; drafts of every kind built from checkpoints."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from replay_reference import dump_of
from small import VD, H, V, small_draft
from torch import nn

from eagle3diag.checkpoints import Draft, Target
from eagle3diag.errors import BadArgument, InputError, MissingPart
from eagle3diag.replay import build, run
from eagle3diag.replay.attention import Grouped, Latent, gather
from eagle3diag.replay.net import Net
from eagle3diag.replay.rope import Rope

transformers = pytest.importorskip("transformers")

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128},
    "yarn with its own bounds": {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "beta_fast": 16, "beta_slow": 2, "truncate": False,
    },
    "yarn with mscale": {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.7,
    },
    "yarn with a given factor": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128, "attention_factor": 1.3},
    "longrope": {
        "rope_type": "longrope", "short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 64, "factor": 8.0,
    },
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256,
    },
}  # fmt: skip


@pytest.mark.parametrize("length", [50, 700])
@pytest.mark.parametrize("name", SCALINGS)
def test_every_scaling_turns_as_transformers_does(name: str, length: int) -> None:
    """Frequencies and the factor on cos and sin; within the original length and beyond it."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = SCALINGS[name]
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=16, max_position_embeddings=512, rope_parameters={**scaling, "rope_theta": 5e5}
    )
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu", seq_len=length)

    found, ours = Rope(16, 5e5, scaling, 512, length=length).table

    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=0)
    assert ours == pytest.approx(factor, rel=1e-6)


def test_partial_rotation_leaves_the_rest_of_the_head_alone() -> None:
    """The first channels turn, as Transformers' partial_rotary_factor says; at position 0 nothing does."""
    x = torch.randn(5, 2, 16)
    turned = Rope(8, 1e4).turn(x, torch.arange(5))

    assert torch.equal(turned[..., 8:], x[..., 8:])
    assert torch.equal(turned[0], x[0]) and not torch.equal(turned[1, :, :8], x[1, :, :8])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear"},
        {"rope_type": "linear", "factor": "4"},
        {"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0]},
        {"rope_type": "spiral"},
    ],
    ids=str,
)
def test_a_scaling_that_cannot_be_computed_is_named(scaling: dict[str, Any]) -> None:
    """A field that is missing or no number, a list of another length, a type nobody knows: one clear error."""
    with pytest.raises(InputError, match=r"factor|spiral"):
        _ = Rope(16, 1e4, scaling, 512).table


def attention(net: Net, mixed: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """Causal attention of one record: what ``o_proj`` would take [T, width]."""
    place = torch.arange(len(mixed))
    at = "layers.0.self_attn."
    visible = (place[None] <= place[:, None]) & (place[None] > place[:, None] - (window or len(mixed)))
    queries, keys = net.attention.queries(net, at, mixed, place), net.attention.keys(net, at, mixed, place)
    return net.attention.values(net, at, gather(queries, keys, visible, [], net.attention.scale(net)))


def net_of(module: nn.Module, kind: Grouped | Latent, rope: Rope) -> Net:
    """A net that has this module's weights and nothing else."""
    weights = {f"layers.0.self_attn.{n}": w.detach() for n, w in module.state_dict().items()}
    return Net(weights, torch.zeros(1, 4), torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64), kind, rope, 1e-6)


def run_module(module: nn.Module, config: Any, rotary: nn.Module, mixed: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """Transformers' attention without its output projection."""
    place, n = torch.arange(len(mixed))[None], len(mixed)
    seen = (place.mT >= place) & (place.mT - place < (window or n))
    mask = torch.zeros(n, n).masked_fill(~seen, -torch.inf)[None, None]
    module.o_proj = nn.Identity()
    config._attn_implementation = "eager"
    with torch.no_grad():
        return module(mixed[None], position_embeddings=rotary(mixed[None], place), attention_mask=mask)[0][0].flatten(1)


@pytest.mark.parametrize("scaling", [None, "yarn", "llama3", "dynamic"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_grouped_attention_is_transformers_llama(scaling: str | None, bias: bool) -> None:
    """Grouped heads, biases, and a scaled rotation whose factor reaches the scores, over 40 tokens."""
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    torch.manual_seed(0)
    extra = {"rope_parameters": {**SCALINGS[scaling], "rope_theta": 1e4}} if scaling else {"rope_theta": 1e4}
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, attention_bias=bias, max_position_embeddings=512, **extra
    )
    module, mixed = LlamaAttention(config, 0), torch.randn(40, 64)
    net = net_of(module, Grouped(4, 2, 16), Rope(16, 1e4, SCALINGS[scaling] if scaling else None, 512))

    torch.testing.assert_close(attention(net, mixed), run_module(module, config, LlamaRotaryEmbedding(config), mixed), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 5])
def test_head_norms_and_windows_are_transformers_qwen3(window: int | None) -> None:
    """Norms per head before the rotation; a row sees itself and the window's rest."""
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

    torch.manual_seed(0)
    config = transformers.Qwen3Config(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rope_theta=1e4)
    module, mixed = Qwen3Attention(config, 0), torch.randn(30, 64)
    for norm in (module.q_norm, module.k_norm):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    net = net_of(module, Grouped(4, 2, 16), Rope(16, 1e4))

    torch.testing.assert_close(
        attention(net, mixed, window), run_module(module, config, Qwen3RotaryEmbedding(config), mixed, window), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("q_rank", [24, None])
@pytest.mark.parametrize("scaling", [None, "yarn with mscale"])
def test_latent_attention_is_transformers_deepseek(scaling: str | None, q_rank: int | None) -> None:
    """Absorbed keys give what spelled-out ones give, with the scale that YaRN's mscale_all_dim adds to the scores."""
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

    torch.manual_seed(0)
    extra = {"rope_parameters": {**SCALINGS[scaling], "rope_theta": 1e4}} if scaling else {"rope_theta": 1e4}
    config = transformers.DeepseekV3Config(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=q_rank, kv_lora_rank=20, qk_nope_head_dim=12,
        qk_rope_head_dim=8, v_head_dim=10, max_position_embeddings=512, attention_bias=False, **extra,
    )  # fmt: skip
    module, mixed = DeepseekV3Attention(config, 0), torch.randn(30, 64)
    nn.init.uniform_(module.kv_a_layernorm.weight, 0.5, 1.5)
    rope = Rope(8, 1e4, SCALINGS[scaling] if scaling else None, 512, interleaved=True)
    net = net_of(module, Latent(4, q_rank, 20, 12, 8, 10), rope)
    expected = run_module(module, config, DeepseekV3RotaryEmbedding(config), mixed)

    torch.testing.assert_close(attention(net, mixed), expected, rtol=1e-4, atol=1e-5)
    if scaling:
        stretch = 0.1 * 0.7 * math.log(40) + 1
        assert net.attention.scale(net) == pytest.approx(20**-0.5 * stretch**2)


# -- drafts from checkpoints ---------------------------------------------------------------------------------------------------------

TARGET = Target(
    "small",
    {"hidden_size": H, "num_hidden_layers": 6, "vocab_size": V, "num_attention_heads": 4, "tie_word_embeddings": True},
    {"model.embed_tokens.weight": torch.randn(V, H, generator=torch.Generator().manual_seed(1))},
)


def changed(draft: Draft, tensors: dict[str, torch.Tensor | None] | None = None, **config: Any) -> Draft:
    return draft.replace(tensors=tensors, config=config)


def latent_draft(**config: Any) -> Draft:
    """The small draft with latent attention, as DeepSeek's and Kimi's drafts are."""
    draft, g = small_draft(), torch.Generator().manual_seed(0)
    shapes = {
        "q_a_proj": (12, 2 * H), "q_b_proj": (4 * 12, 12), "kv_a_proj_with_mqa": (14, 2 * H), "kv_b_proj": (4 * 13, 10), "o_proj": (H, 20),
    }  # fmt: skip
    tensors: dict[str, torch.Tensor | None] = {
        f"midlayer.self_attn.{n}.weight": torch.randn(s, generator=g) * 0.1 for n, s in shapes.items()
    }
    tensors |= {"midlayer.self_attn.q_a_layernorm.weight": torch.ones(12), "midlayer.self_attn.kv_a_layernorm.weight": torch.ones(10)}
    tensors |= {f"midlayer.self_attn.{n}_proj.weight": None for n in "qkv"}
    sizes = {"q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 5}
    return changed(draft, tensors, **{**sizes, **config})


def test_a_latent_draft_is_built_from_its_checkpoint() -> None:
    """Sizes from the config, or from the projections where it lacks one; neighbouring pairs in the rotation."""
    net = build(latent_draft(), TARGET)

    assert net.attention == Latent(heads=4, q_rank=12, kv_rank=10, plain=8, turned=4, value=5)
    assert net.rope.interleaved and net.rope.width == 4
    ids = torch.randint(0, V, (12,), generator=torch.Generator().manual_seed(0))
    assert run(net, dump_of((ids, torch.randn(12, 3 * H)))).rounds > 0
    assert build(latent_draft(v_head_dim=None, qk_rope_head_dim=None), TARGET).attention == net.attention


def test_norms_of_eagle_3_1_are_read() -> None:
    """fc_norm, norm_before_fc, norm_output and norm_before_residual, each from where its trainer writes it."""
    norms: dict[str, torch.Tensor | None] = {f"fc_norm.{i}.weight": torch.full((H,), 1.0 + i) for i in range(3)}
    norms["input_norm.weight"] = torch.ones(3 * H)
    draft = changed(small_draft(), norms, fc_norm=True, norm_output=True, eagle_config={"norm_before_fc": True}, norm_before_residual=True)

    net = build(draft, TARGET)

    assert net.fc_norm and net.norm_before_fc and net.norm_output and net.residual == "normed"
    with pytest.raises(MissingPart, match=r"fc_norm\.0"):
        build(changed(small_draft(), fc_norm=True), TARGET)


def test_two_layers_biases_head_norms_and_windows_are_read() -> None:
    """What is in the file acts; a window only where layer_types names the layer."""
    draft, g = small_draft(), torch.Generator().manual_seed(3)
    tensors: dict[str, torch.Tensor | None] = {}
    for name, tensor in draft.tensors.items():
        if name.startswith("midlayer."):
            deep = tensor[:, :H].contiguous() if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")) else tensor
            tensors[name.replace("midlayer", "layers.1")] = deep
    tensors |= {f"midlayer.self_attn.{n}_proj.bias": torch.randn(s, generator=g) for n, s in (("q", 32), ("k", 16), ("v", 16), ("o", H))}
    tensors |= {f"midlayer.self_attn.{n}_norm.weight": torch.ones(8) for n in "qk"}
    two = changed(draft, tensors, num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"], sliding_window=64)

    net = build(two, TARGET)

    assert net.windows == (None, 64) and net.deep_norm == "hidden_norm"
    assert build(two, TARGET, engine="vllm==0.32.0").deep_norm == "input_layernorm"
    assert {"layers.0.self_attn.q_proj.bias", "layers.0.self_attn.k_norm.weight", "layers.1.mlp.up_proj.weight"} <= net.weights.keys()
    with pytest.raises(MissingPart, match=r"layers\.1"):
        build(changed(draft, num_hidden_layers=2), TARGET)


def test_whose_embedding_and_head_are_used() -> None:
    """SGLang takes the target's embedding wherever the widths agree, vLLM the draft's own; a head is borrowed row by row through the map."""
    own = torch.randn(V, H, generator=torch.Generator().manual_seed(9))
    draft = changed(small_draft(), {"embed_tokens.weight": own, "lm_head.weight": None})

    assert torch.equal(build(draft, TARGET).embedding, TARGET.embedding())
    assert torch.equal(build(draft, TARGET, engine="vllm").embedding, own)
    assert torch.equal(build(draft, TARGET).head, TARGET.head()[build(draft, TARGET).draft_ids])
    with pytest.raises(MissingPart, match="no head"):
        build(draft, None)
    assert len(build(small_draft(), TARGET).head) == VD


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"hidden_act": "sinus"}, "sinus"),
        ({"rope_scaling": {"type": "spiral", "factor": 2.0}}, "spiral"),
        ({"rope_scaling": {"type": "yarn"}}, "factor|rope"),
    ],
)
def test_what_cannot_be_replayed_is_said_before_it_is(config: dict[str, Any], said: str) -> None:
    """An activation or a rotation that the replay does not know."""
    if "yarn" in str(config):
        assert build(changed(small_draft(), **config), TARGET).rope.table[1] == 1.0  # original equals context: nothing is stretched
        return
    with pytest.raises(BadArgument, match=said):
        build(changed(small_draft(), **config), TARGET)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_quantised_weights_are_not_taken_for_numbers(dtype: torch.dtype) -> None:
    """Without their scales they would draft nonsense that looks like a fault of the draft."""
    draft = small_draft()
    with pytest.raises(BadArgument, match="not quantised"):
        build(changed(draft, {"midlayer.mlp.up_proj.weight": draft.tensors["midlayer.mlp.up_proj.weight"].to(dtype)}), TARGET)


def test_rotations_are_read_wherever_they_are_written() -> None:
    """Partial rotation beside or inside the scaling, M-RoPE as plain for text, the original length at the top."""

    def rope(**config: Any) -> Rope:
        return build(changed(small_draft(), **config), TARGET).rope

    assert rope(partial_rotary_factor=0.5).width == 4
    assert rope(rope_parameters={"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}, rope_theta=None) == Rope(
        4,
        5e5,
        rope(rope_parameters={"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}, rope_theta=None).scaling,
        512,
    )
    assert rope(rope_scaling={"type": "mrope", "mrope_section": [2, 1, 1]}).scaling is None
    assert rope(rope_scaling={"type": "linear", "factor": 2.0}, original_max_position_embeddings=64).original == 64
    assert rope(rope_is_neox_style=False).interleaved
