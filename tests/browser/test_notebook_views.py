"""The notebook view where people open it: a page made by nbconvert, and JupyterLab, with and without trust in the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import chromium
import nbformat
import pytest
import reports
from nbformat.sign import NotebookNotary

pytestmark = pytest.mark.browser

SORTED = "document.querySelectorAll('.e3d button.sort').length > 0"


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[chromium.Tab]:
    binary = chromium.find()
    if binary is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with chromium.browser(binary, tmp_path / "profile") as opened:
        opened("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
        yield opened


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

    assert tab.until("document.querySelectorAll('.e3d svg.e3d-svg').length === 13")
    assert tab.until(SORTED)
    assert tab.run("document.body.innerText.includes('Start the server with')")
    assert tab.run("document.querySelectorAll('.e3d svg.track').length") == 5
    assert tab.run("document.querySelectorAll('.e3d svg title').length") > 100
    assert not [words for words in tab.said if "e3d" in words]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """JupyterLab on a free port of this machine, with its files and settings in a folder of its own."""
    runtime = tmp_path / "runtime"
    home = {
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "lab"),
    }
    home |= {"JUPYTER_DATA_DIR": str(tmp_path / "data"), "IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTER_PREFER_ENV_PATH": "1"}
    home |= {"PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])}
    work = tmp_path / "work"
    work.mkdir()
    options = [
        "--no-browser",
        "--allow-root",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port=0",
        "--IdentityProvider.token=",
        f"--ServerApp.root_dir={work}",
    ]
    options += ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options], env=os.environ | home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 300
        while not (files := list(runtime.glob("jpserver-*.json"))):
            assert server.poll() is None and time.monotonic() < end, "JupyterLab did not start"
            time.sleep(0.3)
        time.sleep(1)
        yield json.loads(files[0].read_text())["url"].replace("localhost", "127.0.0.1"), work
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def test_jupyterlab_shows_the_view(tab: chromium.Tab, lab: tuple[str, Path], tmp_path: Path) -> None:
    """Without a kernel: a notebook from someone else shows all its words; once trusted it draws, tells values and sorts."""
    url, work = lab
    notebook(work / "theirs.ipynb")
    NotebookNotary(data_dir=str(tmp_path / "data")).sign(notebook(work / "mine.ipynb"))

    tab("Page.navigate", url=f"{url}lab/tree/theirs.ipynb?reset")
    assert tab.until("document.querySelector('.jp-OutputArea-output')?.innerText.includes('Start the server with')", 240)
    assert not tab.run(SORTED)

    tab("Page.navigate", url=f"{url}lab/tree/mine.ipynb?reset")
    assert tab.until(f"{SORTED} && document.querySelectorAll('.e3d svg.e3d-svg').length === 13", 240)
    assert tab.run("document.querySelectorAll('.e3d svg.track').length") == 5
    assert tab.run("document.querySelectorAll('.e3d svg title').length") > 100
