"""Options in a file (``--config serve.yaml``, ``--extra_llm_api_options``): JSON, or the part of YAML that such files use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from eagle3diag.errors import UnreadableFile
from eagle3diag.files import read_text

LARGEST = 1 << 20
_KEY = re.compile(r"""("[^"]*"|'[^']*'|[^\s'"#{\[&*!|>%@-][^#]*?|-[^\s#][^#]*?)\s*:(?:\s+(.*))?$""")
_HINT = "write `key: value` lines, nested by two spaces, lists as [a, b] or `- a`; or give the options on the command line"


def read_settings(path: Path) -> dict[str, Any]:
    """The options of a settings file, values as text (or nested mappings and lists of text).

    Of YAML: ``key: value`` lines, mappings nested by indentation, ``- item`` and ``[a, b]`` lists, JSON objects as values, quotes, comments.

    Raises
    ------
    UnreadableFile: too large, not readable, or YAML beyond that (anchors, block scalars, tags), with the line.
    """
    text = read_text(path, LARGEST)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return _Yaml(text, path).mapping()
    if not isinstance(whole, dict):
        raise UnreadableFile("holds no mapping of options", where=path, hint=_HINT)
    return whole


class _Yaml:
    def __init__(self, text: str, path: Path) -> None:
        self.path, self.at = path, 0
        self.lines: list[tuple[int, int, str]] = []  # number, indent, content
        for number, raw in enumerate(text.splitlines(), 1):
            content = _uncommented(raw).rstrip()
            if content.strip() and content.strip() != "---":
                if "\t" in raw[: len(raw) - len(raw.lstrip())]:
                    raise self._error(number, "is indented with a tab")
                self.lines.append((number, len(content) - len(content.lstrip()), content.strip()))

    def mapping(self, indent: int | None = None, depth: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.at < len(self.lines):
            number, here, content = self.lines[self.at]
            indent = here if indent is None else indent
            if here < indent:
                break
            match = _KEY.match(content)
            if here > indent or match is None or depth > 20:
                raise self._error(number, "is not a `key: value` line")
            self.at += 1
            key, value = match[1].strip("\"'").strip(), match[2]
            found[key] = self._value(value, number) if value else self._below(indent, depth)
        return found

    def _below(self, indent: int, depth: int) -> Any:
        """What stands indented under a key without a value: a mapping, a list, or nothing."""
        if self.at >= len(self.lines) or (self.lines[self.at][1] <= indent and not self.lines[self.at][2].startswith("- ")):
            return None
        if not self.lines[self.at][2].startswith("- "):
            return self.mapping(self.lines[self.at][1], depth + 1)
        items = []
        while self.at < len(self.lines) and self.lines[self.at][1] >= indent and self.lines[self.at][2].startswith("- "):
            number, _, content = self.lines[self.at]
            items.append(self._value(content[2:].strip(), number))
            self.at += 1
        return items

    def _value(self, text: str, number: int) -> Any:
        if text[0] in "&*!|>%@`" or (text[0] in "\"'" and (len(text) < 2 or text[-1] != text[0])):
            raise self._error(number, "uses a part of YAML that is not read here")
        if text[0] in "\"'":
            return text[1:-1]
        if text[0] in "{[":
            try:
                return json.loads(text)
            except (ValueError, RecursionError):
                inside = text[1:-1]
                if text[0] == "{" or text[-1] != "]" or any(sign in inside for sign in "[]{}"):
                    raise self._error(number, "is not JSON") from None
                return [item.strip().strip("\"'") for item in inside.split(",") if item.strip()]
        return None if text in ("null", "~") else text

    def _error(self, number: int, what: str) -> UnreadableFile:
        return UnreadableFile(f"line {number} {what}", where=self.path, hint=_HINT)


def _uncommented(line: str) -> str:
    quote = ""
    for index, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char == "#" and (index == 0 or line[index - 1] in " \t"):
            return line[:index]
    return line
