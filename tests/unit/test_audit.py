"""The audit on a small draft: what each SGLang version loads, what the map means, and which oddities are legal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import small_draft

from eagle3diag.audit import audit
from eagle3diag.checkpoints import Draft
from eagle3diag.convert import convert
from eagle3diag.engines import Version, split_engine
from eagle3diag.engines.sglang import default_boundaries
from eagle3diag.errors import BadArgument
from eagle3diag.findings import Severity
from eagle3diag.repair import layer_prefix, repaired


def test_a_sound_draft_loads_whole_and_is_silent() -> None:
    """Everything is loaded, the embedding is borrowed, t2d is not used in serving."""
    result = audit(small_draft())

    assert result.ok and not result.findings
    assert {load.outcome for load in result.loads} == {"loaded", "borrowed", "ignored"}
    assert result.needs_target_width == 3


@pytest.mark.parametrize(
    ("prefix", "engine", "outcome"),
    [
        ("midlayer.", "0.4.8", "loaded"), ("midlayer.", "0.5.11", "loaded"), ("midlayer.", "0.5.23", "loaded"),
        ("layers.0.", "0.4.8", "raises"), ("layers.0.", "0.5.11", "dropped"), ("layers.0.", "0.5.12", "loaded"),
        ("model.layers.0.", "0.5.23", "loaded"), ("draft_layers.0.", "0.5.23", "dropped"), ("eagle_module.midlayer.", "0.5.8", "dropped"),
    ],
)  # fmt: skip
def test_layer_names_by_version(prefix: str, engine: str, outcome: str) -> None:
    """The table of sglang.md 1.3 and 1.4: the same file loads whole, loses its layer in silence, or ends the start-up."""
    draft = small_draft().replace(rename=lambda name: name.replace("midlayer.", prefix))

    result = audit(draft, engine=f"sglang=={engine}")

    assert next(load.outcome for load in result.loads if load.name.endswith("q_proj.weight") and load.shape) == outcome
    assert bool(result.missing_layer) is (outcome != "loaded")
    assert [f.fault for f in audit(draft, engine=f"sglang=={engine}").findings if f.severity is Severity.ERROR] == (
        [] if outcome == "loaded" else ["FM-05"]
    )


def test_lost_layer_is_recognised_by_its_endings() -> None:
    """A layer under an unknown prefix is found again; a half-missing one is not invented."""
    whole = small_draft()
    lost = whole.replace(rename=lambda name: name.replace("midlayer.", "a.b."))

    assert layer_prefix(whole) is None
    assert layer_prefix(lost) == "a.b."
    assert repaired(lost).canonical().keys() == whole.canonical().keys()
    assert layer_prefix(lost.replace(tensors={"a.b.mlp.up_proj.weight": None})) is None


def test_an_unknown_version_is_a_finding() -> None:
    """The nearest rules are used, and said to be."""
    result = audit(small_draft(), engine="sglang==0.9.0")

    assert not result.engine_known
    assert [f.fault for f in result.findings] == ["C0"]
    assert "0.4.5 to 0.5.23" in str(result.findings[0].evidence[0])
    assert result.ok
    assert audit(small_draft(), engine="sglang==0.9.0").loads == audit(small_draft(), engine="sglang==0.5.23").loads


def test_unknown_engine_is_an_error() -> None:
    """An engine without facts is bad input."""
    with pytest.raises(BadArgument, match="known: sglang"):
        audit(small_draft(), engine="llama.cpp")


def test_zero_map_with_equal_vocabularies_is_legal() -> None:
    """All-zero d2t is the identity when nothing was reduced."""
    draft = small_draft()
    v = draft.config.vocab_size
    full = draft.replace(
        tensors={"lm_head.weight": torch.randn(v, 32), "d2t": torch.zeros(v, dtype=torch.int64), "t2d": torch.ones(v, dtype=torch.bool)},
        config={"draft_vocab_size": v},
    )

    assert audit(full).ok


def test_a_null_draft_vocabulary_borrows_the_head() -> None:
    """No lm_head is legal when the config says null; a fault when it promises a size."""
    draft = small_draft().replace(tensors={"lm_head.weight": None})

    assert [f.fault for f in audit(draft).findings] == ["FM-06"]


def test_frequency_ordered_map_is_legal() -> None:
    """Negative and non-monotone offsets are what ModelOpt and Automodel write."""
    draft = small_draft()
    ids = draft.vocabulary.draft_ids.flip(0)  # type: ignore[union-attr]
    shuffled = draft.replace(tensors={"d2t": ids - torch.arange(len(ids))})

    assert audit(shuffled).ok


def test_wrong_shape_is_named() -> None:
    """A head that does not fit the declared draft vocabulary."""
    result = audit(small_draft().replace(tensors={"lm_head.weight": torch.randn(60, 32)}))

    assert [s.name for s in result.shapes] == ["lm_head.weight"]
    assert "K2" in [f.fault for f in result.findings]


def test_dropped_bias_is_a_warning() -> None:
    """Trained, but no parameter of SGLang's class takes it."""
    result = audit(small_draft().replace(tensors={"midlayer.self_attn.q_proj.bias": torch.randn(32)}))

    assert [(f.fault, f.severity) for f in result.findings] == [("FM-26", Severity.WARNING)]


def test_versions_sort_and_default_boundaries() -> None:
    """Post releases lie between their neighbours; the default layers are those of every llama-like target."""
    assert sorted(["0.5.12", "0.5.5.post3", "0.5.5", "0.5.6"], key=Version.parse) == ["0.5.5", "0.5.5.post3", "0.5.6", "0.5.12"]
    assert split_engine("SGLang==0.5.8") == ("sglang", "0.5.8")
    assert default_boundaries(61) == (2, 30, 58)
    with pytest.raises(BadArgument):
        Version.parse("latest")


@pytest.mark.parametrize(("name", "version"), [("model.d2t", "0.5.23"), ("x.d2t", "0.5.8")])
def test_maps_are_found_under_any_prefix(name: str, version: str) -> None:
    """SGLang takes any name that contains d2t, without looking at its shape."""
    draft = small_draft().replace(rename=lambda n: name if n == "d2t" else n)

    assert next(load.into for load in audit(draft, engine=f"sglang=={version}").loads if load.name == name) == "hot_token_id"


@pytest.mark.parametrize("change", [{"model_type": None}, {"model_type": "eagle3"}, {"model_type": "llama_eagle3_draft"}])
@pytest.mark.parametrize("engine", ["sglang==0.5.8", "sglang==0.5.23", "vllm==0.11.0", "vllm==0.32.0"])
def test_a_config_of_no_type_ends_the_start(engine: str, change: dict[str, Any], tmp_path: Path) -> None:
    """AutoConfig goes by ``model_type``, whatever else is right; convert writes one, and a checkpoint with code of its own needs none."""
    draft = small_draft().replace(config=change)
    said = audit(draft, engine=engine)
    assert "model_type" in said.refused[0] and [f.severity for f in said.findings if f.fault == "FM-27"] == [Severity.ERROR]
    assert not audit(draft.replace(config=change | {"auto_map": {"AutoConfig": "own.Config"}}), engine=engine).refused
    copy = convert(draft, tmp_path / "copy", engine)
    assert copy.audit is not None and not copy.audit.refused and any(e.what == "config: model_type" for e in copy.changes)


def test_vllm_knows_two_types_of_drafts() -> None:
    """``eagle`` is a config class of vLLM's own, and of no other engine."""
    draft = small_draft().replace(config={"model_type": "eagle"})
    assert not audit(draft, engine="vllm==0.32.0").refused and audit(draft, engine="sglang==0.5.23").refused


SCHEMES = {
    "gptq": lambda o, i: {"qweight": (i // 8, o), "qzeros": (1, o // 8), "scales": (1, o), "g_idx": (i,)},
    "awq": lambda o, i: {"qweight": (i, o // 8), "qzeros": (1, o // 8), "scales": (1, o)},
    "compressed-tensors": lambda o, i: {"weight_packed": (o, i // 8), "weight_scale": (o, 1), "weight_shape": (2,)},
}


def quantised(scheme: str, *, said: bool, part: str = "proj.weight") -> Draft:
    """The small draft with packed codes in place of the weights whose names end so."""
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in small_draft().tensors.items():
        if not name.endswith(part):
            tensors[name] = tensor
            continue
        for ending, shape in SCHEMES[scheme](*tensor.shape).items():
            whole = ending not in ("scales", "weight_scale")
            tensors[name.removesuffix("weight") + ending] = torch.ones(shape, dtype=torch.int32 if whole else torch.float16)
    config = dict(small_draft().config.raw) | ({"quantization_config": {"quant_method": scheme}} if said else {})
    return Draft.from_tensors(tensors, config)


@pytest.mark.parametrize("engine", ["sglang==0.5.8", "sglang==0.5.23", "vllm==0.32.0"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_packed_codes_are_a_quantised_draft_and_no_lost_layer(scheme: str, engine: str) -> None:
    """Said as such where the config names the scheme; where it does not, that is the fault."""
    said = {f.fault: f for f in audit(quantised(scheme, said=True), engine=engine).findings if f.fault not in ("FM-28", "FM-49")}
    assert set(said) == {"C7"} and said["C7"].severity is Severity.NOTE and scheme in said["C7"].title
    unsaid = {f.fault: f for f in audit(quantised(scheme, said=False), engine=engine).findings if f.fault not in ("FM-28", "FM-49")}
    assert set(unsaid) == {"FM-78"} and unsaid["FM-78"].severity is Severity.ERROR


def test_fc_in_codes_is_lost_in_sglang_alone() -> None:
    """Its fc is a plain linear layer, vLLM's takes the scheme."""
    draft = quantised("gptq", said=True, part="fc.weight")
    for engine, severity in (("sglang==0.5.23", Severity.ERROR), ("vllm==0.32.0", Severity.NOTE)):
        assert [f.severity for f in audit(draft, engine=engine).findings if f.fault == "C7"] == [severity]
