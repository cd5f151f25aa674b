"""What engines do with a draft, as data: one file per engine, each rule with the versions it holds for."""

from __future__ import annotations

from types import ModuleType

from eagle3diag.engines import sglang
from eagle3diag.engines.rules import Since, Version, at, split_engine
from eagle3diag.errors import BadArgument

__all__ = ["Since", "Version", "at", "known_version", "rules_of", "split_engine"]

_ENGINES: dict[str, ModuleType] = {"sglang": sglang}


def rules_of(engine: str) -> ModuleType:
    """The facts module of an engine. Raises :class:`~eagle3diag.errors.BadArgument` for one we have no facts of."""
    if engine not in _ENGINES:
        raise BadArgument(f"no facts about engine {engine!r}", hint=f"known: {', '.join(_ENGINES)}")
    return _ENGINES[engine]


def known_version(engine: str, version: str | None) -> tuple[Version, bool]:
    """The version whose rules apply, and whether that very version was read: outside the range the nearest rules are used."""
    rules = rules_of(engine)
    wanted = Version.parse(version or rules.DEFAULT)
    return wanted, rules.FIRST <= wanted <= rules.LAST
