"""A dump larger than what is kept in memory: how fast it is checked, beside the rate at which the same files can be read and summed once.

    python benchmarks/dumps_rate.py [--gigabytes 3] [--hidden 2048] [--rounds 3] [--folder DIR]

Both begin with the files out of the page cache (``posix_fadvise``), on one thread; rounds take turns, and the ratio of their wall times within
a round is printed, with the median, and the same of processor times.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch
from safetensors import safe_open

from eagle3diag import check_dump, compare
from eagle3diag.dumps import DumpWriter, TargetIdentity

TOKENS = 2048


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


def summed(folders: list[Path]) -> float:
    """Every stored state read once and added up."""
    total = 0.0
    for folder in folders:
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as held:
                for name in held.keys():
                    total += float(held.get_tensor(name).sum(dtype=torch.float32))
    return total


def timed(call: Callable[[], object], folders: list[Path]) -> tuple[float, float]:
    """Seconds of wall and of processor time, from cold files."""
    for folder in folders:
        forget(folder)
    wall, cpu = perf_counter(), process_time()
    call()
    return perf_counter() - wall, process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=3.0, help="of each side")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write (default: the temporary folder)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        train, live = Path(name, "train"), Path(name, "live")
        write(train, "train", args.gigabytes, args.hidden)
        write(live, "live", args.gigabytes, args.hidden)
        for what, call, folders in (
            ("check_dump", lambda: check_dump(train), [train]),
            ("compare", lambda: compare(train, live), [train, live]),
        ):
            found = []
            for _ in range(args.rounds):
                plain, ours = timed(lambda: summed(folders), folders), timed(call, folders)  # noqa: B023 (called at once)
                found.append((plain[0] / ours[0], plain[1] / ours[1]))
            walls, cpus = zip(*found, strict=True)
            rates = f"{median(walls):.2f} of the rate of reading and summing ({median(cpus):.2f} by processor time)"
            print(f"{what}: {rates}, {len(found)} rounds, {len(folders) * args.gigabytes:g} GB", flush=True)


if __name__ == "__main__":
    main()
