"""Bad input: whatever is wrong with a file, one clear error says what, where and what to do; nothing crashes and nothing is run."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import LIGHT, write_draft, write_dump, write_model
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from small import small_draft

from eagle3diag import errors
from eagle3diag.checkpoints import TensorFiles, open_draft, open_target
from eagle3diag.dumps import HiddenStates, open_dump
from eagle3diag.dumps.native import MANIFEST
from eagle3diag.errors import BadArgument, Eagle3DiagError, InputError, MissingPart, UnreadableFile, UnsafeFile


class Payload:
    """What a hostile checkpoint does: run a command while it is being read; this one leaves a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.mark}'",)


def header(path: Path, text: bytes, data: bytes = b"", length: int | None = None) -> None:
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def cut(path: Path, keep: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a JSON file; ``change`` works in place or returns the new content."""
    value = json.loads(path.read_text())
    changed = change(value)
    path.write_text(json.dumps(value if changed is None or not isinstance(changed, (dict, list)) else changed))


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

#: name -> (what is done to a sound draft's folder, the error, a word of its message, a word of its hint)
DRAFTS: dict[str, tuple[Callable[[Path], object], type[InputError], str, str]] = {
    "weights cut off": (lambda d: cut(d / "model.safetensors", 0.7), UnreadableFile, "cut off", "again"),
    "weights cut inside the header": (lambda d: cut(d / "model.safetensors", 0.01), UnreadableFile, "inside the header", "again"),
    "five bytes of weights": (lambda d: (d / "model.safetensors").write_bytes(b"abcde"), UnreadableFile, "cut off", "again"),
    "empty weights": (lambda d: (d / "model.safetensors").write_bytes(b""), UnreadableFile, "is empty", "again"),
    "bytes after the last tensor": (
        lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes() + b"x"), UnreadableFile, "1 bytes after", "again",
    ),
    "huge header": (lambda d: header(d / "model.safetensors", b"{}", length=1 << 62), UnreadableFile, "not a safetensors file", "again"),
    "header is a nesting bomb": (lambda d: header(d / "model.safetensors", b"[" * 2_000_000), UnreadableFile, "nests", ""),
    "header is not JSON": (lambda d: header(d / "model.safetensors", b'{"a": }'), UnreadableFile, "not valid JSON", "again"),
    "header is a list": (lambda d: header(d / "model.safetensors", b"[1]"), UnreadableFile, "not a JSON object", "again"),
    "header is not UTF-8": (lambda d: header(d / "model.safetensors", b'{"\xff": 1}'), UnreadableFile, "UTF-8", "again"),
    "header with a number of 5000 digits": (
        lambda d: header(d / "model.safetensors", b'{"a": ' + b"9" * 5000 + b"}"), UnreadableFile, "not usable JSON", "",
    ),
    "entry without a shape": (
        lambda d: header(d / "model.safetensors", json.dumps({"a": {"dtype": "F32"}}).encode()), UnreadableFile, "damaged", "again",
    ),
    "shape that does not fit its bytes": (
        lambda d: header(d / "model.safetensors", json.dumps({"a": ENTRY | {"shape": [3]}}).encode(), b"0" * 8), UnreadableFile, "8 bytes", "again",
    ),
    "shape of 10**60 elements": (
        lambda d: header(d / "model.safetensors", json.dumps({"a": ENTRY | {"shape": [10**20] * 3}}).encode(), b"0" * 8),
        UnreadableFile, "8 bytes", "again",
    ),
    "negative shape": (
        lambda d: header(d / "model.safetensors", json.dumps({"a": ENTRY | {"shape": [-2]}}).encode(), b"0" * 8), UnreadableFile, "damaged", "again",
    ),
    "overlapping tensors": (
        lambda d: header(d / "model.safetensors", json.dumps({"a": ENTRY, "b": ENTRY}).encode(), b"0" * 8), UnreadableFile, "starts at", "again",
    ),
    "LFS pointer": (
        lambda d: (d / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        UnreadableFile, "Git LFS pointer", "git lfs pull",
    ),
    "saved web page": (
        lambda d: (d / "model.safetensors").write_text("<!DOCTYPE html><html>404"), UnreadableFile, "web page", "fetch",
    ),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), MissingPart, "no weights here", ""),
    "no config": (lambda d: (d / "config.json").unlink(), MissingPart, "no config.json", "copy"),
    "config is empty": (lambda d: (d / "config.json").write_text(" "), UnreadableFile, "empty", ""),
    "config is not JSON": (lambda d: (d / "config.json").write_text('{"hidden_size": 32,}'), UnreadableFile, "not valid JSON", ""),
    "config is a list": (lambda d: (d / "config.json").write_text("[]"), UnreadableFile, "list", ""),
    "config is UTF-16": (lambda d: (d / "config.json").write_text("{}", encoding="utf-16"), UnreadableFile, "UTF-8", ""),
    "config is a nesting bomb": (lambda d: (d / "config.json").write_text('{"a":' * 500_000), UnreadableFile, "nests", ""),
    "config is a folder": (lambda d: (gone(d, "config.json") / "config.json").mkdir(), UnreadableFile, "is a folder", ""),
    "config lacks a field": (lambda d: edit(d / "config.json", lambda c: c.pop("hidden_size")), MissingPart, "hidden_size", "add hidden_size"),
    "speculators config without its layer": (
        lambda d: edit(d / "config.json", lambda c: {"speculators_model_type": "eagle3"}), MissingPart, "transformer_layer_config", "add",
    ),
    "index without the shard": (
        lambda d: index(gone(d), {"fc.weight": "model-1.safetensors"}), MissingPart, "model-1.safetensors", "download",
    ),
    "index that leaves its folder": (
        lambda d: index(gone(d), {"fc.weight": "../../etc/passwd"}), UnreadableFile, "not the name of a file", "",
    ),
    "index names a tensor that the shard lacks": (
        lambda d: index(renamed(d, "a.safetensors"), {"nothing": "a.safetensors"}), MissingPart, "nothing", "again",
    ),
    "index without a map": (lambda d: index(gone(d), {}), UnreadableFile, "weight_map", ""),
    "index with a number for a file": (lambda d: index(gone(d), {"a": 3}), UnreadableFile, "3 is not", ""),
    "shards of which one is not there": (
        lambda d: (d / "model.safetensors").rename(d / "model-00001-of-00002.safetensors"), MissingPart, "1 of 2 shards", "download",
    ),
    "two sets of weights": (
        lambda d: shutil.copy(renamed(d, "a.safetensors") / "a.safetensors", d / "b.safetensors"),
        UnreadableFile, "in both", "only one",
    ),
    "pickle with code": (lambda d: binary(d, {"fc.weight": Payload(d / "ran")}), UnsafeFile, "would run code", "safetensors"),
    "old pickle with code": (
        lambda d: (gone(d) / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(d / "ran"))),
        UnsafeFile, "would run code", "safetensors",
    ),
    "whole module pickled": (lambda d: binary(d, torch.nn.Linear(2, 2)), UnsafeFile, "would run code", "safetensors"),
    "TorchScript archive": (
        lambda d: torch.jit.script(torch.nn.Linear(2, 2)).save(gone(d) / "pytorch_model.bin"),
        UnsafeFile, "TorchScript", "safetensors",
    ),
    "bin cut off": (lambda d: cut(binary(d, {"a": torch.zeros(9999)}), 0.5), UnreadableFile, "truncated", "again"),
    "bin of text": (lambda d: (gone(d) / "pytorch_model.bin").write_text("hello world"), UnreadableFile, "torch.save", "again"),
    "bin without tensors": (lambda d: binary(d, {"epoch": 3}), UnreadableFile, "without tensors", "state dict"),
    "bin is some other zip": (lambda d: zipped(gone(d) / "pytorch_model.bin"), UnreadableFile, "torch.save", "again"),
    "GGUF": (
        lambda d: (gone(d) / "model.gguf").write_bytes(b"GGUF" + b"\0" * 99), MissingPart, "found config.json, model.gguf", "",
    ),
}  # fmt: skip


def index(folder: Path, weight_map: dict[str, Any]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def gone(folder: Path, name: str = "model.safetensors") -> Path:
    (folder / name).unlink()
    return folder


def renamed(folder: Path, name: str) -> Path:
    (folder / "model.safetensors").rename(folder / name)
    return folder


def binary(folder: Path, value: object) -> Path:
    torch.save(value, gone(folder) / "pytorch_model.bin")
    return folder / "pytorch_model.bin"


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "not weights")


def check(error: Eagle3DiagError, kind: type[Eagle3DiagError], word: str, hint: str) -> None:
    """The class, what, where and what to do; the message fits a screen."""
    assert isinstance(error, kind)
    assert word in error.what and error.where and hint in (error.hint or "")
    assert len(str(error)) < 1500


@pytest.mark.parametrize("case", DRAFTS)
def test_a_damaged_draft_has_one_clear_error(case: str, tmp_path: Path) -> None:
    """Every row of the table: the error's class, its words, the file it names, its advice. Nothing of the file is run."""
    damage, kind, word, hint = DRAFTS[case]
    damage(write_draft(tmp_path / "draft"))
    with pytest.raises(kind) as caught:
        open_draft(tmp_path / "draft")
    check(caught.value, kind, word, hint)
    assert str(tmp_path) in str(caught.value.where)
    assert not (tmp_path / "draft" / "ran").exists()


#: name -> (what is done to a dump of three records in three shards, the error, a word of its message)
DUMPS: dict[str, tuple[Callable[[Path], object], type[InputError], str]] = {
    "no manifest": (lambda d: (d / MANIFEST).unlink(), UnreadableFile, "manifest.json"),
    "manifest cut off": (lambda d: cut(d / MANIFEST, 0.5), UnreadableFile, "not valid JSON"),
    "manifest of a newer version": (lambda d: edit(d / MANIFEST, lambda m: m.update(version=2)), UnreadableFile, "version 2"),
    "manifest of another tool": (lambda d: edit(d / MANIFEST, lambda m: {"format_version": 2}), UnreadableFile, "not a native dump"),
    "manifest is a list": (lambda d: (d / MANIFEST).write_text("[]"), UnreadableFile, "list"),
    "manifest is a nesting bomb": (lambda d: (d / MANIFEST).write_text("[" * 500_000), UnreadableFile, "nests"),
    "manifest is Latin-1": (lambda d: (d / MANIFEST).write_bytes('{"é": 1}'.encode("latin-1")), UnreadableFile, "UTF-8"),
    "no records": (lambda d: edit(d / MANIFEST, lambda m: m.update(records=[])), MissingPart, "holds no records"),
    "records are a number": (lambda d: edit(d / MANIFEST, lambda m: m.update(records=3)), UnreadableFile, "records is 3"),
    "a record is a string": (lambda d: edit(d / MANIFEST, lambda m: m.update(records=["r0"])), UnreadableFile, "garbled"),
    "a record without its shard": (lambda d: edit(d / MANIFEST, lambda m: m["records"][0].pop("shard")), UnreadableFile, "shard is not there"),
    "a length of infinity": (
        lambda d: (d / MANIFEST).write_text((d / MANIFEST).read_text().replace('"tokens": 12', '"tokens": 1e999')), UnreadableFile, "tokens is inf",
    ),
    "another length": (lambda d: edit(d / MANIFEST, lambda m: m["records"][1].update(tokens=11)), UnreadableFile, "expected [11]"),
    "a name twice": (lambda d: edit(d / MANIFEST, lambda m: m["records"].append(m["records"][0])), UnreadableFile, "two records"),
    "an unknown side": (lambda d: edit(d / MANIFEST, lambda m: m.update(side="serve")), UnreadableFile, "side"),
    "no target": (lambda d: edit(d / MANIFEST, lambda m: m.update(target=None)), UnreadableFile, "expected an object"),
    "a count that is a word": (lambda d: edit(d / MANIFEST, lambda m: m.update(counters={"fc_calls": "many"})), UnreadableFile, "fc_calls"),
    "a shard is not there": (lambda d: (d / "shard-00001.safetensors").unlink(), MissingPart, "shard-00001.safetensors"),
    "a shard outside": (lambda d: edit(d / MANIFEST, lambda m: m["records"][0].update(shard="../x.safetensors")), UnreadableFile, "not the name"),
    "a shard cut off": (lambda d: cut(d / "shard-00002.safetensors", 0.8), UnreadableFile, "cut off"),
    "a tensor that is listed but absent": (
        lambda d: edit(d / MANIFEST, lambda m: m["records"][0]["boundaries"].append(9)), MissingPart, "r0/boundary.9",
    ),
    "another record's shard": (
        lambda d: edit(d / MANIFEST, lambda m: m["records"][0].update(shard="shard-00001.safetensors")), MissingPart, "r0/input_ids",
    ),
    "ids that are floats": (
        lambda d: save_file({"r0/input_ids": torch.zeros(12), **{f"r0/boundary.{b}": torch.zeros(12, 4) for b in (2, 3, 4)}},
                            d / "shard-00000.safetensors"), UnreadableFile, "whole numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DUMPS)
def test_a_damaged_dump_has_one_clear_error(case: str, tmp_path: Path) -> None:
    """Every row of the table, at opening: nobody learns of a missing shard in the middle of a replay."""
    damage, kind, word = DUMPS[case]
    damage(write_dump(tmp_path / "dump", max_shard_bytes=1))
    with pytest.raises(kind) as caught:
        open_dump(tmp_path / "dump")
    check(caught.value, kind, word, "")
    assert str(tmp_path) in str(caught.value.where)


OPENERS: list[Callable[[Any], object]] = [open_draft, open_target, open_dump]


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("what", ["absent", "a/name", "empty folder", "file", "pipe", "NUL", "long", "loop", "no path", "none", "empty"])
def test_a_path_that_is_nothing_of_the_kind(opener: Callable[[Any], object], what: str, tmp_path: Path) -> None:
    """Absent, the wrong kind, a pipe (which would block a reader), an unusable name, no path at all: an InputError that names it."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    given: Any = {
        "absent": tmp_path / "nothing", "a/name": "org/some-draft", "empty folder": tmp_path / "empty", "file": tmp_path / "file",
        "pipe": tmp_path / "pipe", "NUL": "a\0b", "long": "x" * 5000, "loop": tmp_path / "loop", "no path": 3, "none": None, "empty": "",
    }[what]  # fmt: skip
    with pytest.raises(InputError) as caught:
        opener(given)
    assert isinstance(caught.value, BadArgument) is (what in ("no path", "none", "empty"))
    if what == "a/name":
        assert "hf download org/some-draft" in str(caught.value)


@pytest.mark.parametrize("name", ["draft", "target", "dump"])
def test_a_folder_of_another_kind_says_so(name: str, tmp_path: Path) -> None:
    """A dump given as a draft or target, and the reverse."""
    write_draft(tmp_path / "draft")
    write_model(tmp_path / "target", small_draft().config.raw, {"a": torch.zeros(1)})
    write_dump(tmp_path / "dump")
    wrong = [open_draft, open_target] if name == "dump" else [open_dump]
    for opener in wrong:
        with pytest.raises(InputError):
            opener(tmp_path / name)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_file_that_may_not_be_read_is_named(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No permission, an I/O error: said as such, with the file. (Simulated: a superuser may read everything.)"""
    real = Path.open

    def refuse(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name == file:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *args, **kwargs)

    folder = write_draft(tmp_path / "d")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UnreadableFile, match="Permission denied") as caught:
        open_draft(folder)
    assert file in str(caught.value.where)


# ---- any damage at all ----


def read_all(path: Path) -> dict[str, torch.Tensor]:
    opened = TensorFiles.open(path)
    return {name: opened[name].clone() for name in opened}


def damaged(data: bytes, keep: int, flips: list[tuple[int, int]]) -> bytes:
    out = bytearray(data[:keep])
    for at, value in flips:
        if out:
            out[at % len(out)] ^= value
    return bytes(out)


FLIPS = st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 255)), min_size=1, max_size=4)


@LIGHT
@given(keep=st.integers(0, 3000))
def test_any_truncation_of_weights_is_found(keep: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A safetensors file that lost any number of bytes at its end is an UnreadableFile, never a read."""
    path = tmp_path_factory.mktemp("cut") / "model.safetensors"
    save_file({"fc.weight": torch.arange(600.0), "norm.weight": torch.ones(20).bfloat16()}, path)
    data = path.read_bytes()
    path.write_bytes(data[: min(keep, len(data) - 1)])
    with pytest.raises(UnreadableFile):
        read_all(path)


@LIGHT
@given(keep=st.integers(0, 900), flips=FLIPS)
def test_any_flipped_bytes_in_weights_are_found_or_read(
    keep: int, flips: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Header or data, any bytes: one of our errors, or tensors that fit what the header then says."""
    path = tmp_path_factory.mktemp("flip") / "model.safetensors"
    save_file({"fc.weight": torch.arange(60.0), "norm.weight": torch.ones(20).bfloat16(), "d2t": torch.arange(9)}, path)
    path.write_bytes(damaged(path.read_bytes(), 10_000 if keep > 400 else keep, flips))
    try:
        opened = TensorFiles.open(path)
        for name in opened:
            tensor, info = opened[name], opened.info(name)
            assert (tuple(tensor.shape), str(tensor.dtype)) == (info.shape, f"torch.{info.dtype}")
    except Eagle3DiagError as error:
        assert str(path) in str(error.where)


@LIGHT
@given(keep=st.integers(0, 1000), flips=FLIPS, old=st.booleans())
def test_any_damage_to_a_bin_is_found_or_read(
    keep: int, flips: list[tuple[int, int]], old: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The same for torch's two formats: one of our errors, or tensors."""
    path = tmp_path_factory.mktemp("bin") / "pytorch_model.bin"
    torch.save({"fc.weight": torch.arange(60.0), "d2t": torch.arange(9)}, path, _use_new_zipfile_serialization=not old)
    path.write_bytes(damaged(path.read_bytes(), 10_000 if keep > 500 else keep, flips))
    try:
        assert all(isinstance(t.sum().item(), (int, float, bool)) for t in read_all(path).values() if not t.is_complex())
    except Eagle3DiagError as error:
        assert str(path) in str(error.where)


@LIGHT
@given(keep=st.integers(0, 3000), flips=FLIPS)
def test_any_damage_to_a_manifest_is_found_or_read(
    keep: int, flips: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any bytes of a manifest lost or flipped: one of our errors at opening or at reading, or whole records."""
    folder = write_dump(tmp_path_factory.mktemp("manifest") / "d", records=2, max_shard_bytes=1)
    path = folder / MANIFEST
    path.write_bytes(damaged(path.read_bytes(), 10_000 if keep > 1500 else keep, flips))
    try:
        found: HiddenStates = open_dump(folder)
        for record in found:
            assert record.features.shape[0] == len(record.input_ids) == record.tokens
    except Eagle3DiagError as error:
        assert error.what


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(SCALARS, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3), max_leaves=6)
ELSEWHERE = {"rope_parameters", "rope_scaling", "transformer_layer_config", "speculators_model_type", "target_hidden_size"}
FIELDS = sorted(ELSEWHERE | small_draft().config.raw.keys())


@LIGHT
@given(changes=st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1, max_size=4))
def test_any_value_in_a_config_is_an_error_or_a_draft(changes: dict[str, Any]) -> None:
    """Whatever JSON stands in whatever field: a normalised config or an InputError that names the config."""
    try:
        found = small_draft().replace(config=changes).config
        assert found.hidden_size > 0 and found.n_aux > 0 and found.rope_theta > 0
    except InputError as error:
        assert isinstance(error, (MissingPart, UnreadableFile)) and error.where


@LIGHT
@given(change=JSON, field=st.sampled_from(["version", "side", "target", "engine", "engine_version", "ranks", "boundaries", "counters", "assumed",
                                           "complete", "records"]))  # fmt: skip
def test_any_value_in_a_manifest_is_an_error_or_a_dump(change: Any, field: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever JSON stands in whatever field of a manifest: a dump whose facts have their types, or an InputError."""
    folder = write_dump(tmp_path_factory.mktemp("field") / "d", records=1)
    edit(folder / MANIFEST, lambda m: m.update({field: change}))
    try:
        found = open_dump(folder)
        assert isinstance(found.engine, str) and isinstance(found.complete, bool) and all(type(b) is int for b in found.boundaries)
    except InputError as error:
        assert error.where


def test_no_bare_exception_leaves_the_readers() -> None:
    """The tables above use every class of bad input that reading can give."""
    used = {kind for _, kind, *_ in DRAFTS.values()} | {kind for _, kind, *_ in DUMPS.values()} | {BadArgument}
    assert used == {errors.UnreadableFile, errors.UnsafeFile, errors.MissingPart, errors.BadArgument}
