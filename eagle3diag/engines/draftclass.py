"""What a draft class of an engine is, as data: its parameters, the names it takes for them, what it borrows, what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from eagle3diag.checkpoints.config import DraftConfig
from eagle3diag.engines.rules import ALWAYS, Since, Span, Version

#: What a parameter holds when nothing fills it.
HOLDS: Mapping[str, str] = {
    "memory": "whatever memory held",
    "ones": "ones",
    "zeros": "zeros",
    "random": "nn.Linear's own random start",
    "identity": "draft ids are taken for target ids",
    "unset": "nothing: start-up ends with an AttributeError",
}


#: Where SGLang keeps ``d2t`` + arange: no parameter, so that nothing checks its shape.
HOT_TOKEN_ID = "hot_token_id"


@dataclass(frozen=True)
class Reading:
    """What an engine version takes from a config: the sizes its shapes are made of, by symbol, and the flags that are set.

    Symbols: ``H`` hidden size, ``Ht`` the target's, ``A`` all aux states, ``X`` input of a layer's attention (2H in the first), ``Q``,
    ``KV``, ``D`` head size, ``I`` MLP, ``V`` and ``Vd`` vocabularies; of MLA ``qa``, ``kva``, ``c`` (kva without the rotary part),
    ``qb``, ``kvb``, ``vo``.
    """

    sizes: Mapping[str, int]
    flags: frozenset[str]
    layers: int
    n_aux: int

    def size(self, symbol: str, layer: int) -> int:
        if symbol == "X":
            return self.sizes["H"] * (2 if layer == 0 else 1)
        return self.sizes[symbol]


@dataclass(frozen=True)
class Row:
    """One parameter of the class. ``{i}`` in its name counts layers, ``{k}`` aux states.

    Attributes
    ----------
    shape: symbols of :class:`Reading`; with ``parts`` the sizes after the first.
    parts: names of what is stacked in it and the rows of each; the canonical name has the part's name in place of the parameter's own.
    holds: a key of :data:`HOLDS`. when: the flag that makes it exist (``"!flag"``: that hinders it). versions: those that have it.
    together: loaded only when the file has all of its parts.
    """

    name: str
    canonical: str
    shape: tuple[str, ...]
    holds: str = "memory"
    parts: tuple[tuple[str, str], ...] = ()
    when: str | None = None
    versions: Span = ALWAYS
    together: bool = False


@dataclass(frozen=True)
class Slot:
    """A place that one tensor of a file fills: a parameter, or one part of a stacked one."""

    parameter: str
    part: str | None
    canonical: str
    shape: tuple[int, ...]
    holds: str
    together: bool

    @property
    def label(self) -> str:
        """``model.layers.0.self_attn.qkv_proj.weight[q_proj]``."""
        return f"{self.parameter}[{self.part}]" if self.part else self.parameter


@dataclass(frozen=True)
class Names:
    """How a loader turns the names of a checkpoint into its parameters.

    Attributes
    ----------
    renames: pattern and replacement, in order. d2t, t2d: patterns of the two maps; what ``t2d`` matches is not used.
    skipped: pattern of names that are passed over. skipped_unless: patterns passed over while a flag is not as said (see ``Row.when``).
    bare: pattern of the names that get no ``model.`` in front; None: a name is tried as it is, then with it.
    stacked: part to parameter, as they stand in names. d2t_is_parameter: whether the map is one, under the name that ``d2t`` matches.
    unknown, unknown_part, unknown_bias: what becomes of a name without a parameter: ``dropped``, ``warned`` (dropped with a line in the
        log) or ``raises``; for names of stacked parts, and for biases (of modules that exist, where other names raise).
    """

    renames: tuple[tuple[str, str], ...]
    d2t: str
    t2d: str
    stacked: tuple[tuple[str, str], ...]
    unknown: str
    unknown_part: str
    unknown_bias: str
    skipped: str | None = None
    skipped_unless: tuple[tuple[str, str], ...] = ()
    bare: str | None = None
    d2t_is_parameter: bool = False

    def place(self, name: str, slots: Mapping[tuple[str, str | None], Slot], flags: frozenset[str]) -> tuple[str, Slot | None]:
        """``("loaded", slot)``, or what else becomes of ``name``: ``ignored``, ``dropped``, ``warned``, ``raises``."""
        original = name
        if re.search(self.t2d, name):
            return "ignored", None
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        if not self.d2t_is_parameter and re.search(self.d2t, name):
            return "loaded", slots[HOT_TOKEN_ID, None]
        if self.skipped and re.search(self.skipped, name):
            return "ignored", None
        if any(re.search(pattern, name) and not _wanted(flag, flags) for pattern, flag in self.skipped_unless):
            return "dropped", None
        part = None
        for piece, whole in self.stacked:
            if piece in name:
                name, part = name.replace(piece, whole), piece.removeprefix(".")
                break
        places = self._places(name)
        for place in places:
            if (slot := slots.get((place, part))) is not None:
                return "loaded", slot
        if original.endswith(".bias") and (self.unknown != "raises" or _module_of(places[-1]) in {_module_of(p) for p, _ in slots}):
            return self.unknown_bias, None
        return (self.unknown if part is None else self.unknown_part), None

    def _places(self, name: str) -> tuple[str, ...]:
        if self.bare is None:
            return name, f"model.{name}"
        return (name,) if re.search(self.bare, name) else (f"model.{name}",)


@dataclass(frozen=True)
class Refusal:
    """A config with which a class cannot be built, so that start-up ends whatever the tensors are."""

    versions: Span
    when: Callable[[Mapping[str, object]], bool]
    message: str
    source: str


@dataclass(frozen=True)
class Field:
    """A field of the config that changes the forward pass and has no tensor to tell by: only its versions say whether it is honoured.

    ``said``: whether a config sets it, as the engine sees it written. ``versions``: those that honour it; None: none does.
    """

    name: str
    said: Callable[[Mapping[str, object]], bool]
    versions: Span | None
    fault: str
    source: str


@dataclass(frozen=True)
class DraftClass:
    """One draft class of an engine.

    Attributes
    ----------
    architectures: the names in ``architectures`` that lead to it. reading: how it reads a config.
    embedding, head: whose they are in the running draft, in the words of :mod:`eagle3diag.audit.loads`.
    """

    name: str
    architectures: tuple[Since[tuple[str, ...]], ...]
    names: tuple[Since[Names], ...]
    rows: tuple[Row, ...]
    embedding: tuple[Since[str], ...]
    head: tuple[Since[str], ...]
    reading: Callable[[DraftConfig, Version], Reading]
    refusals: tuple[Refusal, ...] = ()
    fields: tuple[Field, ...] = ()

    def unserved(self, raw: Mapping[str, object], version: Version) -> tuple[Field, ...]:
        """The fields that a config sets and that ``version`` does not honour."""
        return tuple(f for f in self.fields if f.said(raw) and (f.versions is None or version not in f.versions))

    def slots(self, reading: Reading, version: Version) -> dict[tuple[str, str | None], Slot]:
        """Every place that a tensor can fill in this version with this config, by parameter and part."""
        found: dict[tuple[str, str | None], Slot] = {}
        for row in self.rows:
            if version in row.versions and _wanted(row.when, reading.flags):
                for slot in _slots(row, reading):
                    found[slot.parameter, slot.part] = slot
        return found


def norm_output(raw: Mapping[str, object]) -> bool:
    """Whether a config asks for the normed state to be fed back, under any of its names."""
    eagle = raw.get("eagle_config")
    return bool(raw.get("norm_output") or (isinstance(eagle, Mapping) and eagle.get("return_hidden_post_norm")))


def norm_before_residual(raw: Mapping[str, object]) -> bool:
    """Whether a config wants the residual taken after ``hidden_norm``."""
    return bool(raw.get("norm_before_residual"))


def _module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _wanted(when: str | None, flags: frozenset[str]) -> bool:
    return when is None or ((when.removeprefix("!") in flags) != when.startswith("!"))


def _slots(row: Row, reading: Reading) -> Iterator[Slot]:
    count = reading.layers if "{i}" in row.name or "{i}" in row.canonical else reading.n_aux if "{k}" in row.name else 1
    for index in range(count):
        name, canonical = (text.format(i=index, k=index, part="{part}") for text in (row.name, row.canonical))
        rest = tuple(reading.size(symbol, index) for symbol in row.shape)
        if not row.parts:
            yield Slot(name, None, canonical, rest, row.holds, row.together)
        for part, rows in row.parts:
            shape = (reading.size(rows, index), *rest)
            yield Slot(name, part, canonical.format(part=part), shape, row.holds, row.together)
