"""Copies of the guided notebooks for the user's own case, with the paths filled in; and a notebook that was run as one file for others."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from eagle3diag.errors import BadArgument, MissingPart, UnreadableFile
from eagle3diag.findings import write_atomically, writing
from eagle3diag.report.numbers import many

#: Evidence that a notebook reads, by the name of its variable in the cell tagged ``paths``.
EVIDENCE = ("target", "draft", "train", "live", "launch", "log", "acceptance")
SAMPLES = "../data_samples"  # as the notebooks of a checkout find them


def run(args: argparse.Namespace) -> int:
    """The verb ``notebooks``."""
    given = {name: value for name in EVIDENCE if (value := getattr(args, name)) is not None}
    for name, value in given.items():
        if not Path(_absolute(value)).exists():
            raise UnreadableFile(f"nothing is there; expected what --{name} names", where=value, hint="check the path")
    made = copy_notebooks(Path(args.out), given)
    for path in made:
        print(path)
    print(f"open the first one: jupyter lab {made[0]}", file=sys.stderr)
    return 0


def add_export(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb ``export``."""
    parser.add_argument("notebook", metavar="NOTEBOOK", help="an .ipynb file that was run and saved")
    parser.add_argument("--html", metavar="PATH", help="the file to write (default: next to the notebook)")
    parser.add_argument(
        "--include-text", action="store_true", help="keep code, printed text, hosts, paths, names and texts of prompts (keys never)"
    )


def export(args: argparse.Namespace) -> int:
    """The verb ``export``: nothing of the notebook is run."""
    from eagle3diag.report import notebook_file, notebook_page

    source = Path(args.notebook)
    notebook = notebook_file.read(source)
    page = notebook_page.page(notebook, include_text=args.include_text)
    with writing("the page", args.html, "choose another path"):
        path = write_atomically(args.html or source.with_suffix(".html"), page)
    told = "with" if args.include_text else "without"
    print(f"{path}: {many(len(notebook.results), 'result')}, {len(page.encode()) / 1e6:.1f} MB, {told} code, printed text, paths and hosts")
    return 0


def shipped_notebooks() -> list[Path]:
    """The notebooks of the installed package, or of the checkout. Raises :class:`~eagle3diag.errors.MissingPart` when neither is there."""
    here = Path(__file__).resolve().parent
    for folder in (here / "_notebooks", here.parent / "notebooks"):
        found = sorted(folder.glob("*.ipynb"))
        if found:
            return found
    raise MissingPart("this installation carries no notebooks", hint="install eagle3diag from a wheel, or run from a checkout")


def copy_notebooks(out: Path, given: Mapping[str, str]) -> list[Path]:
    """Write every notebook into ``out``; ``given`` maps names of :data:`EVIDENCE` to the user's paths, which are made absolute.

    Raises
    ------
    BadArgument: a notebook of that name is there already: work in it would be lost.
    """
    sources = shipped_notebooks()
    taken = [out / s.name for s in sources if (out / s.name).exists()]
    if taken:
        raise BadArgument("a notebook of this name is there already", where=taken[0], hint="give a new folder")
    samples = sources[0].parent.parent / "data_samples"
    lines = [f"{name.upper()} = Path({_absolute(value)!r})" for name, value in given.items()]
    where = str(samples) if samples.is_dir() else SAMPLES
    return [write_atomically(out / s.name, _filled(s.read_text(encoding="utf-8"), where, lines)) for s in sources]


def _absolute(value: str) -> str:
    try:
        path = Path(value).expanduser()
    except RuntimeError:  # "~name", of which this machine knows nobody
        path = Path(value)
    return os.path.realpath(path)  # not resolve(), which raises on a loop of links


def _filled(text: str, samples: str, lines: list[str]) -> str:
    """The notebook with the samples' folder set, and ``lines`` at the end, in its cell of paths."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if "paths" in cell["metadata"].get("tags", ()):
            source = "".join(cell["source"]).replace(json.dumps(SAMPLES), json.dumps(samples)).rstrip("\n").split("\n")
            source += ["", "# your files", *lines] if lines else []
            cell["source"] = [line + "\n" for line in source[:-1]] + source[-1:]
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
