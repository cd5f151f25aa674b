"""A pasted launch command, read without ever running a shell."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eagle3diag.errors import BadArgument

_MODULES = {"sglang.launch_server": "sglang", "vllm.entrypoints.openai.api_server": "vllm", "vllm.entrypoints.api_server": "vllm"}
_IMAGE = re.compile(r"(?:^|/)(sglang|vllm)[\w.-]*:v?(\d+\.\d+[\w.]*)", re.IGNORECASE)
_PINNED = re.compile(r"\b(sglang|vllm)(?:\[[\w,-]*\])?==(\d+\.\d+[\w.]*)", re.IGNORECASE)
# An option, and not a negative number.
_OPTION = re.compile(r"--?[A-Za-z]")
# vLLM's speculative_config, in the words of the other engine's options.
_VLLM = {"method": "speculative-algorithm", "model": "speculative-draft-model-path", "num_speculative_tokens": "speculative-num-steps"}


@dataclass(frozen=True)
class Launch:
    """The options of a server that matter to a draft; ``arguments`` holds all of them, without the leading dashes."""

    engine: str
    version: str | None
    algorithm: str | None
    target_path: str | None
    draft_path: str | None
    steps: int | None
    topk: int | None
    slots: int | None
    arguments: Mapping[str, str]


def parse_launch(text: str, *, version: str | None = None) -> Launch:
    """Read ``python -m sglang.launch_server ...``, ``sglang serve ...`` or ``vllm serve ... --speculative-config '{...}'``.

    Quotes, line continuations, leading ``NAME=value``, what wraps the server (``docker run ... image:tag``, ``nohup``) and what follows
    it (``> log 2>&1 &``) are understood; variables are left as they are written. An option may be cut short where that is unambiguous,
    as both engines allow. The version is taken from the image's tag or from a pinned ``sglang==0.5.23``, unless given.

    >>> parse_launch("python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE --speculative-num-steps 4").algorithm
    'EAGLE'

    Raises
    ------
    BadArgument: unbalanced quotes, or no server that we know.
    """
    words = _words(text)
    engine, start = _server(words)
    if version is None:
        pinned = [match for word in words[:start] for match in (_IMAGE.search(word), _PINNED.search(word)) if match]
        version = next((match[2] for match in pinned if match[1].lower() == engine), None)
    return from_arguments(engine, _arguments(words[start:]), version)


def from_arguments(engine: str, arguments: Mapping[str, str], version: str | None) -> Launch:
    """The same from options already taken apart (dashes or underscores)."""
    options = {k.replace("_", "-"): v for k, v in arguments.items()}
    if engine == "vllm":
        options |= _vllm(options)
    return Launch(
        engine=engine,
        version=version,
        algorithm=_option(options, "speculative-algorithm"),
        target_path=_option(options, "model-path", "model"),
        draft_path=_option(options, "speculative-draft-model-path", "speculative-draft-model"),
        steps=_whole(_option(options, "speculative-num-steps")),
        topk=_whole(_option(options, "speculative-eagle-topk")),
        slots=_whole(_option(options, "speculative-num-draft-tokens")),
        arguments=dict(arguments),
    )


def read_launch(source: object) -> Launch:
    """A :class:`Launch` from one, from a command, or from a file that holds a command."""
    if isinstance(source, Launch):
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise BadArgument(f"{type(source).__name__} is no launch command", hint="paste the command, or give the file that holds it")
    text = str(source)
    if "\n" not in text and "\0" not in text and len(text) < 4096 and Path(text).is_file():
        text = Path(text).read_text(encoding="utf-8", errors="replace")
    return parse_launch(text)


def _words(text: str) -> list[str]:
    """The words of the command up to whatever ends or redirects it; whole-line comments are dropped."""
    lines = (line for line in re.sub(r"\\\r?\n", " ", text).splitlines() if not line.lstrip().startswith("#"))
    lexer = shlex.shlex(" ".join(lines), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if word and all(sign in "();<>|&" for sign in word):
                if words and _knows_server(words):
                    if word[0] in "<>" and words[-1] in ("1", "2"):  # the file descriptor of "2> log"
                        words.pop()
                    break
                continue  # "cd somewhere && python -m ...": the server is still to come
            words.append(word)
    except ValueError as error:
        raise BadArgument(f"the launch command cannot be read: {error}", hint="paste it as it was typed, with its quotes") from None
    return words


def _knows_server(words: list[str]) -> bool:
    try:
        _server(words)
    except BadArgument:
        return False
    return True


def _server(words: list[str]) -> tuple[str, int]:
    """The engine, and where its own options begin."""
    for index, word in enumerate(words):
        if word in _MODULES:
            return _MODULES[word], index + 1
        following = words[index + 1] if index + 1 < len(words) else ""
        if Path(word).name in ("sglang", "vllm") and following == "serve":
            return Path(word).name, index + 2
    for index, word in enumerate(words):  # an image whose entry point is the server, or a script of one's own
        if not _OPTION.match(word) and (found := re.search(r"sglang|vllm", word, re.IGNORECASE)):
            return found[0].lower(), index + 1
    raise BadArgument("the launch command names neither sglang nor vllm", hint="paste the whole command line")


def _arguments(words: list[str]) -> dict[str, str]:
    """Options and their values, several words joined by blanks; a first word that is no option is the model, as after ``serve``."""
    found: dict[str, str] = {}
    name: str | None = None
    if words and not _OPTION.match(words[0]) and "=" not in words[0]:
        found["model"] = words[0]
    for word in words:
        if _OPTION.match(word):
            name, equals, value = word.lstrip("-").partition("=")
            found[name] = value if equals else ""
            name = None if equals else name
        elif name is not None:
            found[name] = f"{found[name]} {word}".strip()
    return found


def _option(options: Mapping[str, str], *names: str) -> str | None:
    """The value under one of ``names``, or under a shorter spelling that fits no other speculative option (``--speculative-algo``)."""
    for name in names:
        if name in options:
            return options[name]
        cut = [key for key in options if len(key) > len("speculative-") + 3 and name.startswith(key)]
        if len(cut) == 1 and cut[0] != "speculative-draft-model":
            return options[cut[0]]
    return None


def _vllm(options: Mapping[str, str]) -> dict[str, str]:
    """vLLM's JSON (``--speculative-config '{...}'``) or its dotted form (``--speculative-config.method eagle3``)."""
    dotted = "speculative-config."
    config: dict[str, object] = {k.removeprefix(dotted).replace("-", "_"): v for k, v in options.items() if k.startswith(dotted)}
    text = options.get("speculative-config", options.get("sc"))
    if text is not None:
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            raise BadArgument("--speculative-config is not JSON", hint="paste it with its quotes") from None
        if not isinstance(parsed, dict):
            raise BadArgument("--speculative-config is not a JSON object", hint="paste it with its quotes")
        config |= parsed
    return {_VLLM[k]: str(v) for k, v in config.items() if k in _VLLM}


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\s*\d{1,9}\s*", text, re.ASCII) else None
