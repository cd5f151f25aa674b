"""The words of a pasted command, as a shell would split them; nothing is run, and only what the text itself assigns is expanded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from eagle3diag.serving.shell import BREAK, DEPTH, Lexer
from eagle3diag.serving.variables import ASSIGNED, Budget, Known

# What word processors and chats make of quotes and of two dashes.
_TYPOGRAPHY = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "\u00a0": " ", "\u200b": " "})
_DASHES = re.compile(r"(?<!\S)[–—]{1,2}(?=[A-Za-z])")
_CONTINUED = re.compile(r"(?:\\|`|\^)[ \t]*\r?\n")  # sh, PowerShell, cmd
_SHELL = re.compile(r"(?:.*/)?(?:ba|z|da|k)?sh")
_SERVES = re.compile(r"sglang\.launch_server|\b(?:vllm|sglang)\s+serve\b|\btrtllm-serve\b|vllm\.entrypoints\.")
_SAYS = frozenset({"echo", "printf"})


def split(text: str, variables: Mapping[str, Sequence[str]] | None = None, budget: Budget | None = None) -> list[str]:
    """Words of a command line or of a script, with a :data:`~eagle3diag.serving.shell.BREAK` between lines.

    Variables that the text itself (or ``variables``) assigns are put in; all others stay as they are written, and so does what hangs on a
    condition, and what is beyond the ``budget``. The command in the quotes of another (``bash -c '...'``) is taken apart too.

    >>> split("A='1 2' vllm serve m --port 80 && echo") == ["A=1 2", "vllm", "serve", "m", "--port", "80", BREAK, BREAK, "echo"]
    True
    >>> split("M=m; vllm serve $M $OPTS")
    ['M=m', '\\n', 'vllm', 'serve', 'm', '$OPTS']

    Raises
    ------
    BadArgument: a quote is not closed.
    """
    return _split(text, Known(variables or {}, budget or Budget()), 0)


def _split(text: str, known: Known, depth: int) -> list[str]:
    words = Lexer(_CONTINUED.sub(" ", _DASHES.sub("--", text.translate(_TYPOGRAPHY))), known).run()
    return unwrapped(words, known, known.budget, depth)


def unwrapped(words: Sequence[str], known: Mapping[str, Sequence[str]], budget: Budget, depth: int = 0) -> list[str]:
    """The words, and in place of a word that is a command of its own (``bash -c``, ``ssh host``) those of that command."""
    out: list[str] = []
    first = ""  # word of the command
    for index, word in enumerate(words):
        first = word if not index or words[index - 1] == BREAK else first
        scripted = (
            index > 1 and re.fullmatch(r"-[a-z]*c", words[index - 1]) and any(map(_SHELL.fullmatch, words[max(0, index - 4) : index]))
        )
        served = _SERVES.search(word) and first not in _SAYS and not ASSIGNED.fullmatch(word)  # neither printed nor assigned
        nested = depth < DEPTH and word != BREAK and re.search(r"\s", word) and (scripted or served)
        if nested and budget.spend(len(word) + len(known)):
            out += [BREAK, *_split(word, Known(known, budget), depth + 1), BREAK]
        else:
            out.append(word)
    return out
