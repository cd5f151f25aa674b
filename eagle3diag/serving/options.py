"""The options of a server's command: what follows each, what a variable may hide, and how each engine names what it speculates with."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3diag.errors import BadArgument
from eagle3diag.serving.command import OPEN, OPTION

# A variable that stands for options rather than for one value.
_OPTIONS = re.compile(r"\$[@*]|\[[@*]\]|\$\((?!\w+\))|`|\$\{?\w*(?:arg|opt|flag|param|extra|spec)", re.IGNORECASE)
_SPECULATIVE = re.compile(r"spec|sc(?:\.|$)")
_SWITCH = re.compile(r"(?:enable|disable|no|skip|enforce|trust|async|log)-")

CONFIG: Mapping[str, Mapping[str, str]] = {
    "vllm": {"method": "speculative-algorithm", "model": "speculative-draft-model-path", "num_speculative_tokens": "speculative-num-steps"},
    "tensorrt-llm": {
        "decoding_type": "speculative-algorithm",
        "speculative_model_dir": "speculative-draft-model-path",
        "speculative_model": "speculative-draft-model-path",
        "max_draft_len": "speculative-num-steps",
    },
}
"""Where an engine names what SGLang calls ``--speculative-...``: vLLM's are fields of ``--speculative-config``, TensorRT-LLM's of a settings file."""

_SHORT = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size", "q": "quantization"}  # vLLM
_SPEC = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}  # vLLM 0.32


def options_of(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Options and their values, several words joined by blanks, and the variables that may hold more of them; a first word that is no
    option is the model, as after ``serve``."""
    found: dict[str, list[str]] = {}
    unknown: list[str] = []
    name = "model" if words and not OPTION.match(words[0]) and "=" not in words[0] else None
    for word in words:
        if OPTION.match(word):
            name, equals, value = word.lstrip("-").partition("=")
            found[name] = [value] if equals else []
            unknown += [value] if equals and OPEN.search(value) and _SPECULATIVE.match(name) else []
            name = None if equals else name
        elif OPEN.match(word) and _holds_options(word, name, found):
            unknown.append(word)
        elif name is not None:
            found.setdefault(name, []).append(word)
            unknown += [word] if OPEN.search(word) and _SPECULATIVE.match(name) else []
    return {name: " ".join(values).strip() for name, values in found.items()}, tuple(dict.fromkeys(unknown))


def _holds_options(word: str, name: str | None, found: Mapping[str, list[str]]) -> bool:
    """Whether a variable behind the option ``name`` may be more than its value. One called as the option is, is its value."""
    if name is None or found.get(name) or _SWITCH.match(name):
        return True
    return bool(_OPTIONS.match(word)) and not (_SPECULATIVE.match(name) and re.match(r"\$\{?\w+\}?$", word))


def option(options: Mapping[str, str], *names: str) -> str | None:
    """The value under one of ``names``, or under a shorter spelling that fits no other speculative option (``--speculative-algo``)."""
    for name in names:
        if name in options:
            return options[name]
        cut = [key for key in options if len(key) > len("speculative-") + 3 and name.startswith(key)]
        if len(cut) == 1 and cut[0] != "speculative-draft-model":
            return options[cut[0]]
    return None


def speculative(engine: str, options: Mapping[str, Any]) -> dict[str, str]:
    """vLLM's JSON (``--speculative-config '{...}'``), its dotted form (``--speculative-config.method eagle3``), ``--spec-method``, or a mapping.

    Raises
    ------
    BadArgument: no JSON object, and no variable in it.
    """
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
            if not OPEN.search(given):
                raise BadArgument("--speculative-config is not JSON", hint="paste it with its quotes") from None
            given = {}
    if isinstance(given, dict):
        config |= {str(k).replace("-", "_"): v for k, v in given.items()}
    elif given is not None:
        raise BadArgument("--speculative-config is not a JSON object", hint="paste it with its quotes")
    return {k: plain(v) for k, v in config.items() if v is not None}


def long_names(engine: str, options: dict[str, str]) -> dict[str, str]:
    """The options, those with a short name under their long one too."""
    return options | {long: options[short] for short, long in _SHORT.items() if short in options} if engine == "vllm" else options


def plain(value: Any) -> str:
    """One text for any value."""
    return json.dumps(value, default=str) if isinstance(value, (dict, list)) else str(value)


def number(text: str | None) -> float | None:
    """A plain number of an option; None where it is none."""
    return float(text) if text and re.fullmatch(r"\s*-?\d{1,12}(?:\.\d{1,12})?\s*", text, re.ASCII) else None


def whole(text: str | None) -> int | None:
    """The same where it is a count."""
    return int(text) if text and re.fullmatch(r"\s*\d{1,9}\s*", text, re.ASCII) else None
