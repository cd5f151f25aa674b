"""What is private: keys always, and what names a person or a machine unless asked for. The kinds are read from a table beside this file."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One kind of private text, shown as its ``mark``.

    ``pattern``: what it looks like; a group called ``keep`` stays in front of the mark. ``reason``: why it is not for strangers.
    ``spares``: whether a match is a legal twin after all. ``always``: removed on a terminal and on request too, because no diagnosis
    needs it.
    """

    name: str
    mark: str
    pattern: re.Pattern[str]
    reason: str
    spares: Callable[[re.Match[str]], bool]
    always: bool

    def remove(self, text: str) -> str:
        return self.pattern.sub(self._one, text)

    def _one(self, match: re.Match[str]) -> str:
        return match[0] if self.spares(match) else f"{match.groupdict().get('keep') or ''}{self.mark}"


# -- legal twins ---------------------------------------------------------------------------------------------------------------------

NO_SECRET = re.compile(
    r"(?:none|null|true|false|\d{1,9}|\*+|\$\{?\w+\}?|</?[\w -]*>|<\|[\w -]*\|>|\[\s*\]|(?-i:\[[A-Z_]{1,16}\])|)", re.IGNORECASE
)
LOCAL = re.compile(r"(?:none|null|true|false|auto|localhost|0\.0\.0\.0|127\.\d+\.\d+\.\d+|::1?|\[::1?\]|)(?::\d+)?", re.IGNORECASE)
_LONG_NUMBER = re.compile(r"(?:api[-_]?key|secret|passw(?:or)?d|passphrase)\W*$", re.IGNORECASE)
_SELDOM = re.compile(r"(?:[\w-]{2}[-_](?:key|token)|--?key)\W*$", re.IGNORECASE)
_SURE = re.compile(
    r"(?:api|access|private|account|encryption|signing|admin|subscription|secret|hf|hub|vault|auth|bearer|refresh|session|security|csrf|"
    r"github|gitlab|slack|bot|wandb|id)[-_]?(?:key|token)\W*$",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"[a-z_]{1,8}\d{0,3}|[\w-]{1,40}\.(?:pt|json|txt|yaml|safetensors)")
_PUBLIC = re.compile(
    r"(?:(?:docs|www|raw|api|cdn-lfs|developer)\.)?(?:github\.com|githubusercontent\.com|huggingface\.co|hf\.co|arxiv\.org|pytorch\.org|nvidia\.com|readthedocs\.io|"
    r"sglang\.ai|vllm\.ai|lmsys\.org|wikipedia\.org|w3\.org|json-schema\.org|example\.(?:com|org|net))",
    re.IGNORECASE,
)
_TENSOR = re.compile(r"[a-z_]+(?:\.[a-z_]+){0,9}\.\d{1,3}\.(?:co|app|private)")  # model.layers.0.co, cut short
_BEFORE_A_VERSION = re.compile(
    r"(?:[=<>~!]=\s*|\bv|\b(?:version|ver|release|driver|cuda|nccl|cudnn|cublas|torch|sglang|vllm|transformers|python|triton|flashinfer|"
    r"tensorrt(?:[-_]llm)?)['\"]?\s*[:= ]\s*['\"]?v?)$",
    re.IGNORECASE,
)


def harmless_value(match: re.Match[str]) -> bool:
    """Whether the value is none, a number or a variable; or a word or a file behind a name that keys seldom have (``--sort-key accept``)."""
    value, name, at = match["value"].strip("\"'\\"), match["keep"][-60:], match.start()
    if value.isdigit() and len(value) > 5 and _LONG_NUMBER.search(name):
        return False
    if match.string[max(0, at - 1) : at] == "/" and name.rstrip().endswith(":"):  # /etc/passwd: what is wrong with that file
        return True
    return NO_SECRET.fullmatch(value) is not None or bool(_PLAIN.fullmatch(value) and _SELDOM.search(name) and not _SURE.search(name))


def local_value(match: re.Match[str]) -> bool:
    """Whether the value is this very machine."""
    return LOCAL.fullmatch(match["value"].strip("\"'")) is not None


def public_host(match: re.Match[str]) -> bool:
    """Whether everyone knows the name, or it is a number that only ends like one (``0.5.0.dev``)."""
    host = match["host"]
    if not match.groupdict().get("keep") and _TENSOR.fullmatch(host):
        return True
    number = "." in host and not any(c.isalpha() for c in host.rpartition(".")[0])
    return bool(LOCAL.fullmatch(host) or _PUBLIC.fullmatch(host)) or (number and host.rpartition(".")[2].isalpha())


def no_login(match: re.Match[str]) -> bool:
    """Whether what stands behind the @ is a digest, a branch or a decorator."""
    return match[0].rpartition("@")[2] in ("sha256", "main", "master", "latest", "property", "staticmethod")


def no_machine(match: re.Match[str]) -> bool:
    """Whether the digits are a version, or an address that every machine has."""
    return bool(LOCAL.fullmatch(match[0])) or bool(_BEFORE_A_VERSION.search(match.string[max(0, match.start() - 40) : match.start()]))


def no_ipv6(match: re.Match[str]) -> bool:
    """Whether it is no address, or one that no network has."""
    try:
        address = ipaddress.IPv6Address(match[0].partition("%")[0])
    except ValueError:
        return True
    # c10::Half and the like: hexadecimal by chance, in a range that no network has
    return address.is_loopback or address.is_unspecified or (address.is_reserved and "::" in match[0])


def _never(match: re.Match[str]) -> bool:
    return False


_SPARES = {f.__name__: f for f in (harmless_value, local_value, public_host, no_login, no_machine, no_ipv6)}

# -- the table -----------------------------------------------------------------------------------------------------------------------

_TABLE: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_PIECE = re.compile(r"\{([A-Z_]+)\}")


def _whole(pattern: str) -> str:
    """The pattern with its pieces put in."""
    while _PIECE.search(pattern):
        pattern = _PIECE.sub(lambda match: str(_TABLE["pieces"][match[1]]), pattern)
    return pattern


def _kinds(row: Mapping[str, Any]) -> list[Kind]:
    spares = _SPARES[row["spares"]] if "spares" in row else _never
    mark = row.get("mark", f"({row['name']} removed)")
    return [Kind(row["name"], mark, re.compile(_whole(p)), row["reason"], spares, row.get("always", False)) for p in row["patterns"]]


SECRET_NAME, HOST_NAME = _whole("{SECRET_NAME}"), _whole("{HOST_NAME}")
KINDS: tuple[Kind, ...] = tuple(kind for row in _TABLE["kind"] for kind in _kinds(row))
