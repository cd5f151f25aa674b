"""One engine's facts, gathered: what an audit asks of any of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from eagle3diag.checkpoints.target import Target
from eagle3diag.engines.draftclass import DraftClass
from eagle3diag.engines.layers import Capture
from eagle3diag.engines.rules import Bug, Version, at


@dataclass(frozen=True)
class Engine:
    """Facts of one engine.

    Attributes
    ----------
    first, last: the versions that were read. classes: its EAGLE-3 draft classes, the commonest first.
    architecture: the class name that a raw config leads to in a version, or the reason why it leads to none.
    captured: what is captured for a raw draft config and a target; the first is what runs by default.
    default: from a target's number of blocks to the boundaries taken when nothing is configured.
    """

    name: str
    first: Version
    last: Version
    classes: tuple[DraftClass, ...]
    architecture: Callable[[Mapping[str, object], Version], str | Unloadable]
    captured: Callable[[Mapping[str, object], Version, Target | None], tuple[Capture, ...]]
    default: Callable[[int], tuple[int, ...]]
    bugs: tuple[Bug, ...] = ()

    def architectures(self, version: Version) -> frozenset[str]:
        """The names in ``architectures`` that lead to one of its draft classes in ``version``."""
        rows = (at(c.architectures, version) for c in self.classes)
        return frozenset(name for row in rows if row.version <= version for name in row.value)

    @property
    def turns(self) -> tuple[Version, ...]:
        """The versions known, oldest first, in which the loading of a draft is another than in the one before."""
        found = {self.first}
        for c in self.classes:
            tables = (c.architectures, c.names, c.embedding, c.head)
            found |= {row.version for table in tables for row in table}
            found |= {v for row in c.rows for v in (row.versions.first, row.versions.before) if v is not None}
        return tuple(sorted(v for v in found if self.first <= v <= self.last))

    def draft_class(self, raw: Mapping[str, object], version: Version) -> DraftClass | Unloadable:
        """The class that ``version`` builds from a raw config."""
        name = self.architecture(raw, version)
        if isinstance(name, Unloadable):
            return name
        for draft_class in self.classes:
            if any(name in row.value for row in draft_class.architectures):
                rule = at(draft_class.architectures, version)
                if rule.version <= version and name in rule.value:
                    return draft_class
        return Unloadable(f"{name!r:.80} is not an EAGLE-3 draft class of {self.name} {version}")


@dataclass(frozen=True)
class Unloadable:
    """Why an engine version builds no draft from a config."""

    reason: str


#: Words of which trainers make types for drafts, and that no class of Transformers or of an engine has, but for vLLM's two.
_OF_DRAFTS = re.compile(r"eagle|draft|specul", re.IGNORECASE)
VLLM_TYPES = ("eagle", "speculators")  # transformers_utils/config.py, _CONFIG_REGISTRY


def type_fault(raw: Mapping[str, object], known: tuple[str, ...] = ()) -> str | None:
    """Why no engine reads a flat config: each does so with ``AutoConfig``, which goes by ``model_type``. None where it does, or where the
    checkpoint brings code of its own.

    Run in SGLang 0.4.8 to 0.5.23 and vLLM 0.32.0. Transformers 4 (SGLang up to 0.5.10) looks for a type in the path first.
    """
    kind, auto = raw.get("model_type"), raw.get("auto_map")
    if isinstance(auto, Mapping) and "AutoConfig" in auto:
        return None
    if kind is None:
        return "the config has no model_type, without which AutoConfig reads none (Transformers 4 may guess one from words of the path)"
    if kind not in known and (not isinstance(kind, str) or _OF_DRAFTS.search(kind)):
        return f"model_type {kind!r:.40} is none that Transformers or this engine knows; drafts of Llama's shape say llama"
    return None


def plain_architecture(raw: Mapping[str, object], version: Version) -> str | Unloadable:
    """The first of ``architectures``, as it stands."""
    if "speculators_model_type" in raw or "transformer_layer_config" in raw:
        return Unloadable("the config is in speculators' format (transformer_layer_config), which this engine does not read")
    if (fault := type_fault(raw)) is not None:
        return Unloadable(fault)
    names = raw.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    return Unloadable("the config names no architectures")
