"""A saved notebook as plain values. Data only: nothing of it is run, and of its outputs only text and the numbers of our results are taken."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from eagle3diag.errors import Eagle3DiagError, UnreadableFile
from eagle3diag.files import existing, read_text
from eagle3diag.findings import Result
from eagle3diag.report import prose
from eagle3diag.report.notebook import MIME
from eagle3diag.report.saved import opened

_TEXT = 200_000  # characters of one output or source that are looked at
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,40}m")
_PROGRESS = re.compile(r"\d%\||Progress\(")
_HINT = "give an .ipynb file of nbformat 4, as JupyterLab and VS Code save it"


@dataclass(frozen=True)
class Words:
    """Text that a cell wrote."""

    text: str


@dataclass(frozen=True)
class Shown:
    """A result that a cell showed: drawn anew from its numbers, never from the markup that was saved beside them."""

    result: Result


@dataclass(frozen=True)
class Other:
    """What is not taken over; ``kind`` is a key of :data:`eagle3diag.report.notebook_page.NOT_TAKEN`, ``why`` says more."""

    kind: str
    why: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell: ``code`` with its outputs, or prose."""

    source: str
    code: bool
    outputs: tuple[Words | Shown | Other, ...] = ()


@dataclass(frozen=True)
class Notebook:
    """``title``: the first heading, else "Notebook"."""

    title: str
    cells: tuple[Cell, ...]

    @property
    def results(self) -> tuple[Result, ...]:
        return tuple(o.result for cell in self.cells for o in cell.outputs if isinstance(o, Shown))


def read(path: str | os.PathLike[str]) -> Notebook:
    """The notebook at ``path``.

    Raises
    ------
    UnreadableFile: missing, no notebook of nbformat 4, of a shape that no notebook has, or one that was never run.
    """
    where = existing(path, "a notebook")
    text = read_text(where)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or nested without end
        raise UnreadableFile("is not JSON, or it is cut off", where=where, hint=_HINT) from None
    if not isinstance(found, dict) or found.get("nbformat") != 4 or not isinstance(found.get("cells"), list):
        raise UnreadableFile("is not a notebook of nbformat 4", where=where, hint=_HINT)
    cells = tuple(_cell(cell, f"{where}: cell {n}") for n, cell in enumerate(found["cells"], 1))
    if not any(cell.outputs for cell in cells):
        raise UnreadableFile("holds no outputs", where=where, hint="run it and save it first")
    titles = (found[1] for cell in cells if not cell.code for line in cell.source.split("\n") if (found := prose.heading(line)))
    return Notebook(next(titles, "Notebook"), cells)


def _cell(cell: Any, where: str) -> Cell:
    if not isinstance(cell, dict):
        _unfit(where, cell)
    source = _text(cell.get("source", ""), where)
    if cell.get("cell_type") != "code":
        return Cell(source, code=False)
    outputs = cell.get("outputs", [])
    if not isinstance(outputs, list):
        _unfit(where, outputs)
    made: list[Words | Shown | Other] = []
    before: Any = None
    for output in outputs:
        for piece in _output(output, where):
            if isinstance(piece, Words) and _stream(output) and _stream(output) == _stream(before):  # written in one go, saved in pieces
                made[-1] = Words(made[-1].text + piece.text) if isinstance(made[-1], Words) else piece
            else:
                made.append(piece)
        before = output
    return Cell(source, True, tuple(made))


def _stream(output: Any) -> str | None:
    """``stdout`` or ``stderr``, for what was written to one."""
    return str(output.get("name", "stdout")) if isinstance(output, dict) and output.get("output_type") == "stream" else None


def _output(output: Any, where: str) -> Iterator[Words | Shown | Other]:
    kind = output.get("output_type") if isinstance(output, dict) else None
    if kind == "stream":
        yield Words(_text(output.get("text", ""), where))
    elif kind == "error":
        yield Other("error")
        yield Words(f"{_text(output.get('ename', ''), where)}: {_text(output.get('evalue', ''), where)}")
    elif kind in ("display_data", "execute_result") and isinstance(output.get("data"), dict):
        yield from _data(output["data"], where)
    else:
        _unfit(where, kind)


def _data(data: Mapping[str, Any], where: str) -> Iterator[Words | Shown | Other]:
    words = _text(data.get("text/plain", ""), where)
    if MIME in data:
        try:
            yield Shown(opened(data[MIME], where))
            return
        except Eagle3DiagError as error:
            yield Other("damaged view", error.what)
    elif "application/vnd.jupyter.widget-view+json" in data:
        yield Other("progress bar" if _PROGRESS.search(words) else "live control")
        return
    elif any(name.startswith("image/") for name in data):
        yield Other("picture")
    elif set(data) - {"text/plain"}:
        yield Other("markup")
    if words:
        yield Words(words)


def _text(value: Any, where: str) -> str:
    """nbformat keeps text whole or in lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "".join(value)
    if not isinstance(value, str):
        _unfit(where, value)
    text: str = _COLOURS.sub("", value[:_TEXT])
    return text + (f"… ({len(value) - _TEXT} more characters)" if len(value) > _TEXT else "")


def _unfit(where: str, value: object) -> NoReturn:
    raise UnreadableFile(f"{value!r:.40} is not what a notebook has there", where=where, hint=_HINT)
