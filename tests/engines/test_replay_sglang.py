"""The real SGLang engine on CPU against the replay of what it fed its draft: every tree and chain that its target was asked to verify.

Run in SGLang's environment (`make test-engines`); EAGLE3DIAG_TARGET names the samples' target. Two minutes each on an idle machine.
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
from engine_checks import Agreement, Round, chain_agreement, chain_counts, named, tree_agreement

from eagle3diag.checkpoints import open_draft, open_target
from eagle3diag.dumps import HiddenStates, open_dump
from eagle3diag.replay import build

pytestmark = pytest.mark.engines

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
TARGET = os.environ.get("EAGLE3DIAG_TARGET", "")
DRAFT = Path(os.environ.get("EAGLE3DIAG_DRAFT", REPOSITORY / "data_samples/draft"))
RUNS = os.environ.get("EAGLE3DIAG_SGLANG_RUNS", "")  # a folder to keep runs in, and to take kept ones from
PROMPTS = 20

if not TARGET or (find_spec("sglang") is None and not RUNS):
    pytest.skip("needs sglang and EAGLE3DIAG_TARGET", allow_module_level=True)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sglang")


@pytest.fixture(scope="module")
def prompts(scratch: Path) -> Path:
    """The samples' prompts, and the same with another request put before the last: twenty in all."""
    rows = [json.loads(line)["prompt_ids"] for line in (REPOSITORY / "data_samples/prompts.jsonl").read_text().splitlines()]
    shorter = [row[: row.index(2, 1) + 2] + other[other.index(2, 1) + 2 :] for row, other in zip(rows, rows[1:] + rows[:1], strict=True)]
    file = scratch / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in (rows + shorter)[:PROMPTS]))
    return file


@cache
def served(steps: int, topk: int, slots: int, dtype: str, prompts: Path, scratch: Path) -> Path:
    out = (Path(RUNS) if RUNS else scratch) / f"s{steps}_{topk}_{slots}_{dtype}"
    if not (out / "result.json").exists():
        command = [sys.executable, str(HERE / "sglang_rounds.py"), "--target", TARGET, "--draft", str(DRAFT), "--prompts", str(prompts)]
        command += ["--steps", str(steps), "--topk", str(topk), "--slots", str(slots), "--dtype", dtype, "--out", str(out)]
        command += ["--limit", str(PROMPTS), "--max-new", "32"]
        path = ["tools/sglang_cpu/shims", "tools/sglang_cpu", "tests/engines", "."]
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(str(REPOSITORY / p) for p in path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert not done.returncode, done.stdout[-2000:] + done.stderr[-4000:]
    return out


def rounds_of(out: Path) -> dict[str, list[Round]]:
    """By record name, in order of arrival as the recorder names them: the row that each round drafted from, and the drafts in order."""
    names: dict[str, str] = {}
    rounds: dict[str, list[Round]] = {}
    for line in (out / "verified.jsonl").read_text().splitlines():
        row = json.loads(line)
        for rid in row["rids"]:
            names.setdefault(rid, f"{len(names):04d}")
        if row["mode"] == "TARGET_VERIFY":
            slots = len(row["ids"]) // len(row["rids"])
            for i, rid in enumerate(row["rids"]):
                ids, root = row["ids"][i * slots : (i + 1) * slots], row["positions"][i * slots]
                rounds.setdefault(names[rid], []).append((root - 1, ids[1:]))
    return rounds


def histogram(result: dict[str, Any], steps: int) -> Counter[int]:
    """Rounds by accepted drafts, from each request's ``meta_info``."""
    counts = Counter({i: n for i, n in enumerate(result["acceptance"]["histogram"]) if n})
    assert max(counts) <= steps
    return counts


def opened(out: Path) -> tuple[HiddenStates, dict[str, Any]]:
    return open_dump(out / "live"), json.loads((out / "result.json").read_text())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_tree_is_the_replayed_one(dtype: str, prompts: Path, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Top-k 4, 4 steps, 8 slots. In float32 the verified nodes are the same tokens in the same order and the accepted counts those of
    ``meta_info``; in bfloat16 near-ties change some trees, which are counted."""
    out = served(4, 4, 8, dtype, prompts, scratch)
    dump, result = opened(out)
    net, rounds = build(open_draft(DRAFT), open_target(TARGET), dtype=dtype), rounds_of(out)
    same, trees, counts = 0, 0, Counter[int]()
    for record in named(dump):
        equal, depths = tree_agreement(net, record, rounds[record.name], 4, 4)
        same, trees, counts = same + equal, trees + len(rounds[record.name]), counts + depths
    with capsys.disabled():
        print(f"\nSGLang {result['engine_version']}, {dtype}: {same} of {trees} trees the same; accepted {sorted(counts.items())}")
    if dtype == "float32":
        assert same == trees
        assert counts == histogram(result, 4)
    else:
        assert same >= 0.8 * trees
        accepted = sum(m * n for m, n in histogram(result, 4).items())
        assert sum(m * n for m, n in counts.items()) == pytest.approx(accepted, abs=max(5, 0.05 * accepted))


def test_every_chain_is_the_replayed_one(prompts: Path, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four steps in bfloat16, as the engine is served: near-ties flip some tokens, by less than the logits are rounded; counts agree."""
    out = served(4, 1, 5, "bfloat16", prompts, scratch)
    dump, result = opened(out)
    net, rounds = build(open_draft(DRAFT), open_target(TARGET), dtype="bfloat16"), rounds_of(out)
    agreement, counts = Agreement(), Counter[int]()
    for record in named(dump):
        agreement += chain_agreement(net, record, rounds[record.name])
        counts += chain_counts(net, record, 4, until=rounds[record.name][-1][0] + 1)
    with capsys.disabled():
        print(f"\nSGLang {result['engine_version']}, chain in bfloat16: {agreement}; accepted {sorted(counts.items())}")
    assert max(agreement.gaps, default=0.0) <= 0.5
    assert len(agreement.gaps) <= 0.05 * agreement.tokens
    accepted = sum(m * n for m, n in histogram(result, 4).items())
    assert sum(m * n for m, n in counts.items()) == pytest.approx(accepted, abs=max(5, 0.05 * accepted))
    assert torch.tensor(rounds["0000"][0][1]).numel() == 4
