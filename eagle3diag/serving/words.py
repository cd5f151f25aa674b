"""The words of a pasted command, as a shell would split them; nothing is expanded and nothing is run."""

from __future__ import annotations

import json
import re

from eagle3diag.errors import BadArgument

# What word processors and chats make of quotes and of two dashes.
_TYPOGRAPHY = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "\u00a0": " ", "\u200b": " "})
_DASHES = re.compile(r"(?<!\S)[–—]{1,2}(?=[A-Za-z])")
_CONTINUED = re.compile(r"(?:\\|`|\^)[ \t]*\r?\n")  # sh, PowerShell, cmd
_LIST_ITEM = re.compile(r"\s*-\s+(\S.*?)\s*$")
BREAK = "\n"
"""Stands for the end of a line that is not continued, or for an operator such as ``&&``; no word can be this."""


def split(text: str) -> list[str]:
    """Words of a command line, of a JSON list (``docker inspect``) or of a YAML list (a pod's ``args``), with a :data:`BREAK` between lines.

    >>> split("A='1 2' vllm serve m --port 80 && echo") == ["A=1 2", "vllm", "serve", "m", "--port", "80", BREAK, BREAK, "echo"]
    True

    Raises
    ------
    BadArgument: a quote is not closed.
    """
    listed = _listed(text)
    if listed is not None:
        return listed
    return _Lexer(_CONTINUED.sub(" ", _DASHES.sub("--", text.translate(_TYPOGRAPHY)))).run()


def _listed(text: str) -> list[str] | None:
    stripped = text.strip()
    if stripped.startswith("["):
        try:
            items = json.loads(stripped)
        except (ValueError, RecursionError):
            return None
        return items if isinstance(items, list) and all(isinstance(i, str) and i != BREAK for i in items) else None
    lines = [line for line in text.splitlines() if line.strip() and not line.strip().endswith(":")]
    found = [_LIST_ITEM.match(line) for line in lines]
    items = [match[1].strip("\"'") for match in found if match]
    return items if len(items) > 2 and len(items) == len(lines) else None


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.words: list[str] = []
        self.word: list[str] | None = None  # its pieces; None: between words; a quoted empty word is [""]

    def run(self) -> list[str]:
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char in "'\"":
                self._add(self._quoted(char))
            elif char == "\\" and self.at < len(self.text):
                self._add(self.text[self.at])
                self.at += 1
            elif char in "\n;|&<>()":
                # a redirection takes the digits before it, as in "2> log"
                redirects = char in "<>" and self.word is not None and "".join(self.word).isdigit()
                self.word = None if redirects else self.word
                self._end()
                self.words.append(BREAK)
            elif char in " \t\r":
                self._end()
            elif char == "#" and self.word is None:
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                self._add(char)
        self._end()
        return self.words

    def _add(self, piece: str) -> None:
        self.word = [] if self.word is None else self.word
        self.word.append(piece)

    def _end(self) -> None:
        if self.word is not None:
            self.words.append("".join(self.word).replace(BREAK, " "))
            self.word = None

    def _quoted(self, quote: str) -> str:
        out: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char == quote:
                return "".join(out)
            if char == "\\" and quote == '"' and self.at < len(self.text) and self.text[self.at] in '"\\$`':
                char = self.text[self.at]
                self.at += 1
            out.append(char)
        raise BadArgument(
            f"the launch command cannot be read: a {'single' if quote == chr(39) else 'double'} quote is not closed",
            hint="paste it as it was typed, with its quotes",
        )
