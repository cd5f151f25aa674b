"""Dumps larger than what is kept in memory: how fast they are checked and compared, beside the rate at which the files can be read and summed.

    python benchmarks/dumps_rate.py [--gigabytes 2] [--hidden 2048] [--rounds 3] [--threads 1 2] [--folder DIR]

All begin with the files out of the page cache (``posix_fadvise``) and have the same number of threads; rounds take turns, and the medians of the
ratios within a round are printed, of wall and of processor time. The plain reading is done in two ways: tensor by tensor, which converts each
as a whole to float32 (that costs more than the reading), and in blocks that fit into the cache, files side by side: as fast as it can be.

Folders are larger than memory where the process has little of it: ``systemd-run --scope -p MemoryMax=2G python benchmarks/dumps_rate.py
--gigabytes 4``, or the same with a cgroup made by hand.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch
from safetensors import safe_open

from eagle3diag import check_dump, compare
from eagle3diag.dumps import DumpWriter, TargetIdentity

TOKENS = 2048
PLAIN = {"whole tensors": TOKENS, "in blocks": 64}


def write(folder: Path, side: str, gigabytes: float, hidden: int) -> None:
    """Records of three blocks in bf16, one in each shard."""
    g = torch.Generator().manual_seed(0)
    rows = torch.randn(TOKENS + 64, 3 * hidden, generator=g).bfloat16()
    target = TargetIdentity("toy", "0" * 16, "bfloat16", 30, hidden)
    with DumpWriter(folder, side=side, target=target, engine="sglang", boundaries=(2, 15, 27)) as writer:
        for i in range(max(int(gigabytes * 1e9 / (TOKENS * 3 * hidden * 2)), 1)):
            ids = torch.randint(0, 1000, (TOKENS,), generator=g)
            writer.add(name=f"r{i:05d}", input_ids=ids, features=rows[i % 64 : i % 64 + TOKENS])


def forget(folder: Path) -> None:
    """Take the files out of the page cache."""
    for path in folder.rglob("*.safetensors"):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def summed(folders: list[Path], threads: int, rows: int) -> float:
    """Every stored state read once and added up, so many rows at a time."""

    def one(path: Path) -> float:
        with safe_open(path, framework="pt") as held:
            tensors = [held.get_tensor(name) for name in held.keys()]
            return sum(float(t[i : i + rows].sum(dtype=torch.float32)) for t in tensors for i in range(0, len(t), rows))

    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return sum(pool.map(one, sorted(path for folder in folders for path in folder.glob("*.safetensors"))))


def timed(call: Callable[[], object], folders: list[Path]) -> tuple[float, float]:
    """Seconds of wall and of processor time, from cold files."""
    for folder in folders:
        forget(folder)
    wall, cpu = perf_counter(), process_time()
    call()
    return perf_counter() - wall, process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of each side")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1], help="of either side; one run for each")
    parser.add_argument("--folder", type=Path, help="where to write (default: the temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        train, live = Path(name, "train"), Path(name, "live")
        write(train, "train", args.gigabytes, args.hidden)
        write(live, "live", args.gigabytes, args.hidden)
        for threads in args.threads:
            ratios("check_dump", lambda: check_dump(train), [train], threads, args.rounds)
            ratios("compare", lambda: compare(train, live), [train, live], threads, args.rounds)


def ratios(what: str, call: Callable[[], object], folders: list[Path], threads: int, rounds: int) -> None:
    """Prints the rate of ``call`` over that of each plain reading."""
    plain = {name: partial(summed, folders, threads, rows) for name, rows in PLAIN.items()}
    found = []
    for _ in range(rounds):
        base = {name: timed(read, folders) for name, read in plain.items()}
        torch.set_num_threads(threads)
        ours = timed(call, folders)
        found.append({name: (wall / ours[0], cpu / ours[1]) for name, (wall, cpu) in base.items()})
    size = sum(path.stat().st_size for folder in folders for path in folder.glob("*.safetensors")) / 1e9
    for name in plain:
        wall, cpu = (median(r[name][i] for r in found) for i in (0, 1))
        rate = f"{wall:.2f} of the rate of summing {name} ({cpu:.2f} by processor time)"
        print(f"{what}, {threads} threads: {rate}, {rounds} rounds, {size:.1f} GB", flush=True)


if __name__ == "__main__":
    main()
