"""Dumps: what was recorded comes back bit for bit, a record at a time, whatever happened to the writer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import AUX, IDENTITY, LIGHT, record_tensors, small_dump, write_dump
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from small import H, V
from torch import Tensor

from eagle3diag.dumps import DumpWriter, HiddenStates, Record, open_dump
from eagle3diag.dumps.native import MANIFEST
from eagle3diag.errors import BadArgument, MissingPart


def writer(folder: Path, **facts: Any) -> DumpWriter:
    return DumpWriter(folder, side="train", target=IDENTITY, engine="transformers", boundaries=AUX, **facts)


def manifest(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    return read


def same(record: Record, given: dict[str, Any]) -> bool:
    """Every part of ``record`` against the tensors that were written, dtype included."""
    pairs = [(record.input_ids, given["input_ids"]), (record.final, given["final"])]
    pairs += [(record.state(b), t) for b, t in given["states"].items()]
    return (record.name, record.prompt_length, record.tokens) == (given["name"], given["prompt_length"], len(given["input_ids"])) and all(
        a is not None and a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs
    )


# ---- what is written is what is read ----


@pytest.mark.parametrize("size", [1, 2000, 64 * 1024 * 1024])
def test_what_is_written_is_read_again(size: int, tmp_path: Path) -> None:
    """Every tensor bit for bit and in its dtype, every fact of the manifest, one shard or many."""
    write_dump(tmp_path / "d", records=5, max_shard_bytes=size, assumed=("a guess",), counters={"fc_calls": 7}, ranks=4)
    found = open_dump(tmp_path / "d")
    assert len(found) == 5 and all(same(found[i], record_tensors(i)) for i in range(5))
    assert (found.side, found.target, found.engine, found.engine_version) == ("train", IDENTITY, "transformers", "5.24.0")
    assert (found.boundaries, found.counters, found.assumed, found.ranks) == (AUX, {"fc_calls": 7}, ("a guess",), 4)
    assert found.complete and found.path == str(tmp_path / "d") and "5 records" in repr(found)
    shards = sorted(p.name for p in (tmp_path / "d").iterdir())
    assert len(shards) == 1 + {1: 5, 2000: 3, 64 * 1024 * 1024: 1}[size] or size == 2000
    assert open_dump(found) is found and open_dump(tmp_path / "d" / MANIFEST).counters == found.counters


def test_the_files_are_as_the_format_says(tmp_path: Path) -> None:
    """Plain JSON and plain safetensors, readable by anybody, with nothing else in the folder."""
    write_dump(tmp_path / "d", records=1)
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == [MANIFEST, "shard-00000.safetensors"]
    assert all(p.stat().st_mode & 0o777 == 0o644 for p in (tmp_path / "d").iterdir())
    held = load_file(tmp_path / "d" / "shard-00000.safetensors")
    assert set(held) == {"r0/input_ids", "r0/final", *(f"r0/boundary.{b}" for b in AUX)}
    assert held["r0/boundary.2"].dtype == torch.bfloat16
    assert manifest(tmp_path / "d")["records"] == [
        {"name": "r0", "tokens": 12, "prompt_length": 4, "boundaries": list(AUX), "shard": "shard-00000.safetensors"}
    ]


def test_optional_parts_come_back_and_absent_ones_are_none(tmp_path: Path) -> None:
    """Positions and loss mask when given; None when not; features as stored win over the boundaries."""
    wide = torch.randn(4, 3 * H).half()
    with writer(tmp_path / "d") as w:
        w.add(
            name="full",
            input_ids=torch.tensor([1, 2, 3, 4]),
            features=wide,
            positions=torch.arange(4) + 9,
            loss_mask=torch.tensor([0, 1, 1, 1]),
            accepted=torch.tensor([-1, 2, -1, -1], dtype=torch.int16),
        )
        w.add(name="bare", input_ids=torch.tensor([1, 2], dtype=torch.int32), features=wide[:2])
    full, bare = open_dump(tmp_path / "d")
    assert full.positions is not None and full.positions.tolist() == [9, 10, 11, 12]
    assert full.loss_mask is not None and full.loss_mask.tolist() == [0, 1, 1, 1]
    assert full.accepted is not None and full.accepted.tolist() == [-1, 2, -1, -1]
    assert torch.equal(full.features, wide) and full.features.dtype == torch.float16
    assert (bare.positions, bare.loss_mask, bare.accepted, bare.final, bare.prompt_length) == (None,) * 5
    assert bare.input_ids.dtype == torch.int64 and bare.boundaries == ()


def test_features_are_the_declared_boundaries_in_their_order(tmp_path: Path) -> None:
    """[4, 2] is not [2, 4]: the order is the draft's, checked column by column."""
    states = {b: torch.full((3, 2), float(b)) for b in (2, 3, 4)}
    with DumpWriter(tmp_path / "d", side="live", target=IDENTITY, engine="x", boundaries=(4, 2)) as w:
        w.add(name="a", input_ids=torch.tensor([1, 2, 3]), states=states)
    record = open_dump(tmp_path / "d")[0]
    assert record.boundaries == (2, 3, 4) and record.features[0].tolist() == [4.0, 4.0, 2.0, 2.0]
    with pytest.raises(MissingPart, match=r"boundary\.9"):
        record.state(9)


def test_unknown_features_are_a_missing_part() -> None:
    """Without stored features and declared boundaries nothing is guessed."""
    given = {"name": "a", "input_ids": [1, 2], "states": {2: torch.zeros(2, H)}}
    with pytest.raises(MissingPart, match="no aux boundaries"):
        _ = HiddenStates.from_tensors([given], side="train", target=IDENTITY)[0].features
    with pytest.raises(MissingPart, match=r"boundary\.3"):
        _ = HiddenStates.from_tensors([given], side="train", target=IDENTITY, boundaries=(2, 3))[0].features


def test_the_writer_keeps_its_own_copy(tmp_path: Path) -> None:
    """Engines reuse their buffers: what is changed after add() is not what is written; views and gradients are fine."""
    buffer = torch.ones(8, 2 * H, requires_grad=True)
    with writer(tmp_path / "d") as w:
        w.add(name="a", input_ids=torch.tensor([1, 2]), features=buffer[::4, :H])
        with torch.no_grad():
            buffer.zero_()
    assert open_dump(tmp_path / "d")[0].features.sum() == 2 * H


# ---- in memory ----


def test_memory_and_disk_are_alike(tmp_path: Path) -> None:
    """from_tensors() gives the records that a dump on disk gives, without copying."""
    disk, memory = open_dump(write_dump(tmp_path / "d")), small_dump()
    assert [r.name for r in disk] == [r.name for r in memory] and disk.boundaries == memory.boundaries
    assert all(torch.equal(a.features, b.features) and torch.equal(a.input_ids, b.input_ids) for a, b in zip(disk, memory, strict=True))
    state = torch.ones(2, H)
    kept = HiddenStates.from_tensors([{"input_ids": [1, 2], "states": {2: state}}], side="live", target=IDENTITY)
    assert kept[0].state(2).data_ptr() == state.data_ptr() and kept[0].name == "000000"


def test_select_and_slices_keep_the_rest() -> None:
    """By number, by name, from the end, in any order; the facts of the dump stay."""
    dump = small_dump(4)
    assert [r.name for r in dump.select([3, "r1", -4])] == ["r3", "r1", "r0"]
    assert [r.name for r in dump[1:3]] == ["r1", "r2"] and dump[1:3].boundaries == AUX
    for bad in ([4], [-5], ["r9"]):
        with pytest.raises(BadArgument, match="no record"):
            dump.select(bad)


def test_map_features_is_lazy_and_stacks() -> None:
    """Nothing is computed before it is asked for; two changes apply in order; ids and states stay, and so does the original."""
    calls: list[str] = []

    def double(record: Record, features: Tensor) -> Tensor:
        calls.append(record.name)
        return features * 2

    dump = small_dump()
    changed = dump.map_features(double).map_features(lambda r, f: f[:, : r.tokens] + 1)
    assert not calls
    assert torch.equal(changed[1].features, dump[1].features[:, :12] * 2 + 1) and calls == ["r1"]
    assert torch.equal(changed[1].state(2), dump[1].state(2)) and torch.equal(changed[1].input_ids, dump[1].input_ids)


BAD_RECORDS: list[tuple[str, dict[str, Any]]] = [
    ("no input_ids", {"features": torch.zeros(2, H)}),
    ("expected \\[2, width\\]", {"features": torch.zeros(3, H)}),
    ("expected \\[2, width\\]", {"final": torch.zeros(2)}),
    ("expected floating point", {"features": torch.zeros(2, H, dtype=torch.int64)}),
    ("expected whole numbers", {"input_ids": torch.zeros(2)}),
    ("input_ids has shape", {"input_ids": torch.zeros(1, 2, dtype=torch.int64)}),
    ("positions has shape", {"positions": [0, 1, 2]}),
    ("expected a boundary", {"states": {"2": torch.zeros(2, H)}}),
    ("expected a boundary", {"states": {-1: torch.zeros(2, H)}}),
    ("no part 'hidden'", {"hidden": torch.zeros(2, H)}),
    ("prompt_length", {"prompt_length": -1}),
    ("prompt_length", {"prompt_length": "2"}),
    ("cannot name", {"name": ""}),
    ("cannot name", {"name": "a/b"}),
    ("cannot name", {"name": "a\nb"}),
    ("cannot name", {"name": "\ud800"}),
]


@pytest.mark.parametrize(("message", "change"), BAD_RECORDS)
def test_a_record_that_does_not_fit_is_refused_by_both_doors(message: str, change: dict[str, Any], tmp_path: Path) -> None:
    """The writer and from_tensors() say the same, and what the writer had before is kept."""
    given = {"name": "a", "input_ids": torch.tensor([1, 2])} | change
    if message == "no input_ids":
        del given["input_ids"]
    with pytest.raises(BadArgument, match=message):
        HiddenStates.from_tensors([given], side="train", target=IDENTITY)
    if "hidden" in given or "input_ids" not in given:  # Python itself refuses these keywords
        return
    with writer(tmp_path / "d") as w:
        w.add(**record_tensors(0))
        with pytest.raises(BadArgument, match=message):
            w.add(**given)
    assert [r.name for r in open_dump(tmp_path / "d")] == ["r0"]


def test_names_sides_and_folders_are_checked(tmp_path: Path) -> None:
    """A name twice, an unknown side, a folder that holds something, a closed writer: each is refused before anything is written."""
    for make in (lambda: small_dump(side="serve"), lambda: write_dump(tmp_path / "side", side="serve")):
        with pytest.raises(BadArgument, match="serve"):
            make()
    with pytest.raises(BadArgument, match="two records"):
        HiddenStates.from_tensors([record_tensors(0), record_tensors(0)], side="train", target=IDENTITY)
    with writer(tmp_path / "d") as w:
        w.add(**record_tensors(0))
        with pytest.raises(BadArgument, match="taken"):
            w.add(**record_tensors(0))
    with pytest.raises(BadArgument, match="closed"):
        w.add(**record_tensors(1))
    w.flush()
    w.close(complete=False)
    assert open_dump(tmp_path / "d").complete
    (tmp_path / "file").write_text("mine")
    for taken in ("d", "file"):
        with pytest.raises(BadArgument, match="not empty"):
            writer(tmp_path / taken)
    assert (tmp_path / "file").read_text() == "mine" and not (tmp_path / "side").exists()


def test_an_exception_while_recording_keeps_what_was_recorded(tmp_path: Path) -> None:
    """Leaving the block by an exception writes what was waiting, marks the dump incomplete, and passes the exception on."""
    with pytest.raises(RuntimeError, match="engine"), writer(tmp_path / "d") as w:
        w.add(**record_tensors(0))
        raise RuntimeError("the engine died")
    found = open_dump(tmp_path / "d")
    assert not found.complete and same(found[0], record_tensors(0))


def test_a_failed_write_leaves_the_finished_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk in the middle of a shard: the error passes on, no half shard stays, what was finished is read."""
    w = writer(tmp_path / "d", max_shard_bytes=1)
    w.add(**record_tensors(0))

    def full(_: object, path: Path) -> None:
        path.write_bytes(b"half a shard")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("eagle3diag.dumps.native.save_file", full)
    with pytest.raises(OSError, match="No space"):
        w.add(**record_tensors(1))
    assert [r.name for r in open_dump(tmp_path / "d")] == ["r0"]
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == [MANIFEST, "shard-00000.safetensors"]


# ---- killed writers ----

REASON = "the writer was stopped before it was listed"
MOMENTS = ["between records", "inside a shard", "between shard and manifest", "inside the manifest"]

# One process imports torch, then forks a writer per case, which ends itself at its moment.
KILLED = """
import os, sys
from pathlib import Path
import torch
from eagle3diag.dumps import DumpWriter, TargetIdentity, native

def record(i):
    g = torch.Generator().manual_seed(i)
    return {"name": f"r{i}", "input_ids": torch.arange(5) + i, "states": {2: torch.randn(5, 8, generator=g).bfloat16()}}

def die(*_):
    os._exit(9)

def run(folder, moment, count):
    w = DumpWriter(folder, side="train", target=TargetIdentity("t", "", "bfloat16", 4, 8), engine="x", boundaries=(2,), max_shard_bytes=1)
    for i in range(count):
        w.add(**record(i))
    if moment == "between records":
        die()
    if moment == "inside a shard":
        native.save_file = lambda tensors, path: (path.write_bytes(b"half"), die())
    elif moment == "between shard and manifest":
        native.write_atomically = die
    elif moment == "inside the manifest":
        real = os.replace
        os.replace = lambda a, b: die() if str(b).endswith("manifest.json") else real(a, b)
    w.add(**record(count))

for case in sys.argv[2:]:
    moment, count = case.split(":")
    child = os.fork()
    if not child:
        run(Path(sys.argv[1]) / case, moment, int(count))
        os._exit(1)  # the writer outlived its moment
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9, case
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders ``{moment}:{finished records}``, each left behind by a writer that was killed."""
    folder = tmp_path_factory.mktemp("killed")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent), "OMP_NUM_THREADS": "1"}
    cases = [f"{moment}:{count}" for moment in MOMENTS for count in (0, 2)]
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), *cases], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the writers are forked")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_writer_leaves_what_was_finished(moment: str, killed: Path) -> None:
    """os._exit at the four moments that matter: the finished records are whole, the dump says that it is incomplete."""
    with pytest.raises(MissingPart, match="stopped before the first"):
        open_dump(killed / f"{moment}:0")
    found = open_dump(killed / f"{moment}:2")
    assert not found.complete and [r.name for r in found] == ["r0", "r1"]
    for i, record in enumerate(found):
        assert record.input_ids.tolist() == list(range(i, i + 5))
        assert torch.equal(record.features, torch.randn(5, 8, generator=torch.Generator().manual_seed(i)).bfloat16())
    lost = moment in ("between shard and manifest", "inside the manifest")
    assert found.assumed == ((f"shard-00002.safetensors is left out: {REASON}",) if lost else ())


def test_a_dump_is_read_while_it_is_written(tmp_path: Path) -> None:
    """flush() makes what was added so far visible to another reader."""
    w = writer(tmp_path / "d")
    for i in range(3):
        w.add(**record_tensors(i))
        w.flush()
        found = open_dump(tmp_path / "d")
        assert len(found) == i + 1 and not found.complete and same(found[i], record_tensors(i))
    w.close()
    assert open_dump(tmp_path / "d").complete


@LIGHT
@given(
    shapes=st.lists(st.tuples(st.integers(1, 6), st.sampled_from([torch.float32, torch.bfloat16, torch.float16])), min_size=1, max_size=5),
    size=st.integers(1, 4000),
    order=st.permutations(AUX),
)
def test_any_dump_survives_the_round_trip(
    shapes: list[tuple[int, torch.dtype]], size: int, order: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any lengths, dtypes, shard sizes and orders of the aux boundaries: ids and features come back bit for bit."""
    folder = tmp_path_factory.mktemp("dump") / "d"
    g = torch.Generator().manual_seed(size)
    given: list[dict[str, Any]] = [
        {
            "name": f"é {i}",
            "input_ids": torch.randint(V, (t,), generator=g),
            "states": {b: torch.randn(t, 4, generator=g).to(d) for b in AUX},
        }
        for i, (t, d) in enumerate(shapes)
    ]
    with DumpWriter(folder, side="live", target=IDENTITY, engine="x", boundaries=tuple(order), max_shard_bytes=size) as w:
        for parts in given:
            w.add(**parts)
    for record, wanted in zip(open_dump(folder), given, strict=True):
        assert record.name == wanted["name"] and torch.equal(record.input_ids, wanted["input_ids"])
        features = torch.cat([wanted["states"][b] for b in order], -1)
        assert record.features.dtype == features.dtype and torch.equal(record.features, features)
