"""Work on a real Ray cluster of several nodes: the result is the local one, byte for byte, also when workers and nodes die on the way."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3diag import BadArgument, MissingPart, check_dump, compare
from eagle3diag.compare import chunked, on_ray
from eagle3diag.dumps import DumpWriter, TargetIdentity
from eagle3diag.errors import Eagle3DiagError

ray = pytest.importorskip("ray", reason="ray is not installed (pip install 'eagle3diag[ray]')")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),  # ray warns of its own future
]
H, TOKENS, RECORDS = 256, 300, 24
TARGET = TargetIdentity("toy", "0" * 16, "bfloat16", 8, H)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes of one core each, the head among them."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    made.wait_for_nodes()
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the nodes cannot import this file
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Train and live of 24 records, live with rows that are broken or repeated."""
    folder = tmp_path_factory.mktemp("dumps")
    g = torch.Generator().manual_seed(0)
    for side in ("train", "live"):
        with DumpWriter(folder / side, side=side, target=TARGET, boundaries=(2, 4, 5), engine="sglang") as writer:
            for i in range(RECORDS):
                n = TOKENS - 7 * i
                x = torch.randn(n, 3 * H, generator=torch.Generator().manual_seed(i)) * 3 + 1
                if side == "live":
                    x = x * (1 + 0.01 * torch.randn(x.shape, generator=g))
                    x[i % 5 + 20 : i % 5 + 22] = 0
                ids = torch.randint(0, 999, (n,), generator=torch.Generator().manual_seed(100 + i))
                writer.add(name=f"r{i:02d}", input_ids=ids, features=x.bfloat16())
    return str(folder / "train"), str(folder / "live")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record in each chunk."""
    monkeypatch.setattr(chunked, "CHUNK_VALUES", 200 * 3 * H)


def same(one: Any, other: Any) -> None:
    assert one.to_json(include_text=True) == other.to_json(include_text=True)


def test_a_comparison_is_the_local_one(cluster: Any, dumps: tuple[str, str]) -> None:
    """Byte for byte, whole and sampled."""
    same(compare(*dumps, ray="auto"), compare(*dumps))
    same(compare(*dumps, sample=5, ray=cluster.address), compare(*dumps, sample=5))


def test_a_check_is_the_local_one(cluster: Any, dumps: tuple[str, str]) -> None:
    """Byte for byte."""
    same(check_dump(dumps[1], ray="auto"), check_dump(dumps[1]))


def slow(shared: Any, number: int) -> tuple[int, int]:
    """A task that takes a while and says which process did it."""
    time.sleep(0.4)
    return number, os.getpid()


def workers(cluster: Any) -> list[int]:
    """Processes of this cluster that run a task."""
    raylets = {str(n.all_processes["raylet"][0].process.pid) for n in cluster.list_all_nodes()}
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue  # it has just ended
            if stat[1] in raylets and words.startswith(b"ray::_told"):
                found.append(int(folder.name))
    return found


def killing(cluster: Any, done: threading.Event, killed: list[int]) -> None:
    """Kill a worker that is at a task."""
    while not done.is_set() and not killed:
        for pid in workers(cluster)[:1]:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        time.sleep(0.02)


def test_a_killed_worker_loses_and_doubles_nothing(cluster: Any) -> None:
    """Its task is done again by another process; every number comes once."""
    done, killed = threading.Event(), []
    watcher = threading.Thread(target=killing, args=(cluster, done, killed))
    watcher.start()
    try:
        found = list(on_ray.run(slow, None, ((i, i) for i in range(12)), "auto"))
    finally:
        done.set()
        watcher.join()
    assert killed and sorted(n for n, _ in found) == list(range(12)) and all(n == value[0] for n, value in found)
    assert not {value[1] for _, value in found} & set(killed)


def test_a_comparison_survives_a_killed_worker_and_a_lost_node(
    cluster: Any, dumps: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is killed at the third chunk, a node is taken away at the eighth: the result is the local one, byte for byte."""
    seen: list[int] = []
    lost = cluster.list_all_nodes()[-1]
    told = on_ray.run

    def run(*given: Any) -> Iterator[tuple[int, Any]]:
        for one in told(*given):
            seen.append(one[0])
            if len(seen) == 3:
                deadline = time.monotonic() + 20
                while not (busy := workers(cluster)) and time.monotonic() < deadline:
                    time.sleep(0.01)
                for pid in busy[:1]:
                    os.kill(pid, signal.SIGKILL)
            if len(seen) == 8:
                cluster.remove_node(lost)
            yield one

    monkeypatch.setattr(on_ray, "run", run)
    result = compare(*dumps, ray="auto")
    assert len(seen) == len(set(seen)) >= 20
    assert len(cluster.list_all_nodes()) == 2
    same(result, compare(*dumps))


def test_work_on_a_cluster_is_taken_up_again(cluster: Any, dumps: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cluster finished is not done again, here or there."""
    state = chunked._State
    keep, kept = state.keep, []

    def stopping(self: Any, chunk: int, part: Any) -> None:
        keep(self, chunk, part)
        kept.append(chunk)
        if len(kept) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(state, "keep", stopping)
    with pytest.raises(KeyboardInterrupt):
        compare(*dumps, ray="auto", resume=tmp_path / "state")
    result = compare(*dumps, resume=tmp_path / "state")
    assert len(kept) == len(set(kept))
    same(result, compare(*dumps))


def missing(shared: Any, number: int) -> int:
    raise MissingPart("the dump stores no 'features' for this record", where="record r1", hint="capture again")


def test_errors_of_the_input_come_as_they_are(cluster: Any) -> None:
    """What a node says of a file is said here: place and hint as well."""
    with pytest.raises(MissingPart) as error:
        list(on_ray.run(missing, None, iter([(0, 0)]), "auto"))
    assert error.value.where == "record r1" and error.value.hint == "capture again"


def test_another_version_on_a_node_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of two releases are not mixed."""
    monkeypatch.setattr(on_ray, "_version", lambda: "eagle3diag 9.9")
    with pytest.raises(Eagle3DiagError, match=r"9\.9"):
        list(on_ray.run(slow, None, iter([(0, 0)]), "auto"))


def test_memory_cannot_be_shared(cluster: Any) -> None:
    """Tensors are refused, with what to do."""
    with pytest.raises(BadArgument, match="needs the path"):
        compare(torch.randn(9, 96), torch.randn(9, 96), hidden_size=32, ray="auto")
