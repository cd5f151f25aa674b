"""YAML that strangers wrote, as plain text values: PyYAML takes it apart, nothing is built of it, and depth, size and aliases have bounds."""

from __future__ import annotations

from typing import Any, TypeAlias

import yaml

from eagle3diag.serving.variables import Budget

Value: TypeAlias = "str | list[Value] | dict[str, Value] | None"

LARGEST = 1 << 17
"""Characters of a text that is read; whole scripts and settings have a few thousand."""
DEEPEST = 32
"""Of a value in others; settings nest four or five times."""

_CORE = "tag:yaml.org,2002:"
_KNOWN = frozenset(_CORE + name for name in ("str", "int", "float", "bool", "null", "timestamp", "value", "seq", "map"))
_TRUE = frozenset({"yes", "true", "on"})


class NotYaml(Exception):
    """A text that is no YAML, or beyond the bounds: ``what`` is wrong, and the ``line``, from 1, from which on it cannot be read."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.what, self.line = what, line


def value_of(text: str) -> Value:
    """The one document in ``text``: mappings, lists, and of scalars the text; true and false in these words however YAML spells them.

    Anchors, merge keys, flow and block scalars are understood; the values that an alias stands for count each time. The last of a key counts.

    Raises
    ------
    NotYaml: no YAML, several documents, a tag of one's own, or more than the bounds.
    """
    try:
        node = _Composer(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        marks = [mark for mark in (error.context_mark, error.problem_mark) if mark is not None]
        raise NotYaml(" ".join(filter(None, (error.context, error.problem)))[:200], min((m.line for m in marks), default=0) + 1) from None
    except yaml.reader.ReaderError as error:
        raise NotYaml("holds a control character", text.count("\n", 0, error.position) + 1) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # an escape beyond Unicode
        raise NotYaml(str(error)[:200], 1) from None
    return None if node is None else _plain(node, Budget(2 * LARGEST), 0)


class _Composer(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML carries no annotations
    """Python's and not libyaml's, whose recursion nothing stops."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.MarkedYAMLError(problem="is nested too deep", problem_mark=self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _plain(node: yaml.Node, budget: Budget, depth: int) -> Value:
    if depth > DEEPEST or not budget.spend(1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)):
        raise NotYaml("grows without end through its aliases", node.start_mark.line + 1)
    if node.tag not in _KNOWN:
        raise NotYaml(f"has a tag that is not read, {node.tag!r:.60}", node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, budget, depth)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, budget, depth + 1) for item in node.value]
    if node.tag == f"{_CORE}null":
        return None
    text = str(node.value)
    return ("true" if text.lower() in _TRUE else "false") if node.tag == f"{_CORE}bool" else text


def _mapping(node: yaml.MappingNode, budget: Budget, depth: int) -> dict[str, Value]:
    own: dict[str, Value] = {}
    merged: dict[str, Value] = {}
    for key, value in node.value:
        if key.tag == f"{_CORE}merge":
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(source, yaml.MappingNode):
                    raise NotYaml("merges what is no mapping", source.start_mark.line + 1)
                merged = {**_mapping(source, budget, depth + 1), **merged}
        elif not isinstance(key, yaml.ScalarNode):
            raise NotYaml("has a key that is no text", key.start_mark.line + 1)
        else:
            own[str(key.value)] = _plain(value, budget, depth + 1)
    return merged | own
