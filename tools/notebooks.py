"""Write notebooks/*.ipynb from their plain-text forms: ``python tools/notebooks.py [--check]``. Outputs are never kept in git."""

from __future__ import annotations

import argparse
from pathlib import Path

import jupytext
import nbformat

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"


def notebook_of(source: Path) -> str:
    """The notebook that a ``py:percent`` file stands for, as JSON text. Cells are numbered, so that the same text gives the same bytes."""
    notebook = jupytext.read(source)
    for n, cell in enumerate(notebook.cells):
        cell["id"] = f"{source.stem[:2]}-{n:02}"
    notebook.metadata.pop("jupytext", None)
    return nbformat.writes(notebook, version=4) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the two forms differ")
    check = parser.parse_args().check
    stale = []
    for source in sorted(FOLDER.glob("*.py")):
        made, path = notebook_of(source), source.with_suffix(".ipynb")
        if not path.exists() or path.read_text(encoding="utf-8") != made:
            stale.append(path.name)
            if not check:
                path.write_text(made, encoding="utf-8")
    print(f"{'stale' if check else 'written'}: {', '.join(stale) or 'none'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
