"""Every trainer's checkpoint is read to the same draft and named for what it is; other kinds are named, never read as EAGLE-3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import trainers
from builders import AUX, LIGHT, speculators_config, write_draft
from hypothesis import given
from hypothesis import strategies as st
from small import INNER, VD, H, V, small_draft
from trainers import OTHERS, TRAINERS

from eagle3diag.audit import audit
from eagle3diag.checkpoints import Draft, open_draft
from eagle3diag.checkpoints.config import read_config
from eagle3diag.checkpoints.shapes import expected_shapes, required
from eagle3diag.checkpoints.tensors import MemoryTensors
from eagle3diag.errors import InputError, MissingPart
from eagle3diag.findings import Severity

WITHOUT_IDS = ("EAGLE", "speculators 0.1", "Automodel")


@pytest.mark.parametrize("name", TRAINERS)
def test_every_trainer_gives_the_same_draft(name: str, tmp_path: Path) -> None:
    """Whatever the names, the file format and the config's layout: one meaning, and who wrote it is said with its grounds."""
    trainer, build = TRAINERS[name]
    opened = open_draft(build(tmp_path / "d"))
    c = opened.config
    assert (c.kind, c.trainer, c.latent) == ("eagle3", trainer, None)
    assert (c.hidden_size, c.target_hidden_size, c.intermediate_size, c.vocab_size) == (H, H, INNER, V)
    assert (c.num_heads, c.num_kv_heads, c.head_dim, c.n_aux, c.rms_norm_eps) == (4, 2, 8, 3, 1e-5)
    assert c.draft_vocab_size == (V if name == "TorchSpec" else VD)
    assert c.aux_boundaries == (None if name in WITHOUT_IDS else AUX)
    assert any(note.startswith(f"written by {trainer}") for note in c.assumed)
    plain = small_draft()
    for canonical in required(plain.config):
        assert torch.equal(opened.weight(canonical), plain.weight(canonical).bfloat16()), canonical
    if opened.vocabulary is not None:
        rows = dict(zip(opened.vocabulary.draft_ids.tolist(), opened.weight("lm_head.weight"), strict=True))
        expected = dict(zip(plain.vocabulary.draft_ids.tolist(), plain.weight("lm_head.weight").bfloat16(), strict=True))  # type: ignore[union-attr]
        assert rows.keys() == expected.keys() and all(torch.equal(rows[i], expected[i]) for i in rows)


@pytest.mark.parametrize(
    ("name", "theta"),
    [("EAGLE", 1e4), ("SpecForge", 5e5), ("Model-Optimizer", 1e4), ("AngelSlim", 1e6), ("speculators 0.9", 5e5), ("Automodel", 5e5)],
)
def test_the_rope_base_of_each_trainer(name: str, theta: float, tmp_path: Path) -> None:
    """Where each puts it; the scaling that Model-Optimizer writes at export is kept."""
    c = open_draft(TRAINERS[name][1](tmp_path / "d")).config
    assert c.rope_theta == theta
    assert (c.rope_scaling is not None) == (name == "Model-Optimizer")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "speculators 0.7 or later"), ({"speculators_version": "0.9.0"}, "speculators 0.9.0"),
        ({"fc_norm": None, "norm_output": None}, "speculators 0.5 or 0.6"),
        ({"fc_norm": None, "norm_output": None, "norm_before_fc": None, "embed_requires_grad": False}, "speculators 0.4"),
        ({"fc_norm": None, "norm_output": None, "norm_before_fc": None}, "speculators 0.3"),
        ({"fc_norm": None, "norm_output": None, "norm_before_fc": None, "eagle_aux_hidden_state_layer_ids": None}, "speculators 0.1 or 0.2"),
        ({"speculators_version": "<script>"}, "speculators 0.7 or later"),
    ],
)  # fmt: skip
def test_the_generation_of_speculators_is_said(fields: dict[str, Any], words: str) -> None:
    """By its version where it is stated, else by the fields that came with each; a version that is none is not repeated."""
    raw = {k: v for k, v in speculators_config(**fields).items() if v is not None or k == "target_hidden_size"}
    assert any(words in note for note in read_config(raw).assumed)


def test_an_mla_draft_is_read_with_its_sizes(tmp_path: Path) -> None:
    """DeepSeek's names, from the config or else from the shapes; ids that do not start at 1 are states, as its published heads have them."""
    opened = open_draft(trainers.mla(tmp_path / "d"))
    c = opened.config
    assert c.latent is not None
    assert (c.latent.q_lora_rank, c.latent.kv_lora_rank, c.latent.qk_head_dim, c.latent.v_head_dim) == (12, 16, 10, 8)
    assert (c.trainer, c.aux_boundaries, c.head_dim) == ("TorchSpec", AUX, 10)
    bare = {k: v for k, v in c.raw.items() if k not in trainers.LATENT}
    derived = read_config(bare, opened.tensors)
    assert derived.latent == c.latent and sum("from the shapes" in note for note in derived.assumed) == 4
    outputs = read_config(dict(c.raw) | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}, opened.tensors)
    assert outputs.aux_boundaries == AUX
    shapes = expected_shapes(c)
    assert all(opened.shape(n) == shapes[n] for n in opened.canonical())
    assert set(required(c)) <= opened.canonical().keys()
    with pytest.raises(MissingPart, match="kv_lora_rank"):
        read_config(bare, MemoryTensors({n: opened.tensors[n] for n in opened.tensors if "kv_a_layernorm" not in n}))


def test_an_mla_config_over_dense_tensors_is_dense() -> None:
    """Sizes inherited from a DeepSeek target mean nothing for a dense draft."""
    raw = dict(small_draft().config.raw) | trainers.LATENT
    assert read_config(raw, MemoryTensors(dict(small_draft().tensors))).latent is None


@pytest.mark.parametrize("name", OTHERS)
def test_other_kinds_are_named_and_nothing_else_is_said_of_them(name: str, tmp_path: Path) -> None:
    """One clear finding with the grounds and how it is served, whatever the engine; no EAGLE-3 check is made."""
    kind, build = OTHERS[name]
    opened = open_draft(build(tmp_path / "d"))
    assert opened.config.kind == kind
    for engine in ("sglang==0.5.8", "sglang==0.5.23"):
        found = audit(opened, engine=engine).findings
        assert [(f.fault, f.severity) for f in found] == [("C1", Severity.WARNING)]
        assert found[0].evidence[0].value == kind and found[0].fix


def test_a_p_eagle_draft_is_recognised_by_its_mask_state(tmp_path: Path) -> None:
    """An EAGLE-3 draft with one more tensor is another kind."""
    draft = small_draft().replace(tensors={"mask_hidden": torch.zeros(1, 1, 3 * H)})
    assert open_draft(write_draft(tmp_path / "d", draft)).config.kind == "peagle"


def test_a_target_with_its_own_mtp_layer_is_a_model_and_not_mtp() -> None:
    """DeepSeek's full checkpoint carries layers.61.eh_proj."""
    names = {f"model.layers.{i}.self_attn.q_proj.weight": torch.zeros(H, H) for i in range(5)} | {
        "model.layers.4.eh_proj.weight": torch.zeros(1)
    }
    raw = {"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": H, "num_attention_heads": 4}
    assert read_config(raw, MemoryTensors(names)).kind == "model"


def test_a_lost_layer_name_does_not_make_it_another_kind() -> None:
    """Under a prefix that nobody knows it is still an EAGLE-3 draft: that is what has to be found out."""
    for prefix in ("draft_layers.0.", "eagle_module.midlayer.", "module.layers.0."):
        assert small_draft().replace(rename=lambda n, p=prefix: n.replace("midlayer.", p)).config.kind == "eagle3"


# ---- whatever a file may hold ----

_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**12) | st.floats() | st.text(max_size=5) | st.sampled_from([10**400, "true", "32", -1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
_FIELDS = sorted({*small_draft().config.raw, *speculators_config(), *trainers.LATENT, "rope_parameters", "rope_scaling", "layer_types",
                  "sliding_window", "use_sliding_window", "quantization_config", "eagle_config", "num_aux_hidden_states", "fc_norm",
                  "target_hidden_size", "norm_before_fc", "dtype", "torch_dtype", "medusa_num_heads", "dflash_config", "use_aux_norm"})  # fmt: skip


@pytest.mark.parametrize("nested", [False, True])
def test_any_config_is_read_or_refused(nested: bool) -> None:
    """Random values in random fields, missing fields, and either layout: a normalised config and an audit, or one of our errors."""
    tensors = dict(small_draft().tensors)
    base = speculators_config() if nested else dict(small_draft().config.raw)

    @LIGHT
    @given(st.dictionaries(st.sampled_from(_FIELDS), _JUNK, max_size=5), st.sets(st.sampled_from(_FIELDS), max_size=3), st.booleans())
    def check(changes: dict[str, Any], missing: set[str], inside: bool) -> None:
        raw = {k: v for k, v in base.items() if k not in missing}
        if inside and isinstance(raw.get("transformer_layer_config"), dict):
            raw = raw | {"transformer_layer_config": raw["transformer_layer_config"] | changes}
        else:
            raw = raw | changes
        try:
            draft = Draft.from_tensors(tensors, raw)
            findings = audit(draft).findings
        except InputError as error:
            assert str(error)
            return
        assert all(f.title and f.fault for f in findings)

    check()


_NAMES = ["", "model.", "midlayer.", "layers.0.", "layers.1.", "layers.999999999.", "module.", "eagle_module.midlayer.", "mtp.", "x.y."]
_LEAVES = ["self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.kv_a_proj_with_mqa.weight", "hidden_norm.weight", "fc.weight", "fc_norm.0.weight",
           "input_norm.weight", "norm.weight", "lm_head.weight", "embed_tokens.weight", "d2t", "t2d", "eh_proj.weight", "mask_hidden"]  # fmt: skip
_SHAPES = [(), (0,), (1,), (7,), (64,), (128,), (0, 32), (32, 32), (32, 64), (32, 96), (64, 32), (3, 4, 5)]
_DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.float8_e4m3fn,
    torch.complex64,
]


def test_any_set_of_tensors_is_read_or_refused() -> None:
    """Random names, shapes and dtypes, beside or in place of the draft's own, NaN among them: findings, or one of our errors."""
    entry = st.tuples(
        st.sampled_from(_NAMES), st.sampled_from(_LEAVES), st.sampled_from(_SHAPES), st.sampled_from(_DTYPES), st.integers(-2, 300)
    )

    @LIGHT
    @given(st.lists(entry, max_size=6), st.booleans(), st.sampled_from(["sglang==0.4.8", "sglang==0.5.8", "sglang==0.5.23"]))
    def check(entries: list[tuple[str, str, tuple[int, ...], torch.dtype, int]], beside: bool, engine: str) -> None:
        made = dict(small_draft().tensors) if beside else {}
        for prefix, leaf, shape, dtype, value in entries:
            tensor = torch.full(shape, abs(value) % 2 if dtype in (torch.bool, torch.uint8) else value).to(dtype)
            if value == -2 and dtype.is_floating_point and dtype is not torch.float8_e4m3fn:
                tensor = torch.full(shape, float("nan"), dtype=dtype)
            made[prefix + leaf] = tensor
        try:
            findings = audit(Draft.from_tensors(made, small_draft().config.raw), engine=engine).findings
        except InputError as error:
            assert str(error)
            return
        assert all(f.title and f.fault for f in findings)

    check()
