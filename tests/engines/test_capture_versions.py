"""The recorder on the model classes of several real SGLang versions: what a decoder layer gives back changed between them, what is recorded not."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import write_draft
from safetensors.torch import load_file
from test_loaders import ROOT, RUN, TOOLS, environment

from eagle3diag.dumps import open_dump
from eagle3diag.engines.rules import Version

pytestmark = pytest.mark.engines

BLOCKS = 6
#: Since 0.5.22 a layer returns the delta of its MLP; before, a pair that has to be summed.
VERSIONS = [v for v in RUN["sglang"] if Version.parse(v) >= Version.parse("0.5.8")]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A random Llama on disk, and in Transformers."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 128,
    }
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=BLOCKS, rms_norm_eps=1e-5, tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config).float().eval()
    for p in model.parameters():
        p.data.normal_(0, 0.3) if p.dim() > 1 else p.data.uniform_(0.5, 1.5)
    folder = tmp_path_factory.mktemp("target")
    model.save_pretrained(folder)
    said = json.loads((folder / "config.json").read_text())
    said.pop("rope_parameters", None)  # which older releases of Transformers do not know
    (folder / "config.json").write_text(json.dumps(said | {"rope_theta": 10000.0, "torch_dtype": "float32"}))
    return folder, model


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_recorded_is_what_each_version_computes(version: str, target: tuple[Path, Any], tmp_path: Path) -> None:
    """Every boundary is Transformers' within rounding, those that the engine itself gives its draft bit for bit, and so is what is fed."""
    assert len(VERSIONS) >= 4
    python, environ = environment(f"sglang=={version}")
    (tmp_path / "target").symlink_to(target[0])
    write_draft(tmp_path / "draft")
    path = os.pathsep.join(p for p in (environ["PYTHONPATH"], str(ROOT)) if p)
    made = subprocess.run(
        [str(python), str(TOOLS / "sglang_forward.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-3000:]
    dump, truth = open_dump(tmp_path / "live"), load_file(tmp_path / "truth.safetensors")
    assert dump.boundaries == tuple(truth["layers"].tolist()) == (2, 3, 5) and dump.complete and dump.target.n_layers == BLOCKS
    assert dump.counters is not None and (dump.counters["fc_calls"], dump.counters["fc_input_width"], dump.counters["wide_extends"]) == (
        1,
        96,
        1,
    )
    record = dump[0]
    with torch.no_grad():
        states = target[1](record.input_ids[None], output_hidden_states=True).hidden_states
    assert record.boundaries == tuple(range(BLOCKS + 1))
    for b in range(BLOCKS):
        torch.testing.assert_close(record.state(b), states[b][0], rtol=1e-4, atol=1e-4)
    assert record.final is not None and torch.equal(record.final, truth["final"])
    torch.testing.assert_close(record.final, states[-1][0], rtol=1e-4, atol=1e-4)
    with torch.no_grad():  # the last boundary enters the final norm
        torch.testing.assert_close(target[1].model.norm(record.state(BLOCKS)), record.final, rtol=1e-4, atol=1e-4)
    for i, b in enumerate(dump.boundaries):
        assert torch.equal(record.state(b), truth["fed"][:, 32 * i : 32 * (i + 1)])
    assert torch.equal(record.features, truth["fed"])
