"""Hostile and damaged dumps of other tools: one of our errors or whole records, whatever the bytes; nothing is run, no memory is exhausted."""

from __future__ import annotations

import ast
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
from builders import LIGHT
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from test_bad_input import Payload, damaged
from test_dumps_formats import FIXTURES, LAYOUTS, TARGET, save, truth, written

import eagle3diag
from eagle3diag.dumps import DumpWriter, TargetIdentity, open_dump
from eagle3diag.dumps import contents as contents_module
from eagle3diag.errors import BadArgument, Eagle3DiagError, InputError, MissingPart, UnreadableFile, UnsafeFile

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
    took the place of, or that was removed, is read on from the mapping; what is not mapped is not looked for in another file."""
    states = torch.randn(3, 50, 400)
    with DumpWriter(tmp_path / "d", side="train", target=TargetIdentity("toy", "0", "float32", 4, 400), engine="transformers") as writer:
        for i, state in enumerate(states):
            writer.add(name=str(i), input_ids=torch.arange(50), states={2: state})
    found = open_dump(tmp_path / "d")
    shard = tmp_path / "d" / "shard-00000.safetensors"
    whole = shard.read_bytes()
    assert torch.equal(found[0].state(2), states[0])
    shard.rename(tmp_path / "moved")
    assert torch.equal(found[0].state(2), states[0])
    with pytest.raises(UnreadableFile, match="No such file"):
        _ = found[0].input_ids
    shard.write_bytes(whole)
    assert torch.equal(found[1].state(2), states[1])
    with pytest.raises(UnreadableFile, match="another file took its place"):
        _ = found[1].input_ids
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


def _linked(d: Path, to: str, name: str = "hs_0.safetensors") -> None:
    (d / name).symlink_to(to)


def _deep(d: Path) -> None:
    (d / "/".join("d" * 40)).mkdir(parents=True)


PLACES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a link to nothing": (lambda d: _linked(d, "nowhere"), "a link to nothing, or removed"),
    "a link to itself": (lambda d: _linked(d, "hs_0.safetensors"), "rights"),
    "a device that never ends": (lambda d: _linked(d, "/dev/zero"), "leave only the files of the dump"),
    "a manifest that never ends": (lambda d: _linked(d, "/dev/zero", "manifest.json"), "check the path"),
    "a pipe": (lambda d: os.mkfifo(d / "hs_0.safetensors"), "leave only the files of the dump"),
    "folders without end": (_deep, "the folder of the dump itself"),
    "nothing": (lambda d: None, "mapping"),
    "hidden files": (lambda d: (d / ".hs_0.safetensors").touch(), "mapping"),
    "locks": (lambda d: (d / "hs_0.safetensors.lock").touch(), "mapping"),
    "lists without end": (lambda d: (d / "r.json").write_text("[" * 900 + "]" * 900), "mapping"),
    "responses in responses": (lambda d: (d / "r.json").write_text('{"response":' * 900 + "1" + "}" * 900), "mapping"),
}  # fmt: skip


@pytest.mark.skipif(os.name != "posix", reason="pipes, links and names of any bytes")
@pytest.mark.parametrize("place", PLACES)
def test_odd_folders(place: str, tmp_path: Path) -> None:
    """What may lie where a dump should: one of our errors, with what to do, and nothing hangs."""
    make, word = PLACES[place]
    make(tmp_path)
    with pytest.raises(InputError) as caught:
        read_all(tmp_path)
    assert word in str(caught.value.hint) and str(caught.value).encode()


@pytest.mark.skipif(os.name != "posix", reason="names of any bytes")
def test_a_name_that_is_no_utf_8_is_read_like_any(tmp_path: Path) -> None:
    """Whatever bytes the system allows in it."""
    source = tmp_path / "hs_0.safetensors"
    save_file({"hidden_states": torch.ones(5, 4, 6), "token_ids": truth(0).ids}, source)
    source.rename(os.fsdecode(os.fsencode(tmp_path) + b"/hs_\xff.safetensors"))
    read_all(tmp_path)
    assert torch.equal(open_dump(tmp_path)[0].input_ids, truth(0).ids)


@pytest.mark.parametrize(
    "name", [n for n in LAYOUTS if not n.startswith(("NeMo", "TensorRT", "TorchSpec"))]
)  # these open all files at once
def test_files_that_vanish_after_the_listing(name: str, tmp_path: Path) -> None:
    """A cleaning job behind the reader's back: the records that are gone are errors with their name, the others are read."""
    folder = written(LAYOUTS[name], tmp_path / "d")
    found = open_dump(folder)
    kept = found[0].input_ids
    gone = sorted(p for p in folder.rglob("*") if p.is_file() and p.stem.partition(".")[0] == found.names[-1].partition(".")[0])
    for path in gone:
        path.unlink()
    assert torch.equal(found[0].input_ids, kept)
    with pytest.raises(UnreadableFile, match="is not there") as caught:
        _ = found[len(found) - 1].input_ids
    assert str(gone[0]) == caught.value.where


def test_every_record_is_laid_out_as_the_first(tmp_path: Path) -> None:
    """Another width or number of states in a later file would be cut at the wrong places: it is refused by name. As many boundaries as states
    are asked for where states lie one by one, whatever divides their widths."""
    r = truth(1)
    for i, wide in enumerate((r.wide, r.wide[:, :12], None)):
        value = {"input_ids": r.ids, "loss_mask": r.mask, "hidden_state": r.final}
        save(value | {"aux_hidden_state": torch.zeros(6, 9, 6) if wide is None else wide}, tmp_path / "wide" / f"data_{i}.ckpt")
    for i, states in enumerate(([*r.states, r.last], [*r.states[:2], r.last])):
        save({"input_ids": r.ids, "loss_mask": r.mask, "hidden_states": states}, tmp_path / "list" / f"data_{i}.pt")
    for folder, said in (("wide", "aux states 12 wide, where data_0.ckpt holds aux states 18 wide"), ("list", r"6 \+ 6 wide")):
        found = open_dump(tmp_path / folder, boundaries=(2, 10, 17))
        assert torch.equal(found[0].state(10), r.states[1])
        with pytest.raises(UnreadableFile, match=said) as caught:
            _ = found[1].tokens
        assert "of one dump" in str(caught.value.hint) and "data_1" in str(caught.value.where)
    with pytest.raises(BadArgument, match="2 boundaries do not fit 3 states"):
        open_dump(tmp_path / "list", boundaries=(2, 10))


def test_states_of_several_dtypes_are_joined(tmp_path: Path) -> None:
    """8-bit floats beside others, which torch joins with nothing."""
    r = truth(0)
    small = r.states[0].to(torch.float8_e4m3fn)
    save({"input_ids": r.ids, "loss_mask": r.mask, "hidden_states": [small, *r.states[1:], r.last]}, tmp_path / "data_0.pt")
    expected = torch.cat([small.float(), *(s.float() for s in r.states[1:])], -1)
    assert torch.equal(open_dump(tmp_path)[0].features.float(), expected)


FORWARDS: dict[str, tuple[str, Any]] = {
    "positions that are no whole numbers": ("positions", lambda t: t.float()),
    "ids that are true or false": ("input_ids", lambda t: t.bool()),
    "sparse ids": ("input_ids", lambda t: t.to_sparse()),
    "text for positions": ("positions", lambda t: "abc"),
    "narrower states": ("norm", lambda t: t[..., :4]),
    "states in another dtype": ("norm", lambda t: t.half()),
    "sparse states": ("norm", lambda t: t.to_sparse()),
}


@pytest.mark.parametrize("tool", ["dumper", "passes"])
@pytest.mark.parametrize("odd", FORWARDS)
def test_odd_forwards_of_sglang(odd: str, tool: str, tmp_path: Path) -> None:
    """Whatever one forward of SGLang's dumps holds in place of its ids, positions or states: an error that says what of it."""
    with zipfile.ZipFile(FIXTURES / f"{tool}.zip") as archive:
        archive.extractall(tmp_path)
    what, change = FORWARDS[odd]
    files = sorted(tmp_path.rglob("*.pt"))
    if tool == "dumper":
        words = "model.norm.output" if what == "norm" else f"name={what}___"
        path = next(p for p in files if words in p.name and "step=1___" in p.name)
        value = torch.load(path, weights_only=True)
        value["value"] = change(value["value"])
    else:
        path = next(p for p in files if p.name == "Pass00001.pt")
        value = torch.load(path, weights_only=True)
        key = "model.norm" if what == "norm" else f"model.forward_batch_info.{what}"
        value[key] = [change(t) for t in value[key]] if what == "norm" else change(value[key])
    torch.save(value, path)
    with pytest.raises(UnreadableFile) as caught:
        read_all(tmp_path)
    assert str(tmp_path) in str(caught.value.where) and caught.value.hint


def test_every_error_of_a_reader_says_what_to_do() -> None:
    """In the source of all readers: whatever is wrong with a file, the error has a hint."""
    package = Path(eagle3diag.__file__).parent
    sources = [*(package / "dumps" / "formats").glob("*.py"), *(package / "dumps" / f"{n}.py" for n in ("contents", "places", "remote"))]
    for source in [*sources, package / "files.py"]:
        for node in ast.walk(ast.parse(source.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("UnreadableFile", "UnsafeFile", "MissingPart")
            ):
                assert "hint" in {k.arg for k in node.keywords}, f"{source.name}:{node.lineno}"
