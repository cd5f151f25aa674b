"""``eagle3diag replay`` at a shell: every option reaches the replay, is shown, and is refused by name where it cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import TARGET_CONFIG, target_tensors, write_draft, write_dump, write_model

from eagle3diag import cli


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    target = write_model(tmp_path / "target", TARGET_CONFIG, target_tensors())
    return ["replay", str(write_draft(tmp_path / "draft")), str(write_dump(tmp_path / "train")), "--target", str(target), "--steps", "2"]


def test_trees_settings_sampling_and_engines_are_shown(command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In the text, in JSON and in HTML."""
    more = [
        "--topk",
        "2",
        "--slots",
        "4",
        "--engine",
        "sglang==0.5.8",
        "--temperature",
        "0.7",
        "--settings",
        "3,3:2:5",
        "--cost",
        "0.1,0.01",
    ]

    assert cli.main([*command, *more, "--html", str(tmp_path / "r.html")]) == cli.CLEAN
    text = capsys.readouterr().out
    assert cli.main([*command, *more, "--json", "--dtype", "bfloat16"]) == cli.CLEAN
    result = json.loads(capsys.readouterr().out)

    for words in ("tree of 2 steps, top-k 2, 4 slots", "sglang==0.5.8", "temperature 0.7", "serves best", "speed-up"):
        assert words in " ".join(text.split())
    assert "Settings" in (tmp_path / "r.html").read_text()
    assert (result["topk"], result["num_draft_tokens"], result["engine"], result["dtype"]) == (2, 4, "sglang==0.5.8", "bfloat16")
    assert [s["setting"] for s in result["settings"]] == [
        {"steps": 2, "topk": 2, "num_draft_tokens": 4}, {"steps": 3, "topk": 1, "num_draft_tokens": 4}, {"steps": 3, "topk": 2, "num_draft_tokens": 5},
    ]  # fmt: skip
    assert result["sampled"]["temperature"] == 0.7 and len(result["sampled"]["p"]) == 2
    assert result["cost"] == {"draft": 0.1, "slot": 0.01}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--topk 3", "number of slots"),
        ("--topk 2 --slots 99", "fills 2 to 7"),
        ("--settings 3:x", "not a setting"),
        ("--cost cheap", "not a cost"),
        ("--cost -1", "at least 0"),
        ("--temperature 0", "above 0"),
        ("--temperature nan", "above 0"),
        ("--engine vllm --topk 2 --slots 4", "chains"),
        ("--engine mlc", "not known"),
        ("--device nowhere", "cannot be used"),
        ("--steps 0", "at least 1"),
    ],
)
def test_what_cannot_be_replayed_is_refused(command: list[str], options: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, one error that names it, no traceback."""
    assert cli.main([*command, *options.split()]) == cli.BAD_INPUT
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err
