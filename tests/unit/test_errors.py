"""The exceptions: the tree that the module draws is the tree that Python sees, and every message says what, where and what next."""

from __future__ import annotations

import inspect
import re

import pytest

from eagle3diag import errors
from eagle3diag.errors import Eagle3DiagError, FindingsFound, InputError, MissingDependency, UnreadableFile

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Eagle3DiagError)]


def drawn() -> dict[str, str]:
    """Child -> parent, read off the drawing in the module's docstring: four columns a level."""
    found: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^( {4}[ │├└─]*)([A-Z]\w+)", line)
        if match and match[2] in vars(errors):
            level = (len(match[1]) - 4) // 4
            path = [*path[:level], match[2]]
            if level:
                found[match[2]] = path[level - 1]
    return found


def test_the_drawn_tree_is_the_real_one() -> None:
    """Every class but the root is drawn, under the class it derives from."""
    assert drawn() == {c.__name__: c.__bases__[0].__name__ for c in CLASSES if c is not Eagle3DiagError}


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_prints_what_where_and_what_next(kind: type[Eagle3DiagError]) -> None:
    """The three parts are kept apart as attributes and joined in the message; each class says when it happens."""
    error = kind("the header is cut off", where="draft/model.safetensors", hint="copy the file again")
    assert (error.what, error.where, error.hint) == ("the header is cut off", "draft/model.safetensors", "copy the file again")
    assert str(error) == "draft/model.safetensors: the header is cut off\n  -> copy the file again"
    assert str(kind("the header is cut off")) == "the header is cut off"
    assert inspect.getdoc(kind)


def test_one_except_clause_catches_all_bad_input() -> None:
    """Unusable input is an InputError; a missing package and findings are not."""
    assert issubclass(UnreadableFile, InputError)
    assert not issubclass(MissingDependency, InputError) and not issubclass(FindingsFound, InputError)
