"""A pasted launch command, read without ever running a shell."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3diag.errors import BadArgument
from eagle3diag.files import absent, below, read_text
from eagle3diag.serving.command import names_engine, served
from eagle3diag.serving.documents import LARGEST
from eagle3diag.serving.manifest import words_of
from eagle3diag.serving.options import CONFIG, long_names, number, option, options_of, plain, speculative, whole
from eagle3diag.serving.settings import read_settings

HIDDEN = "(hidden)"
_SECRET = re.compile(r"(?:^|[-_])(?:key|token|password|passphrase|secret)$", re.IGNORECASE)
_FILES = ("config", "extra-llm-api-options", "extra-llm-api-config")


@dataclass(frozen=True)
class Launch:
    """The options of a server that matter to a draft.

    ``arguments`` holds all options as they were written, without the leading dashes; ``speculative`` the fields of vLLM's (or
    TensorRT-LLM's) speculative configuration; ``environment`` the variables set for the server. Keys and tokens are not kept.
    ``unread``: files of options that the command names and that were not read: not there, or not below the folder of the command's file.
    ``unknown``: variables, as they are written, that may hold options, or that are the value of a speculative one, and that nothing
    assigns. ``resolved``: these are not what was typed but all arguments as the server resolved them, so what is absent was not known to it.
    """

    engine: str
    version: str | None
    algorithm: str | None
    target_path: str | None
    draft_path: str | None
    steps: int | None
    topk: int | None
    num_draft_tokens: int | None
    arguments: Mapping[str, str]
    speculative: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    resolved: bool = False

    @property
    def partial(self) -> bool:
        """Whether an option that is not seen here may have been given all the same."""
        return bool(self.unread or self.unknown)

    def get(self, *names: str) -> str | None:
        """The value of the first of these options that was given, dashes or underscores."""
        options = long_names(self.engine, {k.replace("_", "-"): v for k, v in self.arguments.items()})
        return next((options[name] for name in names if name in options), None)

    def has(self, *names: str) -> bool:
        """Whether one of these options was given and not switched off."""
        value = self.get(*names)
        return value is not None and value.lower() not in ("false", "none", "null")

    def number(self, *names: str) -> float | None:
        """The same as a number; None where it is none."""
        return number(self.get(*names))


def parse_launch(text: str, *, version: str | None = None, folder: Path | None = None) -> Launch:
    """Read ``python -m sglang.launch_server ...``, ``sglang serve ...``, ``vllm serve ... --speculative-config '{...}'``, ``trtllm-serve ...``.

    Quotes, line continuations, leading ``NAME=value``, what wraps the server (``docker run ... image:tag``, ``nohup``, ``bash -c``) and
    what follows it (``> log 2>&1 &``) are understood, and so are whole scripts, JSON and YAML lists of words, Compose files, pods,
    Dockerfiles, and what ``ps`` and ``/proc/PID/cmdline`` show. Variables that the text assigns are put in, others are left as they are
    written and listed in ``unknown``. An option may be cut short where that is unambiguous, as the engines allow. The version is taken from
    the image's tag or from a pinned ``sglang==0.5.23``, unless given. With ``folder``, files of options that the command names
    (``--config``) are read from below it, and from nowhere else: whoever wrote the command may be a stranger.

    >>> parse_launch("python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE --speculative-num-steps 4").algorithm
    'EAGLE'

    Raises
    ------
    BadArgument: unbalanced quotes, no server that we know, or a text too long for a command. UnreadableFile: a file of options that cannot be understood.
    """
    if len(text) > LARGEST:
        raise BadArgument(
            f"the launch command has {len(text)} characters, more than the {LARGEST} that are read",
            hint="give only the command that starts the server, and what it needs",
        )
    found = served(words_of(text))
    given, unknown = options_of(found.words)
    options: dict[str, Any] = dict(given)
    unread = []
    for file in _FILES:
        name = next((v for k, v in given.items() if k.replace("_", "-") == file), None)
        path = below(folder, name) if folder is not None and name and name.lower().endswith((".yaml", ".yml", ".json")) else None
        if path is not None and _is_file(path):
            options = read_settings(path) | options  # the command line wins over the file in every engine
        elif name:
            unread.append(name)
    return from_arguments(
        found.engine, options, version or found.version, environment=found.environment, unread=tuple(unread), unknown=unknown
    )


def from_arguments(
    engine: str,
    arguments: Mapping[str, Any],
    version: str | None,
    *,
    environment: Mapping[str, str] | None = None,
    unread: tuple[str, ...] = (),
    unknown: tuple[str, ...] = (),
    resolved: bool = False,
) -> Launch:
    """The same from options already taken apart (dashes or underscores); values that are nested are only kept where they matter."""
    arguments = {k: v for k, v in arguments.items() if v is not None}
    options = {k.lstrip("-").replace("_", "-"): v for k, v in arguments.items()}
    drafting = speculative(engine, options) if engine in CONFIG else {}
    flat = long_names(engine, {k: plain(v) for k, v in options.items()})
    named = flat | {CONFIG[engine][k]: v for k, v in drafting.items() if k in CONFIG[engine]}
    return Launch(
        engine=engine,
        version=version,
        algorithm=option(named, "speculative-algorithm"),
        target_path=option(named, "model-path", "model"),
        draft_path=option(named, "speculative-draft-model-path", "speculative-draft-model"),
        steps=whole(option(named, "speculative-num-steps")),
        topk=whole(option(named, "speculative-eagle-topk")),
        num_draft_tokens=whole(option(named, "speculative-num-draft-tokens")),
        arguments={k: _hidden(k, plain(v)) for k, v in arguments.items()},
        speculative={k: _hidden(k, v) for k, v in drafting.items()},
        environment={k: _hidden(k, v) for k, v in (environment or {}).items()},
        unread=unread,
        unknown=unknown,
        resolved=resolved,
    )


def read_launch(source: object) -> Launch:
    """A :class:`Launch` from one, from a command or its words, or from a file with a command; files of options are looked for beside it."""
    if isinstance(source, Launch):
        return source
    if isinstance(source, (list, tuple)) and source and all(isinstance(word, str) for word in source):
        return parse_launch("\0".join((*source, "")), folder=Path())
    if not isinstance(source, (str, os.PathLike)):
        raise BadArgument(
            f"{type(source).__name__} is not a launch command", hint="give the command, its words as a list, or the file that holds it"
        )
    text, folder = str(source), Path()
    if len(text.split()) == 1 and not _is_file(Path(text)) and not names_engine(text):
        raise absent(text[:300], "nothing is there; expected a launch command, or a file with one")
    if "\n" not in text and _is_file(Path(text)):
        text, folder = read_text(Path(text), 8 * LARGEST, errors="replace"), Path(text).parent
    return parse_launch(text, folder=folder)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a command is longer than any name may be
        return False


def _hidden(name: str, value: str) -> str:
    return HIDDEN if value and _SECRET.search(name) else value
