"""JupyterLab on a free port of this machine, without a token, with its files and settings in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import chromium

ROOT = Path(__file__).resolve().parent.parent
_OPTIONS = (
    "--no-browser",
    "--allow-root",
    "--ServerApp.ip=127.0.0.1",
    "--ServerApp.port=0",
    "--IdentityProvider.token=",
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.expose_app_in_browser=True",
)
_NOTEBOOK = "window.jupyterapp.shell.currentWidget"


@contextmanager
def jupyterlab(scratch: Path, work: Path, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """The server's address; ``work`` is what it shows, ``scratch`` holds all that Jupyter writes. Ended with the block."""
    places = {
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTERLAB_SETTINGS_DIR": "lab",
        "JUPYTER_DATA_DIR": "data",
        "IPYTHONDIR": "ipython",
    }
    given = {name: str(scratch / folder) for name, folder in places.items()}
    given |= {"JUPYTER_PREFER_ENV_PATH": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    quiet = scratch / "lab" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    quiet.parent.mkdir(parents=True)
    quiet.write_text('{"fetchNews": "false", "checkForUpdates": false, "doNotDisturbMode": true}')
    log = scratch / "server.log"
    with log.open("wb") as said:
        command = [sys.executable, "-m", "jupyterlab", *_OPTIONS, f"--ServerApp.root_dir={work}"]
        server = subprocess.Popen(command, env=os.environ | given | dict(environment or {}), stdout=said, stderr=said)
    try:
        end = time.monotonic() + 300
        while not (files := list((scratch / "runtime").glob("jpserver-*.json"))):
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.3)
        time.sleep(1)
        yield json.loads(files[0].read_text())["url"].replace("localhost", "127.0.0.1")
    finally:
        chromium.stop(server, 20)


class Notebook:
    """A notebook open in JupyterLab: run it, read its outputs, look at a cell. Cells out of view are not in the page, so outputs are read
    from JupyterLab's own model, and a cell is scrolled to before anything in it is touched."""

    def __init__(self, tab: chromium.Tab, url: str, name: str) -> None:
        self.tab = tab
        tab("Page.navigate", url=f"{url}lab/tree/{name}?reset")
        ready = (
            f"window.jupyterapp?.shell?.currentWidget?.context?.isReady && {_NOTEBOOK}.sessionContext?.session?.kernel?.status === 'idle'"
        )
        if not tab.until(ready, 300):
            raise TimeoutError(f"{name} did not open with a kernel that answers")

    def run(self, seconds: float = 600) -> None:
        """Run all cells and wait until the last one has ended, or one has failed."""
        self.tab.run("void window.jupyterapp.commands.execute('notebook:run-all-cells').catch(() => 0)")
        ended = f"(cells => cells.every(c => c.execution_count) || cells.some(c => c.outputs.some(o => o.output_type === 'error')))({self._code})"
        if not self.tab.until(ended, seconds):
            done = self.tab.run(f"{self._code}.filter(c => c.execution_count).length")
            raise TimeoutError(f"after {seconds:.0f} s only {done} of {self.tab.run(f'{self._code}.length')} cells had ended")

    _code = f"{_NOTEBOOK}.context.model.toJSON().cells.filter(c => c.cell_type === 'code')"

    @property
    def errors(self) -> list[str]:
        """What failed, in words."""
        found = f"{self._code}.flatMap(c => c.outputs).filter(o => o.output_type === 'error').map(o => o.ename + ': ' + o.evalue)"
        return [str(words) for words in self.tab.run(found)]

    def show(self, index: int) -> str:
        """Scroll to a cell (negative: from the end), and return the expression of its element."""
        place = f"(({index} + {_NOTEBOOK}.content.widgets.length) % {_NOTEBOOK}.content.widgets.length)"
        self.tab.run(f"{_NOTEBOOK}.content.activeCellIndex = {place}")
        self.tab.run(f"{_NOTEBOOK}.content.scrollToItem({place}, 'smart')")
        node = f"{_NOTEBOOK}.content.widgets[{place}].node"
        self.tab.until(f"{node}.isConnected", 20)
        return node

    def find(self, source: str) -> int:
        """The index of the first cell whose source holds ``source``."""
        return int(
            self.tab.run(
                f"{_NOTEBOOK}.context.model.toJSON().cells.findIndex(c => [c.source].flat().join('').includes({json.dumps(source)}))"
            )
        )
