"""Dumps behind a URL: read as local ones are, and of safetensors files no more is fetched than what is asked for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import write_dump
from safetensors.torch import save_file
from test_dumps_formats import LAYOUTS, TARGET, safe, truth, written

from eagle3diag.dumps import DumpWriter, TargetIdentity, open_dump, remote, stamp
from eagle3diag.errors import BadArgument, MissingPart, UnreadableFile

fsspec = pytest.importorskip("fsspec")


class Wire:
    """The bytes that crossed it: ``pieces`` of ranges, and names of ``whole`` files."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, int, int]] = []
        self.whole: list[str] = []

    def taken(self) -> int:
        """Bytes of ranges since the last time it was asked."""
        total = sum(stop - start for _, start, stop in self.pieces)
        self.pieces.clear()
        return total


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """fsspec's file system in memory, watched."""
    fs, watched = fsspec.filesystem("memory"), Wire()
    piece, whole = type(fs).cat_file, type(fs).get_file

    def cat_file(self: Any, path: str, start: int, end: int, **rest: Any) -> Any:
        watched.pieces.append((path, start, end))
        return piece(self, path, start=start, end=end, **rest)

    def get_file(self: Any, path: str, into: str, **rest: Any) -> Any:
        watched.whole.append(path)
        return whole(self, path, into, **rest)

    monkeypatch.setattr(type(fs), "cat_file", cat_file)
    monkeypatch.setattr(type(fs), "get_file", get_file)
    yield watched
    fs.rm("/", recursive=True)


def upload(folder: Path, name: str) -> str:
    fsspec.filesystem("memory").put(str(folder), f"/bucket/{name}", recursive=True)
    return f"memory://bucket/{name}"


T, W = 40, 3000
TALL = TargetIdentity("wide", "", "bfloat16", 20, W)


def sample(i: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(i)
    return {f"{b}": torch.randn(T, W, generator=g).bfloat16() for b in (2, 10, 17, 20)} | {"ids": torch.arange(T) + i}


def native(folder: Path) -> None:
    with DumpWriter(folder, side="train", target=TALL, engine="x", boundaries=(2, 10, 17)) as writer:
        for i in range(3):
            held = sample(i)
            writer.add(name=f"r{i}", input_ids=held["ids"], states={b: held[str(b)] for b in (2, 10, 17)})


def speculators(folder: Path) -> None:
    for i in range(3):
        held = sample(i)
        states = torch.stack([held[str(b)] for b in (2, 10, 17, 20)], 1)
        safe({"hidden_states": states, "token_ids": held["ids"]}, folder / f"hs_{i}.safetensors")


def one_file(folder: Path) -> None:
    held = {f"s{i}.{name}": t for i in range(3) for name, t in sample(i).items()}
    safe(held, folder / "all.safetensors")


def plain(folder: Path) -> None:
    for i in range(3):
        held = sample(i)
        safe({"ids": held["ids"], "features": torch.cat([held[str(b)] for b in (2, 10, 17)], -1)}, folder / f"{i}.safetensors")


KINDS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "ours": (native, {}, 1),
    "speculators": (speculators, {"target": TALL}, 4),
    "one file": (one_file, {"mapping": {"input_ids": "*.ids", "states": {b: f"*.{b}" for b in (2, 10, 17)}}}, 1),
    "plain": (plain, {"boundaries": (2, 10, 17)}, 3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_asked_for_is_fetched(kind: str, tmp_path: Path, wire: Wire) -> None:
    """Opening and the ids of all records: heads of files. One boundary: the bytes of the tensor that holds it, in pieces, and once."""
    write, asked, together = KINDS[kind]
    write(tmp_path / "d")
    url, local = upload(tmp_path / "d", "d"), open_dump(tmp_path / "d", **asked)
    found = open_dump(url, **asked)
    for a, b in zip(found, local, strict=True):
        assert torch.equal(a.input_ids, b.input_ids) and a.tokens == T
    files = len(list((tmp_path / "d").rglob("*.safetensors")))
    assert wire.taken() <= files * remote.HEAD_BYTES and not [n for n in wire.whole if n.endswith(".safetensors")]
    assert torch.equal(found[1].state(10), local[1].state(10)) and found[1].state(10).dtype == torch.bfloat16
    assert wire.taken() == together * T * W * 2
    assert torch.equal(found[1].state(10), local[1].state(10)) and wire.taken() == 0
    assert all(torch.equal(a.features, b.features) for a, b in zip(found, local, strict=True))


def test_a_listing_without_sizes(tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """As http gives it: each size is asked for when its file is read."""
    fs = fsspec.filesystem("memory")
    find = type(fs).find
    monkeypatch.setattr(type(fs), "find", lambda self, path, **rest: {n: {"size": None} for n in find(self, path)})
    speculators(tmp_path / "d")
    found = open_dump(upload(tmp_path / "d", "d") + "/", target=TALL)
    assert torch.equal(found[0].input_ids, sample(0)["ids"]) and found.path == "memory://bucket/d"
    assert wire.taken() <= remote.HEAD_BYTES and not wire.whole


def test_a_tensor_comes_in_pieces(tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large a tensor is, no request takes more memory than one piece."""
    monkeypatch.setattr(remote, "PIECE_BYTES", 50_000)
    monkeypatch.setattr(remote, "HEAD_BYTES", 1000)
    speculators(tmp_path / "d")
    found = open_dump(upload(tmp_path / "d", "d"), target=TALL)
    assert torch.equal(found[2].state(17), sample(2)["17"])
    assert max(stop - start for _, start, stop in wire.pieces) == 50_000 and len(wire.pieces) > 20


def test_samples_of_a_shard_come_one_by_one(tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Automodel's shards hold hundreds of samples, each of them a row of one tensor."""
    monkeypatch.setattr(remote, "HEAD_BYTES", 100)
    url = upload(written(LAYOUTS["NeMo Automodel"], tmp_path / "d"), "d")
    found, local = open_dump(url), open_dump(tmp_path / "d")
    wire.taken()
    assert torch.equal(found[1].features, local[1].features) and wire.taken() == 8 * 18 * 2
    for a, b in zip(found, local, strict=True):
        assert torch.equal(a.input_ids, b.input_ids) and torch.equal(a.features, b.features)


def test_old_pieces_make_room(tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the oldest goes, and is fetched again when it is asked for."""
    monkeypatch.setattr(remote, "KEPT_BYTES", 1)
    monkeypatch.setattr(remote, "KEPT_FILES", 2)
    native(tmp_path / "d")
    found = open_dump(upload(tmp_path / "d", "d"))
    first = found[0].state(2)
    for record in found:
        assert all(record.state(b).shape == (T, W) for b in (2, 10, 17))
    wire.taken()
    assert torch.equal(found[0].state(2), first) and wire.taken() > T * W


def test_a_server_that_knows_no_ranges_is_read_all_the_same(tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends the whole file whatever is asked for: then that is what is kept."""
    fs = fsspec.filesystem("memory")
    monkeypatch.setattr(type(fs), "cat_file", lambda self, path, **_: self.store[path].getvalue())
    speculators(tmp_path / "d")
    found = open_dump(upload(tmp_path / "d", "d"), target=TALL)
    assert torch.equal(found[2].state(17), sample(2)["17"]) and wire.whole


def test_a_file_that_changes_under_the_reader_is_named(tmp_path: Path, wire: Wire) -> None:
    """Cut off after the listing, before or after its header was read: an error with the address and what to do."""
    speculators(tmp_path / "d")
    url, fs = upload(tmp_path / "d", "d"), fsspec.filesystem("memory")
    found = open_dump(url, target=TALL)
    _ = found[1].tokens
    for i in (1, 2):
        data = (tmp_path / "d" / f"hs_{i}.safetensors").read_bytes()
        fs.pipe(f"/bucket/d/hs_{i}.safetensors", data[: 1000 if i == 2 else len(data) // 2])
        with pytest.raises(UnreadableFile, match="cut off or written again") as caught:
            _ = found[i].features
        assert caught.value.where == f"{url}/hs_{i}.safetensors" and "when its writer is done" in str(caught.value.hint)


def test_a_damaged_header_is_named_by_its_address(tmp_path: Path, wire: Wire) -> None:
    """As it is for a local file, and without a temporary name."""
    save_file({"hidden_states": torch.zeros(5, 4, 6), "token_ids": truth(0).ids}, tmp_path / "hs_0.safetensors")
    data = (tmp_path / "hs_0.safetensors").read_bytes()
    fs = fsspec.filesystem("memory")
    for bad in (data[:-8], data + b"12345678", data.replace(b'"F32"', b'"F16"'), data.replace(b"data_offsets", b"data_offsetz"), data[:60]):
        fs.pipe("/bucket/bad/hs_0.safetensors", bad)
        with pytest.raises(UnreadableFile) as caught:
            open_dump("memory://bucket/bad", target=TARGET)
        assert str(caught.value.where).startswith("memory://bucket/bad/hs_0.safetensors") and "eagle3diag-" not in str(caught.value)


def test_remote_places_are_read_through_fsspec(tmp_path: Path, wire: Wire) -> None:
    """memory:// stands for all of them: ours and others', a folder and a file; errors name the address, not a temporary file."""
    fs = fsspec.filesystem("memory")
    write_dump(tmp_path / "ours", max_shard_bytes=1)
    written(LAYOUTS["SpecForge"], tmp_path / "theirs")
    for name in ("ours", "theirs"):
        fs.put(str(tmp_path / name), f"/bucket/{name}", recursive=True)
    ours, theirs = open_dump("memory://bucket/ours"), open_dump("memory://bucket/theirs", boundaries=(2, 10, 17))
    local = open_dump(tmp_path / "ours")
    assert ours.path == "memory://bucket/ours" and ours.names == local.names and theirs.names == ("data_0", "data_1", "data_2")
    assert all(torch.equal(a.features, b.features) for a, b in zip(ours, local, strict=True))
    assert torch.equal(theirs[2].state(10), truth(2).states[1])
    one = open_dump("memory://bucket/theirs/rows_0-2000/data_1.ckpt")
    assert len(one) == 1 and torch.equal(one[0].features, truth(1).wide)
    fs.pipe("/bucket/bad/hs_0.safetensors", b"{" * 40)
    for address, word in (("memory://bucket/bad", "bucket/bad"), ("memory://nowhere", "nowhere")):
        with pytest.raises(UnreadableFile) as caught:
            open_dump(address)
        assert word in str(caught.value.where) and "eagle3diag-" not in str(caught.value)
    fs.rm("/bucket/ours/shard-00001.safetensors")
    with pytest.raises(MissingPart, match="shard-00001"):
        open_dump("memory://bucket/ours")[1]
    with pytest.raises(BadArgument, match="nosuch"):
        open_dump("nosuch://bucket/x")


def test_without_fsspec_the_install_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bare install reads local dumps only."""
    import sys

    from eagle3diag.errors import MissingDependency

    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingDependency, match="fsspec") as caught:
        open_dump("s3://bucket/x")
    assert "eagle3diag[remote]" in str(caught.value.hint)


def test_a_protocol_that_refuses_is_one_of_our_errors() -> None:
    """Whatever its package raises when it is asked for the place: an archive that is not there, an argument that an address cannot carry."""
    for address in ("zip://a::memory://nowhere.zip", "reference://x"):
        with pytest.raises(UnreadableFile, match="cannot be reached") as caught:
            open_dump(address)
        assert caught.value.where == address and "network" in str(caught.value.hint)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chain", ["simplecache", "filecache"])
def test_places_behind_places(kind: str, chain: str, tmp_path: Path, wire: Wire) -> None:
    """fsspec's chains: a cache on this machine before a store, with the same records, and their digest."""
    write, asked, _ = KINDS[kind]
    write(tmp_path / "d")
    url, local = f"{chain}::{upload(tmp_path / 'd', 'd')}", open_dump(tmp_path / "d", **asked)
    found = open_dump(url, **asked)
    assert found.path == url and found.names == local.names
    assert all(torch.equal(a.features, b.features) for a, b in zip(found, local, strict=True))
    assert len(stamp(url)) == 64


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_folder_is_a_place(kind: str, tmp_path: Path, wire: Wire) -> None:
    """An archive on this machine or behind an address, the dump at its root or in a folder of it."""
    write, asked, _ = KINDS[kind]
    write(tmp_path / "a" / "d")
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "a")
    fsspec.filesystem("memory").put(str(tmp_path / "packed.zip"), "/bucket/packed.zip")
    local = open_dump(tmp_path / "a" / "d", **asked)
    urls = [f"zip://d::{tmp_path}/packed.zip", "zip://d::memory://bucket/packed.zip"]
    for url in [*urls, "zip://::memory://bucket/packed.zip"] if kind != "ours" else urls:
        found = open_dump(url, **asked)
        assert all(torch.equal(a.features, b.features) for a, b in zip(found, local, strict=True)), url


def test_folders_below_folders_end(wire: Wire) -> None:
    """As on this machine."""
    fsspec.filesystem("memory").pipe("/bucket/deep/" + "f/" * 40 + "x.pt", b"x")
    with pytest.raises(UnreadableFile, match=r"more than 32 deep"):
        open_dump("memory://bucket/deep")


def test_a_manifest_without_end_is_not_followed(tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may send what it likes; of a text no more is copied than would be read of one here."""
    monkeypatch.setattr("eagle3diag.dumps.remote.MAX_JSON_BYTES", 1000)
    native(tmp_path / "d")
    (tmp_path / "d" / "manifest.json").write_text(" " * 5000)

    with pytest.raises(UnreadableFile, match="larger than 1,000 bytes"):
        open_dump(upload(tmp_path / "d", "endless"))
