"""Tensors that are in the file under another name, and evidence that is of another server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import write_draft

import eagle3diag
from eagle3diag.checkpoints import Draft
from eagle3diag.faults import in_words
from eagle3diag.findings import Severity

VLLM = 'vllm serve T --speculative-config \'{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}\''
ENGINES = ["sglang==0.5.6", "sglang==0.5.23", "vllm==0.11.0", "vllm==0.33.0"]


def _renamed(folder: Path, old: str, new: str) -> Draft:
    return eagle3diag.open_draft(write_draft(folder)).replace(rename=lambda name: name.replace(old, new))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("old", "new"), [("lm_head.weight", "head.weight"), ("fc.weight", "fusion.proj.weight")])
def test_a_tensor_under_another_name_is_one_finding_and_its_copy_is_mended(old: str, new: str, engine: str, tmp_path: Path) -> None:
    """Not "add it" beside "remove it": it is there, nothing else has its shape, and convert gives it its name."""
    draft = _renamed(tmp_path / "draft", old, new)
    found = [f for f in eagle3diag.audit(draft, engine=engine).findings if f.fault in ("FM-06", "K1")]
    assert len(found) == 1 and f"{new} to {old}" in found[0].fix and "convert" in found[0].fix
    made = eagle3diag.convert(draft, tmp_path / "copy", to=engine)
    assert [e.after for e in made.changes if new in e.before] == [old]
    assert not [f for f in eagle3diag.audit(tmp_path / "copy", engine=engine).findings if f.fault in ("FM-06", "K1")]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_layer_without_tensors_says_whether_the_server_starts(engine: str, tmp_path: Path) -> None:
    """Names that end the start are not dropped; a layer that is not in the file has no names to mend; and advice is of the engine's own versions."""
    unknown = _renamed(tmp_path / "draft", "midlayer.", "decoder_block.")
    lost = {name: None for name in unknown.tensors if name.startswith("decoder_block.")}
    for draft, named in ((unknown, True), (unknown.replace(tensors=lost), False)):
        audited = eagle3diag.audit(draft, engine=engine)
        (found,) = (f for f in audited.findings if f.fault == "FM-05")
        ends = bool(audited.outcome("raises"))
        assert ("does not start" in found.title) == ends == ("end the start" in found.evidence[1].name)
        assert ("drops" in found.title) == (named and not ends)
        assert ("Rename" in found.fix) == named and ("SGLang" in found.fix) == (named and engine.startswith("sglang"))
    assert engine != "vllm==0.11.0" or eagle3diag.audit(unknown, engine=engine).outcome("raises"), "the strict one is among them"


def test_what_is_not_certain_keeps_its_name(tmp_path: Path) -> None:
    """Two tensors of the head's shape: either may be meant."""
    draft = _renamed(tmp_path / "draft", "lm_head.weight", "head.weight")
    two = draft.replace(tensors={"other.weight": draft.tensors["head.weight"]})
    assert not any("another name" in f.title for f in eagle3diag.audit(two).findings)


def test_a_server_that_runs_does_not_serve_what_ends_its_start(tmp_path: Path) -> None:
    """The names raise in this version, and accept lengths were printed: not this copy, or not this version."""
    draft = _renamed(tmp_path / "draft", "lm_head.weight", "head.weight")
    found = eagle3diag.diagnose(draft=draft, launch=VLLM, acceptance=1.1, engine="vllm==0.11.0")
    assert any("would not start with this checkpoint" in f.title for f in found.findings)
    sound = eagle3diag.diagnose(draft=write_draft(tmp_path / "sound"), launch=VLLM, acceptance=1.1, engine="vllm==0.11.0")
    assert not any("would not start" in f.title for f in sound.findings)


@pytest.mark.parametrize(
    ("prefix", "old", "new", "vllm"),
    [
        ("midlayer.", True, True, True),
        ("layers.0.", False, True, True),
        ("model.midlayer.", True, True, False),
        ("model.layers.0.", False, True, False),
        ("draft_layers.0.", False, False, False),
    ],
)
def test_the_spellings_that_the_text_of_fm_05_tells_are_those_that_load(
    prefix: str, old: bool, new: bool, vllm: bool, tmp_path: Path
) -> None:
    """Of SGLang before and since 0.5.12, and vLLM; the same names are run against the real loaders (tests/engines/cases.py)."""
    draft = _renamed(tmp_path / "draft", "midlayer.", prefix)
    loads = [not eagle3diag.audit(draft, engine=engine).missing_layer for engine in ENGINES]
    assert loads == [old, new, vllm, vllm]
    assert "each also with model. before it, and drop any other" in in_words()["FM-05"]["mechanism"]


SGLANG = "python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE3 --speculative-draft-model-path d"
BROKEN = {"FM-05": "midlayer.", "FM-06": "lm_head.weight", "FM-11": "d2t"}


@pytest.mark.parametrize(("fault", "lost"), BROKEN.items())
def test_what_is_served_is_no_file_that_cannot_reach_it(fault: str, lost: str, tmp_path: Path) -> None:
    """No server accepts 2.28 with a layer of nothing, a random head or no map: the first finding says so, and the file's are notes."""
    whole = eagle3diag.open_draft(write_draft(tmp_path / "draft"))
    draft = whole.replace(tensors={name: None for name in whole.tensors if name.startswith(lost)})

    def told(accepts: float, **how: Any) -> eagle3diag.Diagnosis:
        return eagle3diag.diagnose(draft=draft, launch=SGLANG, acceptance=accepts, engine="sglang==0.5.23", **how)

    served = told(2.28)
    assert served.ranked[0].finding.fault == "M9" and "another copy" in served.verdict and "undetermined" not in served.verdict
    assert [f.fault for f in served.findings if f.severity == Severity.ERROR] == ["M9"] and not served.ok
    assert [f.severity for f in served.findings if f.fault == fault] == [Severity.NOTE], "the file given is still broken"

    for other in (told(1.02), told(1.5), told(2.28, assume_fixed=[fault])):  # as it should be, within what prompts do, and mended since
        assert "M9" not in [f.fault for f in other.findings]
    assert Severity.ERROR in [f.severity for f in told(1.02).findings if f.fault == fault]
    a_norm_less = whole.replace(tensors={"midlayer.hidden_norm.weight": None})
    for able in (whole, a_norm_less):  # a norm that is left at ones costs little
        found = eagle3diag.diagnose(draft=able, launch=SGLANG, acceptance=2.28, engine="sglang==0.5.23")
        assert "M9" not in [f.fault for f in found.findings]


def test_a_log_that_found_no_head_is_not_of_a_checkpoint_that_has_one(tmp_path: Path) -> None:
    """The advice to export the head would be wrong: it is there."""
    log = tmp_path / "server.log"
    log.write_text(
        "INFO 11-20 09:12:03 [api_server.py:1] vLLM API server version 0.11.0\n"
        "INFO 11-20 09:12:33 [eagle.py:975] Detected EAGLE model without its own lm_head in the checkpoint. "
        "Sharing target model lm_head weights with the draft model.\n"
    )
    has = eagle3diag.diagnose(draft=write_draft(tmp_path / "draft"), launch=VLLM, log=log)
    assert "FM-06" not in [f.fault for f in has.findings] and any("serves another copy" in f.title for f in has.findings)
    lacks = eagle3diag.open_draft(tmp_path / "draft").replace(tensors={"lm_head.weight": None})
    assert "FM-06" in [f.fault for f in eagle3diag.diagnose(draft=lacks, launch=VLLM, log=log).findings]


@pytest.mark.parametrize(
    ("fault", "config"), [("FM-17", {"num_aux_hidden_states": 1}), ("FM-27", {"architectures": ["Eagle3DeepseekV2ForCausalLM"]})]
)
def test_a_file_that_lets_no_engine_start_is_not_what_is_served(fault: str, config: dict[str, Any], tmp_path: Path) -> None:
    """A server that accepts 2.3 has started. With nothing accepted it stays the file's fault, since some engine may load it after all."""
    draft = eagle3diag.open_draft(write_draft(tmp_path / "draft")).replace(config=config)
    served, nothing = (eagle3diag.diagnose(draft=draft, acceptance=length, engine="sglang==0.5.23") for length in (2.3, 1.0))

    assert served.ranked[0].finding.fault == "M9" and fault in [f.fault for f in served.findings if f.severity is Severity.NOTE]
    assert "M9" not in [f.fault for f in nothing.findings] and fault in [f.fault for f in nothing.findings if f.severity > Severity.NOTE]
