"""Notebooks run from top to bottom on the samples, carry no outputs in git, and end where they say they end."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from eagle3diag import cli

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

#: What the last cell of each must show, by the first two letters of its name.
ENDS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "00": lambda end: end == {"fault": "FM-01", "fixed": True, "widths": 3},
    "01": lambda end: end == {"from files": "FM-01", "nothing accepted is": 0.0},
    "02": lambda end: end == {"fault": "FM-05", "missing": {"0.4.6": 10, "0.5.8": 10, "0.5.11": 10, "0.5.12": 0, "0.5.23": 0}, "mended": 0},
    "03": lambda end: end["fresh"] == 0 < end["epoch_1"] < end["epoch_3"] <= end["shipped"],
    "04": lambda end: end == {"bit for bit": {2: True, 15: True, 27: True, 30: False}, "fed": 1728, "checked": True},
    "05": lambda end: end == {"declared": (2, 15, 27), "found": (3, 16, 28), "fault": "FM-29"},
    "06": lambda end: end["cap"] and len(end["cost"]) >= 3 and min(end["cost"].values()) > 0.3,
    "07": lambda end: end["gap to the server"] < 0.1 and end["both"] < 1.2,
    "08": lambda end: end == {"fault": "FM-25", "ok": True, "weak": True},
    "09": lambda end: end == {"first": ["FM-01", "FM-05"], "then": "FM-01", "fixed": True},
    "10": lambda end: (
        end["fault"] == "FM-51" and end["alone"] and min(end["alike"], end["healthy"], end["late"][1]) > 0.95 > end["late"][0]
    ),
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_are_stripped(path: Path) -> None:
    """Nothing that was computed on some machine is in git."""
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None


def test_both_forms_are_in_step() -> None:
    """Every notebook is what its plain text says."""
    run = subprocess.run([sys.executable, str(ROOT / "tools" / "notebooks.py"), "--check"], capture_output=True, text=True)

    assert run.returncode == 0, run.stdout + run.stderr
    assert [p.stem for p in NOTEBOOKS] == sorted(p.stem for p in (ROOT / "notebooks").glob("*.py"))


def test_the_documentation_links_each_as_it_ran() -> None:
    """`make docs` renders every notebook, and the page of notebooks links every one."""
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")

    assert [p.stem for p in NOTEBOOKS] == re.findall(r"\(notebooks/(\w+)\.html\)", page)


@pytest.mark.filterwarnings("default")  # of the Jupyter machinery, not of our code
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs_and_ends_as_it_says(
    path: Path, samples: Path, target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executed in a kernel of its own; the last cell is the claim, and no warning of ours is shown on the way."""
    monkeypatch.setenv("EAGLE3DIAG_SAMPLES", str(samples))
    monkeypatch.setenv("EAGLE3DIAG_TARGET", str(target_folder))
    monkeypatch.setenv("EAGLE3DIAG_OUT", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)

    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()

    (end,) = notebook.cells[-1].outputs
    assert ENDS[path.stem[:2]](ast.literal_eval(end["data"]["text/plain"]))
    shown = [o for c in notebook.cells for o in c.get("outputs", [])]
    assert not [o for o in shown if o.output_type == "stream" and o.name == "stderr" and "Warning" in o.text]
    for report in tmp_path.glob("*.html"):
        assert report.stat().st_size < 3_000_000


def test_they_are_copied_with_the_users_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``eagle3diag notebooks``: all of them, with absolute paths in the cell of paths; a second copy loses nobody's work."""
    out, mine = tmp_path / "mine", tmp_path / 'a "draft"'
    mine.mkdir()

    assert cli.main(["notebooks", str(out), "--draft", str(mine)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(NOTEBOOKS)
    assert cli.main(["notebooks", str(out)]) == 2
    for path in sorted(out.glob("*.ipynb")):
        (cell,) = (c for c in nbformat.read(path, as_version=4).cells if "paths" in c.metadata.get("tags", ()))
        names: dict[str, Any] = {}
        exec(compile(cell.source, path.name, "exec"), names)  # our own file, just written
        assert names["DRAFT"] == mine
        assert names["TRAIN"].is_dir()
