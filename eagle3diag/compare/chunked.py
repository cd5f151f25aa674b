"""Records worked through chunk by chunk: here, from where an earlier run was interrupted, or by the nodes of a Ray cluster."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from eagle3diag.compare import on_cores
from eagle3diag.compare.partial import Partial, join, read, write
from eagle3diag.errors import BadArgument, InputError, UnreadableFile
from eagle3diag.files import read_json, unused
from eagle3diag.findings import write_atomically
from eagle3diag.progress import track

#: Stored values of one side in a chunk: a second or two of work, lost at most when it is interrupted.
CHUNK_VALUES = 1 << 26
_FORMAT, _STATE = "eagle3diag-work", "state.json"


@dataclass(frozen=True)
class Elsewhere:
    """The same work as a task for another machine: ``do(shared, wanted(numbers))``, all of it picklable."""

    do: Callable[[Any, Any], Partial]
    shared: Any
    wanted: Callable[[range], Any]


def work(
    label: str,
    tokens: Sequence[int],
    width: int,
    here: Callable[[int], Callable[[], Partial]],
    *,
    resume: str | os.PathLike[str] | None = None,
    bound: Callable[[], str] = str,
    ray: str | None = None,
    elsewhere: Callable[[], Elsewhere] | None = None,
) -> Partial:
    """What all records give, in their order; ``tokens`` of each, ``width`` of a token in values.

    Parameters
    ----------
    here: opens one record, and returns what is left to do with it (``eagle3diag.compare.on_cores``). elsewhere: says how another machine
        does a run of records, for ``ray``, the cluster's address.
    resume: a folder in which finished chunks are kept, and taken up again when ``bound()``, the digest of all that matters, is the same.

    Raises
    ------
    BadArgument: ``resume`` holds the state of other work. MissingDependency: ``ray`` is not installed. Errors of ``here`` pass through.
    """
    chunks = cut(tokens, max(CHUNK_VALUES // max(width, 1), 1))
    state = None if resume is None else _State(Path(resume), bound(), len(chunks))
    done = {} if state is None else state.done()
    todo = [i for i in range(len(chunks)) if i not in done]
    if ray is None or elsewhere is None:
        made = _here(here, chunks, todo)
    else:
        from eagle3diag.compare.on_ray import run

        there = elsewhere()
        made = run(there.do, there.shared, ((i, there.wanted(chunks[i])) for i in todo), ray)
    sizes = [sum(tokens[n] for n in chunk) for chunk in chunks]
    start = sum(sizes[i] for i in done)
    with closing(made):
        for i, part in track(made, label, sum(sizes) - start, size=lambda one: sizes[one[0]], unit="tokens"):
            done[i] = part
            if state is not None:
                state.keep(i, part)
    return join([done[i] for i in range(len(chunks))])


def _here(
    here: Callable[[int], Callable[[], Partial]], chunks: Sequence[range], todo: Sequence[int]
) -> Generator[tuple[int, Partial], None, None]:
    """``(number, part)`` of every chunk, made of its records on the cores of this machine."""
    with closing(on_cores.run(here, [n for i in todo for n in chunks[i]])) as parts:
        for i in todo:
            yield i, join(list(islice(parts, len(chunks[i]))))


def cut(tokens: Sequence[int], most: int) -> tuple[range, ...]:
    """Runs of records of at most so many tokens each, or of one record.

    >>> cut([5, 5, 20, 1, 1], 10)
    (range(0, 2), range(2, 3), range(3, 5))
    """
    made, first, held = [], 0, 0
    for i, n in enumerate(tokens):
        if i > first and held + n > most:
            made.append(range(first, i))
            first, held = i, 0
        held += n
    return (*made, range(first, len(tokens))) if tokens else ()


def digest(*what: object) -> str:
    """Of plain values and tensors, of this release, and of torch, whose kernels may differ in the last bit."""
    from eagle3diag import __version__

    made = hashlib.sha256(json.dumps([__version__, torch.__version__]).encode())
    for one in what:
        made.update(one.contiguous().numpy().tobytes() if isinstance(one, torch.Tensor) else json.dumps(one).encode())
    return made.hexdigest()


class _State:
    """Finished chunks in a folder: one file each, written atomically, bound to one piece of work."""

    def __init__(self, folder: Path, bound: str, chunks: int) -> None:
        self._folder, self._chunks = folder, chunks
        held = self._held()
        if held is None:
            try:
                write_atomically(folder / _STATE, json.dumps({"format": _FORMAT, "bound": bound, "chunks": chunks}) + "\n")
            except OSError as error:
                raise BadArgument(
                    f"cannot be written: {error.strerror or error}", where=folder, hint="name a folder of your own"
                ) from error
        elif held.get("format") != _FORMAT or held.get("bound") != bound or held.get("chunks") != chunks:
            raise BadArgument(
                "holds the state of other work: other dumps, other arguments, or another release of eagle3diag or torch",
                where=folder,
                hint="give the arguments of the run that was interrupted, or an empty folder",
            )

    def _held(self) -> dict[str, Any] | None:
        if (self._folder / _STATE).is_file():
            return read_json(self._folder / _STATE)
        unused(self._folder, "this one is not that of an interrupted run")
        return None

    def _path(self, chunk: int) -> Path:
        return self._folder / f"part-{chunk:06d}.safetensors"

    def done(self) -> dict[int, Partial]:
        """The chunks that are there; a damaged file is one that is not."""
        found = {}
        for i in range(self._chunks):
            try:
                found[i] = read(self._path(i))
            except (InputError, KeyError, TypeError, ValueError):
                continue
        return found

    def keep(self, chunk: int, part: Partial) -> None:
        try:
            write(part, self._path(chunk))
        except OSError as error:
            raise UnreadableFile(f"cannot be written ({error.strerror})", where=self._path(chunk), hint="free some space") from error
