"""The project's own promises: a thin environment.yml, a README whose commands exist, no heavy import at start."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3diag import cli

ROOT = Path(__file__).resolve().parent.parent


def test_environment_file_is_thin() -> None:
    """Python, pip and the project with its notebook extra: a second list of dependencies would drift."""
    lines = [line.strip() for line in (ROOT / "environment.yml").read_text().splitlines() if line.strip().startswith("- ")]

    assert lines == ["- python>=3.11", "- pip", "- pip:", "- -e .[notebooks]"]


def test_torch_is_pinned_in_the_constraints_only() -> None:
    """The library asks for a range, the set-up takes one version."""
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()
    assert re.search(r'"torch>=2\.\d+"', (ROOT / "pyproject.toml").read_text())


def test_make_help_lists_every_target() -> None:
    """Every phony target has its line of help."""
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())  # type: ignore[index]

    assert phony == set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))


def test_readme_names_what_exists() -> None:
    """Make targets, paths and verbs that the README names exist."""
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set(re.findall(r"`make ([a-z-]+)`", readme)) <= targets
    for link in re.findall(r"\]\(([^)#:]+)\)", readme):
        assert (ROOT / link).exists(), link
    for folder in re.findall(r"`(eagle3diag/\w+(?:\.py)?)`", readme):
        assert (ROOT / folder).exists(), folder


def test_readme_excerpt_is_what_the_command_prints(
    target_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of the README, run: the same words in the same lines. Digits of replays may differ by processor and are masked."""
    monkeypatch.chdir(ROOT)
    readme = (ROOT / "README.md").read_text()
    command = re.search(r"```sh\nS=(\S+)\n(eagle3diag diagnose .*?)```", readme, re.DOTALL)
    excerpt = re.search(r"```text\n(eagle3diag diagnose .*?)```", readme, re.DOTALL)
    assert command and excerpt
    words = shlex.split(command[2].replace("\\\n", " ").replace("$S", command[1]))
    words[words.index("--target") + 1] = str(target_folder)

    code = cli.main([*words[1:], "--colour", "never"])

    printed = capsys.readouterr().out
    assert code == cli.FINDINGS
    assert mask(printed).startswith(mask(excerpt[1]).rstrip())


def mask(text: str) -> str:
    return re.sub(r"\d", "#", text)


def test_readme_compare_prints_what_it_shows(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The five lines of Python, run as they stand."""
    monkeypatch.chdir(ROOT)
    code, shown = re.search(
        r"```python\n(import eagle3diag\n.*?)```\n\n```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    ).groups()  # type: ignore[union-attr]

    exec(compile(code, "README.md", "exec"), {})

    assert capsys.readouterr().out == shown


def test_samples_are_small(samples: Path) -> None:
    """All samples together stay under 40 MB."""
    assert sum(f.stat().st_size for f in samples.rglob("*") if f.is_file()) < 40_000_000


@pytest.mark.parametrize("module", ["eagle3diag", "eagle3diag.cli"])
def test_import_pulls_in_nothing_heavy(module: str) -> None:
    """So that --help answers at once; and the library never imports an engine."""
    code = f"import sys, {module}; print([m for m in ('torch', 'numpy', 'plotly', 'scipy', 'sglang', 'transformers') if m in sys.modules])"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip() == "[]"


def test_nothing_of_a_machine_is_in_the_samples(samples: Path) -> None:
    """Logs and dumps carry no home folder, no address."""
    for file in samples.rglob("*"):
        if file.suffix in (".log", ".txt", ".json", ".jsonl", ".md"):
            text = file.read_text()
            assert not re.search(r"/(?:root|home|work|Users)/", text), file
            assert not re.search(r"\b(?!127\.0\.0\.1\b)(?:\d{1,3}\.){3}\d{1,3}\b", text), file
