"""The command in a file that describes a container: Compose, a pod, Helm's values, a Dockerfile; only the few keys that hold it are read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from eagle3diag.serving.documents import NotYaml, Value, value_of
from eagle3diag.serving.shell import BREAK
from eagle3diag.serving.variables import Budget
from eagle3diag.serving.words import split, unwrapped

_STARTING = ("entrypoint", "command", "args", "cmd", "extraargs")  # in the order in which they make a command; Docker says Cmd
_MARKS = re.compile(rf"""(?:^|[{{,])[ \t]*(?:-[ ]+)*["']?(?:{"|".join(_STARTING)})["']?[ ]*:(?=\s|$)""", re.MULTILINE | re.IGNORECASE)
_ENGINE = re.compile("sglang|vllm|trtllm|tensorrt", re.IGNORECASE)
_LIST = re.compile(r"\s*(?:\[|-\s)")
_DOCUMENT = re.compile(r"^(?:---|\.\.\.)(?=\s|$)", re.MULTILINE)
_KEY = re.compile(r"[ ]*(?:-[ ]+)*[\w.-]+:(?:\s|$)")
# Helm's: what it puts in is not known here, and what hangs on a condition is taken as it stands.
_CONTROL = re.compile(r"^[ ]*\{\{-?[ ]*(?:if|else|end|range|with|define|block|/\*|\$\w+ :?=)[^\n]*\}\}[ ]*$", re.MULTILINE)
_TEMPLATE = re.compile(r"\{\{-?[ ]*([^{}\n]*?)[ ]*-?\}\}")
_LOOSE = re.compile(r"^([ ]*(?:-[ ]+)*[\w.-]+:[ ]+)([^\s'\"|>&*!\[{#].*:[ ].*)$", re.MULTILINE)  # a value with a colon, which needs quotes
_TRIES = 4  # at the YAML between other lines
_FROM = re.compile(r"^[ \t]*FROM[ \t]", re.MULTILINE)
_STARTS = re.compile(r"^[ \t]*(ENTRYPOINT|CMD)[ \t]+((?:[^\\\n]|\\\r?\n|\\.)*)", re.MULTILINE)


def words_of(text: str) -> list[str]:
    """The words of a command as :func:`~eagle3diag.serving.words.split` gives them, also where a list of words or a container's description
    holds it, or NUL ends each. Of several containers the first that starts an engine is taken."""
    budget = Budget()
    if text.rstrip("\n").endswith("\0"):  # as in /proc/PID/cmdline, where words stand as the server got them
        return unwrapped([word for word in text.rstrip("\0\n").split("\0") if word != BREAK], {}, budget)
    if listed := _listed(text):
        return unwrapped(listed, {}, budget)
    found = [c for c in _containers(text) if _ENGINE.search(" ".join(c.named))] if _MARKS.search(text) else []
    if found:
        return max(found, key=lambda container: bool(container.starting)).words(budget)
    return split(_started(text) if _FROM.search(text) else text)


def _listed(text: str) -> list[str]:
    """The items of a list of words and nothing else, as in JSON and under ``args:``."""
    if not _LIST.match(text):
        return []
    try:
        found = value_of(text)
    except NotYaml:
        return []
    items = found if isinstance(found, list) and all(isinstance(item, str) for item in found) else []
    return _items(items) if len(items) > 2 or text.lstrip()[0] == "[" else []


def _started(text: str) -> str:
    """A Dockerfile with what its container starts at the end: the last ENTRYPOINT, and the last CMD, whose words follow a list of words."""
    last = {match[1]: match[2].strip() for match in _STARTS.finditer(text)}
    entry, command = last.get("ENTRYPOINT", "[]"), last.get("CMD", "[]")
    listed = [part.strip("[] \t") for part in (entry, command) if part.startswith("[")]
    if len(listed) == 2:
        started = f"[{', '.join(filter(None, listed))}]"
    else:  # a line for the shell takes no more words
        started = command if listed == [""] and entry.startswith("[") else entry
    return "\n".join([_STARTS.sub("", text), f"CMD {started}"])


@dataclass(frozen=True)
class _Container:
    """One mapping with keys that start a container: the ``image``, what starts in it, and the environment that is set in so many words."""

    image: str
    starting: tuple[str | list[str], ...]
    environment: dict[str, str]

    @property
    def named(self) -> Iterator[str]:
        yield self.image
        for part in self.starting:
            yield from [part] if isinstance(part, str) else part

    def words(self, budget: Budget) -> list[str]:
        """As a shell would have them; a pod's ``$(NAME)`` is put in where its own environment gives it."""
        own = [self.image] if self.image else []
        for part in self.starting:
            own += split(part.strip(), budget=budget) if isinstance(part, str) else part
        known = {name: [value] for name, value in self.environment.items()}
        put_in = [re.sub(r"\$\((\w+)\)", lambda match: self._known(match, budget), word) for word in own]
        return [*(f"{name}={value}" for name, value in self.environment.items()), *unwrapped(put_in, known, budget)]

    def _known(self, match: re.Match[str], budget: Budget) -> str:
        found = self.environment.get(match[1])
        return match[0] if found is None or not budget.spend(len(found) + 1) else found


def _containers(text: str) -> Iterator[_Container]:
    for part in _DOCUMENT.split(_TEMPLATE.sub(r"$(\1)", _CONTROL.sub("", text.expandtabs(2)))):
        for keys in _mappings(_readable(part)):
            starting = tuple(words for key in _STARTING if (words := _words(keys.get(key))))
            image = _image(keys.get("image"))
            if starting or image:
                yield _Container(image, starting, dict(_environment(keys.get("environment") or keys.get("env"))))


def _readable(text: str) -> Value:
    """The YAML in a text, also where quotes were forgotten, or where other lines stand before and behind, as around a here-document."""
    try:
        return value_of(text)
    except NotYaml:
        lines = _LOOSE.sub(lambda match: match[1] + "'" + match[2].replace("'", "''") + "'", text).splitlines()
    for _ in range(_TRIES):
        try:
            return value_of("\n".join(lines))
        except NotYaml as error:
            first = next((number for number, line in enumerate(lines) if _KEY.match(line)), 0)
            lines = lines[first:] if first else lines[: error.line - 1]
    return None


def _mappings(value: Value) -> Iterator[dict[str, Value]]:
    """Every mapping, an outer one first, its keys in small letters."""
    if isinstance(value, dict):
        yield {key.lower(): inner for key, inner in value.items()}
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _mappings(inner)


def _words(value: Value) -> str | list[str] | None:
    """A line for the shell, or words; None for neither."""
    return _items(value) if isinstance(value, list) else value if isinstance(value, str) else None


def _items(value: list[Value]) -> list[str]:
    return [item for item in value if isinstance(item, str) and item != BREAK]


def _image(value: Value) -> str:
    """As it is, or as Helm takes it apart."""
    if isinstance(value, dict):
        return ":".join(part for key in ("repository", "tag") if isinstance(part := value.get(key), str))
    return value if isinstance(value, str) else ""


def _environment(value: Value) -> Iterator[tuple[str, str]]:
    """``A: b``, ``- A=b``, and a pod's ``name: A`` over ``value: b``; what comes from elsewhere is not known."""
    if isinstance(value, dict):
        yield from ((key, item) for key, item in value.items() if isinstance(item, str))
    for item in value if isinstance(value, list) else ():
        if isinstance(item, str) and "=" in item:
            name, _, given = item.partition("=")
            yield name, given
        elif isinstance(item, dict) and isinstance(key := item.get("name"), str) and isinstance(stated := item.get("value"), str):
            yield key, stated
