"""Run a guided notebook and write it as one page: ``python tools/rendered.py notebooks/07_replay.ipynb FOLDER``."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from eagle3diag.report import notebook_file, notebook_page

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    start, notebook = time.monotonic(), nbformat.read(source, as_version=4)
    with tempfile.TemporaryDirectory() as scratch:  # where the notebook writes its own reports
        os.environ |= {"EAGLE3DIAG_SAMPLES": str(ROOT / "data_samples"), "EAGLE3DIAG_OUT": scratch}
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": scratch}}).execute()
    run, page = folder / source.name, folder / f"{source.stem}.html"
    nbformat.write(notebook, run)
    page.write_text(notebook_page.page(notebook_file.read(run), texts=True), encoding="utf-8")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = f"{time.monotonic() - start:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of them computing"
    print(f"{page.name}: {spent}, {page.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
