"""Compare and check on a device: equal to the CPU's numbers, one transfer back a record, nothing waited for in between, no two devices mixed.

The device is pretended (``tests/pretended.py``); where torch finds a real one, the same comparisons run on it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from builders import IDENTITY
from pretended import Device
from test_compare import AUX, H, changed, dump, healthy, noisy, record
from test_compare_numbers import knowing, predicting

from eagle3diag import BadArgument, check_dump, cli, compare
from eagle3diag.checkpoints import Target
from eagle3diag.compare import sampling
from eagle3diag.compare.metrics import ChannelMoments
from eagle3diag.compare.rows import Scale, compare_rows
from eagle3diag.compare.served import with_rounds_of
from eagle3diag.dumps import DumpWriter, HiddenStates, open_dump

GAIN = torch.rand(H, generator=torch.Generator().manual_seed(3)) + 0.5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The pretended device is one of the thread that entered it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def moved(source: HiddenStates, device: str, *names: str) -> HiddenStates:
    """The same dump in memory, all its tensors (or those of these names) on a device."""

    def record(r: Any) -> dict[str, Any]:
        held = {b: r.state(b).to(device) for b in r.boundaries}
        parts = {n: r.part(n) for n in ("input_ids", "positions", "features", "final", "last", "accepted", "loss_mask")}
        there = {n: t if t is None or (names and n not in names) else t.to(device) for n, t in parts.items()}
        return {"name": r.name, "states": held, **{n: t for n, t in there.items() if t is not None}}

    facts: dict[str, Any] = {"side": source.side, "target": source.target, "boundaries": source.boundaries, "engine": source.engine}
    return HiddenStates.from_tensors([record(r) for r in source], **facts)


def spoiled(features: torch.Tensor) -> torch.Tensor:
    """Rows repeated, zero, infinite, huge and tiny, each of which is looked at twice."""
    features[5:9], features[11], features[13, 2] = features[5], 0.0, torch.inf
    features[15], features[17, : 2 * H] = features[15] * 1e25, features[17, : 2 * H] * 1e-25
    return features


def single(features: torch.Tensor) -> torch.Tensor:
    return features[:, :H] + 0.1


TRAIN = healthy()
REFERENCE = dump([record(f"r{i}", n, i, tuple(range(9))) for i, n in enumerate((40, 55, 33))], side="reference", boundaries=tuple(range(9)))
LIVES: dict[str, HiddenStates] = {
    "healthy": noisy(TRAIN, 0.2),
    "spoiled": changed(TRAIN, spoiled),
    "one state": changed(TRAIN, single),
    "all off": changed(TRAIN, lambda f: f.roll(1, 0)),
}


@pytest.mark.parametrize("name", LIVES)
def test_a_comparison_is_the_cpus(name: str) -> None:
    """Every number, with a reference and a gain; the sums of a record come back in one transfer, and no value is waited for."""
    expected = compare(TRAIN, LIVES[name], reference=REFERENCE, target=GAIN)
    with Device() as device:
        got = compare(TRAIN, LIVES[name], reference=REFERENCE, target=GAIN, device="cuda")
    assert got.to_json(include_text=True) == expected.to_json(include_text=True)
    assert device.crossed["back"] == 3 and device.crossed["wait"] == 1  # that of trying the device
    assert device.most["back"] == 12 * 55 * 3 or name == "one state"


def test_what_crosses_does_not_grow_with_the_metrics() -> None:
    """Each chunk comes there once, from each tensor that holds a part of it; whatever the number of chunks, nothing goes back between them."""
    counts = []
    for rows in (5, 11, 1000):
        with Device() as device:
            compare(TRAIN, LIVES["healthy"], device="cuda", chunk_tokens=rows)
        chunks = sum(-(-r.tokens // rows) for r in TRAIN)
        columns = len(AUX) + 1  # of train, one a boundary; live has its features in one
        counts.append(device.crossed["there"] - columns * chunks)
        assert device.crossed["back"] == len(TRAIN) and device.crossed["wait"] == 1
        assert device.most["there"] <= max(rows * 3 * H, 3 * H) or rows == 1000
    assert len(set(counts)) == 1 and counts[0] <= 3 * len(TRAIN)  # means and deviations, for each record


def test_chunks_are_larger_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch costs what a megabyte of work does; and no chunk holds more than was set for a device."""
    monkeypatch.setattr(sampling, "CHUNK_VALUES", 3 * H)
    monkeypatch.setattr(sampling, "DEVICE_VALUES", 20 * 3 * H)
    with Device() as device:
        compare(TRAIN, LIVES["healthy"], device="cuda")
    assert device.most["there"] == 20 * 3 * H


@pytest.mark.parametrize("where", ["both", "train", "live", "states only"])
@pytest.mark.parametrize("asked", [None, "cpu", "cuda"])
def test_states_that_lie_there_already(where: str, asked: str | None) -> None:
    """From either side, with their ids or without, wherever the work is asked for: the same numbers; a chunk of one side crosses at most."""
    expected = compare(TRAIN, LIVES["spoiled"], reference=REFERENCE, target=GAIN)
    with Device() as device:
        names = ("features", "final") if where == "states only" else ()
        train = TRAIN if where == "live" else moved(TRAIN, "cuda", *names)
        live = LIVES["spoiled"] if where == "train" else moved(LIVES["spoiled"], "cuda", *names)
        reference, gain = moved(REFERENCE, "cuda"), GAIN.to("cuda")
        device.crossed.clear()
        device.most.clear()
        got = compare(train, live, reference=reference, target=gain, device=asked, chunk_tokens=10)
    assert got.to_json(include_text=True) == expected.to_json(include_text=True)
    if where == "both" and asked != "cpu":
        # rows by which blocks are identified go back, and what is odd is looked at again: none of it chunk by chunk
        assert device.most["there"] <= 3 * H


def test_plain_tensors_that_lie_there() -> None:
    """Two tensors of a notebook, with nothing else."""
    g = torch.Generator().manual_seed(0)
    train = torch.randn(64, 3 * 32, generator=g)
    expected = compare(train, train.roll(32, 1), hidden_size=32)
    with Device():
        got = compare(train.to("cuda"), train.roll(32, 1).to("cuda"), hidden_size=32)
    assert got.to_json() == expected.to_json()


def twice(source: list[dict[str, Any]]) -> HiddenStates:
    return HiddenStates.from_tensors(source, side="train", target=IDENTITY, boundaries=(2, 3))


@pytest.mark.parametrize("lies", ["cpu", "cuda"])
@pytest.mark.parametrize("asked", [None, "cpu", "cuda"])
def test_a_check_is_the_cpus(lies: str, asked: str | None) -> None:
    """Rows, norms, differences and the readings through the target's head, which goes there once; few transfers a record, none a chunk."""
    target, alone = knowing(), twice(predicting(knowing()))
    expected = check_dump(alone, target=target)
    with Device() as device:
        if lies == "cuda":
            target = Target(target.path, target.config, {n: t.to("cuda") for n, t in target.tensors.items()})
            alone = moved(alone, "cuda")
        device.crossed.clear()
        got = check_dump(alone, target=target, device=asked)
    assert got.to_json() == expected.to_json() and expected.readings
    if asked == "cuda" and lies == "cpu":
        assert device.crossed["back"] <= 10 * len(alone) and device.crossed["wait"] <= 2 * len(alone) + 1


@pytest.mark.parametrize("lies", ["cpu", "cuda"])
def test_broken_rows_are_counted_there(lies: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero, infinite and repeated ones, in chunks of a few rows: what crosses back is one number a row."""
    monkeypatch.setattr(sampling, "DEVICE_VALUES", 5 * H)
    spoil = LIVES["spoiled"]
    expected = check_dump(spoil)
    with Device() as device:
        given = moved(spoil, "cuda") if lies == "cuda" else spoil
        device.crossed.clear()
        got = check_dump(given, device="cuda")
    assert got.to_json() == expected.to_json() and all(p.duplicate_rows for p in got.parts)
    assert device.crossed["back"] <= (12 + (lies == "cuda")) * len(spoil)  # ids that lie there


def test_ranks_are_held_together_there(tmp_path: Any) -> None:
    """The dump of another rank, of which two rows differ."""
    for name, spoil in (("live", 0), ("live.rank1", 2)):
        with DumpWriter(tmp_path / name, side="live", target=TRAIN.target, engine="sglang", boundaries=AUX) as writer:
            for r in TRAIN:
                features = r.features.clone()
                features[3 : 3 + spoil] += 1
                writer.add(name=r.name, input_ids=r.input_ids, features=features)
    expected = check_dump(tmp_path / "live")
    with Device():
        got = check_dump(tmp_path / "live", device="cuda")
    assert got.ranks == expected.ranks and got.ranks[0].differing == 6


def test_a_dump_is_written_and_lined_up_from_there(tmp_path: Any) -> None:
    """What a writer is handed, and a server's rounds beside another dump, lie where they like."""
    rounds = [torch.tensor([-1] * 5 + [2, -1, -1] * 5 + [-1] * (r.tokens - 20)) for r in TRAIN]
    live = dump(
        [{"name": r.name, "input_ids": r.input_ids, "features": r.features, "accepted": a} for r, a in zip(TRAIN, rounds, strict=True)]
    )
    expected = with_rounds_of(live, TRAIN)
    with Device():
        got = with_rounds_of(moved(live, "cuda"), moved(TRAIN, "cuda"))
        for a, b in zip(got, expected, strict=True):
            assert a.accepted is not None and b.accepted is not None and a.accepted.tolist() == b.accepted.tolist()
        with DumpWriter(tmp_path / "d", side="live", target=live.target, engine="x") as writer:
            for r in moved(live, "cuda"):
                writer.add(name=r.name, input_ids=r.part("input_ids").to("cuda"), features=r.features)  # type: ignore[union-attr]
    assert all(torch.equal(a.features, b.features) for a, b in zip(open_dump(tmp_path / "d"), live, strict=True))


def test_a_device_without_float64_is_refused_in_words() -> None:
    """Apple's; states that lie there are worked on by the CPU where nobody says otherwise."""
    expected = compare(TRAIN, LIVES["healthy"])
    with Device("mps", lacks=(torch.float64,)):
        for verb in (lambda: compare(TRAIN, LIVES["healthy"], device="mps"), lambda: check_dump(TRAIN, device="mps")):
            with pytest.raises(BadArgument, match="'mps' has no float64") as caught:
                verb()
            assert caught.value.hint
        got = compare(moved(TRAIN, "mps"), moved(LIVES["healthy"], "mps"))
    assert got.to_json(include_text=True) == expected.to_json(include_text=True)


@pytest.mark.parametrize("device", ["nowhere", "meta", "cuda:99", "mps", 3.5, -7])
def test_a_device_that_is_not_there_is_named(device: Any) -> None:
    """In Python and at a shell, before anything is worked on."""
    for verb in (lambda: compare(TRAIN, LIVES["healthy"], device=device), lambda: check_dump(TRAIN, device=device)):
        with pytest.raises(BadArgument, match=r"cannot be used|has no float64"):
            verb()


def test_states_without_values_are_refused() -> None:
    """Of a model that was made on torch's meta device."""
    with pytest.raises(BadArgument, match="'meta' cannot be used"):
        compare(torch.empty(9, 6, device="meta"), torch.empty(9, 6, device="meta"))


def test_a_cluster_takes_no_device() -> None:
    """Its nodes are asked for processors."""
    with Device(), pytest.raises(BadArgument, match="'cuda' on a cluster"):
        check_dump(TRAIN, device="cuda", ray="auto")


def test_the_shell_takes_a_device(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """``--device`` of both verbs, and the error of one that is not there."""
    for name, source in (("train", TRAIN), ("live", LIVES["healthy"])):
        with DumpWriter(tmp_path / name, side=name, target=TRAIN.target, engine="x", boundaries=AUX) as writer:
            for r in source:
                writer.add(name=r.name, input_ids=r.input_ids, features=r.features)
    train, live = str(tmp_path / "train"), str(tmp_path / "live")
    with Device() as device:
        assert cli.main(["compare", train, live, "--device", "cuda"]) in (0, 1) and device.crossed["there"]
        assert cli.main(["check", train, "--device", "cuda:0"]) in (0, 1)
    assert cli.main(["compare", train, live, "--device", "cuda:77"]) == 2
    assert "device 'cuda:77' cannot be used" in capsys.readouterr().err


REAL: list[str] = [d for d in ("cuda", "xpu") if getattr(torch, d).is_available()]


@pytest.mark.skipif(not REAL, reason="torch finds no device here")
@pytest.mark.parametrize("device", REAL)
@pytest.mark.parametrize("make", [lambda n: n, lambda n: n.bfloat16()])
def test_on_a_real_device(device: str, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The sums of a thousand rows within the rounding of float32; and everything the pretended device was asked for."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 3, 512, generator=g) + 2
    y = x * (1 + 0.01 * torch.randn(x.shape, generator=g))
    x, y = make(x), make(y)
    moments = [ChannelMoments(512) for _ in range(3)]
    for i, one in enumerate(moments):
        one.update(x[:, i])

    def rows(part: Any, where: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        return x[part].to(where), y[part].to(where)

    got, expected = (compare_rows(rows, 1000, 300, Scale.of(moments), torch.device(d)) for d in (device, "cpu"))
    for name in ("cosine", "centred", "standardised", "train_norm", "relative_error", "error", "largest"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=1e-4, atol=1e-5)
    for name, live in LIVES.items():
        there, here = compare(TRAIN, live, target=GAIN, device=device), compare(TRAIN, live, target=GAIN)
        for a, b in zip(there.blocks, here.blocks, strict=True):
            assert (a.zero_rows, a.nonfinite_live, a.duplicate_rows) == (b.zero_rows, b.nonfinite_live, b.duplicate_rows), name
            assert a.standardised.median == pytest.approx(b.standardised.median, abs=1e-4), name
        assert [p.duplicate_rows for p in check_dump(live, device=device).parts] == [p.duplicate_rows for p in check_dump(live).parts]
