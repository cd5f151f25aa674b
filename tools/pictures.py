"""Take the pictures of README and documentation: ``python tools/pictures.py``, after ``make docs`` has rendered notebooks and reports."""

from __future__ import annotations

import os
import tempfile
from html import escape
from pathlib import Path

import chromium
import nbformat
from lab import Notebook, jupyterlab

import eagle3diag as e3
from eagle3diag.report import text

ROOT = Path(__file__).resolve().parent.parent
DOCS, RENDERED = ROOT / "docs", ROOT / "out" / "rendered"
#: name, page, width, height, dark, what to scroll to
PAGES = (
    ("report.png", "samples/broken.html", 1280, 1500, False, ""),
    ("pictures/report_dark.png", "samples/broken.html", 1280, 900, True, "#part-0"),
    ("pictures/report_phone.png", "samples/broken.html", 390, 844, False, ""),
    ("pictures/before_after.png", "samples/before_after.html", 1280, 760, False, ""),
    ("pictures/notebook.png", "notebooks/09_full_investigation.html", 1280, 1080, False, "#part-2"),
)
_TERMINAL = "margin:0;padding:18px 22px;width:max-content;background:#14171b;color:#e7eaee;font:14px/1.35 'DejaVu Sans Mono',monospace"
_INK = {"1": "font-weight:700", "2": "color:#a9b2bd", "1;31": "color:#ff9d5c;font-weight:700", "1;33": "color:#f0c24b;font-weight:700"}
_INK |= {"1;36": "color:#7cc4f0;font-weight:700", "1;32": "color:#4fd1a5;font-weight:700"}


def main() -> None:
    (DOCS / "pictures").mkdir(exist_ok=True)
    binary = chromium.find()
    if binary is None:
        raise SystemExit("Chromium is not installed (on Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as scratch, chromium.browser(binary, Path(scratch) / "profile") as tab:
        tab("Emulation.setScrollbarsHidden", hidden=True)
        for name, page, width, height, dark, place in PAGES:
            tab.open(RENDERED / page, width=width, height=height, dark=dark)
            if place:
                tab.run(f"document.querySelector({place!r}).scrollIntoView({{ behavior: 'instant' }})")
                tab.until("!document.querySelector('figure[id]') || document.querySelector('.is-live .main-svg') !== null")
            tab.picture(DOCS / name, whole=False)
        _terminal(tab, Path(scratch) / "terminal.html", DOCS / "pictures/terminal.png")
        _controls(tab, Path(scratch), DOCS / "pictures/controls.png")
    for picture in sorted(DOCS.rglob("*.png")):
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size / 1e3:.0f} kB")


def _terminal(tab: chromium.Tab, page: Path, picture: Path) -> None:
    """The start of a diagnosis as a terminal of 80 columns shows it."""
    result = e3.load(RENDERED / "samples" / "broken.html")
    told = text.render(result, colour=True).split("\n")
    end = next(n for n, line in enumerate(told) if "The trail" in line)
    painted = escape("\n".join(told[: end - 1])).replace("\x1b[0m", "</span>")
    for code, style in _INK.items():
        painted = painted.replace(f"\x1b[{code}m", f"<span style='{style}'>")
    page.write_text(
        f"<!doctype html><html data-plots='none'><meta charset='utf-8'><body style='margin:0'><pre style=\"{_TERMINAL}\">{painted}</pre>"
    )
    tab.open(page, width=1000)
    box = tab.run("(r => [r.width, r.height])(document.querySelector('pre').getBoundingClientRect())")
    tab.open(page, width=round(box[0]), height=round(box[1]))
    tab.picture(picture, whole=False)


def _controls(tab: chromium.Tab, scratch: Path, picture: Path) -> None:
    """JupyterLab with the controls of the replay, one fault chosen."""
    work = scratch / "work"
    work.mkdir()
    _short(work / "07_replay.ipynb")
    tab("Emulation.setDeviceMetricsOverride", width=1180, height=860, deviceScaleFactor=1, mobile=False)
    tab("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": "light"}])
    given = {
        "EAGLE3DIAG_SAMPLES": str(ROOT / "data_samples"),
        "EAGLE3DIAG_TARGET": os.environ["EAGLE3DIAG_TARGET"],
        "EAGLE3DIAG_OUT": str(work),
    }
    with jupyterlab(scratch, work, given) as url:
        notebook = Notebook(tab, url, "07_replay.ipynb")
        tab.run("window.jupyterapp.commands.execute('application:toggle-left-area')")
        notebook.run()
        cell = notebook.show(notebook.find("bench.controls()"))
        tab.until(f"{cell}.querySelector('select') !== null", 60)
        select = f"{cell}.querySelector('select')"
        tab.run(f"[...{select}.options].forEach(o => {{ o.selected = o.text.startsWith('FM-05') }})")
        tab.run(f"{select}.dispatchEvent(new Event('change', {{ bubbles: true }}))")
        tab.until(f"(m => m && m[1] !== m[2])({cell}.innerText.match(/accept length ([0-9.]+) .healthy ([0-9.]+)/))", 60)
        tab.run(f"{cell}.scrollIntoView({{ block: 'start' }})")
        tab.picture(picture, whole=False)


def _short(path: Path) -> None:
    """Notebook 07 with no more than its controls need."""
    notebook = nbformat.read(ROOT / "notebooks" / path.name, as_version=4)
    title, paths, controls = notebook.cells[0], notebook.cells[1], next(c for c in notebook.cells if c.source == "bench.controls()")
    bench = next(c for c in notebook.cells if "bench = Bench(" in c.source)
    bench.source = "\n".join(line for line in bench.source.split("\n")[:3])
    notebook.cells = [title, paths, bench, nbformat.v4.new_markdown_cell("## Now break it yourself"), controls]
    nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
