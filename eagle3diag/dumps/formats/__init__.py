"""The table of readers, and the one place where a folder or file is recognised, by what is in it."""

from __future__ import annotations

from pathlib import Path

from eagle3diag.dumps.formats import (
    angelslim,
    automodel,
    ge_data,
    modelopt,
    plain,
    sglang_dumper,
    sglang_passes,
    sglang_responses,
    specforge,
    speculators,
    tensorrt_llm,
    torchspec,
)
from eagle3diag.dumps.formats.base import Asked, Format
from eagle3diag.dumps.formats.mapped import listed, read_mapped
from eagle3diag.dumps.places import Place
from eagle3diag.dumps.records import HiddenStates
from eagle3diag.errors import InputError, UnreadableFile, UnsafeFile
from eagle3diag.files import meant_hint

#: Every reader, the more telling first. A new format is one new file and one line here.
FORMATS: tuple[Format, ...] = (
    automodel.FORMAT,
    torchspec.FORMAT,
    sglang_dumper.FORMAT,
    sglang_passes.FORMAT,
    sglang_responses.FORMAT,
    speculators.V2,
    speculators.V1,
    modelopt.FORMAT,
    angelslim.FORMAT,
    specforge.FORMAT,
    ge_data.RESEARCH,
    ge_data.ALONE,
    tensorrt_llm.FORMAT,
    plain.FORMAT,
)

#: What trainers write beside the states: vocabulary maps, counts, the state of a run.
SIDECARS = ("d2t", "t2d", "vocab_mapping", "token_freq", "target_embeddings", "training_", "optimizer", "scheduler")

#: Files tried of each ending before a folder is called unknown.
TRIED = 8


def read_foreign(place: Place, asked: Asked) -> HiddenStates:
    """The dump at ``place``, of whatever format its files show.

    Raises
    ------
    UnreadableFile: no file is of a known format. UnsafeFile: the only candidates would have to be unpickled. Others as the readers say.
    """
    if asked.mapping is not None:
        return read_mapped(place, asked)
    tried: dict[str, int] = {}
    refused: UnsafeFile | None = None
    damaged: InputError | None = None
    seen = ""
    for name in place.names:
        ending = _ending(name)
        tried[ending] = tried.get(ending, 0) + 1
        if tried[ending] > TRIED or _is_sidecar(name):
            continue
        try:
            value = place.open(name)
        except UnsafeFile as error:
            refused = refused or error
            continue
        except InputError as error:
            damaged = damaged or error
            continue
        found = next((f for f in FORMATS if f.fits(name, value)), None)
        if found is not None:
            return found.read(place, _alike(place, name), asked)
        seen = seen or f"{name} holds {listed(value)}"
    if refused is not None:
        raise refused
    if damaged is not None and not seen:
        raise damaged
    message = f"holds no manifest.json of ours and no dump of a known format{'; ' + seen if seen else ', and no files at all'}"
    say = "say which tensor is which: --names input_ids=NAME,features=NAME, in Python open_dump(path, mapping={...}); see docs/formats.md"
    meant = meant_hint(Path(place.where), "dump") if place.local else None
    raise UnreadableFile(message, where=place.where, hint=meant or say)


def _alike(place: Place, name: str) -> tuple[str, ...]:
    """``name`` first, then the others of its ending: the records. One that turns out to be something else is an error that names it."""
    return (name, *(n for n in place.names if n != name and _ending(n) == _ending(name) and not _is_sidecar(n)))


def _ending(name: str) -> str:
    return ".".join(name.lower().rsplit(".", 2)[1:]) if name.lower().endswith(".gz") else name.lower().rpartition(".")[2]


def _is_sidecar(name: str) -> bool:
    return name.rpartition("/")[2].startswith(SIDECARS)


__all__ = ["FORMATS", "read_foreign"]
