"""Options in a file (``--config serve.yaml``, ``--extra_llm_api_options``), which is YAML, or JSON as a part of it."""

from __future__ import annotations

from pathlib import Path

from eagle3diag.errors import UnreadableFile
from eagle3diag.files import read_text
from eagle3diag.serving.documents import LARGEST, NotYaml, Value, value_of


def read_settings(path: Path) -> dict[str, Value]:
    """The options of a settings file, values as text (or nested mappings and lists of text).

    Raises
    ------
    UnreadableFile: too large, not readable, no mapping, or no YAML that :func:`~eagle3diag.serving.documents.value_of` reads, with the line.
    """
    text = read_text(path, LARGEST)
    try:
        found = value_of(text)
    except NotYaml as error:
        raise UnreadableFile(f"line {error.line}: {error.what}", where=path, hint="give the options on the command line") from None
    if not isinstance(found, dict):
        raise UnreadableFile("holds no mapping of options", where=path, hint="write `key: value` lines")
    return found
