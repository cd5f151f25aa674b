"""What is said where nothing names the engine's version, or the command asks for no draft."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import write_draft

import eagle3diag
from eagle3diag.checkpoints import Draft
from eagle3diag.engines import ENGINES
from eagle3diag.findings import Severity

COMMAND = "python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE3 --speculative-draft-model-path d"


def _named(folder: Path, prefix: str) -> Draft:
    return eagle3diag.open_draft(write_draft(folder)).replace(rename=lambda name: name.replace("midlayer.", prefix))


@pytest.mark.parametrize("prefix", ["layers.0.", "model.layers.0."])
def test_names_that_older_versions_drop_are_said_where_no_version_is(prefix: str, tmp_path: Path) -> None:
    """SGLang's log does not name its version: what only the newest loads may be the cause. With the version, or with drafts accepted, not."""
    draft = _named(tmp_path / "draft", prefix)
    found = eagle3diag.diagnose(draft=draft, launch=COMMAND, acceptance=1.0)
    (dropped,) = (f for f in found.findings if f.fault == "FM-05")  # beside K4: the weights of this draft are random
    assert dropped.severity is Severity.WARNING and "before sglang 0.5.12" in dropped.title
    assert "--engine sglang==VERSION" in dropped.fix and "the newest known" in " ".join(found.trail)
    for known in ({"engine": "sglang==0.5.23", "acceptance": 1.0}, {"acceptance": 2.2}):
        assert "FM-05" not in [f.fault for f in eagle3diag.diagnose(draft=draft, launch=COMMAND, **known).findings]
    (unweighed,) = (f for f in eagle3diag.diagnose(draft=draft, launch=COMMAND).findings if f.fault == "FM-05")
    assert unweighed.severity is Severity.NOTE


def test_names_that_every_version_loads_are_no_suspect(tmp_path: Path) -> None:
    """A draft as the engine wants it: only that no version was named is said, once."""
    found = eagle3diag.diagnose(draft=write_draft(tmp_path / "draft"), launch=COMMAND, acceptance=1.0)
    assert {f.fault for f in found.findings} == {"K4"}, "the weights are random; their names are right"
    assert sum("--engine sglang==VERSION" in words for words in found.missing) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_loading_changes_at_known_versions_only(engine: str) -> None:
    """The turns are those of the tables, in order, the first version among them."""
    rules = ENGINES[engine]
    assert rules.turns[0] == rules.first and list(rules.turns) == sorted(set(rules.turns)) and rules.turns[-1] <= rules.last


@pytest.mark.parametrize(
    "command", ["vllm serve T --port 8000", "sglang serve --model-path T", "python -m sglang.launch_server --model-path T"]
)
def test_a_command_that_asks_for_no_draft_is_said(command: str, tmp_path: Path) -> None:
    """The commonest slip of all: the options are not there, and the server runs the target alone."""
    first = eagle3diag.diagnose(draft=write_draft(tmp_path / "draft"), launch=command).findings[0]
    assert first.fault == "FM-03" and "no speculative decoding" in first.title


@pytest.mark.parametrize(
    "command",
    [
        'vllm serve T -sc \'{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}\'',
        "vllm serve T --speculative-config.method eagle3 --speculative-config.model d --speculative-config.num_speculative_tokens 3",
        "vllm serve T $OPTIONS",
        'sglang serve --model-path T "${OPTIONS[@]}"',
        "vllm serve T --config options.yaml",
    ],
)
def test_options_that_are_written_otherwise_are_no_lack_of_them(command: str, tmp_path: Path) -> None:
    """Short and dotted forms, variables, files: asked for, or not known."""
    found = eagle3diag.diagnose(draft=write_draft(tmp_path / "draft"), launch=command)
    assert not any("no speculative decoding" in f.title for f in found.findings)
