"""The command in a file that describes a container: Compose, a pod, Helm's values; only the few keys that hold it are read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from eagle3diag.serving.words import BREAK, Budget, split, unwrapped

_ORDER = ("image", "repository", "tag", "entrypoint", "command", "args", "extraArgs")
_KEY = re.compile(rf"(?P<indent>[ ]*)(?P<dash>-[ ]+)?(?P<key>{'|'.join(_ORDER)}|env|environment):(?:\s+(?P<value>.*))?")
_MARKS = re.compile(r"^[ ]*(?:-[ ]+)?(?:entrypoint|command|args|extraArgs):(?:\s|$)", re.MULTILINE)
_FROM = re.compile(r"^[ \t]*FROM[ \t]", re.MULTILINE)
_STARTS = re.compile(r"^[ \t]*(ENTRYPOINT|CMD)[ \t]+((?:[^\\\n]|\\\r?\n|\\.)*)", re.MULTILINE)
_ITEM = re.compile(r"[ ]*-[ ]+(.*)")
_BLOCK = re.compile(r"[|>][+-]?\d?(?:\s+#.*)?")
_PAIR = re.compile(r"-?\s*([A-Za-z_]\w*)(?::\s+|=)(.*)")


@dataclass
class _Container:
    """The keys of one mapping: what starts a container."""

    keys: dict[str, list[str]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def words(self, budget: Budget) -> list[str]:
        known = {name: [value] for name, value in self.environment.items()}
        assigned = [f"{name}={value}" for name, value in self.environment.items()]
        own = [word for key in _ORDER for word in self.keys.get(key, ())]
        return [*assigned, *unwrapped([_known(word, self.environment, budget) for word in own], known, budget)]


def words_of(text: str) -> list[str]:
    """The words of a command as :func:`~eagle3diag.serving.words.split` gives them, also where a container's description holds it.

    Of several containers the first that names an engine is taken.
    """
    if not _MARKS.search(text):
        return split(_started(text) if _FROM.search(text) else text)
    budget = Budget()
    found = [container.words(budget) for container in _containers(text.expandtabs(2).splitlines(), budget)]
    named = [words for words in found if re.search("sglang|vllm|trtllm|tensorrt", " ".join(words), re.IGNORECASE)]
    return named[0] if named else split(text)


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


def _containers(lines: Sequence[str], budget: Budget) -> Iterator[_Container]:
    """One for each mapping that has such keys: those at one depth with nothing less deep between them, and no new item of a list."""
    open_: dict[int, _Container] = {}
    index = 0
    while index < len(lines):
        line = lines[index]
        indent = len(line) - len(line.lstrip())
        match = _KEY.fullmatch(line.rstrip())
        if line.strip():
            starts = re.match(r"[ ]*-[ ]+", line)
            depth = indent if starts is None else starts.end()
            for other in [d for d in open_ if d > depth or (starts is not None and d == depth)]:
                yield open_.pop(other)
        index += 1
        if match is None:
            continue
        depth = indent + len(match["dash"] or "")
        below = _below(lines, index, depth)
        container = open_.setdefault(depth, _Container())
        if match["key"] in ("env", "environment"):
            container.environment |= dict(_pairs(below))
        else:
            container.keys[match["key"]] = _value(match["key"], match["value"] or "", below, budget)
        index += len(below)
    yield from open_.values()


def _below(lines: Sequence[str], start: int, depth: int, *, items: bool = True) -> list[str]:
    """The lines that belong to a key: deeper ones, and ``items`` of a list at its own depth."""
    end = start
    while end < len(lines) and (
        not lines[end].strip()
        or (indent := len(lines[end]) - len(lines[end].lstrip())) > depth
        or (items and indent == depth and lines[end].startswith("- ", depth))
    ):
        end += 1
    return list(lines[start:end])


def _value(key: str, value: str, below: list[str], budget: Budget) -> list[str]:
    if _BLOCK.fullmatch(value):
        return split(_block(value, below), budget=budget)
    if value:  # a scalar, which may go on in deeper lines; a list in brackets is split as a Dockerfile's is
        whole = "\n".join([value, *below]) if value.startswith("[") else " ".join([value, *(line.strip() for line in below)])
        return (
            [_scalar(whole)] if key in ("image", "repository", "tag") else [w for w in split(_unquoted(whole), budget=budget) if w != BREAK]
        )
    return list(_items(below))


def _items(lines: list[str]) -> Iterator[str]:
    index = 0
    while index < len(lines):
        match = _ITEM.fullmatch(lines[index].rstrip())
        index += 1
        if match is None:
            continue
        depth = lines[index - 1].index("-")
        inside = _below(lines, index, depth, items=False)
        index += len(inside)
        yield _block(match[1], inside) if _BLOCK.fullmatch(match[1]) else _scalar(" ".join([match[1], *(i.strip() for i in inside)]))


def _block(mark: str, lines: list[str]) -> str:
    return ("\n" if mark.startswith("|") else " ").join(line.strip() for line in lines)


def _scalar(text: str) -> str:
    text = text.strip()
    if text[:1] not in ("'", '"'):
        return re.sub(r"(?:^|\s)#.*", "", text).rstrip()
    return _unquoted(text)


def _unquoted(text: str) -> str:
    if match := re.fullmatch(r"'((?:[^']|'')*)'(?:\s+#.*)?", text):
        return match[1].replace("''", "'")
    if match := re.fullmatch(r'("(?:[^"\\]|\\.)*")(?:\s+#.*)?', text):
        try:
            return str(json.loads(match[1]))
        except ValueError:
            return match[1][1:-1]
    return text


def _pairs(lines: list[str]) -> Iterator[tuple[str, str]]:
    """``A: b``, ``- A=b``, and a pod's ``- name: A`` over ``value: b``."""
    name = ""
    for line in lines:
        match = _PAIR.fullmatch(line.strip())
        if match is None:
            continue
        key, value = match[1], _scalar(match[2])
        if key == "name":
            name = value
        elif key == "value" and name:
            yield name, value
        elif key not in ("valueFrom", "secretKeyRef", "key", "value"):
            yield key, value


def _known(word: str, environment: dict[str, str], budget: Budget) -> str:
    """A pod's ``$(NAME)``, where its own environment gives it."""

    def value(match: re.Match[str]) -> str:
        found = environment.get(match[1])
        return match[0] if found is None or not budget.spend(len(found) + 1) else found

    return re.sub(r"\$\((\w+)\)", value, word)
