"""Capture in the real SGLang engine on CPU: what is recorded is what reached the draft, bit for bit, whatever happens to the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from eagle3diag.capture.sglang import hooks
from eagle3diag.dumps import HiddenStates, Record, open_dump

pytestmark = pytest.mark.engines

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
TARGET = os.environ.get("EAGLE3DIAG_TARGET", "")
DRAFT = Path(os.environ.get("EAGLE3DIAG_DRAFT", REPOSITORY / "data_samples/draft"))
if not TARGET or not DRAFT.exists():
    pytest.skip("needs EAGLE3DIAG_TARGET and data_samples/draft", allow_module_level=True)
pytest.importorskip("sglang")

sys.path[:0] = [str(REPOSITORY / "tools/sglang_cpu"), str(HERE)]
from broken_sglang import NEW, PROMPTS  # noqa: E402  (neither folder is a package)
from record import environment  # noqa: E402

BOUNDARIES = [0, 2, 15, 27, 30]


def truth(folder: Path, what: str, *modules: str) -> dict[str, Any]:
    return {
        "name": "truth",
        "target_modules": list(modules),
        "hook_factory": "fed_truth:keep",
        "config": {"folder": str(folder), "what": what},
    }


def run(work: Path, script: Path, *words: object, check: bool = True) -> str:
    """The script in its own process; its log."""
    where = environment()
    where["PYTHONPATH"] = os.pathsep.join([where["PYTHONPATH"], str(HERE), str(REPOSITORY / "tools/sglang_cpu")])
    with (work / "log").open("w") as log:
        done = subprocess.run([sys.executable, str(script), *map(str, words)], env=where, stdout=log, stderr=log, check=False, timeout=1500)
    text = (work / "log").read_text(errors="replace")
    assert done.returncode == 0 or not check, text[-3000:]
    return text


def serve(work: Path, watch: list[dict[str, Any]], algorithm: str, *more: object) -> dict[str, Any]:
    (work / "hooks.json").write_text(json.dumps(watch))
    (work / "prompts.jsonl").write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in PROMPTS))
    words = ["--target", TARGET, "--draft", DRAFT, "--prompts", work / "prompts.jsonl", "--limit", 2, "--max-new", 24]
    words += ["--algorithm", algorithm, "--hooks", work / "hooks.json", "--out", work / "result.json", *more]
    run(work, REPOSITORY / "tools/sglang_cpu/serve.py", *words)
    result: dict[str, Any] = json.loads((work / "result.json").read_text())
    return result


def kept(folder: Path) -> list[Tensor]:
    return [load_file(file)["rows"] for file in sorted(folder.iterdir())]


def reached(record: Record, calls: list[Tensor]) -> bool:
    """Every recorded row is one that some call held."""
    rows = {row.numpy().tobytes() for call in calls for row in call.view(torch.int16)}
    return all(row.numpy().tobytes() in rows for row in record.features.view(torch.int16))


@pytest.fixture(scope="module")
def hidden_states() -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.bfloat16)

    def states(input_ids: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return [h[0].float() for h in model.model(input_ids[None], output_hidden_states=True).hidden_states]

    return states


def agree(a: Tensor, b: Tensor) -> bool:
    """The same states within bf16 rounding: by cosine without the few massive channels, which would make any two states alike."""
    a, b = a.float(), b.float()
    scale = b.std(0)
    usual = scale <= 8 * scale.median()
    return bool(torch.cosine_similarity((a - b.mean(0))[:, usual], (b - b.mean(0))[:, usual], dim=-1)[1:].min() > 0.98)


def counted(dump: HiddenStates, result: dict[str, Any]) -> None:
    """What is recorded of every request's rounds is what the engine itself counted of them, but for the last round, which ends it."""
    for record in dump:
        meta = result["outputs"][int(record.name)]["meta_info"]
        histogram: list[int] = meta["spec_correct_drafts_histogram"]
        assert record.accepted is not None and record.prompt_length is not None
        rounds = record.accepted[record.accepted >= 0].tolist()
        assert int((record.accepted >= 0).nonzero()[0]) == record.prompt_length - 1
        assert sum(rounds) + len(rounds) == record.tokens - record.prompt_length
        left = [n - rounds.count(m) for m, n in enumerate(histogram)]
        assert min(left) >= 0 and sum(left) <= 1 and len(rounds) > 4, (rounds, histogram)


def test_a_tree_is_recorded_bit_for_bit(tmp_path: Path, hidden_states: Any) -> None:
    """EAGLE3, top-k 4: rows that reached fc; the boundaries hooked apart equal the blocks that are fed; final state and all boundaries are
    Transformers' for the same tokens; ids are prompt and answer.
    """
    watch = [*hooks(str(tmp_path / "live"), target=TARGET, boundaries=BOUNDARIES, limit=2), truth(tmp_path / "fc", "input", "model.fc")]
    result = serve(tmp_path, watch, "EAGLE3", "--steps", 3, "--topk", 4, "--slots", 8)
    dump, calls = open_dump(tmp_path / "live"), kept(tmp_path / "fc")
    assert dump.complete and not dump.assumed and dump.counters is not None and len(dump) == 2
    assert dump.counters["fc_input_width"] == dump.counters["fed_width"] == 3 * dump.target.hidden_size
    assert dump.counters["fc_calls"] == dump.counters["draft_extends"] > 2 and len(calls) >= dump.counters["fc_calls"]
    assert dump.target.dtype == "bfloat16" and dump.engine_version == result["engine_version"]
    for record in dump:
        asked = result["outputs"][int(record.name)]
        said = [*asked["prompt_ids"], *asked["output_ids"]]
        length = min(len(said), record.tokens)
        assert length >= len(said) - 1 and record.input_ids[:length].tolist() == said[:length]
        assert record.prompt_length == len(asked["prompt_ids"])
        assert reached(record, calls)
        size, states = dump.target.hidden_size, hidden_states(record.input_ids)
        assert record.final is not None and agree(record.final, states[-1])
        for index, b in enumerate(dump.boundaries):
            assert agree(record.features[:, index * size : (index + 1) * size], states[b])
        # Boundaries are hooked in the prompt; of a round only what the accepted path can be told by is kept, the same rows
        for b in BOUNDARIES:
            stored = record.state(b)
            if b in dump.boundaries:
                at = dump.boundaries.index(b) * size
                assert torch.equal(stored, record.features[:, at : at + size])
            if b < dump.target.n_layers:
                assert agree(stored, states[b])
        weight = _final_norm()
        last = record.state(30).float()
        normed = last * torch.rsqrt(last.square().mean(-1, keepdim=True) + 1e-5) * weight
        torch.testing.assert_close(normed, record.final.float(), rtol=0.02, atol=0.02)
    counted(dump, result)


def _final_norm() -> Tensor:
    return load_file(Path(TARGET) / "model.safetensors")["model.norm.weight"].float()


def test_under_eagle_the_final_state_is_recorded_bit_for_bit(tmp_path: Path) -> None:
    """What the target gave is what the draft's record holds, though its first layer writes into the very tensor; fc never ran."""
    watch = [*hooks(str(tmp_path / "live"), target=TARGET, limit=2), truth(tmp_path / "target", "output", "model")]
    result = serve(tmp_path, watch, "EAGLE")
    dump, calls = open_dump(tmp_path / "live"), kept(tmp_path / "target")
    assert dump.complete and dump.counters is not None and len(dump) == 2
    assert dump.counters["fc_calls"] == 0 < dump.counters["narrow_extends"] and "fc_input_width" not in dump.counters
    for record in dump:
        assert reached(record, calls) and record.final is not None and torch.equal(record.final, record.features)
    counted(dump, result)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1400k", "tmpfs", str(folder)], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("may not mount a file system here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_and_a_killed_scheduler(tmp_path: Path, tiny_disk: Path) -> None:
    """The recorder on the full disk stops, says so in log and manifest, and its finished records are whole; the server goes on answering.
    The scheduler is then killed while a request runs: the other dump holds every request that had ended, and nothing of the last.
    """
    log = run(tmp_path, HERE / "broken_sglang.py", TARGET, DRAFT, tmp_path, check=False)
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert len(answers) == 6 and all(len(said) == NEW for _, said in answers)

    whole: HiddenStates = open_dump(tmp_path / "live")
    assert not whole.complete and not whole.assumed and len(whole) == 6
    for record, (prompt, said) in zip(sorted(whole, key=lambda r: r.name), answers, strict=True):
        assert record.input_ids.tolist()[: len(prompt) + NEW - 1] == [*prompt, *said[:-1]]
        assert record.features.isfinite().all()

    cut: HiddenStates = open_dump(tiny_disk / "live")
    assert not cut.complete and 0 < len(cut) < 6 and any("stopped early" in note for note in cut.assumed), cut.assumed
    for record in cut:
        assert torch.equal(record.features, next(r for r in whole if r.name == record.name).features)
    assert "recording into" in log and "stopped" in log
