"""A pasted launch command, read without ever running a shell."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eagle3diag.errors import BadArgument


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

    Quotes, line continuations and leading ``NAME=value`` are understood.

    >>> parse_launch("python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE --speculative-num-steps 4").algorithm
    'EAGLE'

    Raises
    ------
    BadArgument: unbalanced quotes, or no server that we know.
    """
    try:
        words = shlex.split(text.replace("\\\r\n", " ").replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise BadArgument(f"the launch command cannot be read: {error}", hint="paste it as it was typed, with its quotes") from None
    joined = " ".join(words)
    engine = "sglang" if "sglang" in joined else "vllm" if "vllm" in joined else None
    if engine is None:
        raise BadArgument("the launch command names neither sglang nor vllm", hint="paste the whole command line")
    arguments = _arguments(words)
    return from_arguments(engine, arguments, version)


def from_arguments(engine: str, arguments: Mapping[str, str], version: str | None) -> Launch:
    """The same from options already taken apart (dashes or underscores)."""
    options = {k.replace("_", "-"): v for k, v in arguments.items()}
    if engine == "vllm" and "speculative-config" in options:
        options = {**options, **_vllm(options["speculative-config"])}
    return Launch(
        engine=engine,
        version=version,
        algorithm=options.get("speculative-algorithm"),
        target_path=options.get("model-path") or options.get("model"),
        draft_path=options.get("speculative-draft-model-path") or options.get("speculative-draft-model"),
        steps=_whole(options.get("speculative-num-steps")),
        topk=_whole(options.get("speculative-eagle-topk")),
        slots=_whole(options.get("speculative-num-draft-tokens")),
        arguments=dict(arguments),
    )


def read_launch(source: object) -> Launch:
    """A :class:`Launch` from one, from a command, or from a file that holds a command."""
    if isinstance(source, Launch):
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise BadArgument(f"{type(source).__name__} is no launch command", hint="paste the command, or give the file that holds it")
    text = str(source)
    if "\n" not in text and len(text) < 4096 and Path(text).is_file():
        text = Path(text).read_text(encoding="utf-8", errors="replace")
    return parse_launch(text)


def _arguments(words: list[str]) -> dict[str, str]:
    found, name = {}, None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = value if equals else ""
            name = None if equals else name
        elif name is not None:
            found[name] = f"{found[name]} {word}".strip()
    return found


def _vllm(config: str) -> dict[str, str]:
    try:
        options = json.loads(config)
    except (ValueError, RecursionError):
        raise BadArgument("--speculative-config is not JSON", hint="paste it with its quotes") from None
    if not isinstance(options, dict):
        raise BadArgument("--speculative-config is not a JSON object", hint="paste it with its quotes")
    names = {"method": "speculative-algorithm", "model": "speculative-draft-model-path", "num_speculative_tokens": "speculative-num-steps"}
    return {names[k]: str(v) for k, v in options.items() if k in names}


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.strip().isdigit() else None
