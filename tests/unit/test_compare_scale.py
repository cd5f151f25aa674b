"""Dumps too large for one go: samples stand for all, parts join to the last bit, work is taken up again, and nothing is counted twice."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from test_compare import changed, dump, healthy, noisy
from test_compare_numbers import IDENTITY, knowing, predicting

from eagle3diag import BadArgument, MissingPart, check_dump, cli, compare, load
from eagle3diag.checkpoints.tensors import TensorFiles
from eagle3diag.compare import chunked, on_cores, partial
from eagle3diag.compare.align import align
from eagle3diag.compare.measure import measure, numbered, plan
from eagle3diag.compare.partial import Partial, Top, join
from eagle3diag.compare.sample import draw
from eagle3diag.compare.sampling import Layout
from eagle3diag.compare.sources import load as load_side
from eagle3diag.dumps import DumpWriter, HiddenStates, stamp
from eagle3diag.dumps.ahead import few_rows, read_ahead

LENGTHS = (40, 55, 33, 2, 47, 61, 1, 38)


def written(folder: Path, dump: HiddenStates) -> str:
    """The dump as a folder of our own format."""
    with DumpWriter(folder, side=dump.side, target=dump.target, boundaries=dump.boundaries, engine=dump.engine) as writer:
        for r in dump:
            states = {b: r.state(b) for b in r.boundaries}
            writer.add(name=r.name, input_ids=r.input_ids, states=states, features=r.part("features"), final=r.final, last=r.last)
    return str(folder)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Train and live on disk, eight records of very different lengths."""
    folder = tmp_path_factory.mktemp("dumps")
    train = healthy(LENGTHS)
    return written(folder / "train", train), written(folder / "live", noisy(train, 0.2))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record or two in each chunk."""
    monkeypatch.setattr(chunked, "CHUNK_VALUES", 50 * 3 * 24)


# -- parts -------------------------------------------------------------------------------------------------------------------------


def parts(seed: int, count: int) -> list[Partial]:
    g = torch.Generator().manual_seed(seed)
    made = []
    for i in range(count):
        rows = {"x": torch.randn(int(torch.randint(0, 5, (), generator=g)), 3, generator=g)}
        if i % 3:
            rows["y"] = torch.randn(2, generator=g).double()
        keys = torch.randint(0, 4, (3,), generator=g).tolist()  # ties
        made.append(Partial(rows, {"n": torch.tensor([i, 1])}, {"low": Top.of(4, [(float(k), [i, k, float("nan")]) for k in keys])}))
    return made


def alike(one: Partial, other: Partial) -> bool:
    same = list(one.rows) == list(other.rows) and all(torch.equal(one.rows[n], other.rows[n]) for n in one.rows)
    return same and all(torch.equal(one.counts[n], other.counts[n]) for n in one.counts) and repr(one.tops) == repr(other.tops)


@given(seed=st.integers(0, 99), cuts=st.lists(st.integers(0, 9), max_size=4))
@settings(deadline=None, max_examples=25)
def test_parts_join_the_same_whatever_the_split(seed: int, cuts: list[int]) -> None:
    """Associative to the last bit, ties included."""
    made = parts(seed, 9)
    edges = [0, *sorted(cuts), 9]
    runs = [join(made[a:b]) for a, b in pairwise(edges) if b > a]
    assert alike(join(runs), join(made))


def test_a_part_survives_the_disk(tmp_path: Path) -> None:
    """Every bit, order and NaN; a file that is cut off is no part."""
    made = join(parts(1, 5))
    partial.write(made, tmp_path / "part.safetensors")
    assert alike(partial.read(tmp_path / "part.safetensors"), made)


@given(tokens=st.lists(st.integers(0, 30), max_size=20), most=st.integers(1, 40))
@settings(deadline=None, max_examples=50)
def test_chunks_hold_every_record_once(tokens: list[int], most: int) -> None:
    """In order, and none above the limit unless it is a single record."""
    chunks = chunked.cut(tokens, most)
    assert [n for chunk in chunks for n in chunk] == list(range(len(tokens)))
    assert all(sum(tokens[n] for n in chunk) <= most or len(chunk) == 1 for chunk in chunks)


# -- samples -----------------------------------------------------------------------------------------------------------------------


@given(lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=300), count=st.integers(1, 60), seed=st.integers(0, 5))
@settings(deadline=None, max_examples=50)
def test_a_sample_is_distinct_seeded_and_as_large_as_asked(lengths: list[int], count: int, seed: int) -> None:
    """The same seed draws the same; all records when there are no more than asked for."""
    drawn, said = draw(lengths, count, seed)
    assert len(set(drawn)) == len(drawn) == min(count, len(lengths)) and list(drawn) == sorted(drawn)
    assert draw(lengths, count, seed) == (drawn, said)
    assert (said is None) == (count >= len(lengths))


def test_a_sample_stands_for_order_and_length() -> None:
    """Every tenth of the files, and every tenth of the lengths, gets its share within a factor of two; chance alone would often miss one."""
    g = torch.Generator().manual_seed(0)
    lengths = (torch.rand(10_000, generator=g) ** 3 * 8000).long().add(1).tolist()
    by_length = sorted(range(10_000), key=lambda i: lengths[i])
    rank = {n: i for i, n in enumerate(by_length)}
    for seed in range(5):
        drawn, _ = draw(lengths, 200, seed)
        for places in ([n for n in drawn], [rank[n] for n in drawn]):
            tenths = [sum(t * 1000 <= p < (t + 1) * 1000 for p in places) for t in range(10)]
            assert min(tenths) >= 10 and max(tenths) <= 40
    mean = sum(lengths) / len(lengths)
    means = [sum(lengths[n] for n in draw(lengths, 200, s)[0]) / 200 for s in range(5)]
    assert all(abs(m - mean) < 0.1 * mean for m in means)


def test_a_sampled_comparison_is_that_of_the_drawn_records(dumps: tuple[str, str]) -> None:
    """The same numbers as a live dump of those records alone, and it says so, in the result and in every finding."""
    sampled = compare(*dumps, sample=3, seed=1)
    assert sampled.sampled is not None and (sampled.sampled.records, sampled.sampled.of, sampled.sampled.seed) == (3, 8, 1)
    drawn, _ = draw(LENGTHS, 3, 1)
    live = compare(dumps[0], _only(dumps[1], drawn))
    assert sampled.blocks == live.blocks and sampled.aligned_tokens == live.aligned_tokens
    assert sampled.live.records == 8 and sampled.absent == ()
    assert sampled.findings and all("a sample of 3 of 8 records (seed 1)" in f.because for f in sampled.findings)
    assert "a sample of 3 of 8 records" in str(sampled)
    assert compare(*dumps, sample=100).sampled is None


def _only(path: str, numbers: Sequence[int]) -> HiddenStates:
    from eagle3diag import open_dump

    return open_dump(path).select(numbers)


def test_a_sampled_result_is_saved_and_opened(dumps: tuple[str, str], tmp_path: Path) -> None:
    """With its sample."""
    result = compare(*dumps, sample=3)
    assert getattr(load(result.save(tmp_path / "c.json", include_text=True)), "sampled", None) == result.sampled


def test_a_check_samples_too(tmp_path: Path) -> None:
    """Counts are those of the sample, which is named."""
    checked = check_dump(
        dump([{"name": f"r{i}", "input_ids": torch.arange(9), "features": torch.zeros(9, 72)} for i in range(20)]), sample=5
    )
    assert checked.records == 5 and checked.tokens == 45 and [p.zero_rows for p in checked.parts] == [45, 45, 45]
    assert checked.sampled is not None and checked.sampled.of == 20
    assert "a sample of 5 of 20 records" in checked.findings[0].because
    with pytest.raises(BadArgument, match="sample=0"):
        check_dump(healthy(), sample=0)


# -- on all cores -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets how many threads torch may use; put back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_parts_do_not_depend_on_the_number_of_threads(dumps: tuple[str, str], threads: Callable[[int], None]) -> None:
    """To the last bit, of comparisons and checks, with fewer threads than records and with more; torch keeps the number it was given."""
    target = knowing()
    alone = HiddenStates.from_tensors(predicting(target), side="train", target=IDENTITY, boundaries=(2, 3))
    alignment = align(load_side(dumps[0], "train"), load_side(dumps[1], "live"))
    planned = plan(alignment, Layout(24, 72, 72), (2, 4, 6), None)
    assert planned is not None
    made = []
    for count in (1, 2, 3, 20):
        threads(count)
        made.append((measure(planned, numbered(alignment)), check_dump(alone, target=target)))
        assert torch.get_num_threads() == count
        with ThreadPoolExecutor(1) as fresh:  # a thread that begins later is not bound by what ours had
            assert fresh.submit(torch.get_num_threads).result() == count
    for part, check in made[1:]:
        assert alike(part, made[0][0])
        same(check, made[0][1])


def test_records_are_opened_here_a_few_ahead_and_answered_in_turn(threads: Callable[[int], None]) -> None:
    """Whichever is done first. Readers, made for one thread, see one; and of a dump larger than memory only a few records are held."""
    threads(3)
    here, held, most, theirs = threading.get_ident(), 0, 0, set()

    def opened(number: int) -> Callable[[], int]:
        nonlocal held, most
        assert threading.get_ident() == here
        held += 1
        most = max(most, held)

        def rest() -> int:
            theirs.add(threading.get_ident())
            assert torch.get_num_threads() == 1
            time.sleep(0.002 * (number % 3))
            return number

        return rest

    for i, answer in enumerate(on_cores.run(opened, range(5, 45))):
        held -= 1
        assert answer == i + 5
    assert most == 3 * on_cores.WAITING and here not in theirs and len(theirs) <= 3


def test_a_lone_record_has_all_cores(threads: Callable[[int], None]) -> None:
    """torch spreads its operations over them then."""
    threads(2)
    assert list(on_cores.run(lambda number: torch.get_num_threads, [0])) == [2]
    assert list(on_cores.run(lambda number: torch.get_num_threads, range(3))) == [1, 1, 1]


@pytest.mark.parametrize("opening", [True, False])
def test_an_error_ends_the_work(opening: bool, threads: Callable[[int], None]) -> None:
    """It passes through from either place, in its turn, and no record behind it is begun any more."""
    threads(2)
    begun: list[int] = []

    def fail() -> int:
        raise MissingPart("gone", where="record 3")

    def opened(number: int) -> Callable[[], int]:
        begun.append(number)
        return (fail() if opening else fail) if number == 3 else lambda: number  # type: ignore[return-value]

    answers = []
    with pytest.raises(MissingPart, match="gone"):
        for answer in on_cores.run(opened, range(100)):
            answers.append(answer)
    assert answers == [0, 1, 2][: len(answers)] and max(begun) <= 3 + 2 * on_cores.WAITING and torch.get_num_threads() == 2


def test_reading_ahead_only_tells(tmp_path: Path) -> None:
    """Mapped, in memory, in columns, empty, by rows: nothing changes, and nothing is refused."""
    rows = torch.randn(3000, 40)
    save_file({"x": rows}, tmp_path / "x.safetensors")
    mapped = TensorFiles.open(tmp_path / "x.safetensors")["x"]
    for part in (mapped, rows, rows[:, 3:7], rows[:0], rows[0], mapped[17:2000]):
        before = part.clone()
        read_ahead(part)
        with few_rows(part, [0, len(part) - 1] if len(part) else []):
            assert torch.equal(part, before)
        assert torch.equal(part, before)


# -- taken up again ----------------------------------------------------------------------------------------------------------------


def same(one: Any, other: Any) -> None:
    """Byte for byte."""
    assert one.to_json(include_text=True) == other.to_json(include_text=True)


def test_small_chunks_change_nothing(dumps: tuple[str, str], small_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the split."""
    fine = compare(*dumps, target=torch.ones(24))
    monkeypatch.setattr(chunked, "CHUNK_VALUES", 1 << 26)
    same(fine, compare(*dumps, target=torch.ones(24)))


def stopping_after(monkeypatch: pytest.MonkeyPatch, name: str, count: int) -> list[int]:
    """Interrupts the work after ``count`` chunks; the list counts them."""
    done: list[int] = []
    state = chunked._State
    keep = state.keep

    def kept(self: Any, chunk: int, part: Partial) -> None:
        keep(self, chunk, part)
        done.append(chunk)
        if len(done) == count:
            raise KeyboardInterrupt

    monkeypatch.setattr(state, "keep", kept)
    return done


def test_an_interrupted_comparison_is_taken_up_again(
    dumps: tuple[str, str], small_chunks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is finished is not done again, also where the last file was damaged; the result is that of one run."""
    done = stopping_after(monkeypatch, "comparing", 3)
    with pytest.raises(KeyboardInterrupt):
        compare(*dumps, resume=tmp_path / "state")
    assert done == [0, 1, 2]
    last = tmp_path / "state" / "part-000002.safetensors"
    last.write_bytes(last.read_bytes()[:100])
    result = compare(*dumps, resume=tmp_path / "state")
    assert done[3:] == list(range(2, len(done) - 1)) and len(done) > 5
    same(result, compare(*dumps))
    again = compare(*dumps, resume=tmp_path / "state")
    assert done[-1] == max(done)  # nothing more was done
    same(again, result)


def test_an_interrupted_check_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The readings through the target's head as well."""
    monkeypatch.setattr(chunked, "CHUNK_VALUES", 1)
    target = knowing()
    folder = written(tmp_path / "dump", HiddenStates.from_tensors(predicting(target), side="train", target=IDENTITY, boundaries=(2, 3)))
    done = stopping_after(monkeypatch, "checking", 2)
    with pytest.raises(KeyboardInterrupt):
        check_dump(folder, target=target, resume=tmp_path / "state")
    result = check_dump(folder, target=target, resume=tmp_path / "state")
    assert done == [0, 1, 2, 3] and result.declared is not None and result.declared.agreement > 0.9
    same(result, check_dump(folder, target=target))


def test_the_state_of_other_work_is_refused(dumps: tuple[str, str], tmp_path: Path) -> None:
    """Another sample, a dump that was written again, a folder of something else, a dump in memory: each is named."""
    state = tmp_path / "state"
    compare(*dumps, resume=state)
    with pytest.raises(BadArgument, match="state of other work"):
        compare(*dumps, resume=state, sample=3)
    manifest = Path(dumps[1]) / "manifest.json"
    before = stamp(dumps[1])
    manifest.write_text(json.dumps(json.loads(manifest.read_text()), indent=2))
    assert stamp(dumps[1]) != before
    with pytest.raises(BadArgument, match="state of other work"):
        compare(*dumps, resume=state)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    with pytest.raises(BadArgument, match="not that of an interrupted run"):
        compare(*dumps, resume=tmp_path / "mine")
    with pytest.raises(BadArgument, match=r"only .* on disk"):
        compare(healthy(), noisy(healthy()), resume=tmp_path / "memory")


def test_an_opened_comparison_holds_no_file(dumps: tuple[str, str]) -> None:
    """Ids are copies: a hundred thousand mapped files are more than a process may hold."""
    side = load_side(dumps[0], "train")
    for rows in side.rows:
        assert rows.ids is not None and rows.ids.untyped_storage().nbytes() == rows.ids.numel() * 8


# -- ranks -------------------------------------------------------------------------------------------------------------------------


def test_ranks_that_hold_the_same_are_silent_and_others_named(tmp_path: Path) -> None:
    """Bit for bit: a partial sum in one block, rows cut otherwise, a record more on one side (which is legal: it was still running)."""
    live = noisy(healthy())
    folder = written(tmp_path / "live", live)
    written(tmp_path / "live.rank1", live)
    written(tmp_path / "live.rank2", dump([{"name": r.name, "input_ids": r.input_ids, "features": r.features} for r in live][:2], "live"))
    written(tmp_path / "liver", changed(live, lambda f: f * 0))  # another dump, no rank
    checked = check_dump(folder)
    assert checked.ok and [(r.name, r.records, r.missing, r.differing) for r in checked.ranks] == [
        ("live.rank1", 3, 0, 0),
        ("live.rank2", 2, 1, 0),
    ]
    written(tmp_path / "live.rank3", changed(live, lambda f: torch.cat([f[:, :24] * 0.5, f[:, 24:]], -1)))
    written(tmp_path / "live.rank4", changed(live, lambda f: f.roll(1, 0)))
    found = check_dump(folder)
    assert [f.fault for f in found.findings] == ["H10"] and "live.rank3, live.rank4 hold" in found.findings[0].title
    assert {r.name: r.differing for r in found.ranks}["live.rank3"] == found.tokens


# -- at a shell --------------------------------------------------------------------------------------------------------------------


def test_the_shell_takes_samples_and_resumes(dumps: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same options at a shell, for both verbs."""
    code = cli.main(["compare", *dumps, "--sample", "3", "--seed", "1", "--resume", str(tmp_path / "state"), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert code in (0, 1) and said["sampled"] == {"records": 3, "of": 8, "seed": 1} and (tmp_path / "state" / "state.json").is_file()
    assert cli.main(["check", dumps[0], "--sample", "2", "--json", "--html", str(tmp_path / "c.html")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kind"] == "DumpCheck" and said["records"] == 2 and (tmp_path / "c.html").is_file()


def test_check_dump_at_a_shell_finds_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 on a dump of zeros, 0 below --fail-on, 2 on what is no dump."""
    zeros = written(tmp_path / "zeros", dump([{"name": "a", "input_ids": torch.arange(9), "features": torch.zeros(9, 72)}]))
    assert cli.main(["check", zeros, "--fail-on", "error"]) == 1
    assert "all states are zero" in capsys.readouterr().out
    assert cli.main(["check", str(tmp_path / "nothing")]) == 2


def test_without_ray_the_install_line_is_given(dumps: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And a dump in memory is refused before any cluster is asked."""
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Exception, match=r"eagle3diag\[ray\]"):
        compare(*dumps, ray="auto")
    with pytest.raises(BadArgument, match="a cluster needs the path"):
        compare(healthy(), noisy(healthy()), ray="auto")
