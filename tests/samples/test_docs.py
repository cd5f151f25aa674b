"""The commands and the code of the documentation are run as they stand."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from eagle3diag import cli
from eagle3diag.dumps.formats import FORMATS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs" / "journeys").glob("*.md")), ROOT / "docs" / "compare.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_code_runs(page: Path, target_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks of a page, one after the other, from the root of a checkout."""
    monkeypatch.chdir(ROOT)
    names = {"TARGET": str(target_folder)}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, page.name, "exec"), names)  # our own pages


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_commands_run(page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every ``eagle3diag`` command that names shipped files ends clean or with findings, not with bad input."""
    monkeypatch.chdir(ROOT)
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["eagle3diag"]:
                assert cli.main(words[1:]) in (0, 1), line
                assert capsys.readouterr().out


def test_the_commands_that_wrap_a_server_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command of the page on dumps prints what to start, recorder included; the Python beside it compiles and imports what is there."""
    text = (ROOT / "docs" / "capture.md").read_text(encoding="utf-8")
    commands = [
        shlex.split(line)
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
        if re.match(r"eagle3diag capture (sglang|vllm)", line)
    ]
    assert len(commands) >= 2
    for words in commands:
        assert cli.main(words[1:]) == 0, words
        printed = capsys.readouterr().out
        assert ("eagle3diag.capture.sglang" in printed and "--disable-cuda-graph" in printed) or "EAGLE3DIAG_CAPTURE=" in printed
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        compile(block, "capture.md", "exec")
        for module, name in re.findall(r"from (eagle3diag\S*) import (\w+)", block):
            assert hasattr(importlib.import_module(module), name)


def test_every_format_has_its_section() -> None:
    """The page of formats says what every reader reads, and how its files are made."""
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    words = {"SpecForge": "SpecForge", "EAGLE": "EAGLE", "speculators": "speculators", "Model-Optimizer": "Model-Optimizer", "AngelSlim": "AngelSlim",
             "TorchSpec": "TorchSpec", "NeMo": "NeMo Automodel", "TensorRT-LLM": "TensorRT-LLM", "SGLang": "SGLang", "plain": "Anything else"}  # fmt: skip
    for reader in FORMATS:
        assert any(reader.name.startswith(start) for start in words), reader.name
    for title in words.values():
        section = re.split(rf"^##+ .*{re.escape(title)}.*$", text, flags=re.MULTILINE)
        assert len(section) > 1, title
    trainers = text[text.index("## Trainers") : text.index("## SGLang")]
    assert trainers.count("**Produce**") == trainers.count("**Assumed**") == trainers.count("\n### ")
