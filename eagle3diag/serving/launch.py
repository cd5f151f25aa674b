"""A pasted launch command, read without ever running a shell."""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3diag.errors import BadArgument, UnreadableFile
from eagle3diag.files import read_text
from eagle3diag.serving.manifest import words_of
from eagle3diag.serving.settings import LARGEST, read_settings
from eagle3diag.serving.words import BREAK

_MODULES = {
    "sglang.launch_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "tensorrt_llm.commands.serve": "tensorrt-llm",
}
_PROGRAMS = {"sglang": "sglang", "vllm": "vllm", "vllm.entrypoints.cli.main": "vllm"}  # followed by the word "serve"
_NAMES = {"sglang": "sglang", "vllm": "vllm", "trtllm": "tensorrt-llm", "tensorrt-llm": "tensorrt-llm", "tensorrt_llm": "tensorrt-llm"}
_NAME = "|".join(_NAMES)
_IMAGE = re.compile(rf"(?:^|/)({_NAME})[\w.-]*(?:/release)?:v?(\d+\.\d+[\w.]*)", re.IGNORECASE)
_PINNED = re.compile(rf"\b({_NAME})(?:\[[\w,-]*\])?==(\d+\.\d+[\w.]*)", re.IGNORECASE)
# An option, and not a negative number.
_OPTION = re.compile(r"--?[A-Za-z]")
_VARIABLE = re.compile(r"(?:--env=|-e|Environment=)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SECRET = re.compile(r"(?:^|[-_])(?:key|token|password|passphrase|secret)$", re.IGNORECASE)
HIDDEN = "(hidden)"
_LARGEST = 1 << 17  # characters of a text; whole scripts have a few thousand
# A variable that was not assigned in the text, and one that stands for options rather than for one value.
_OPEN = re.compile(r"\$[\w@*{(]|`")
_OPTIONS = re.compile(r"\$[@*]|\[[@*]\]|\$\((?!\w+\))|`|\$\{?\w*(?:arg|opt|flag|param|extra|spec)", re.IGNORECASE)
_SPECULATIVE = re.compile(r"spec|sc(?:\.|$)")
_SWITCH = re.compile(r"(?:enable|disable|no|skip|enforce|trust|async|log)-")

# Where each engine names what SGLang calls --speculative-...; vLLM's are fields of --speculative-config, TensorRT-LLM's of a settings file.
_CONFIG: Mapping[str, Mapping[str, str]] = {
    "vllm": {"method": "speculative-algorithm", "model": "speculative-draft-model-path", "num_speculative_tokens": "speculative-num-steps"},
    "tensorrt-llm": {
        "decoding_type": "speculative-algorithm",
        "speculative_model_dir": "speculative-draft-model-path",
        "speculative_model": "speculative-draft-model-path",
        "max_draft_len": "speculative-num-steps",
    },
}
_SHORT = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size", "q": "quantization"}  # vLLM
_SPEC = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}  # vLLM 0.32
_FILES = ("config", "extra-llm-api-options", "extra-llm-api-config")


@dataclass(frozen=True)
class Launch:
    """The options of a server that matter to a draft.

    ``arguments`` holds all options as they were written, without the leading dashes; ``speculative`` the fields of vLLM's (or
    TensorRT-LLM's) speculative configuration; ``environment`` the variables set for the server. Keys and tokens are not kept.
    ``unread``: files of options that the command names and that were not there to be read. ``unknown``: variables, as they are written,
    that may hold options, or that are the value of a speculative one, and that nothing assigns. ``resolved``: these are not what was typed
    but all arguments as the server resolved them, so what is absent was not known to it.
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
        options = _long(self.engine, {k.replace("_", "-"): v for k, v in self.arguments.items()})
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
    what follows it (``> log 2>&1 &``) are understood, and so are whole scripts, JSON and YAML lists of words, Compose files, pods and
    Dockerfiles. Variables that the text assigns are put in, others are left as they are written and listed in ``unknown``. An option may
    be cut short where that is unambiguous, as the engines allow. The version is taken from the image's tag or from a pinned
    ``sglang==0.5.23``, unless given. With ``folder``, files of options that the command names (``--config``) are read from there.

    >>> parse_launch("python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE --speculative-num-steps 4").algorithm
    'EAGLE'

    Raises
    ------
    BadArgument: unbalanced quotes, no server that we know, or a text too long for a command. UnreadableFile: a file of options that cannot be understood.
    """
    if len(text) > _LARGEST:
        raise BadArgument(
            f"the launch command has {len(text)} characters, more than the {_LARGEST} that are read",
            hint="give only the command that starts the server, and what it needs",
        )
    words = words_of(text)
    engine, start = _server(words)
    before = [word for word in words[:start] if word != BREAK]
    if version is None:
        pinned = [match for word in before for match in (_IMAGE.search(word), _PINNED.search(word)) if match]
        version = next((match[2] for match in pinned if _NAMES[match[1].lower()] == engine), None)
    environment = {m[1]: m[2] for word in before if (m := _VARIABLE.fullmatch(word)) and not _OPTION.search(m[2])}
    given, unknown = _arguments(_own(words, start))
    arguments: dict[str, Any] = dict(given)
    unread = []
    for option in _FILES:
        name = next((v for k, v in arguments.items() if k.replace("_", "-") == option), None)
        path = folder / name if folder is not None and name and name.lower().endswith((".yaml", ".yml", ".json")) else None
        if path is not None and _is_file(path):
            arguments = read_settings(path) | arguments  # the command line wins over the file in every engine
        elif name:
            unread.append(name)
    return from_arguments(engine, arguments, version, environment=environment, unread=tuple(unread), unknown=unknown)


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
    speculative = _speculative(engine, options) if engine in _CONFIG else {}
    flat = _long(engine, {k: _plain(v) for k, v in options.items()})
    named = flat | {_CONFIG[engine][k]: v for k, v in speculative.items() if k in _CONFIG.get(engine, {})}
    return Launch(
        engine=engine,
        version=version,
        algorithm=_option(named, "speculative-algorithm"),
        target_path=_option(named, "model-path", "model"),
        draft_path=_option(named, "speculative-draft-model-path", "speculative-draft-model"),
        steps=_whole(_option(named, "speculative-num-steps")),
        topk=_whole(_option(named, "speculative-eagle-topk")),
        num_draft_tokens=_whole(_option(named, "speculative-num-draft-tokens")),
        arguments={k: _hidden(k, _plain(v)) for k, v in arguments.items()},
        speculative={k: _hidden(k, v) for k, v in speculative.items()},
        environment={k: _hidden(k, v) for k, v in (environment or {}).items()},
        unread=unread,
        unknown=unknown,
        resolved=resolved,
    )


def read_launch(source: object) -> Launch:
    """A :class:`Launch` from one, from a command, or from a file that holds a command; files of options are looked for beside it."""
    if isinstance(source, Launch):
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise BadArgument(f"{type(source).__name__} is not a launch command", hint="paste the command, or give the file that holds it")
    text, folder = str(source), Path()
    if len(text.split()) == 1 and not _is_file(Path(text)) and not re.search(_NAME, text, re.IGNORECASE):
        raise UnreadableFile("nothing is there; expected a launch command, or a file with one", where=text[:300], hint="check the path")
    if "\n" not in text and _is_file(Path(text)):
        text, folder = read_text(Path(text), LARGEST, errors="replace"), Path(text).parent
    return parse_launch(text, folder=folder)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a command is longer than any name may be
        return False


def _own(words: list[str], start: int) -> list[str]:
    """The words of the command from ``start`` on."""
    end = next((end for end in _ends(words) if end >= start), len(words))
    return [word for word in words[start:end] if word != BREAK]


def _ends(words: list[str]) -> list[int]:
    """Where commands end. A line end is passed over where the next line goes on with options, as in a paste that lost its ``\\``."""
    ends = []
    following = ""
    for index in range(len(words) - 1, -1, -1):
        if words[index] != BREAK:
            following = words[index]
            continue
        hanging = index > 0 and _OPTION.match(words[index - 1]) is not None and following[:1] in ("{", "/")
        if words[index + 1 : index + 2] == [BREAK] or not (_OPTION.match(following) or hanging):
            ends.append(index)
    return ends[::-1]


def _server(words: list[str]) -> tuple[str, int]:
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
    named = [(i, w) for i, w in enumerate(words) if re.search(_NAME, w, re.IGNORECASE) and not (_OPTION.match(w) or _VARIABLE.fullmatch(w))]
    ends = [*_ends(words), len(words)]
    options = [i for i, w in enumerate(words) if _OPTION.match(w) or _OPEN.match(w)] + [len(words)]
    for index, word in sorted(named, key=lambda at: _IMAGE.search(at[1]) is None):
        if options[bisect_right(options, index)] < ends[bisect_right(ends, index)]:
            return _NAMES[re.findall(_NAME, word, re.IGNORECASE)[0].lower()], index + 1
    shown = " ".join(word for word in words if word != BREAK)
    raise BadArgument(
        f"no launch command: {named[0][1]!r:.40} is named, and no option of a server follows"
        if named
        else f"no launch command: neither sglang nor vllm nor trtllm-serve is named in {shown!r:.80}",
        hint="give the whole command line in quotes, or a file with it; a log goes to --log",
    )


def _arguments(words: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Options and their values, several words joined by blanks, and the variables that may hold more of them; a first word that is no
    option is the model, as after ``serve``."""
    found: dict[str, list[str]] = {}
    unknown: list[str] = []
    name = "model" if words and not _OPTION.match(words[0]) and "=" not in words[0] else None
    for word in words:
        if _OPTION.match(word):
            name, equals, value = word.lstrip("-").partition("=")
            found[name] = [value] if equals else []
            unknown += [value] if equals and _OPEN.search(value) and _SPECULATIVE.match(name) else []
            name = None if equals else name
        elif _OPEN.match(word) and _holds_options(word, name, found):
            unknown.append(word)
        elif name is not None:
            found.setdefault(name, []).append(word)
            unknown += [word] if _OPEN.search(word) and _SPECULATIVE.match(name) else []
    return {name: " ".join(values).strip() for name, values in found.items()}, tuple(dict.fromkeys(unknown))


def _holds_options(word: str, name: str | None, found: Mapping[str, list[str]]) -> bool:
    """Whether a variable behind the option ``name`` may be more than its value. One called as the option is, is its value."""
    if name is None or found.get(name) or _SWITCH.match(name):
        return True
    return bool(_OPTIONS.match(word)) and not (_SPECULATIVE.match(name) and re.match(r"\$\{?\w+\}?$", word))


def _option(options: Mapping[str, str], *names: str) -> str | None:
    """The value under one of ``names``, or under a shorter spelling that fits no other speculative option (``--speculative-algo``)."""
    for name in names:
        if name in options:
            return options[name]
        cut = [key for key in options if len(key) > len("speculative-") + 3 and name.startswith(key)]
        if len(cut) == 1 and cut[0] != "speculative-draft-model":
            return options[cut[0]]
    return None


def _speculative(engine: str, options: Mapping[str, Any]) -> dict[str, str]:
    """vLLM's JSON (``--speculative-config '{...}'``), its dotted form (``--speculative-config.method eagle3``), ``--spec-method``, or a mapping."""
    dotted = [(k.partition("."), v) for k, v in options.items()]
    config: dict[str, Any] = {
        field.replace("-", "_"): v for (name, _, field), v in dotted if field and name in ("speculative-config", "sc")
    }
    if engine == "vllm":
        config |= {_SPEC[k]: v for k, v in options.items() if k in _SPEC}
    given = options.get("speculative-config", options.get("sc"))
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            if _OPEN.search(given):
                return {k: _plain(v) for k, v in config.items() if v is not None}
            raise BadArgument("--speculative-config is not JSON", hint="paste it with its quotes") from None
    if isinstance(given, dict):
        config |= {str(k).replace("-", "_"): v for k, v in given.items()}
    elif given is not None:
        raise BadArgument("--speculative-config is not a JSON object", hint="paste it with its quotes")
    return {k: _plain(v) for k, v in config.items() if v is not None}


def _long(engine: str, options: dict[str, str]) -> dict[str, str]:
    return options | {long: options[short] for short, long in _SHORT.items() if short in options} if engine == "vllm" else options


def _plain(value: Any) -> str:
    return json.dumps(value, default=str) if isinstance(value, (dict, list)) else str(value)


def _hidden(name: str, value: str) -> str:
    return HIDDEN if value and _SECRET.search(name) else value


def number(text: str | None) -> float | None:
    """A plain number of an option; None where it is none."""
    return float(text) if text and re.fullmatch(r"\s*-?\d{1,12}(?:\.\d{1,12})?\s*", text, re.ASCII) else None


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\s*\d{1,9}\s*", text, re.ASCII) else None
