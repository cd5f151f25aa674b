"""Checkpoints: whatever wrote them, the same normalised draft; read lazily, changed in memory only."""

from __future__ import annotations

import hashlib
import json
import pickle
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import LIGHT, TARGET_CONFIG, speculators_config, target_tensors, tensors_read, write_draft, write_model
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from small import VD, H, V, small_draft
from torch import Tensor

from eagle3diag.checkpoints import Draft, Target, TensorFiles, VocabularyMap, open_draft, open_target, safefile
from eagle3diag.checkpoints.config import DraftConfig, read_config
from eagle3diag.checkpoints.names import canonical_names
from eagle3diag.checkpoints.tensors import MemoryTensors
from eagle3diag.errors import BadArgument, MissingPart, UnreadableFile

DRAFT = dict(small_draft().tensors.items())
RAW = dict(small_draft().config.raw)


def config(tensors: dict[str, Tensor] | None = None, **changes: Any) -> DraftConfig:
    """The small draft's config with fields changed; None leaves one out."""
    raw = {k: v for k, v in {**RAW, **changes}.items() if v is not None}
    return read_config(raw, MemoryTensors(DRAFT if tensors is None else tensors))


def digest(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


# ---- weight files ----


def shards(folder: Path, index: bool = True) -> None:
    names = sorted(DRAFT)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({n: DRAFT[n] for n in held}, folder / file)
    if index:
        weight_map = {n: file for file, held in parts.items() for n in held}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def bin_shards(folder: Path) -> None:
    torch.save({"fc.weight": DRAFT["fc.weight"]}, folder / "pytorch_model-00001-of-00002.bin")
    torch.save({n: t for n, t in DRAFT.items() if n != "fc.weight"}, folder / "pytorch_model-00002-of-00002.bin")
    weight_map = {n: f"pytorch_model-0000{1 if n == 'fc.weight' else 2}-of-00002.bin" for n in DRAFT}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))


def two_formats(folder: Path) -> None:
    save_file(DRAFT, folder / "model.safetensors")
    torch.save({"fc.weight": torch.zeros(1)}, folder / "pytorch_model.bin")


LAYOUTS: dict[str, Callable[[Path], object]] = {
    "one safetensors file": lambda d: save_file(DRAFT, d / "model.safetensors"),
    "one safetensors file of another name": lambda d: save_file(DRAFT, d / "draft.safetensors"),
    "shards with an index": shards,
    "shards without an index": lambda d: shards(d, index=False),
    "pytorch_model.bin": lambda d: torch.save(DRAFT, d / "pytorch_model.bin"),
    "pytorch_model.bin in torch's old format": lambda d: torch.save(DRAFT, d / "pytorch_model.bin", _use_new_zipfile_serialization=False),
    "bin shards with an index": bin_shards,
    "training_state.pt that nests the weights": lambda d: torch.save({"draft_state_dict": DRAFT, "epoch": 3}, d / "training_state.pt"),
    "safetensors preferred to a bin beside it": two_formats,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_draft(layout: str, tmp_path: Path) -> None:
    """However the weights are laid out, names, shapes, dtypes and values are those that were saved."""
    (tmp_path / "config.json").write_text(json.dumps(RAW))
    LAYOUTS[layout](tmp_path)
    opened = open_draft(tmp_path)
    assert set(opened.tensors) == set(DRAFT) and len(opened.tensors) == len(DRAFT)
    for name, tensor in DRAFT.items():
        info = opened.tensors.info(name)
        assert (info.shape, info.dtype) == (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        assert torch.equal(opened.tensors[name], tensor)
    assert opened.config == read_config(RAW, MemoryTensors(DRAFT))


def test_one_weight_file_opens_with_the_config_beside_it(tmp_path: Path) -> None:
    """A path to model.safetensors itself is as good as its folder."""
    write_draft(tmp_path / "d")
    assert open_draft(tmp_path / "d" / "model.safetensors").config == open_draft(tmp_path / "d").config


def test_opening_reads_headers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, shapes and dtypes of a draft are known without any tensor being read."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(safefile.SafeFile, "read", refuse)
    opened = open_draft(write_draft(tmp_path / "d"))
    assert opened.config.n_aux == 3 and opened.shape("fc.weight") == (H, 3 * H) and opened.shape("no.such") is None
    assert "layers.0.mlp.up_proj.weight" in opened


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process")
def test_mapped_files_are_not_kept_open(tmp_path: Path) -> None:
    """A folder may have more shards than a process may have files: tensors of all of them are held at once."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = Path("/proc/self/fd")
    opened = sum(1 for _ in descriptors.iterdir()) if descriptors.is_dir() else 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 16, before[1]))
    try:
        held = []
        for i in range(64):
            save_file({"large": torch.full((200, 200), float(i)), "small": torch.arange(i + 1)}, tmp_path / f"{i}.safetensors")
            file = safefile.SafeFile(tmp_path / f"{i}.safetensors")
            held.append((file.read("large"), file.read("small")))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [(int(large[199, 199]), len(small)) for large, small in held] == [(i, i + 1) for i in range(64)]
    assert len(pickle.dumps(held[0][0])) < 2 * held[0][0].nbytes, "a tensor that is sent on takes its own bytes with it, not its file's"


def test_all_dtypes_of_safetensors_are_named_as_torch_names_them(tmp_path: Path) -> None:
    """The header's dtype words are translated to torch's for every dtype that both know."""
    dtypes = [getattr(torch, word) for word, _ in safefile.DTYPES.values() if word != "float4_e2m1fn_x2"]
    saved = {str(i): torch.zeros(2, 3, dtype=torch.uint8).to(dtype) for i, dtype in enumerate(dtypes)}
    save_file(saved, tmp_path / "model.safetensors")
    opened = TensorFiles.open(tmp_path)
    assert [opened.info(n).dtype for n in saved] == [str(t.dtype).removeprefix("torch.") for t in saved.values()]
    assert all(opened[n].dtype == t.dtype for n, t in saved.items())


def test_a_tensor_that_is_not_there_is_both_a_missing_part_and_a_key_error(tmp_path: Path) -> None:
    """Mapping methods work as for a dict, and the error names the file."""
    opened = open_draft(write_draft(tmp_path / "d"))
    assert opened.tensors.get("nothing") is None and "nothing" not in opened.tensors
    with pytest.raises(MissingPart, match="nothing") as caught:
        opened.tensors["nothing"]
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(MissingPart, match=r"no\.such"):
        opened.weight("no.such")


def test_nothing_on_disk_is_ever_changed(tmp_path: Path) -> None:
    """Reading, changing in memory, saving elsewhere and writing into what was read leave every byte of the user's folders alone."""
    write_draft(tmp_path / "draft")
    write_model(tmp_path / "target", TARGET_CONFIG, target_tensors())
    before = digest(tmp_path)
    opened, target = open_draft(tmp_path / "draft"), open_target(tmp_path / "target")
    for tensor in (*opened.tensors.values(), target.embedding(), target.head(), target.final_norm()):
        tensor.zero_()
    opened.replace(tensors={"fc.weight": torch.ones(H, H)}, config={"hidden_size": 16}).save(tmp_path.parent / f"{tmp_path.name}-copy")
    assert digest(tmp_path) == before


# ---- names ----


def test_names_become_canonical_whatever_the_trainer_called_them() -> None:
    """midlayer, model. and the legacy norms are renamed; what is unknown keeps its name, to be found by the audit."""
    names = [
        "midlayer.self_attn.q_proj.weight",
        "model.fc.weight",
        "model.layers.1.mlp.up_proj.weight",
        "aux_norm_mid.weight",
        "d2t",
        "x.y",
    ]
    assert canonical_names(names) == {
        "layers.0.self_attn.q_proj.weight": "midlayer.self_attn.q_proj.weight",
        "fc.weight": "model.fc.weight",
        "layers.1.mlp.up_proj.weight": "model.layers.1.mlp.up_proj.weight",
        "fc_norm.1.weight": "aux_norm_mid.weight",
        "d2t": "d2t",
        "x.y": "x.y",
    }


@LIGHT
@given(
    st.sets(
        st.sampled_from(["model.", "", "eagle_module.", "midlayer.", "layers.0.", "model.midlayer."]).map(
            lambda p: p + "mlp.up_proj.weight"
        )
    )
)
def test_no_tensor_is_lost_in_renaming(names: set[str]) -> None:
    """Canonical names are one to one with the checkpoint's, even where two names claim one place."""
    assert sorted(canonical_names(names).values()) == sorted(names)


# ---- config ----


def test_a_flat_config_lists_output_ids() -> None:
    """SafeAILab, SpecForge, ModelOpt: eagle_config holds output ids, so that boundary = id + 1, in the listed order."""
    found = config(eagle_config={"eagle_aux_hidden_state_layer_ids": [26, 1, 14]})
    assert (found.style, found.aux_boundaries, found.n_aux) == ("flat", (27, 2, 15), 3)
    assert len(found.assumed) == 1 and "SpecForge" in found.assumed[0]


def test_a_speculators_config_lists_state_ids() -> None:
    """speculators: the ids are at the top and are states, so that boundary = id; the layer is nested."""
    found = read_config(speculators_config(), MemoryTensors(DRAFT))
    assert (found.style, found.aux_boundaries, found.n_aux, found.architecture) == ("speculators", (2, 3, 4), 3, "Eagle3DraftModel")
    assert (found.rope_theta, found.rope_scaling) == (500000.0, None)
    assert (found.hidden_size, found.target_hidden_size, found.vocab_size, found.draft_vocab_size) == (H, H, V, VD)
    assert (found.norm_before_residual, found.norm_output, found.dtype) == (True, True, "bfloat16")
    assert len(found.assumed) == 1 and "speculators 0.7 or later" in found.assumed[0]


def test_without_ids_the_boundaries_are_unknown_and_said_to_be() -> None:
    """No ids: None and a note, never a guess; n_aux still comes from fc."""
    for ids in (None, {}, {"eagle_aux_hidden_state_layer_ids": None}):
        found = config(eagle_config=ids)
        assert found.aux_boundaries is None and found.n_aux == 3
        assert any("no aux layer ids" in note for note in found.assumed)


def test_ids_in_unusual_places_are_read_with_a_note() -> None:
    """Top-level ids of a flat config are states (as vLLM reads them); AngelSlim's field holds output ids; garbage counts as absent."""
    top = config(eagle_config=None, eagle_aux_hidden_state_layer_ids=[2, 3, 4])
    angelslim = config(eagle_config=None, aux_hidden_states_layer_ids=[1, 2, 3])
    garbage = config(eagle_config={"eagle_aux_hidden_state_layer_ids": "1,2,3"})
    assert top.aux_boundaries == angelslim.aux_boundaries == (2, 3, 4) and garbage.aux_boundaries is None
    assert all(c.assumed for c in (top, angelslim, garbage))


@pytest.mark.parametrize(
    ("fields", "theta", "scaling"),
    [
        ({"rope_theta": 1e6}, 1e6, None),
        ({"rope_theta": 1000000}, 1e6, None),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5, None),
        ({"rope_theta": None}, 1e4, None),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 1e4, {"type": "yarn", "factor": 4.0, "rope_type": "yarn"}),
        (
            {"rope_theta": None, "rope_parameters": {"rope_theta": 1e6, "rope_type": "llama3", "factor": 8}},
            1e6,
            {"rope_type": "llama3", "factor": 8},
        ),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, 1e6, None),
        (
            {"rope_theta": None, "rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}},
            1e6,
            None,
        ),
    ],
)
def test_the_rope_base_is_found_in_every_place(fields: dict[str, Any], theta: float, scaling: dict[str, Any] | None) -> None:
    """rope_theta, rope_parameters.rope_theta, or 10000 with a note; scaling only when the rotation is not the plain one."""
    found = config(**fields)
    assert (found.rope_theta, found.rope_scaling) == (theta, scaling)
    absent = fields == {"rope_theta": None}
    assert any("no rope_theta" in note for note in found.assumed) is absent


def test_flags_are_read_where_engines_read_them() -> None:
    """norm_before_fc from eagle_config before the top; fc_norm also under its old name; norm_output also under TensorRT-LLM's."""
    assert config(eagle_config={"norm_before_fc": True}, norm_before_fc=False).norm_before_fc
    assert config(norm_before_fc=True).norm_before_fc
    assert config(use_aux_norm=True).fc_norm and config(fc_norm=True).fc_norm
    assert config(eagle_config={"return_hidden_post_norm": True}).norm_output
    plain = config()
    assert not (plain.norm_before_fc or plain.fc_norm or plain.norm_output or plain.norm_before_residual or plain.attention_bias)
    without = {k: v for k, v in speculators_config().items() if k != "norm_before_residual"}
    assert read_config(without).norm_before_residual and not config().norm_before_residual


def test_what_a_config_leaves_out_is_derived_and_noted() -> None:
    """Sizes come from the tensors or from the standard rule, each with a note; null counts as absent."""
    found = config(
        num_key_value_heads=None, head_dim=None, num_hidden_layers=None, draft_vocab_size=None, intermediate_size=None, vocab_size=None
    )
    assert (found.num_kv_heads, found.head_dim, found.num_layers, found.draft_vocab_size) == (4, 8, 1, VD)
    assert (found.intermediate_size, found.vocab_size) == (48, V)
    for word in ("num_key_value_heads", "head_dim", "num_hidden_layers", "draft_vocab_size", "intermediate_size"):
        assert any(word in note for note in found.assumed), word
    assert config(dtype=None, torch_dtype="torch.float16").dtype == "float16"


@pytest.mark.parametrize("field", ["hidden_size", "num_attention_heads"])
def test_a_field_that_cannot_be_derived_is_named(field: str) -> None:
    """The error names the field, the file, and what to do."""
    with pytest.raises(MissingPart, match=field) as caught:
        config(**{field: None})
    assert caught.value.where and caught.value.hint and field in caught.value.hint


def test_without_tensors_the_mlp_and_the_vocabulary_must_be_stated() -> None:
    """What only the tensors could tell is asked for when they are not there."""
    for field in ("intermediate_size", "vocab_size"):
        with pytest.raises(MissingPart, match=field):
            config({}, **{field: None})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "32"), ("hidden_size", -1), ("hidden_size", 0), ("hidden_size", True), ("hidden_size", [32]), ("hidden_size", 32.5),
        ("num_attention_heads", 10**30), ("rms_norm_eps", "1e-6"), ("rms_norm_eps", float("nan")), ("rope_theta", 0), ("rope_theta", 10**400),
        ("rope_parameters", [1]), ("rope_scaling", "yarn"), ("tie_word_embeddings", "no"), ("hidden_act", 3), ("torch_dtype", 16),
        ("num_aux_hidden_states", "three"),
    ],
)  # fmt: skip
def test_a_field_of_the_wrong_type_is_named(field: str, value: Any) -> None:
    """The error shows the value and the type that was expected."""
    with pytest.raises(UnreadableFile, match=field):
        config(**{field: value})


def test_speculators_defaults_fill_its_difference() -> None:
    """transformer_layer_config is a difference from its class's defaults: what is absent is that default, and noted."""
    layer = {"model_type": "qwen3", "num_hidden_layers": 1}
    found = read_config(speculators_config(transformer_layer_config=layer))
    assert (found.hidden_size, found.num_heads, found.num_kv_heads, found.head_dim, found.vocab_size) == (4096, 32, 32, 128, 151936)
    assert any("Qwen3Config" in note for note in found.assumed)


def test_the_number_of_aux_states_follows_fc() -> None:
    """fc's width decides; a width that fits no number is left to the audit, with the config's count."""
    wide = DRAFT | {"fc.weight": torch.zeros(H, 5 * H)}
    odd = DRAFT | {"fc.weight": torch.zeros(H, 3 * H + 1)}
    assert config(wide).n_aux == 5
    found = config(odd)
    assert found.n_aux == 3 and any("not a multiple" in note for note in found.assumed)
    assert config({}, eagle_config=None).n_aux == 3 and config({}, num_aux_hidden_states=4).n_aux == 4
    assert config(DRAFT, target_hidden_size=16).n_aux == 6


# ---- vocabulary ----


@LIGHT
@given(st.lists(st.integers(-5, 140), min_size=1, max_size=40))
def test_the_vocabulary_map_adds_offsets_up(targets: list[int]) -> None:
    """draft_ids[i] = i + d2t[i]; the inverse is checked against a loop, with duplicates and ids outside the vocabulary."""
    found = VocabularyMap.from_tables(torch.tensor([t - i for i, t in enumerate(targets)], dtype=torch.int32))
    assert found.draft_ids.tolist() == targets and found.size == len(targets)
    expected = [-1] * V
    for draft_id, target_id in enumerate(targets):
        if 0 <= target_id < V and expected[target_id] == -1:
            expected[target_id] = draft_id
    assert found.to_draft(V).tolist() == expected


def test_a_draft_without_d2t_has_no_map() -> None:
    """None, so that the caller must say what it does then; with d2t alone, t2d is None."""
    whole = small_draft()
    assert whole.vocabulary is not None and torch.equal(whole.vocabulary.draft_ids, whole.weight("t2d").nonzero()[:, 0])
    assert whole.replace(tensors={"d2t": None}).vocabulary is None
    without = whole.replace(tensors={"t2d": None}).vocabulary
    assert without is not None and without.t2d is None


# ---- drafts ----


def test_a_changed_copy_reads_only_what_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """replace() on a draft on disk reads no tensor, keeps the original as it was, and applies every change."""
    opened = open_draft(write_draft(tmp_path / "d"))
    read = tensors_read(monkeypatch)
    changed = opened.replace(
        tensors={"fc.weight": torch.zeros(H, 2 * H), "t2d": None, "extra": torch.ones(1)},
        config={"rope_theta": 5e5, "head_dim": None},
        rename=lambda n: n.replace("midlayer.", "layers.0."),
    )
    assert not read
    assert (changed.config.n_aux, changed.config.rope_theta, "head_dim" in changed.config.raw) == (2, 5e5, False)
    assert {"extra", "layers.0.hidden_norm.weight"} <= set(changed.tensors) and "t2d" not in changed.tensors
    assert torch.equal(changed.weight("layers.0.hidden_norm.weight"), DRAFT["midlayer.hidden_norm.weight"])
    assert set(opened.tensors) == set(DRAFT) and opened.config.n_aux == 3
    again = changed.replace(rename=lambda n: "model." + n)
    assert torch.equal(again.weight("fc.weight"), torch.zeros(H, 2 * H)) and len(again.tensors) == len(changed.tensors)


def test_a_change_that_cannot_be_meant_is_refused() -> None:
    """Removing what is not there would make a counterfactual out of nothing; two tensors cannot share a name."""
    with pytest.raises(BadArgument, match="fc_weight"):
        small_draft().replace(tensors={"fc_weight": None})
    with pytest.raises(BadArgument, match="two tensors"):
        small_draft().replace(rename=lambda _: "same")


def test_a_saved_draft_is_the_draft(tmp_path: Path) -> None:
    """save() and open_draft() give the same tensors and config, for shared and strided tensors too, with readable files."""
    shared = torch.arange(H * 3 * H, dtype=torch.float32).view(3 * H, H)
    changed = small_draft().replace(tensors={"fc.weight": shared.T, "copy": shared}, config={"note": "x"})
    folder = changed.save(tmp_path / "deep" / "saved")
    again = open_draft(folder)
    assert again.config == changed.config and set(again.tensors) == set(changed.tensors)
    assert all(torch.equal(again.tensors[n], t) and again.tensors[n].dtype == t.dtype for n, t in changed.tensors.items())
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert all(p.stat().st_mode & 0o777 == 0o644 for p in folder.iterdir())
    assert load_file(folder / "model.safetensors").keys() == changed.tensors.keys()
    assert [p.name for p in folder.parent.iterdir()] == ["saved"]


def test_a_draft_is_never_saved_over_anything(tmp_path: Path) -> None:
    """A folder that holds something, or a file, is refused; an empty folder is taken; a failed write leaves nothing."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file"):
        with pytest.raises(BadArgument):
            small_draft().save(tmp_path / name)
    small_draft().save(tmp_path / "empty")
    unwritable = small_draft().replace(config={"bad": {1, 2}})
    with pytest.raises(TypeError):
        unwritable.save(tmp_path / "failed")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "full"]


def test_an_open_draft_passes_through_and_tensors_in_memory_make_one() -> None:
    """open_draft() of a draft is that draft; from_tensors() derives the config from the state dict."""
    whole = small_draft()
    assert open_draft(whole) is whole
    made = Draft.from_tensors(DRAFT, RAW)
    assert made.config == config() and torch.equal(made.weight("fc.weight"), DRAFT["fc.weight"]) and "tensors" in repr(made)


# ---- targets ----


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("model.", "lm_head.weight"), ("language_model.model.", "language_model.lm_head.weight"),
        ("model.language_model.", "lm_head.weight"), ("", "lm_head.weight"), ("model.", None),
    ],
)  # fmt: skip
def test_a_target_gives_its_embedding_head_and_norm(prefix: str, head: str | None, tmp_path: Path) -> None:
    """Plain and multimodal names; a tied head is the embedding."""
    tensors = target_tensors(prefix=prefix, head=head)
    found = open_target(write_model(tmp_path / "t", TARGET_CONFIG | {"tie_word_embeddings": head is None}, tensors))
    assert torch.equal(found.embedding(), tensors[f"{prefix}embed_tokens.weight"])
    assert torch.equal(found.head(), tensors[head] if head else tensors[f"{prefix}embed_tokens.weight"])
    assert torch.equal(found.final_norm(), tensors[f"{prefix}norm.weight"])
    assert (found.name, found.hidden_size, found.n_layers, found.vocab_size, found.dtype) == ("t", H, 6, V, "bfloat16")
    assert found.rms_norm_eps == 1e-5 and len(found.config_hash) == 16 and open_target(found) is found


def test_the_text_part_of_a_multimodal_config_counts() -> None:
    """Sizes come from text_config, also nested twice, while the hash covers the whole."""
    for nested in ({"text_config": TARGET_CONFIG}, {"thinker_config": {"text_config": TARGET_CONFIG}}):
        found = Target("vl", {"model_type": "vl", "hidden_size": 7} | nested, {})
        assert (found.hidden_size, found.n_layers, found.dtype) == (H, 6, "bfloat16")


def test_a_target_names_what_it_lacks() -> None:
    """No weights, no head although it is not tied, no size: each its own MissingPart."""
    bare = Target("t", TARGET_CONFIG, {})
    for ask in (bare.embedding, bare.head, bare.final_norm):
        with pytest.raises(MissingPart, match=r"weight"):
            ask()
    quantised = Target("t", TARGET_CONFIG, target_tensors(head=None))
    with pytest.raises(MissingPart, match="tie_word_embeddings"):
        quantised.head()
    with pytest.raises(MissingPart, match="num_hidden_layers"):
        _ = Target("t", {"hidden_size": 8}, {}).n_layers
    with pytest.raises(UnreadableFile, match="hidden_size"):
        _ = Target("t", {"hidden_size": "8"}, {}).hidden_size


def test_a_target_in_the_hub_cache_has_its_hub_name() -> None:
    """The name is what people call it, not a revision's hash or somebody's path."""
    assert (
        Target("/home/me/.cache/hub/models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f", TARGET_CONFIG, {}).name
        == "meta-llama/Llama-3.1-8B"
    )
