"""Conversion: a copy that an engine reads as trained, everything changed in a list, tensors byte for byte, the source untouched."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import trainers
from builders import AUX, speculators_config, write_draft
from safetensors import safe_open
from safetensors.torch import load_file
from small import VD, H, V, small_draft
from torch import Tensor
from trainers import TRAINERS

import eagle3diag
from eagle3diag import cli
from eagle3diag.audit import audit
from eagle3diag.checkpoints import Draft, DraftConfig, TensorFiles, open_draft
from eagle3diag.checkpoints.tensors import MemoryTensors
from eagle3diag.checkpoints.write import write_folder
from eagle3diag.convert import Conversion, convert
from eagle3diag.errors import BadArgument
from eagle3diag.findings import Severity

TARGETS = ("sglang==0.5.8", "sglang==0.5.23", "vllm==0.32.0", "speculators")


def digests(draft: Draft) -> dict[str, str]:
    """SHA-256 of every tensor's bytes, by canonical name."""
    return {c: digest(draft.tensors[n]) for c, n in draft.canonical().items()}


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def meaning(c: DraftConfig) -> tuple[object, ...]:
    """What decides how the draft is computed."""
    return (
        c.hidden_size, c.target_hidden_size, c.intermediate_size, c.num_heads, c.num_kv_heads, c.head_dim, c.vocab_size, c.draft_vocab_size,
        c.rms_norm_eps, c.rope_theta, dict(c.rope_scaling or {}), c.aux_boundaries, c.n_aux, c.norm_before_residual, c.norm_before_fc,
        c.fc_norm, c.norm_output, c.tie_word_embeddings, c.hidden_act, c.dtype, c.latent,
    )  # fmt: skip


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("name", TRAINERS)
def test_every_trainer_to_every_engine(name: str, to: str, tmp_path: Path) -> None:
    """The copy means the same, its tensors are the same bytes, the source is as it was, and SGLang would load it whole."""
    source = TRAINERS[name][1](tmp_path / "source")
    before = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in source.iterdir()}
    opened = open_draft(source)
    result = convert(source, tmp_path / "out", to)
    made = open_draft(tmp_path / "out")
    assert meaning(made.config) == meaning(opened.config)
    assert made.config.style == ("speculators" if to == "speculators" else "flat")
    assert digests(made) == digests(opened) and result.rewritten == () and result.tensors == len(made.tensors)
    assert {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in source.iterdir()} == before
    if to.startswith("sglang"):
        found = audit(made, engine=to)
        assert not [load for load in found.loads if load.outcome in ("missing", "dropped", "raises")]
        allowed = {field.fault for field in found.unserved}  # what this version does not honour, no config mends
        assert {f.fault for f in found.findings if f.severity > Severity.NOTE} <= allowed
        assert result.findings == found.findings
        assert made.config.architecture == "LlamaForCausalLMEagle3"


@pytest.mark.parametrize("way", [("speculators", "sglang==0.5.23"), ("vllm==0.32.0", "sglang==0.5.8"), ("sglang==0.5.8", "speculators")])
@pytest.mark.parametrize("name", ["SpecForge", "AngelSlim", "speculators 0.9", "TorchSpec"])
def test_round_trips_keep_everything(name: str, way: tuple[str, str], tmp_path: Path) -> None:
    """There and back again: the same meaning and bytes; and a second conversion to the same engine changes nothing."""
    source = open_draft(TRAINERS[name][1](tmp_path / "0"))
    convert(source, tmp_path / "1", way[0])
    convert(tmp_path / "1", tmp_path / "2", way[1])
    back = open_draft(tmp_path / "2")
    assert meaning(back.config) == meaning(source.config) and digests(back) == digests(source)
    assert convert(back, tmp_path / "3", way[1]).changes == ()


def test_a_copy_for_an_old_engine_has_its_names(tmp_path: Path) -> None:
    """layers.0 becomes midlayer before 0.5.12 and stays after; a lost prefix is recognised; each in one line of the list."""
    source = TRAINERS["Model-Optimizer"][1](tmp_path / "s")
    old, new = convert(source, tmp_path / "old", "sglang==0.5.8"), convert(source, tmp_path / "new", "sglang==0.5.23")
    assert [(e.before, e.after) for e in old.changes if e.what == "names"] == [("layers.0.*", "midlayer.*")]
    assert not [e for e in new.changes if e.what == "names"]
    lost = small_draft().replace(rename=lambda n: n.replace("midlayer.", "draft_layers.0."))
    found = convert(lost, tmp_path / "lost", "sglang==0.5.8")
    assert ("draft_layers.0.*", "midlayer.*") in [(e.before, e.after) for e in found.changes]
    assert found.ok and digests(open_draft(tmp_path / "lost")) == digests(small_draft())


def test_ids_are_written_as_each_engine_reads_them(tmp_path: Path) -> None:
    """SGLang: output ids in eagle_config; vLLM: state ids at the top, beside what was there."""
    source = TRAINERS["speculators 0.9"][1](tmp_path / "s")
    convert(source, tmp_path / "a", "sglang==0.5.23")
    raw = open_draft(tmp_path / "a").config.raw
    assert raw["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [b - 1 for b in AUX]
    assert "transformer_layer_config" not in raw and raw["rope_theta"] == raw["rope_parameters"]["rope_theta"] == 500000.0
    convert(tmp_path / "a", tmp_path / "b", "vllm==0.32.0")
    both = open_draft(tmp_path / "b").config.raw
    assert both["eagle_aux_hidden_state_layer_ids"] == list(AUX) and both["eagle_config"] == raw["eagle_config"]
    assert convert(TRAINERS["EAGLE"][1](tmp_path / "e"), tmp_path / "c").left[0].what == "aux layer ids"


def test_what_is_certain_is_repaired_and_the_rest_is_said(tmp_path: Path) -> None:
    """Absolute ids become offsets; a map that only t2d could give is rebuilt for a trainer that sorts, and left for one that does not."""
    draft = small_draft()
    ids = draft.vocabulary.draft_ids  # type: ignore[union-attr]
    absolute = convert(draft.replace(tensors={"d2t": ids}), tmp_path / "absolute")
    assert [(e.what, e.before, e.after) for e in absolute.changes if e.what == "d2t"] == [("d2t", "absolute ids", "offsets")]
    assert absolute.rewritten == ("d2t",) and torch.equal(open_draft(tmp_path / "absolute").tensors["d2t"], ids - torch.arange(VD))
    lost = convert(draft.replace(tensors={"d2t": None}), tmp_path / "sorted")
    assert lost.ok and "d2t" in lost.rewritten
    unsorted = draft.replace(
        tensors={"d2t": None}, rename=lambda n: "model." + n.replace("midlayer.", "layers.0.") if n not in ("t2d", "d2t") else n
    )
    left = convert(unsorted, tmp_path / "unsorted")
    assert open_draft(unsorted).config.trainer == "Automodel"
    assert "assumption" in next(e.why for e in left.left if e.what == "d2t") and not left.ok
    head = convert(
        draft.replace(tensors={"lm_head.weight": None, "d2t": None, "t2d": None}, config={"draft_vocab_size": V}), tmp_path / "borrowed"
    )
    assert head.ok and json.loads((tmp_path / "borrowed" / "config.json").read_text())["draft_vocab_size"] is None


def test_automodel_needs_every_repair_at_once(tmp_path: Path) -> None:
    """The target's number of layers, an unknown architecture, Transformers 5's rope: one copy that SGLang 0.5.8 loads, in two shards."""
    result = convert(TRAINERS["Automodel"][1](tmp_path / "s"), tmp_path / "o", "sglang==0.5.8")
    raw = json.loads((tmp_path / "o" / "config.json").read_text())
    assert (raw["num_hidden_layers"], raw["architectures"], raw["rope_theta"], raw["torch_dtype"]) == (
        1,
        ["LlamaForCausalLMEagle3"],
        5e5,
        "bfloat16",
    )
    assert result.ok and [e.what for e in result.left] == ["aux layer ids"]
    files = sorted(p.name for p in (tmp_path / "o").iterdir())
    assert files == ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]


def test_an_old_engine_gets_zeros_for_what_it_would_make_up(tmp_path: Path) -> None:
    """SGLang before 0.4.9: the bias of fc, which starts at random there, and the map of a whole vocabulary, without which it does not start."""
    source = TRAINERS["TorchSpec"][1](tmp_path / "s")
    assert [f.fault for f in audit(source, engine="sglang==0.4.8").findings[:2]] == ["K1", "FM-26"]
    result = convert(source, tmp_path / "o", "sglang==0.4.8")
    assert [(e.what, e.after) for e in result.changes[-2:]] == [("fc.bias", "zeros"), ("d2t", "zeros")]
    assert result.rewritten == ("d2t", "fc.bias") and not result.audit.outcome("missing")  # type: ignore[union-attr]
    made = open_draft(tmp_path / "o").tensors
    assert not made["fc.bias"].any() and made["fc.bias"].dtype == made["fc.weight"].dtype and not made["d2t"].any()


def test_vllm_gets_names_that_its_version_knows(tmp_path: Path) -> None:
    """Its own class before it knew SGLang's; an MLA draft under the type that is not rewritten to another kind of model."""
    source = TRAINERS["SpecForge"][1](tmp_path / "s")
    for version, name in (("0.9.2", "Eagle3LlamaForCausalLM"), ("0.10.2", "LlamaForCausalLMEagle3")):
        result = convert(source, tmp_path / version, f"vllm=={version}")
        assert open_draft(tmp_path / version).config.architecture == name and result.audit is not None and not result.audit.refused
    latent = convert(trainers.mla(tmp_path / "m"), tmp_path / "n", "vllm==0.32.0")
    assert [(e.before, e.after) for e in latent.changes if e.what == "config: model_type"] == [("deepseek_v3", "kimi_k2")]
    assert latent.audit is not None and not latent.audit.refused


def test_weights_that_no_engine_needs_are_left_out(tmp_path: Path) -> None:
    """Computed tables and the trainer's copies of the target's weights, over which vLLM would end; anything else unknown is kept."""
    extra = {
        "midlayer.self_attn.rotary_emb.inv_freq": torch.rand(4),
        "verifier_norm.weight": torch.ones(H),
        "mystery.weight": torch.ones(2),
    }
    result = convert(small_draft().replace(tensors=extra), tmp_path / "o")
    assert {e.what for e in result.changes if e.after == "left out"} == set(extra) - {"mystery.weight"}
    assert "mystery.weight" in open_draft(tmp_path / "o").tensors


def test_mla_and_qwen3_drafts_get_their_classes(tmp_path: Path) -> None:
    """MLA keeps its class and its ids, which are ambiguous, and has no form in speculators; norms on q and k ask for vLLM's qwen3 class."""
    source = trainers.mla(tmp_path / "s", architectures=["SomethingElse"])
    result = convert(source, tmp_path / "o", "vllm==0.32.0")
    assert open_draft(tmp_path / "o").config.architecture == "Eagle3DeepseekV2ForCausalLM"
    assert [e.what for e in result.left] == ["aux layer ids"] and digests(open_draft(tmp_path / "o")) == digests(open_draft(source))
    with pytest.raises(BadArgument, match="MLA"):
        convert(source, tmp_path / "p", "speculators")
    layer = speculators_config()["transformer_layer_config"] | {"model_type": "qwen3"}
    convert(TRAINERS["speculators 0.9"][1](tmp_path / "q"), tmp_path / "plain", "vllm==0.32.0")
    convert(trainers.speculators(tmp_path / "q3", transformer_layer_config=layer), tmp_path / "qwen", "vllm==0.32.0")
    assert [open_draft(tmp_path / n).config.architecture for n in ("plain", "qwen")] == ["LlamaForCausalLMEagle3", "Eagle3Qwen3ForCausalLM"]


@pytest.mark.parametrize("to", ["llama.cpp", "sglang==latest", "speculators==0.9", "", "vllm==x"])
def test_an_unknown_engine_is_refused(to: str, tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(BadArgument):
        convert(small_draft(), tmp_path / "o", to)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over_or_left_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with anything in it is refused, the source's own too; a failure in the middle leaves no folder; other kinds are refused."""
    source = write_draft(tmp_path / "s")
    for out in (source, tmp_path):
        with pytest.raises(BadArgument, match="not empty"):
            convert(source, out)
    with pytest.raises(BadArgument, match="Medusa"):
        convert(trainers.medusa(tmp_path / "m"), tmp_path / "o")
    real = TensorFiles.__getitem__

    def breaking(self: TensorFiles, name: str) -> Tensor:
        if "up_proj" in name:
            raise OSError("disk full")
        return real(self, name)

    monkeypatch.setattr(TensorFiles, "__getitem__", breaking)
    with pytest.raises(OSError, match="disk full"):
        convert(source, tmp_path / "o")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "s"]


def test_every_dtype_is_written_byte_for_byte(tmp_path: Path) -> None:
    """Scalars, empty tensors and strided views too; the library itself reads the file, and every tensor is aligned to its width."""
    g = torch.Generator().manual_seed(0)
    raw = torch.randint(256, (24, 8), generator=g, dtype=torch.uint8)
    words = (
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "float8_e4m3fn",
        "float8_e5m2",
        "uint16",
    )
    made = {w: (raw % 2).bool() if w == "bool" else raw.view(getattr(torch, w)) for w in words}
    made |= {"scalar": torch.tensor(3.0), "empty": torch.empty(0, 4), "strided": torch.arange(12.0).view(3, 4).T}
    write_folder(tmp_path / "o", {}, MemoryTensors(made), dict.fromkeys(made, "model.safetensors"))
    again = load_file(tmp_path / "o" / "model.safetensors")
    assert again.keys() == made.keys()
    for name, tensor in made.items():
        assert again[name].dtype == tensor.dtype and again[name].shape == tensor.shape and digest(again[name]) == digest(tensor)
        assert again[name].data_ptr() % tensor.element_size() == 0
    with safe_open(tmp_path / "o" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_large_sharded_draft_does_not_fill_the_memory(tmp_path: Path) -> None:
    """100 MB in three shards, converted in a process whose peak stays far below that."""
    shapes = {"a": 3, "b": 3, "c": 4}
    for i, (name, count) in enumerate(shapes.items()):
        held = {f"mystery.{name}.{j}": torch.full((10, 1 << 18), j, dtype=torch.float32) for j in range(count)}
        held |= {n: t for k, (n, t) in enumerate(small_draft().tensors.items()) if k % 3 == i}
        write_folder(tmp_path / name, {}, MemoryTensors(held), dict.fromkeys(held, "x.safetensors"))
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(small_draft().config.raw)))
    for i, name in enumerate(shapes):
        (tmp_path / name / "x.safetensors").rename(folder / f"model-{i + 1:05d}-of-00003.safetensors")
    code = (
        "import resource, sys; from eagle3diag.convert import convert; import eagle3diag.audit.report\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"convert({str(folder)!r}, {str(tmp_path / 'o')!r})\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    grown = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert grown < 60_000, f"{grown} KB"
    assert digests(open_draft(tmp_path / "o")) == digests(open_draft(folder))


def test_the_verb_at_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit codes and words: a clean copy is 0, one with findings left is 1, and every change is in the JSON and the HTML."""
    source = TRAINERS["Automodel"][1](tmp_path / "s")
    assert cli.main(["convert", str(source), str(tmp_path / "o"), "--to", "sglang==0.5.8", "--html", str(tmp_path / "r.html")]) == cli.CLEAN
    assert "num_hidden_layers" in capsys.readouterr().out and "as many layers as the file holds" in (tmp_path / "r.html").read_text()
    assert cli.main(["convert", str(source), str(tmp_path / "o")]) == cli.BAD_INPUT
    headless = write_draft(tmp_path / "h", small_draft().replace(tensors={"lm_head.weight": None}))
    capsys.readouterr()
    assert cli.main(["convert", str(headless), str(tmp_path / "p"), "--json"]) == cli.FINDINGS
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert said["kind"] == "Conversion" and said["findings"][0]["fault"] == "FM-06"
    assert isinstance(eagle3diag.convert(source, tmp_path / "q"), Conversion)


def test_a_copy_for_speculators_is_one_that_vllm_recognises(tmp_path: Path) -> None:
    """vLLM's get_config tells the format by speculators_config alone (run in 0.32.0); without it the config has no model type."""
    convert(write_draft(tmp_path / "draft"), tmp_path / "copy", to="speculators")
    assert not audit(tmp_path / "copy", engine="vllm==0.32.0").refused
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] > 0
    del config["speculators_config"]
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config))
    (finding,) = (f for f in audit(tmp_path / "copy", engine="vllm==0.32.0").findings if f.fault == "FM-27")
    assert "speculators_config" in finding.because


def test_a_field_that_is_gone_is_said_to_be_elsewhere_or_nowhere(tmp_path: Path) -> None:
    """The reason why a field would be added is no reason why one was taken out."""
    made = convert(write_draft(tmp_path / "draft", torch_dtype="bfloat16"), tmp_path / "copy", to="speculators")
    gone = {e.what: e.why for e in made.changes if e.what.startswith("config: ") and e.after == "absent"}
    assert gone["config: torch_dtype"] == "the format has no such field"
    assert gone["config: rope_theta"] == "it stands in transformer_layer_config.rope_parameters.rope_theta now"
