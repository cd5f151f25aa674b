"""The commands and the code of the documentation are run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from eagle3diag import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "journeys").glob("*.md"))


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
