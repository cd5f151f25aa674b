"""What a reader of one format is, and what all of them share: a file's tensors become records with boundaries, opened when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from eagle3diag.checkpoints.pickled import unusual
from eagle3diag.checkpoints.tensors import TensorFiles, dtype_name
from eagle3diag.dumps.parts import misfit
from eagle3diag.dumps.places import Place
from eagle3diag.dumps.records import HiddenStates, LazyRecords, Record, TargetIdentity
from eagle3diag.errors import BadArgument, Eagle3DiagError, MissingPart, UnreadableFile


@dataclass(frozen=True)
class Asked:
    """What the caller of :func:`eagle3diag.open_dump` said about a dump that does not say it itself."""

    boundaries: tuple[int, ...] | None = None
    side: str | None = None
    target: TargetIdentity | None = None
    mapping: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Unread:
    """A tensor that is read when its part is asked for: ``shown`` has its shape and dtype, and of a file that need not be read yet no data."""

    shown: Tensor
    read: Callable[[], Tensor]

    @property
    def width(self) -> int:
        """Length of the last axis."""
        return int(self.shown.shape[-1])

    def map(self, change: Callable[[Tensor], Tensor]) -> Unread:
        """The same after ``change``, which must not look at values."""
        return Unread(change(self.shown), lambda: change(self.read()))


def shown(value: Any, name: str) -> Tensor:
    """The tensor of this name, for its shape and dtype: of a safetensors file without its data."""
    if not isinstance(value, TensorFiles):
        held: Tensor = value[name]
        return held
    info = value.info(name)
    try:
        return torch.empty(info.shape, dtype=getattr(torch, info.dtype), device="meta")
    except (AttributeError, TypeError, RuntimeError):  # a dtype that torch does not have, a size beyond all numbers: reading says it
        return value[name]


def unread(value: Any, name: str, row: int | None = None) -> Unread:
    """The tensor of this name, or one row of it, not read yet where the file is one of safetensors.

    Raises
    ------
    KeyError: nothing of this name is there. ValueError: something else than a plain tensor is.
    """
    tensor = shown(value, name)
    if isinstance(value, TensorFiles):
        if row is None:
            return Unread(tensor, lambda: value[name])
        return Unread(tensor[row], lambda: value.rows(name, row, row + 1)[0])
    problem = unusual(tensor) if isinstance(tensor, Tensor) else "is no tensor"
    if problem:
        raise ValueError(f"{name} {problem}")
    held = tensor if row is None else tensor[row]
    return Unread(held, lambda: held)


@dataclass(frozen=True)
class Content:
    """One record as its file has it, under our words; rows not yet checked. Each tensor may be an :class:`Unread`.

    ``aux``: the states side by side [T, W], or one by one, each [T, H]. ``final``: the last state after the final norm, ``last``: before
    it. Tensors may carry a leading axis of one.
    """

    input_ids: Any
    aux: Any = None
    final: Any = None
    last: Any = None
    loss_mask: Any = None
    positions: Any = None
    prompt_length: int | None = None
    name: str | None = None


@dataclass(frozen=True)
class Format:
    """A reader: ``fits(name, contents)`` says whether one file, by what is in it, is of this format; ``read(place, names, asked)`` opens
    the dump whose files are ``names``, of which the first was recognised."""

    name: str
    fits: Callable[[str, Any], bool]
    read: Callable[[Place, tuple[str, ...], Asked], HiddenStates]


@dataclass(frozen=True)
class Facts:
    """What a format promises about all of its files.

    ``defaults``: the boundaries of its blocks in a target of so many blocks when nobody said others. ``assumed``: what a reader must take
    for granted, one line each. ``several``: a file may hold any number of records, so all of them are opened when the dump is.
    """

    engine: str
    side: str = "train"
    defaults: Callable[[int], tuple[int, ...]] = field(default=lambda n: (2, n // 2, n - 3))
    boundaries: tuple[int, ...] | None = None
    assumed: tuple[str, ...] = ()
    several: bool = False


def tensors(value: Any, *names: str) -> bool:
    """Whether ``value`` is a mapping that holds a tensor under each of the names."""
    whole = isinstance(value, TensorFiles)  # which holds nothing else
    return isinstance(value, Mapping) and all(n in value and (whole or isinstance(value[n], Tensor)) for n in names)


def files(
    name: str,
    fits: Callable[[Any], bool],
    contents: Callable[[Any], list[Content]],
    facts: Facts | Callable[[Place, tuple[str, ...]], Facts],
) -> Format:
    """A format with one record, or a few, in each file. ``contents`` raises KeyError, TypeError or ValueError on a file of another kind."""

    def read(place: Place, names: tuple[str, ...], asked: Asked) -> HiddenStates:
        known = facts if isinstance(facts, Facts) else facts(place, names)
        return assemble(name, place, names, lambda file: contents(place.open(file)), known, asked)

    return Format(name, lambda _, value: fits(value), read)


def assemble(
    name: str, place: Place, names: tuple[str, ...], opened: Callable[[str], list[Content]], facts: Facts, asked: Asked
) -> HiddenStates:
    """A dump from ``opened(file)``, the records of one file. Files are opened one at a time, again when a record is read again.
    ``opened`` raises KeyError, TypeError, ValueError and their like on a file of another kind."""

    def contents(file: str) -> list[Content]:
        try:
            found = opened(file)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            if isinstance(error, Eagle3DiagError):
                raise
            message = f"is not a {name} file as the first one is ({type(error).__name__}: {str(error)[:200]})"
            raise UnreadableFile(message, where=place.label(file), hint="leave only files of one dump in the folder") from error
        if not found:
            raise MissingPart(f"holds no record ({name})", where=place.label(file), hint="leave it out, or write the dump again")
        return [_checked(c, place.label(file)) for c in found]

    keep = lru_cache(maxsize=4)(contents)
    index = [(f, i) for f in names for i in range(len(keep(f)))] if facts.several else [(f, 0) for f in names]
    first = _Blocks.of(keep(names[0])[0], place.label(names[0]), facts, asked)
    labels = _labels(index, names, (lambda f, i: keep(f)[i].name) if facts.several else None)

    def make(number: int) -> Record:
        file, at = index[number]

        def held() -> Content:
            content = keep(file)[at]
            if _widths(content) != first.widths:
                message = f"holds {_told(_widths(content))}, where {names[0]} holds {_told(first.widths)}"
                raise UnreadableFile(message, where=place.label(file), hint="leave only files of one dump in the folder")
            return content

        content = held()

        def part(which: str) -> Tensor | None:
            return first.part(held(), which)

        return Record(labels[number], len(content.input_ids.shown), content.prompt_length, first.stored, first.boundaries, part)

    lines = (f"read as {name}", *facts.assumed, *first.assumed)
    if len(names) < len(place.names):
        others = [n for n in place.names if n not in set(names)]
        lines += (f"{len(others)} other {'file is' if len(others) == 1 else 'files are'} not among the records, such as {others[0]}",)
    return HiddenStates(
        LazyRecords(labels, make),
        side=asked.side or facts.side,
        target=first.target,
        engine=facts.engine,
        boundaries=first.boundaries,
        assumed=lines,
        path=place.where,
    )


def _labels(index: list[tuple[str, int]], names: tuple[str, ...], named: Callable[[str, int], str | None] | None) -> tuple[str, ...]:
    """A name for each record: its own where the file has one, else the file's, with folders where files of different folders share it."""
    stems = {f: f.rpartition("/")[2].partition(".")[0] for f in names}
    if len(set(stems.values())) < len(names):
        stems = {f: f.replace("/", ".") for f in names}
    several = len(index) > len(names)
    made = [(named(f, i) if named else None) or (f"{stems[f]}.{i}" if several else stems[f]) for f, i in index]
    counts: dict[str, int] = {}
    out = []
    for label in map(printable, made):
        counts[label] = counts.get(label, 0) + 1
        out.append(label if counts[label] == 1 else f"{label}.{counts[label]}")
    return tuple(out)


def printable(name: str) -> str:
    """``name`` as a record may be called: without what no terminal shows, and without slashes."""
    return "".join(c if c.isprintable() and c != "/" else "." for c in name) or "record"


@dataclass(frozen=True)
class _Blocks:
    """How the states of all records are to be cut, learned from the first: which boundaries, and of which target."""

    boundaries: tuple[int, ...]
    stored: tuple[int, ...]
    target: TargetIdentity
    assumed: tuple[str, ...]
    widths: tuple[int, ...]

    @classmethod
    def of(cls, content: Content, where: str, facts: Facts, asked: Asked) -> _Blocks:
        widths = _widths(content) if isinstance(content.aux, tuple) else ()
        width = sum(_widths(content))
        beside = content.last if content.last is not None else content.final
        hidden = (asked.target.hidden_size if asked.target else 0) or (widths[0] if widths else beside.width if beside is not None else 0)
        blocks = width // hidden if hidden and width % hidden == 0 else 0
        n = asked.target.n_layers if asked.target else 0
        lines: tuple[str, ...] = ()
        if asked.boundaries is not None:
            boundaries = asked.boundaries
        elif facts.boundaries is not None:
            boundaries = facts.boundaries
        elif width and n and len(facts.defaults(n)) == blocks:
            boundaries = facts.defaults(n)
            lines = (f"the blocks are taken to be boundaries {', '.join(map(str, boundaries))}, the default for a target of {n} blocks",)
        else:
            boundaries = ()
            if width:
                lines = ("the files do not say which boundaries their blocks are: pass boundaries=, in their order, or target=",)
        if boundaries and (width == 0 or (len(boundaries) != len(widths) if widths else width % len(boundaries))):
            hint = "one boundary for each state that the draft takes, in the order of the blocks"
            held = f"fit {len(widths)} states" if widths else f"divide features {width} wide"
            raise BadArgument(f"{len(boundaries)} boundaries do not {held}", where=where, hint=hint)
        hidden = width // len(boundaries) if boundaries else hidden
        if asked.target and asked.target.hidden_size and width and width % asked.target.hidden_size:
            message = f"features are {width} wide, which is not a multiple of the target's hidden size {asked.target.hidden_size}"
            raise BadArgument(message, where=where, hint="give the target that the dump was made with")
        states = (*(content.aux if widths else (content.aux,)), content.final, content.last)
        word = next((dtype_name(s.shown) for s in states if s is not None), "")
        target = replace(asked.target, dtype=word) if asked.target else TargetIdentity("unknown", "", word, 0, hidden)
        stored = boundaries + ((n,) if n and content.last is not None and n not in boundaries else ())
        return cls(boundaries, tuple(sorted(set(stored))), target, lines, _widths(content))

    def part(self, content: Content, which: str) -> Tensor | None:
        """One part of a checked record; None when it is not there."""
        aux, n = content.aux, self.target.n_layers
        boundary = int(which.removeprefix("boundary.")) if which.startswith("boundary.") else -1
        found: Unread | None = None
        if which in ("input_ids", "final", "last", "loss_mask", "positions"):
            found = getattr(content, which)
        elif which == "features" and isinstance(aux, tuple):
            states = [a.read() for a in aux]  # of one dtype, or torch finds the one that holds all, which it cannot for 8-bit floats
            return torch.cat([s.float() if s.dtype.itemsize == 1 else s for s in states], -1)
        elif which == "features":
            found = aux
        elif boundary in self.boundaries and aux is not None:
            at = self.boundaries.index(boundary)
            h = 0 if isinstance(aux, tuple) else aux.width // len(self.boundaries)
            found = aux[at] if isinstance(aux, tuple) else aux.map(lambda t: t[:, h * at : h * (at + 1)])
        elif boundary == n and n:
            found = content.last
        return None if found is None else found.read()


def _widths(content: Content) -> tuple[int, ...]:
    """Widths of the aux states of a checked record: of each, or of all side by side."""
    aux = content.aux if isinstance(content.aux, tuple) else () if content.aux is None else (content.aux,)
    return tuple(a.width for a in aux)


def _told(widths: tuple[int, ...]) -> str:
    return f"aux states {' + '.join(map(str, widths))} wide" if widths else "no aux states"


def _checked(content: Content, where: str) -> Content:
    """The record without the leading axes of one that some trainers keep; every part is an :class:`Unread` with one row per token.

    Raises
    ------
    UnreadableFile: a part that does not fit, or a tensor that is not what it seems.
    """
    several = isinstance(content.aux, (list, tuple))
    aux = [_part(a, 2) for a in (content.aux if several else (content.aux,))]
    parts: dict[str, Any] = {name: _part(getattr(content, name), 1) for name in ("input_ids", "loss_mask", "positions")}
    parts |= {name: _part(getattr(content, name), 2) for name in ("final", "last")}
    tokens = parts["input_ids"].shown.numel() if isinstance(parts["input_ids"], Unread) else 0
    for name, part in [*parts.items(), *(("features", a) for a in aux)]:
        if part is None and name != "input_ids" and not (name == "features" and several):
            continue
        problem = misfit(name, tuple(part.shown.shape), dtype_name(part.shown), tokens) if isinstance(part, Unread) else None
        if problem or not isinstance(part, Unread):
            hint = "a prefix found in a cache leaves fewer rows than tokens: write the dump with prefix caching off"
            raise UnreadableFile(problem or f"{name} {part or 'is no tensor'}", where=where, hint=hint)
    return replace(content, aux=(tuple(aux) or None) if several else aux[0], **parts)


def _part(value: Any, dims: int) -> Unread | str | None:
    """One part without leading axes of one, or how it is no plain tensor."""
    if isinstance(value, Tensor):
        tensor = value
        return unusual(tensor) or Unread(tensor, lambda: tensor).map(lambda t: flat(t, dims))
    if isinstance(value, Unread):
        return value.map(lambda t: flat(t, dims))
    return None if value is None else "is no tensor"


def flat(tensor: Tensor, dims: int) -> Tensor:
    """Without leading axes of one beyond ``dims`` axes."""
    while tensor.dim() > dims and tensor.shape[0] == 1:
        tensor = tensor[0]
    return tensor
