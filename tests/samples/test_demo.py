"""The demo tells the whole case from the samples and writes its report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from eagle3diag import cli


def test_demo(samples: Path, target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five steps with numbers that agree with the recordings; both faults in the report; progress on stderr only."""
    html = tmp_path / "demo.html"

    code = cli.main(["demo", "--samples", str(samples), "--target", str(target_folder), "--html", str(html)])

    out, err = capsys.readouterr()
    assert code == 0
    assert all(f"\n{i}  " in out for i in range(1, 6))
    for name in ("dropped_names", "eagle_flag", "eagle3"):
        counts = json.loads((samples / "live" / name / "acceptance.json").read_text())
        assert f"Served accept length {1 + counts['accepted'] / counts['rounds']:.2f}" in out
    assert re.search(r"Trained on 1728 = 3 x 576, fed 576", out)
    assert "FM-01" in out and "FM-05" in out
    assert "counterfactual" in err and "counterfactual" not in out
    page = html.read_text()
    assert "FM-01" in page and "FM-05" in page
    assert len(page.encode()) < 3_000_000
    assert str(samples) not in page and str(target_folder) not in page
