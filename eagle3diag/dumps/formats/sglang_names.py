"""Which boundary a module of an SGLang target shows in its outputs, and records from forwards in which they were written down."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from eagle3diag.checkpoints.tensors import dtype_name
from eagle3diag.dumps.formats.base import Asked
from eagle3diag.dumps.forwards import Forward, sequences
from eagle3diag.dumps.parts import stored_boundaries
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
        raise MissingPart("holds no forward of the target with its ids, positions and states", where=place.where)
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
        if states.dim() != 2 or states.shape[0] != len(forwards[forward].ids) or not states.is_floating_point():
            message = f"{part} of forward {forward} is {list(states.shape)}, expected a row for each of {len(forwards[forward].ids)} tokens"
            raise UnreadableFile(message, where=place.where)
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
            return torch.cat([rows(f, held)[a:b] for f, a, b in _pieces(one.rows)])

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
