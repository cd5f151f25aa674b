"""The notebook view where people open it: a page made by nbconvert, and JupyterLab, with and without trust in the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import chromium
import nbformat
import pytest
import reports
from lab import Notebook, jupyterlab
from nbformat.sign import NotebookNotary

from eagle3diag.report.views import view

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
TOLD = view(reports.diagnosis())
FIGURES, ROWS = len(list(TOLD.figures())), len(TOLD.strip.rows) if TOLD.strip is not None else 0
SORTED = "document.querySelectorAll('.e3d button.sort').length > 0"


@pytest.fixture
def tab(tab: chromium.Tab) -> chromium.Tab:
    """As wide as a desktop's."""
    tab("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
    return tab


def notebook(path: Path) -> nbformat.NotebookNode:
    """A notebook that was run and saved: one cell, which shows a diagnosis."""
    shown = nbformat.v4.new_output("execute_result", data=reports.diagnosis()._repr_mimebundle_(), execution_count=1)
    cells = [nbformat.v4.new_code_cell("diagnosis", outputs=[shown], execution_count=1)]
    node = nbformat.v4.new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    nbformat.write(node, path)
    return node


def test_nbconvert_keeps_the_view(tab: chromium.Tab, tmp_path: Path) -> None:
    """Exported without a kernel: the verdict, every drawing with its values, and tables that sort."""
    from nbconvert import HTMLExporter

    body, _ = HTMLExporter(exclude_input=True).from_notebook_node(notebook(tmp_path / "n.ipynb"))
    (tmp_path / "n.html").write_text(body, encoding="utf-8")
    tab("Network.setBlockedURLs", urls=["http://*", "https://*"])  # its template asks for fonts of formulas; a reader may be offline
    tab("Page.navigate", url=(tmp_path / "n.html").resolve().as_uri())

    assert tab.until(f"document.querySelectorAll('.e3d svg.e3d-svg').length === {FIGURES}")
    assert tab.until(SORTED)
    assert tab.run("document.body.innerText.includes('Start the server with')")
    assert tab.run("document.querySelectorAll('.e3d svg.track').length") == ROWS
    assert tab.run("document.querySelectorAll('.e3d svg title').length") > 100
    assert not [words for words in tab.said if "e3d" in words]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server and the folder that it shows; notebooks there read the samples and write beside themselves."""
    work = tmp_path / "work"
    work.mkdir()
    given = {"EAGLE3DIAG_SAMPLES": str(ROOT / "data_samples"), "EAGLE3DIAG_OUT": str(work)}
    with jupyterlab(tmp_path, work, given) as url:
        yield url, work


@contextmanager
def seen(tab: chromium.Tab, name: str) -> Iterator[None]:
    """What goes wrong inside leaves a picture of the page in ``out/``."""
    try:
        yield
    except BaseException:
        picture = ROOT / "out" / f"failed-{name}.png"
        picture.parent.mkdir(exist_ok=True)
        tab.picture(picture, whole=False)
        print(f"what the browser showed: {picture}")
        raise


def test_jupyterlab_shows_the_view(tab: chromium.Tab, lab: tuple[str, Path], tmp_path: Path) -> None:
    """Without a kernel: a notebook from someone else shows all its words; once trusted it draws, tells values and sorts."""
    url, work = lab
    notebook(work / "theirs.ipynb")
    NotebookNotary(data_dir=str(tmp_path / "data")).sign(notebook(work / "mine.ipynb"))

    tab("Page.navigate", url=f"{url}lab/tree/theirs.ipynb?reset")
    assert tab.until("document.querySelector('.jp-OutputArea-output')?.innerText.includes('Start the server with')", 240)
    assert not tab.run(SORTED)

    tab("Page.navigate", url=f"{url}lab/tree/mine.ipynb?reset")
    assert tab.until(f"{SORTED} && document.querySelectorAll('.e3d svg.e3d-svg').length === {FIGURES}", 240)
    assert tab.run("document.querySelectorAll('.e3d svg.track').length") == ROWS
    assert tab.run("document.querySelectorAll('.e3d svg title').length") > 100


def opened(tab: chromium.Tab, lab: tuple[str, Path], name: str) -> Notebook:
    """One of the guided notebooks, run from top to bottom in the browser."""
    url, work = lab
    shutil.copy(ROOT / "notebooks" / name, work / name)
    notebook = Notebook(tab, url, name)
    notebook.run()
    assert notebook.errors == []
    return notebook


def test_the_first_notebook_runs_in_jupyterlab(tab: chromium.Tab, lab: tuple[str, Path], target_folder: Path) -> None:
    """All cells of 00 end without an error; the diagnosis is drawn, sorts, and the last line has the values that it promises."""
    with seen(tab, "00"):
        notebook = opened(tab, lab, "00_start_here.ipynb")
        cell = notebook.show(notebook.find("diagnosis = e3.diagnose("))

        assert tab.until(f"{cell}.innerText.includes('EAGLE was named where EAGLE-3 is needed')")
        assert tab.until(f"{cell}.querySelectorAll('.e3d svg.e3d-svg').length > 5 && {cell}.querySelectorAll('button.sort').length > 0")
        tab.run(f"{cell}.querySelector('button.sort').click()")
        assert tab.run(f"{cell}.querySelectorAll('[aria-sort]').length") == 1
        last = notebook.show(-1)
        assert tab.until(f"{last}.innerText.includes(\"{{'fault': 'FM-01', 'fixed': True, 'widths': 3}}\")"), tab.run(f"{last}.innerText")
        assert list(lab[1].glob("*.html"))


def test_the_controls_of_the_replay_move_its_drawing(tab: chromium.Tab, lab: tuple[str, Path], target_folder: Path) -> None:
    """In 07, choosing a fault and moving the slider with the keyboard change number and drawing; taking the fault back restores them."""
    with seen(tab, "07"):
        notebook = opened(tab, lab, "07_replay.ipynb")
        cell = notebook.show(notebook.find("bench.controls()"))
        drawing = f"{cell}.querySelector('.widget-html svg')"
        summary = f"[...{cell}.querySelectorAll('.widget-label')].map(l => l.textContent).find(t => t.includes('accept length'))"
        assert tab.until(f"!!{cell}.querySelector('select') && !!{drawing} && !!({summary})", 60), tab.run(f"{cell}.innerText")
        healthy, drawn = tab.run(summary), tab.run(f"{drawing}.outerHTML")

        pick = f"[...{cell}.querySelector('select').options].forEach(o => {{ o.selected = o.text.startsWith('FM-05') && WANTED }})"
        choose = f"{pick}, {cell}.querySelector('select').dispatchEvent(new Event('change', {{ bubbles: true }}))"
        tab.run(choose.replace("WANTED", "true"))
        assert tab.until(f"{summary} !== {json.dumps(healthy)}", 120), "the number stayed when a fault was chosen"
        assert tab.until(f"{drawing}.outerHTML !== {json.dumps(drawn)}", 120), "the drawing stayed when a fault was chosen"
        broken = tab.run(summary)
        assert float(broken.split()[2]) < float(healthy.split()[2]) - 0.5

        tab.run(f"{cell}.querySelector('.noUi-handle').focus()")
        for kind in ("keyDown", "keyUp"):
            tab("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39)
        assert tab.until(f"{cell}.querySelector('.widget-readout').textContent.trim() === '5'", 30), "the slider did not move"
        assert tab.until(f"{summary} !== {json.dumps(broken)}", 120), "the number stayed when a step was added"

        tab.run(choose.replace("WANTED", "false"))
        assert tab.until(f"{summary}.startsWith('accept length ' + {summary}.match(/healthy ([0-9.]+)/)[1])", 120)
        assert "Error" not in tab.run(f"{cell}.innerText")
        last = notebook.show(-1)
        assert tab.until(f"{last}.innerText.includes('gap to the server')")
