"""A real Chromium without a driver: the DevTools protocol over two pipes, so no port is opened and nothing is installed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless",
    "--no-sandbox",  # the tests run as root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """The browser's path, or None."""
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


class Tab:
    """One page: send commands, and everything that the page said or asked for is in ``said`` and ``requested``."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, answers: int) -> None:
        self._process, self._to, self._from = process, to, answers
        self._buffer, self._last, self._session = b"", 0, ""
        self.said: list[str] = []
        self.requested: list[str] = []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, *, seconds: float = 60, **params: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + seconds
        while True:
            answer = self._read(end)
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False, javascript: bool = True) -> None:
        """Load a file and wait until its figures that are in view are drawn."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self("Emulation.setScriptExecutionDisabled", value=not javascript)
        self("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + 60
        while time.monotonic() < end:
            ready = "document.readyState == 'complete' && (document.documentElement.dataset.plots || '')"
            if self.run(ready) or (not javascript and self.run("document.readyState") == "complete"):
                return
            time.sleep(0.1)
        raise TimeoutError("the page did not finish")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, which may be a promise."""
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", answer["exceptionDetails"]["text"]))
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = 30) -> bool:
        """Whether ``expression`` becomes true in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.run(expression):
                return True
            time.sleep(0.1)
        return False

    def picture(self, path: Path, *, whole: bool = True) -> None:
        data = self("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def paper(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self("Page.printToPDF")["data"])

    def _read(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("no answer from the browser")
            chunk = os.read(self._from, 1 << 20)
            if not chunk:
                raise RuntimeError(f"the browser ended with {self._process.poll()}")
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.said.append(f"{params['type']}: {[a.get('value', a.get('description')) for a in params['args']]}")
        elif method == "Runtime.exceptionThrown":
            self.said.append(f"exception: {params['exceptionDetails']}")
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.said.append(f"log: {params['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])


def stop(process: subprocess.Popen[bytes], patience: float) -> None:
    """End a program: asked first, and after ``patience`` seconds made to."""
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def browser(binary: str, profile: Path) -> Iterator[Tab]:
    """A fresh browser with an empty profile; it is ended with the block."""
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()

    def place() -> None:  # Chromium reads commands from descriptor 3 and answers on 4
        os.dup2(in_read, 103)
        os.dup2(out_write, 104)
        os.dup2(103, 3)
        os.dup2(104, 4)

    process = subprocess.Popen(
        [binary, *_FLAGS, f"--user-data-dir={profile}"],
        preexec_fn=place,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(in_read)
    os.close(out_write)
    try:
        yield Tab(process, in_write, out_read)
    finally:
        stop(process, 10)
        os.close(in_write)
        os.close(out_read)
