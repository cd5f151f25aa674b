"""The real SGLang engine on CPU: what the recorder writes is what Transformers computes for the same tokens (make test-engines)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3diag.dumps import open_dump

pytestmark = pytest.mark.engines

REPOSITORY = Path(__file__).resolve().parents[2]
TARGET = os.environ.get("EAGLE3DIAG_TARGET", "")
DRAFT = Path(os.environ.get("EAGLE3DIAG_DRAFT", REPOSITORY / "data_samples/draft"))
# "Write a dialogue between a ..." and "Write a poem", in the target's chat template.
PROMPTS = [
    [1, 4093, 198, 19161, 253, 6634, 826, 253, 3743, 2, 198, 1, 520, 9531, 198],
    [1, 4093, 198, 19161, 253, 17099, 2, 198, 1, 520, 9531, 198],
]

if not TARGET or not DRAFT.exists():
    pytest.skip("needs EAGLE3DIAG_TARGET and data_samples/draft", allow_module_level=True)

sys.path.insert(0, str(REPOSITORY / "tools/sglang_cpu"))
import record_samples  # noqa: E402  (the folder of the tools is not a package)
from record import Recording, record  # noqa: E402
from serve import Chain  # noqa: E402

from eagle3diag.checkpoints import open_draft  # noqa: E402


@pytest.fixture(scope="module")
def hidden_states() -> Any:
    """Transformers' ``hidden_states`` for one sequence: entry ``b`` is boundary ``b``, the last is already normed."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.bfloat16)

    def run(input_ids: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            return [h[0].float() for h in model.model(input_ids[None], output_hidden_states=True).hidden_states]

    return run


def _record(tmp_path: Path, chain: Chain, draft: str = str(DRAFT)) -> tuple[dict[str, Any], Path]:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in PROMPTS))
    out = tmp_path / "recording"
    return record(Recording(TARGET, draft, prompts, chain, limit=len(PROMPTS), max_new=32), out), out


@pytest.mark.parametrize("chain", [Chain(), Chain(steps=3, topk=4, num_draft_tokens=8)], ids=["chain", "tree"])
def test_eagle3_is_fed_the_configured_boundaries(tmp_path: Path, hidden_states: Any, chain: Chain) -> None:
    """Every row of prompt and answer, over accepted and rejected drafts: the same states within bf16 rounding, and fc ran each time.

    The log keeps its decode lines and arguments, and nothing in it names the machine.
    """
    accepted, out = _record(tmp_path, chain)
    dump = open_dump(out / "live")
    assert accepted["accepted"] > 0 and sum(accepted["histogram"]) == accepted["rounds"]
    assert dump.boundaries == open_draft(DRAFT).config.aux_boundaries
    assert dump.counters is not None
    assert dump.counters["fc_calls"] == dump.counters["wide_extends"] == dump.counters["draft_extends"] > 0
    size = dump.target.hidden_size
    for item in dump:
        states = hidden_states(item.input_ids)
        for index, boundary in enumerate(dump.boundaries):
            fed = item.features[:, index * size : (index + 1) * size].float()
            assert torch.cosine_similarity(fed, states[boundary], dim=-1).min() > 0.99
    text = (out / "server.log").read_text()
    assert "accept len" in text and "server_args=" in text
    assert str(tmp_path) not in text and str(Path.home()) not in text and TARGET not in text
    assert sorted(p.name for p in out.iterdir()) == ["acceptance.json", "launch.txt", "live", "outputs.jsonl", "server.log"]


def test_under_the_eagle_flag_fc_is_passed_by(tmp_path: Path, hidden_states: Any) -> None:
    """One final, normed state a row; the engine says nothing about it, and next to nothing is accepted."""
    accepted, out = _record(tmp_path, Chain(algorithm="EAGLE"))
    dump = open_dump(out / "live")
    assert dump.counters is not None
    assert dump.counters["fc_calls"] == dump.counters["wide_extends"] == 0 < dump.counters["narrow_extends"]
    for item in dump:
        assert item.features.shape == (len(item.input_ids), dump.target.hidden_size)
        assert torch.cosine_similarity(item.features.float(), hidden_states(item.input_ids)[-1], dim=-1).min() > 0.99
    assert accepted["accept_length"] < 1.15


def test_names_it_does_not_know_are_dropped_without_a_word(tmp_path: Path) -> None:
    """The layer stays as it was created: the log has no line about it, and acceptance falls."""
    draft = record_samples.dropped_names(open_draft(DRAFT)).save(tmp_path / "renamed")
    accepted, out = _record(tmp_path, Chain(), str(draft))
    assert "draft_layers" not in (out / "server.log").read_text()
    assert accepted["accept_length"] < 1.4
