"""Hostile and damaged dumps of other tools: one of our errors or whole records, whatever the bytes; nothing is run, no memory is exhausted."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import LIGHT, write_dump
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bad_input import Payload, damaged
from test_dumps_formats import FIXTURES, LAYOUTS, TARGET, save, truth, written

from eagle3diag.dumps import contents as contents_module
from eagle3diag.dumps import open_dump
from eagle3diag.errors import Eagle3DiagError, InputError, MissingPart, UnreadableFile, UnsafeFile

FEW = settings(LIGHT, max_examples=25)
FLIPS = st.lists(st.tuples(st.integers(0, 6000), st.integers(1, 255)), min_size=1, max_size=4)


def read_all(path: Path, **asked: Any) -> None:
    for record in open_dump(path, **asked):
        assert record.tokens == len(record.input_ids)
        for part in ("features", "final", "last", "loss_mask", "positions", *(f"boundary.{b}" for b in record.boundaries)):
            tensor = record.part(part)
            assert tensor is None or tensor.shape[0] == record.tokens


@LIGHT
@given(name=st.sampled_from(sorted(LAYOUTS)), at=st.floats(0, 1), flips=FLIPS, target=st.booleans(), which=st.integers(0, 9))
def test_any_damage_to_any_layout(
    name: str, at: float, flips: list[tuple[int, int]], target: bool, which: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bytes lost or flipped in any file of any format: an error that names a file there, or records whose parts fit."""
    folder = written(LAYOUTS[name], tmp_path_factory.mktemp("damage") / "d")
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    path = paths[which % len(paths)]
    data = path.read_bytes()
    path.write_bytes(damaged(data, int(len(data) * (at if at < 0.7 else 1)), flips if at > 0.3 else []))
    try:
        read_all(folder, target=TARGET if target else None)
    except Eagle3DiagError as error:
        assert str(folder) in str(error.where) and len(str(error)) < 1500


VALUES = st.none() | st.booleans() | st.integers(-3, 1 << 70) | st.floats() | st.text(max_size=5)
JSON = st.recursive(VALUES, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3), max_leaves=6)


@FEW
@given(field=st.sampled_from(["hidden_states", "cached_tokens", "id", "input_token_logprobs", "output_token_logprobs"]), value=JSON)
def test_any_value_in_a_response(field: str, value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever JSON stands in a field of a response."""
    folder = tmp_path_factory.mktemp("json")
    responses = json.loads((FIXTURES / "responses.json").read_text())
    responses[0]["meta_info"][field] = value
    (folder / "r.json").write_text(json.dumps(responses))
    try:
        read_all(folder)
    except InputError as error:
        assert error.where


@FEW
@given(field=st.sampled_from(["num_samples", "shard_size", "aux_hidden_dim", "aux_layer_ids"]), value=JSON)
def test_any_value_in_a_cache_manifest(field: str, value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever JSON stands in Automodel's manifest."""
    folder = written(LAYOUTS["NeMo Automodel"], tmp_path_factory.mktemp("cache") / "d")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {field: value}))
    try:
        read_all(folder)
    except InputError:
        pass


ODD: dict[str, Any] = {
    "no tensor": 3,
    "text": "abc",
    "none": None,
    "no rows": torch.zeros(0, 18),
    "a number": torch.tensor(3.0),
    "complex": torch.zeros(5, 18, dtype=torch.complex64),
    "whole numbers": torch.zeros(5, 18, dtype=torch.long),
    "sparse": torch.zeros(5, 18).to_sparse(),
    "on no device": torch.zeros(5, 18, device="meta"),
    "a repeated row": torch.zeros(1).expand(5, 1 << 40),
    "four axes": torch.zeros(5, 2, 3, 3),
    "another length": torch.zeros(4, 18),
    "a list of numbers": [1, 2, 3],
    "a list of none": [None],
    "a nested mapping": {"a": {"b": torch.zeros(5, 18)}},
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("aux_hidden_state", {"input_ids": truth(0).ids, "loss_mask": truth(0).mask, "hidden_state": truth(0).final}),
        ("hidden_state", {"input_ids": truth(0).ids, "loss_mask": truth(0).mask, "aux_hidden_state": truth(0).wide}),
        ("aux_hidden_states", {"input_ids": truth(0).ids, "hidden_states": truth(0).final}),
        ("target_hiddens", {"input_ids": truth(0).ids, "hidden_states": truth(0).wide}),
        ("hidden_states", {"input_ids": truth(0).ids, "loss_mask": truth(0).mask}),
        ("input_ids", {"loss_mask": truth(0).mask, "aux_hidden_state": truth(0).wide, "hidden_state": truth(0).final}),
    ],
)
def test_odd_values_in_place_of_tensors(odd: str, key: str, value: dict[str, Any], tmp_path: Path) -> None:
    """In each format's place, first file or later one: an error with the file's name, or a format that does not have that part."""
    for name in ("data_0", "data_1"):
        save(value | {key: torch.zeros(5, 18)}, tmp_path / f"{name}.ckpt")
    save(value | {key: ODD[odd]}, tmp_path / "data_1.ckpt")
    save(value | {key: ODD[odd]}, tmp_path / "alone" / "data_0.ckpt")
    for folder in (tmp_path, tmp_path / "alone"):
        try:
            read_all(folder)
        except Eagle3DiagError as error:
            assert str(tmp_path) in str(error.where)


def test_pickles_with_code_are_refused_with_what_to_do(tmp_path: Path) -> None:
    """Alone, among sound files, gzipped, inside numpy: never run, and the hint is how to save instead."""
    mark = tmp_path / "ran"
    bad = {"input_ids": truth(0).ids, "loss_mask": truth(0).mask, "hidden_state": Payload(mark), "aux_hidden_state": truth(0).wide}
    save(bad, tmp_path / "alone" / "data_0.ckpt")
    save(bad, tmp_path / "gz" / "data_0.ckpt")
    raw = (tmp_path / "gz" / "data_0.ckpt").read_bytes()
    (tmp_path / "gz" / "data_0.ckpt").write_bytes(gzip.compress(raw))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "data.pkl").write_bytes(pickle.dumps(bad["hidden_state"]))
    written(LAYOUTS["SpecForge"], tmp_path / "among")
    save(bad, tmp_path / "among" / "rows_0-2000" / "data_1.ckpt")
    for folder in ("alone", "gz", "old"):
        with pytest.raises(UnsafeFile, match="would run code") as caught:
            open_dump(tmp_path / folder)
        assert "safetensors" in str(caught.value.hint)
    with pytest.raises(UnsafeFile, match="would run code"):
        read_all(tmp_path / "among")
    np.savez(tmp_path / "a.npz", ids=np.arange(3), h=np.array([Payload(mark)], dtype=object))
    with pytest.raises(UnsafeFile, match="Python objects"):
        read_all(tmp_path / "a.npz", mapping={"input_ids": "ids", "features": "h"})
    assert not mark.exists()


HUGE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"
CODE = b"__import__('os').system('touch ran')"
BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a gzip that unpacks to gigabytes": ("data_0.ckpt.gz", lambda: gzip.compress(b"\x80" + bytes(1 << 24))),
    "JSON that nests": ("r.json", lambda: b"[" * 2_000_000),
    "JSON with a huge number": ("r.json", lambda: b'{"meta_info": ' + b"9" * 5000 + b"}"),
    "an array of a million million rows": ("a.npz", lambda: _npz(HUGE)),
    "a header of numpy that is code": ("a.npz", lambda: _npz(CODE)),
    "a torch archive with a giant storage": ("data_0.ckpt", lambda: b"PK\x03\x04" + bytes(200)),
    "a pointer of Git LFS": ("hs_0.safetensors", lambda: b"version https://git-lfs.github.com/spec/v1\n"),
    "a web page": ("hs_0.safetensors", lambda: b"<!DOCTYPE html><html>"),
    "nothing": ("hs_0.safetensors", lambda: b""),
    "text": ("hs_0.safetensors", lambda: b"hello"),
}  # fmt: skip


def _npz(header: bytes) -> bytes:
    """An archive with one member ``ids`` of this header and no data."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("ids.npy", b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117) + b"\n")
    return held.getvalue()


@pytest.mark.parametrize("bomb", BOMBS)
def test_files_made_to_hurt(bomb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is refused with its name, within a gigabyte of memory."""
    monkeypatch.setattr(contents_module, "MAX_UNPACKED", 1 << 22)
    monkeypatch.chdir(tmp_path)
    name, make = BOMBS[bomb]
    (tmp_path / name).write_bytes(make())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((UnreadableFile, MissingPart)) as caught:
        read_all(tmp_path, mapping={"input_ids": "ids"} if name.endswith("npz") else None)
    assert str(tmp_path) in str(caught.value.where)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20 and not (tmp_path / "ran").exists()


def test_a_shard_that_is_cut_off_while_it_is_read(tmp_path: Path) -> None:
    """Between two records, when it is mapped already: an error with both sizes, where touching it would end the process. A shard that another
    took the place of, or that was removed, is read on from the mapping."""
    found = open_dump(write_dump(tmp_path / "d", records=3))
    shard = tmp_path / "d" / "shard-00000.safetensors"
    first, whole = found[0].state(2).clone(), shard.read_bytes()
    shard.rename(tmp_path / "moved")
    assert torch.equal(found[0].state(2), first)
    shard.write_bytes(b"another")
    assert torch.equal(found[0].state(2), first)
    (tmp_path / "moved").rename(shard)
    os.truncate(shard, len(whole) // 2)
    with pytest.raises(UnreadableFile, match=f"{len(whole):,} bytes when it was opened, {len(whole) // 2:,} now") as caught:
        found[1].state(2)
    assert caught.value.where == str(shard) and "writer is done" in str(caught.value.hint)


def test_a_row_too_few_is_explained(tmp_path: Path) -> None:
    """States of a tail only, as a prefix cache leaves them: the numbers, and the cause to look at."""
    r = truth(0)
    save({"input_ids": r.ids, "loss_mask": r.mask, "hidden_state": r.final[1:], "aux_hidden_state": r.wide[1:]}, tmp_path / "data_0.ckpt")
    with pytest.raises(UnreadableFile, match=r"\[4, 6\], expected \[5, width\]") as caught:
        open_dump(tmp_path)
    assert "prefix cach" in str(caught.value.hint)
