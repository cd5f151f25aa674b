"""A hook of MkDocs: the rendered notebooks and sample reports, which are whole pages, become files of the site as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

RENDERED = Path(__file__).resolve().parent.parent / "out" / "rendered"


def on_files(files: Files, config: Any) -> Files:
    """Add every page below ``out/rendered``; a link to one that was not built fails, as to any missing file."""
    for page in sorted(RENDERED.glob("*/*.html")):
        files.append(File(str(page.relative_to(RENDERED)), str(RENDERED), config["site_dir"], use_directory_urls=False))
    return files
