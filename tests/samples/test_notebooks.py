"""Notebooks run from top to bottom on the samples, carry no outputs in git, and end where they say they end."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_are_stripped(path: Path) -> None:
    """Nothing that was computed on some machine is in git."""
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.filterwarnings("default")  # of the Jupyter machinery, not of our code
def test_start_here_runs(samples: Path, target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first notebook reaches the right verdict and writes its report."""
    monkeypatch.setenv("EAGLE3DIAG_SAMPLES", str(samples))
    monkeypatch.setenv("EAGLE3DIAG_TARGET", str(target_folder))
    monkeypatch.setenv("EAGLE3DIAG_OUT", str(tmp_path))
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    notebook.cells.append(
        nbformat.v4.new_code_cell(
            "assert diagnosis.findings[0].fault == 'FM-01'\nassert fixed.ok\nassert comparison.live.width * 3 == comparison.train.width"
        )
    )

    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()

    assert (tmp_path / "investigation.html").stat().st_size < 3_000_000
    shown = [o for c in notebook.cells for o in c.get("outputs", [])]
    assert not [o for o in shown if o.output_type == "stream" and o.name == "stderr" and "Warning" in o.text]
    assert sum("text/html" in o.get("data", {}) for o in shown) >= 4
