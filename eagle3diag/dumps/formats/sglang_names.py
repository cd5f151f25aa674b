"""Which boundary a module of an SGLang target shows in its outputs, and records from forwards in which they were written down."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from eagle3diag.checkpoints.pickled import unusual
from eagle3diag.checkpoints.tensors import dtype_name
from eagle3diag.dumps.formats.base import Asked, printable
from eagle3diag.dumps.forwards import Forward, sequences
from eagle3diag.dumps.parts import misfit, stored_boundaries
from eagle3diag.dumps.places import Place
from eagle3diag.dumps.records import HiddenStates, LazyRecords, Record, TargetIdentity
from eagle3diag.errors import MissingPart, UnreadableFile

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.input_layernorm$")
FINAL, LAST = "final", "last"


def state_of(module: str, output: int) -> str | None:
    """The part that output number ``output`` of a module is: ``input_layernorm`` gives (normed, residual entering its layer), ``norm``
    (final state, residual after the last layer), as read in SGLang 0.5.23 and as its hooks show.

    >>> state_of("model.layers.3.input_layernorm", 1), state_of("model.norm", 0), state_of("model.layers.3.input_layernorm", 0)
    ('boundary.3', 'final', None)
    """
    layer = _LAYER.search(module)
    if layer and output == 1 and int(layer[1]):
        return f"boundary.{int(layer[1])}"
    if module.endswith("embed_tokens") and output == 0:
        return "boundary.0"
    if module == "model.norm" or module.endswith(".model.norm"):
        return (FINAL, LAST)[output] if output < 2 else None
    return None


def depth(parts: Iterable[str]) -> int:
    """The highest boundary among part names: what tells the target's forwards from the draft's."""
    return max(stored_boundaries(parts), default=-1)


def forward(ids: Any, positions: Any, lengths: Any, where: str, requests: Any = ()) -> Forward:
    """One forward, of what was written down of it: its ids and positions [N], lengths and names of requests where they were.

    Raises
    ------
    UnreadableFile: ids or positions that are not whole numbers, one for each row.
    """
    if not (_whole(ids) and _whole(positions) and ids.dim() == 1 and positions.shape == ids.shape):
        raise UnreadableFile("its input_ids and positions are not whole numbers, one of each for a row", where=where, hint="dump again")
    named = isinstance(requests, (list, tuple)) and all(isinstance(r, (str, int)) for r in requests)
    counted = tuple(lengths.tolist()) if _whole(lengths) and lengths.dim() == 1 else ()
    return Forward(ids, positions, counted, tuple(printable(str(r)) for r in requests) if named else ())


def _whole(value: Any) -> bool:
    return isinstance(value, Tensor) and not unusual(value) and dtype_name(value).startswith(("int", "uint"))


def assemble(
    name: str,
    place: Place,
    forwards: Sequence[Forward],
    parts: Sequence[Mapping[str, Callable[[], Tensor]]],
    asked: Asked,
    assumed: tuple[str, ...],
    ranks: int,
) -> HiddenStates:
    """A dump of the sequences in ``forwards``; ``parts[i]`` reads each part's rows [N, H] of forward ``i``."""
    found, left_out = sequences(forwards)
    if not found:
        hint = "dump the target's forwards from their first token on, with their ids and positions"
        raise MissingPart("holds no forward of the target with its ids, positions and states", where=place.where, hint=hint)
    everywhere = sorted(set.intersection(*(set(p) for p in parts)))
    stored = set(stored_boundaries(everywhere))
    blocks = asked.target.n_layers if asked.target else (max(stored) + 1 if stored and LAST in everywhere else 0)
    if blocks and LAST in everywhere:
        stored.add(blocks)
    declared = asked.boundaries or ()
    if not set(declared) <= stored:
        lost = sorted(set(declared) - stored)
        held = ", ".join(map(str, sorted(stored))) or "none"
        raise MissingPart(f"boundary {lost[0]} was not written; written are {held}", where=place.where, hint="dump that layer too")

    @lru_cache(maxsize=64)
    def rows(forward: int, part: str) -> Tensor:
        states = parts[forward][part]()
        problem = unusual(states) or misfit(part, tuple(states.shape), dtype_name(states), len(forwards[forward].ids))
        if problem:
            raise UnreadableFile(f"forward {forward}: {part}: {problem}", where=place.where, hint="dump again")
        return states

    def record(number: int) -> Record:
        one = found[number]

        def part(which: str) -> Tensor | None:
            if which == "input_ids":
                return torch.tensor(one.tokens)
            if which == "positions":
                return torch.arange(one.start, one.stop) if one.start else None
            held = LAST if which == f"boundary.{blocks}" and blocks else which
            if held not in everywhere:
                return None
            pieces = [rows(f, held)[a:b] for f, a, b in _pieces(one.rows)]
            if len({(p.shape[1], p.dtype) for p in pieces}) > 1:
                raise UnreadableFile(
                    f"{held} changes its width or dtype between forwards", where=place.where, hint="dump one server at a time"
                )
            return torch.cat(pieces)

        return Record(one.name, len(one.tokens), None, tuple(sorted(stored)), declared, part)

    sample = rows(found[0].rows[0][0], everywhere[0]) if everywhere else None
    dtype = "" if sample is None else dtype_name(sample)
    unknown = TargetIdentity("unknown", "", dtype, blocks, 0 if sample is None else sample.shape[1])
    lines = (f"read as {name}", *assumed)
    lines += ("the files do not say which boundaries the draft takes: pass boundaries=",) if not declared else ()
    lines += (f"{left_out} rows are left out: draft trees, or tokens whose beginning was not dumped",) if left_out else ()
    return HiddenStates(
        LazyRecords([s.name for s in found], record),
        side=asked.side or "live",
        target=asked.target or unknown,
        engine="sglang",
        boundaries=declared,
        assumed=lines,
        path=place.where,
        ranks=ranks,
    )


def _pieces(rows: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Runs of neighbouring rows of one forward: (forward, first, stop)."""
    made: list[tuple[int, int, int]] = []
    for forward, row in rows:
        if made and made[-1][0] == forward and made[-1][2] == row:
            made[-1] = (forward, made[-1][1], row + 1)
        else:
            made.append((forward, row, row + 1))
    return made
