"""A server's launch command with everything set that a recording needs: words in, words out, never a shell."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3diag.capture.options import Options
from eagle3diag.capture.sglang import hooks
from eagle3diag.capture.vllm import VARIABLE
from eagle3diag.errors import BadArgument
from eagle3diag.files import unused
from eagle3diag.serving.launch import Launch, parse_launch

#: What is added unless it is there, and why.
SGLANG_FLAGS = {
    "--disable-cuda-graph": "replayed CUDA graphs call no hook",
    "--disable-radix-cache": "rows of cached prefixes are not computed, so not seen",
    "--disable-overlap-schedule": "target and draft then run strictly in turn",
    "--skip-server-warmup": "the warm-up would be the first record",
}
VLLM_FLAGS = {"--no-enable-prefix-caching": "rows of cached prefixes are not computed, so not seen"}
VLLM_EAGER = {"--enforce-eager": "compiled layers and CUDA graphs call no hook, and boundaries other than those fed need one"}
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """A command to run as it is: variables to set, words, and one sentence for everything that was added."""

    environment: Mapping[str, str]
    words: tuple[str, ...]
    added: tuple[str, ...]

    def __str__(self) -> str:
        """One line for a POSIX shell, quoted."""
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.environment.items()), shlex.join(self.words)])


def recording_command(engine: str, words: Sequence[str], out: str, **options: Any) -> Command:
    """The command ``words`` of an ``engine`` (``sglang`` or ``vllm``), changed so that the server records into the new folder ``out``.

    ``options`` are those of :class:`~eagle3diag.capture.options.Options`; the target's folder is taken from the command.

    >>> print(recording_command("vllm", ["vllm", "serve", "T", "--enforce-eager"], "/tmp/live").words)
    ('vllm', 'serve', 'T', '--enforce-eager', '--no-enable-prefix-caching')

    Raises
    ------
    BadArgument: no such server in the words, an option that makes no sense, hooks in the command that are no JSON, or a folder ``out`` that is
    in use.
    """
    environment, words = _assignments(words)
    launch = parse_launch(shlex.join(words)) if words else None
    if launch is None or launch.engine != engine:
        found = f"the command starts {launch.engine}" if launch else "there is no command"
        raise BadArgument(f"{found}, not {engine}", where="capture", hint=f"eagle3diag capture {engine} --out DUMP -- {_EXAMPLE[engine]}")
    folder = unused(Path(out).absolute(), "a dump is never overwritten")
    options = {"out": str(folder), **options}
    if launch.target_path and Path(launch.target_path, "config.json").is_file():
        options["target"] = str(Path(launch.target_path).absolute())
    return (_sglang if engine == "sglang" else _vllm)(environment, words, launch, options)


_EXAMPLE = {"sglang": "python -m sglang.launch_server --model-path TARGET ...", "vllm": "vllm serve TARGET ..."}


def _sglang(environment: dict[str, str], words: list[str], launch: Launch, options: dict[str, Any]) -> Command:
    own = hooks(**options)
    given = launch.arguments.get("forward-hooks")
    if given is not None:
        try:
            theirs = json.loads(given)
        except ValueError as error:
            raise BadArgument(f"--forward-hooks is not JSON: {error}", where="launch command", hint="quote it, or leave it out") from error
        if not isinstance(theirs, list):
            raise BadArgument("--forward-hooks is not a list", where="launch command", hint="give a JSON list, or leave it out")
        own, words = [*theirs, *own], _without(words, "--forward-hooks")
    words, added = _with_flags(words, SGLANG_FLAGS)
    return Command(environment, (*words, "--forward-hooks", json.dumps(own)), (*added, "--forward-hooks: the recorder"))


def _vllm(environment: dict[str, str], words: list[str], launch: Launch, options: dict[str, Any]) -> Command:
    if options.get("boundaries") == "all":
        hint = "name them, such as --boundaries 0,15,30"
        raise BadArgument("all boundaries cannot be asked of vLLM", where="capture vllm", hint=hint)
    chosen = Options.read(options)
    words = [word for word in words if word != "--enable-prefix-caching"]
    words, added = _with_flags(words, VLLM_FLAGS | (VLLM_EAGER if chosen.boundaries else {}))
    environment = environment | {VARIABLE: json.dumps(chosen.as_json())}
    plugins = environment.get("VLLM_PLUGINS", os.environ.get("VLLM_PLUGINS"))
    if plugins is not None and "eagle3diag" not in plugins.split(","):  # a list of the only plugins that may load
        environment["VLLM_PLUGINS"] = ",".join(filter(None, [plugins, "eagle3diag"]))
    return Command(environment, tuple(words), (*added, f"{VARIABLE}: the plugin's options"))


def _assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Leading ``NAME=value`` words, and the rest."""
    environment, rest = dict[str, str](), list(words)
    while rest and (match := _ASSIGNMENT.fullmatch(rest[0])):
        environment[match[1]] = match[2]
        rest.pop(0)
    return environment, rest


def _with_flags(words: list[str], flags: Mapping[str, str]) -> tuple[list[str], tuple[str, ...]]:
    missing = {flag: why for flag, why in flags.items() if flag not in words}
    return [*words, *missing], tuple(f"{flag}: {why}" for flag, why in missing.items())


def _without(words: list[str], option: str) -> list[str]:
    """The words without an option and its value."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or word.startswith(f"{option}="):
            skip = False
        elif word == option:
            skip = True
        else:
            kept.append(word)
    return kept
