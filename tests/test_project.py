"""The project's own promises: a thin environment.yml, a README whose commands exist, no heavy import at start."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_readme_is_true(samples: Path) -> None:
    """Make targets, paths and verbs that the README names exist; its excerpt is the fixture that the demo's test renders."""
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set(re.findall(r"`make ([a-z-]+)`", readme)) <= targets
    for link in re.findall(r"\]\(([^)#:]+)\)", readme):
        assert (ROOT / link).exists(), link
    verbs = {"diagnose", "compare", "audit", "weights", "replay", "capture", "demo"}
    assert {v for v in re.findall(r"eagle3diag (\w+) -", readme)} <= verbs


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
