"""Inputs that are sound alone and do not belong together: one clear error through every verb, exit 2, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from builders import AUX, IDENTITY, TARGET_CONFIG, record_tensors, target_tensors, write_draft, write_dump, write_model

from eagle3diag import cli
from eagle3diag.dumps import DumpWriter, TargetIdentity


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, Path]:
    """A draft, its target and a dump, on disk; and one of each that fits none of the others."""
    wide = dict(TARGET_CONFIG, hidden_size=64)
    tensors = {
        "model.embed_tokens.weight": torch.randn(128, 64),
        "model.norm.weight": torch.ones(64),
        "lm_head.weight": torch.randn(128, 64),
    }
    with DumpWriter(
        tmp_path / "wide_dump", side="train", target=TargetIdentity("wide", "0", "float32", 6, 64), engine="x", boundaries=AUX
    ) as w:
        w.add(name="r0", input_ids=torch.arange(12), states={b: torch.randn(12, 64) for b in AUX})
    with DumpWriter(tmp_path / "other_text", side="live", target=IDENTITY, engine="x", boundaries=AUX) as w:
        w.add(**{**record_tensors(0), "name": "r0", "input_ids": torch.full((12,), 99)})
    with DumpWriter(tmp_path / "foreign_ids", side="train", target=IDENTITY, engine="x", boundaries=AUX) as w:
        w.add(**{**record_tensors(0), "name": "r0", "input_ids": torch.full((12,), 4000)})
    with DumpWriter(tmp_path / "empty", side="train", target=IDENTITY, engine="x"):
        pass
    return {
        "draft": write_draft(tmp_path / "draft"),
        "target": write_model(tmp_path / "target", TARGET_CONFIG, target_tensors()),
        "wide_target": write_model(tmp_path / "wide_target", wide, tensors),
        "train": write_dump(tmp_path / "train"),
        "wide_dump": tmp_path / "wide_dump",
        "other_text": tmp_path / "other_text",
        "foreign_ids": tmp_path / "foreign_ids",
        "empty": tmp_path / "empty",
    }


CASES = {
    "target of another width": ("replay {draft} {train} --target {wide_target}", "hidden size 32; this target has 64"),
    "audit with another target": ("audit {draft} --target {wide_target}", "made for a target of hidden size 32"),
    "dump of another model": ("replay {draft} {wide_dump} --target {target}", "made with wide, of hidden size 64"),
    "diagnosis with a dump of another model": ("diagnose --draft {draft} --target {target} --train {wide_dump}", "made with wide"),
    "dumps of two models": ("compare {train} {wide_dump}", "has the token ids of a record of"),
    "dumps of two texts": ("compare {train} {other_text}", "has the token ids of a record of"),
    "ids outside the vocabulary": ("replay {draft} {foreign_ids} --target {target}", "token id 4000 is outside"),
    "empty dump": ("compare {train} {empty}", "no records"),
    "no target to borrow from": ("replay {draft} {train}", "borrows the target's"),
    "unknown engine": ("audit {draft} --engine llama.cpp==1", "known: sglang"),
    "no version": ("audit {draft} --engine sglang==latest", "not a version"),
    "accept length below one": ("diagnose --draft {draft} --acceptance 0.2", "at least 1"),
    "no draft at all": ("weights {train}", "train"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_clear_error(case: str, parts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What, where and what to do next; exit 2; no traceback; no report half written."""
    command, said = CASES[case]
    html = tmp_path / "report.html"

    code = cli.main([*command.format(**parts).split(), "--html", str(html)])

    out, err = capsys.readouterr()
    assert code == cli.BAD_INPUT, err
    assert said in err
    assert "\n  -> " in err
    assert "Traceback" not in err and not out
    assert not html.exists()
