"""Run notebooks and keep their outputs: ``python tools/run_notebook.py notebooks/00_start_here.ipynb out/run/00_start_here.ipynb``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    source, run = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    run.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("EAGLE3DIAG_SAMPLES", str(ROOT / "data_samples"))
    os.environ.setdefault("EAGLE3DIAG_OUT", str(run.parent))
    start, notebook = time.monotonic(), nbformat.read(source, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(run.parent)}}).execute()
    nbformat.write(notebook, run)
    print(f"{run.name}: {time.monotonic() - start:.0f} s, {run.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
