"""Where among the words of a script the server's command stands, which engine it starts, and of which version."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3diag.errors import BadArgument
from eagle3diag.serving.shell import BREAK

_MODULES = {
    "sglang.launch_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "tensorrt_llm.commands.serve": "tensorrt-llm",
}
_PROGRAMS = {"sglang": "sglang", "vllm": "vllm", "vllm.entrypoints.cli.main": "vllm"}  # followed by the word "serve"
_NAMES = {"sglang": "sglang", "vllm": "vllm", "trtllm": "tensorrt-llm", "tensorrt-llm": "tensorrt-llm", "tensorrt_llm": "tensorrt-llm"}
_NAME = "|".join(_NAMES)
_NAMED = re.compile(_NAME, re.IGNORECASE)
_IMAGE = re.compile(rf"(?:^|/)({_NAME})[\w.-]*(?:/release)?:v?(\d+\.\d+[\w.]*)", re.IGNORECASE)
_PINNED = re.compile(rf"\b({_NAME})(?:\[[\w,-]*\])?==(\d+\.\d+[\w.]*)", re.IGNORECASE)
_VARIABLE = re.compile(r"(?:--env=|-e|Environment=)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)

OPTION = re.compile(r"--?[A-Za-z]")
"""An option, and not a negative number."""
OPEN = re.compile(r"\$[\w@*{(]|`")
"""A variable that was not assigned in the text."""


@dataclass(frozen=True)
class Served:
    """The command: its ``engine``, what pins its ``version``, the variables set for it, and the words behind the server's own."""

    engine: str
    version: str | None
    environment: dict[str, str]
    words: list[str]


def names_engine(text: str) -> bool:
    """Whether an engine is named in a text."""
    return _NAMED.search(text) is not None


def served(words: Sequence[str]) -> Served:
    """The first command among ``words`` that starts a server.

    Raises
    ------
    BadArgument: none does.
    """
    engine, start = _server(words)
    before = [word for word in words[:start] if word != BREAK]
    pinned = [match for word in before for match in (_IMAGE.search(word), _PINNED.search(word)) if match]
    version = next((match[2] for match in pinned if _NAMES[match[1].lower()] == engine), None)
    environment = {m[1]: m[2] for word in before if (m := _VARIABLE.fullmatch(word)) and not OPTION.search(m[2])}
    end = next((end for end in _ends(words) if end >= start), len(words))
    return Served(engine, version, environment, [word for word in words[start:end] if word != BREAK])


def _ends(words: Sequence[str]) -> list[int]:
    """Where commands end. A line end is passed over where the next line goes on with options, as in a paste that lost its ``\\``."""
    ends = []
    following = ""
    for index in range(len(words) - 1, -1, -1):
        if words[index] != BREAK:
            following = words[index]
            continue
        hanging = index > 0 and OPTION.match(words[index - 1]) is not None and following[:1] in ("{", "/")
        if words[index + 1 : index + 2] == [BREAK] or not (OPTION.match(following) or hanging):
            ends.append(index)
    return ends[::-1]


def _server(words: Sequence[str]) -> tuple[str, int]:
    """The engine, and where its own options begin."""
    for index, word in enumerate(words):
        if word in _MODULES:
            return _MODULES[word], index + 1
        name = word.replace("\\", "/").rpartition("/")[2]
        following = words[index + 1] if index + 1 < len(words) else ""
        if name in _PROGRAMS and following == "serve":
            return _PROGRAMS[name], index + 2
        if name == "trtllm-serve":
            return "tensorrt-llm", index + (2 if following == "serve" else 1)
    # an image whose entry point is the server, or a script of one's own
    named = [(i, w) for i, w in enumerate(words) if names_engine(w) and not (OPTION.match(w) or _VARIABLE.fullmatch(w))]
    ends = [*_ends(words), len(words)]
    options = [i for i, w in enumerate(words) if OPTION.match(w) or OPEN.match(w)] + [len(words)]
    for index, word in sorted(named, key=lambda at: _IMAGE.search(at[1]) is None):
        if options[bisect_right(options, index)] < ends[bisect_right(ends, index)]:
            return _NAMES[_NAMED.findall(word)[0].lower()], index + 1
    shown = " ".join(word for word in words if word != BREAK)
    raise BadArgument(
        f"no launch command: {named[0][1]!r:.40} is named, and no option of a server follows"
        if named
        else f"no launch command: neither sglang nor vllm nor trtllm-serve is named in {shown!r:.80}",
        hint="give the whole command line in quotes, or a file with it; a log goes to --log",
    )
