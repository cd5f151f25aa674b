"""The workbench: a form in a notebook to pick the evidence, run the diagnosis, read it and export it, without writing code."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3diag.errors import BadArgument, Eagle3DiagError, MissingDependency
from eagle3diag.evidence import EVIDENCE, evidence
from eagle3diag.findings import writing

if TYPE_CHECKING:
    from eagle3diag.diagnose import Diagnosis

__all__ = ["Workbench"]

_FIELDS: dict[str, tuple[str, str]] = {  # name -> label, what to put there
    "case": ("case folder", "a folder with any of these parts under their own names; fills the fields below"),
    "draft": ("draft", "the draft's checkpoint"),
    "target": ("target", "the target's checkpoint: lends its embedding to the replay"),
    "train": ("training dump", "hidden states from training"),
    "live": ("live dump", "hidden states captured in the engine"),
    "reference": ("reference", "hidden states at every boundary of the target"),
    "launch": ("launch command", "as it was typed, or the file that holds it; it is read, never run"),
    "log": ("server log", "plain or gzip"),
    "acceptance": ("accept length", "as the server shows it, such as 1.03; or a JSON file of counts"),
    "engine": ("engine", "sglang==0.5.23; empty: as the log, the live dump or the command say"),
}
_DEEP, _MOST = 3, 200  # folders below the start, and entries offered, when looking for what could be picked


class Workbench:
    """A form of :func:`eagle3diag.diagnose`; show it as the last line of a cell.

    Attributes
    ----------
    fields: the inputs by name (``fields["draft"].value = "path"`` fills one from code). result: the last diagnosis, None before one ran.

    Raises
    ------
    MissingDependency: ipywidgets is not installed; everything that the form does is one call of ``eagle3diag.diagnose``.
    """

    def __init__(self, folder: str | os.PathLike[str] = ".") -> None:
        try:
            import ipywidgets
        except ImportError as error:
            raise MissingDependency("ipywidgets is needed for the workbench", hint="pip install 'ipywidgets>=8.1'") from error
        self.result: Diagnosis | None = None
        offered = list(_offered(Path(folder)))
        wide = ipywidgets.Layout(width="100%")
        style = {"description_width": "8.5em"}
        self.fields: dict[str, Any] = {
            name: ipywidgets.Combobox(
                description=label,
                placeholder=words,
                options=offered,
                ensure_option=False,
                continuous_update=False,
                layout=wide,
                style=style,
            )
            for name, (label, words) in _FIELDS.items()
        }
        self.run = ipywidgets.Button(
            description="Diagnose", button_style="primary", icon="stethoscope", tooltip="run what the evidence allows"
        )
        self.path = ipywidgets.Text(value="report.html", description="report", continuous_update=False, style=style)
        self.include_text = ipywidgets.Checkbox(value=False, description="include paths, hosts and texts", indent=False)
        self.export = ipywidgets.Button(description="Export", icon="download", disabled=True, tooltip="write one HTML file")
        self.status = ipywidgets.HTML()
        self.shown = ipywidgets.HTML()
        self.fields["case"].observe(self._fill, names="value")
        self.run.on_click(self._guarded(self._diagnose))
        self.export.on_click(self._guarded(self._write))
        self.box = ipywidgets.VBox(
            [
                *self.fields.values(),
                ipywidgets.HBox([self.run, self.path, self.include_text, self.export], layout=ipywidgets.Layout(flex_flow="row wrap")),
                self.status,
                self.shown,
            ],
            layout=ipywidgets.Layout(max_width="62rem"),
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return self.box._repr_mimebundle_(**kwargs)

    def _fill(self, change: dict[str, Any]) -> None:
        """Put what lies in the chosen folder into the other fields; what was typed there stays."""
        if not change["new"]:
            return
        try:
            found = evidence(Path(change["new"]))
        except BadArgument as error:
            self._say(error)
            return
        for name, path in found.items():
            self.fields[name].value = self.fields[name].value or path
        self._say(f"found {', '.join(found)}")

    def _diagnose(self) -> None:
        from eagle3diag.diagnose import diagnose
        from eagle3diag.report.notebook import fragment

        given = {name: value for name in (*EVIDENCE, "engine") if (value := self.fields[name].value.strip())}
        self.result, self.shown.value, self.export.disabled = None, "", True
        start, steps = time.monotonic(), list[str]()

        def progress(words: str) -> None:
            steps.append(f"{time.monotonic() - start:5.1f} s  {words}")
            self._say("\n".join(steps))

        self.result = diagnose(**given, progress=progress)
        self.shown.value, self.export.disabled = fragment(self.result), False
        counted = sum(f.severity.label != "note" for f in self.result.findings)
        self._say(f"{self.result.verdict}\n{counted} findings above a note, after {time.monotonic() - start:.0f} s")

    def _write(self) -> None:
        if self.result is None:
            raise BadArgument("there is no diagnosis to export yet", hint="press Diagnose first")
        with writing("the report", self.path.value, "choose another path"):
            path = self.result.to_html(self.path.value.strip() or "report.html", include_text=self.include_text.value)
        told = "with" if self.include_text.value else "without"
        self._say(f"{path}: {path.stat().st_size / 1e6:.1f} MB, one file, {told} paths, hosts and texts")

    def _guarded(self, act: Callable[[], None]) -> Callable[[Any], None]:
        """``act`` as a button's answer: what went wrong is said under the form, where a person looks; a button would swallow it."""

        def answer(_: Any) -> None:
            self.run.disabled = True
            try:
                act()
            except Eagle3DiagError as error:
                self._say(error)
            except Exception as error:
                self._say(f"this is a fault of eagle3diag, not of your input: {type(error).__name__}: {error}")
                raise
            finally:
                self.run.disabled = False

        return answer

    def _say(self, words: object) -> None:
        from html import escape

        from eagle3diag.report.safe import visible

        alarm = "color:#a83f00;" if isinstance(words, Exception) else ""
        self.status.value = f"<pre style='{alarm}white-space:pre-wrap'>{escape(visible(words, keep_newlines=True))}</pre>"


def _offered(folder: Path) -> Iterator[str]:
    """What could be evidence below ``folder``: checkpoints, dumps, cases, logs; few, sorted, and nothing that is hidden."""
    found: list[str] = []
    for root, folders, files in os.walk(folder):
        here = Path(root)
        folders[:] = sorted(f for f in folders if not f.startswith(".")) if len(here.relative_to(folder).parts) < _DEEP else []
        if {"config.json", "manifest.json", "launch.txt", "server.log"} & set(files):
            found.append(str(here))
        found += [str(here / f) for f in sorted(files) if f.endswith((".log", ".log.gz")) or f in ("launch.txt", "acceptance.json")]
        if len(found) >= _MOST:
            break
    yield from found[:_MOST]
