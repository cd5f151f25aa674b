"""``eagle3diag fault``: the catalogue of faults, and the tests beside it, at a shell: all or one of them in words."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from eagle3diag.errors import BadArgument

_PARTS = {
    "mechanism": "how it comes about",
    "symptom": "what you see",
    "measure": "what shows it",
    "fix": "fix",
    "not_it": "what it is not",
    "seen": "seen",
}


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument(
        "fault", metavar="CODE", nargs="?", help="as a finding names it, such as FM-05 or K1; without one, the titles of all"
    )


def run(args: argparse.Namespace) -> int:
    """Print it; returns 0. Raises :class:`~eagle3diag.errors.BadArgument` for a code that is not in the catalogue."""
    from eagle3diag.faults import in_words, tests_in_words

    tests = {code: words | {"title": words["words"], "group": "Tests"} for code, words in tests_in_words().items()}
    known = in_words() | tests
    print("\n".join(_titles(known) if args.fault is None else _page(known, _code(args.fault, known))))
    return 0


def _code(given: str, known: dict[str, Any]) -> str:
    number = re.fullmatch(r"(?:FM)?-?(\d{1,3})", given.strip(), re.IGNORECASE | re.ASCII)
    code = f"FM-{int(number[1]):02}" if number else given.strip().upper()
    if code not in known:
        raise BadArgument(f"{given!r:.80} is no fault and no test that is known", hint="eagle3diag fault lists all, with their titles")
    return code


def _titles(known: dict[str, Any]) -> Iterator[str]:
    group = ""
    for code, words in known.items():
        if words["group"] != group:
            group = words["group"]
            yield f"{group}"
        yield f"  {code}  {words['title']}"


def _page(known: dict[str, Any], code: str) -> Iterator[str]:
    words = known[code]
    yield f"{code}  {words['title']}"
    for part, label in _PARTS.items():
        said = words.get(part)
        if said:
            lines = textwrap.wrap(", ".join(said) if isinstance(said, list) else said, 58, break_long_words=False, break_on_hyphens=False)
            yield from (f"  {label if n == 0 else '':<18}  {line}" for n, line in enumerate(lines))
