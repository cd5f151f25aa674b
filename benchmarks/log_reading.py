"""How fast a server's log is read, and in how much memory: a made log of SGLang and one of vLLM, plain and gzipped.

    python benchmarks/log_reading.py [MEGABYTES]

Prints per log the rate in MB/s of processor time and of wall time, and the memory that reading added. Processor time is the figure to
compare: wall time depends on what else the machine does. The promise is 1 GB in under 10 s in constant memory.
"""

from __future__ import annotations

import gzip
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

START = "[2026-11-29 10:00:00] server_args={'model_path': 'T', 'speculative_algorithm': 'EAGLE3', 'speculative_num_steps': 4, " + (
    "'speculative_eagle_topk': 1, 'speculative_num_draft_tokens': 5}\n"
)


def sglang(seed: int, windows: float) -> Iterator[str]:
    """Lines of a busy SGLang server; ``windows``: share of decode lines, the rest are prefill and access lines."""
    draw = random.Random(seed)
    yield START
    while True:
        stamp = f"[2026-11-29 {draw.randrange(10, 24)}:{draw.randrange(60):02d}:{draw.randrange(60):02d} TP0]"
        if draw.random() < windows:
            length, running = 1 + 3 * draw.random(), draw.randrange(1, 64)
            yield (
                f"{stamp} Decode batch, #running-req: {running}, #token: {running * 900}, token usage: 0.21, accept len: {length:.2f}, accept rate: "
                f"{(length - 1) / 4:.2f}, cuda graph: True, gen throughput (token/s): 1841.96, #queue-req: 0\n"
            )
        elif draw.random() < 0.5:
            yield f"{stamp} Prefill batch, #new-seq: 1, #new-token: 530, #cached-token: 0, token usage: 0.08, #running-req: 7, #queue-req: 0\n"
        else:
            yield f'{stamp[:-5]}] INFO:     127.0.0.1:{draw.randrange(65536)} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


def other(seed: int) -> Iterator[str]:
    """Lines that no rule knows: the slow path, since each must be searched for every marker."""
    draw = random.Random(seed)
    while True:
        yield f"(APIServer pid=9) INFO 11-29 15:33:00 [loggers.py:257] something happened to request {draw.randrange(10**12)} in step {draw.random()}\n"


def write(path: Path, lines: Iterator[str], size: int) -> None:
    """A file of ``size`` bytes; a block of 8 MB is made and repeated, which no reader here can profit from."""
    block = bytearray()
    while len(block) < min(size, 8 << 20):
        block += next(lines).encode()
    with path.open("wb") as file:
        written = file.write(block)
        body = bytes(block).replace(START.encode(), b"")
        while written < size:
            written += file.write(body)


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--read":
        read(Path(sys.argv[2]))
        return
    size = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 1_000_000_000
    logs = {"SGLang, busy": sglang(0, 0.4), "SGLang, decode lines only": sglang(0, 1.0), "lines that no rule knows": other(0)}
    for name, lines in logs.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "log")
            write(path, lines, size)
            measure(name, path)
            if name == "SGLang, busy":
                packed = Path(folder, "log.gz")
                with path.open("rb") as plain, gzip.open(packed, "wb", compresslevel=1) as out:
                    while piece := plain.read(1 << 22):
                        out.write(piece)
                measure(f"{name}, gzip", packed)


def measure(name: str, path: Path) -> None:
    """In a process of its own, so that the memory is that of one reading."""
    done = subprocess.run([sys.executable, __file__, "--read", str(path)], capture_output=True, text=True, check=True)
    sys.stdout.write(f"{name:28} {done.stdout}")
    sys.stdout.flush()


def read(path: Path) -> None:
    from eagle3diag.serving import read_log

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    seen = read_log(path)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    size = path.stat().st_size
    if path.suffix == ".gz":
        with gzip.open(path) as file:
            size = file.seek(0, 2)
    length = f"{seen.acceptance.length:.3f}" if seen.acceptance and seen.acceptance.length else "-"
    sys.stdout.write(
        f"{size / 1e6:6.0f} MB in {cpu:5.2f} s of processor ({size / 1e6 / cpu:4.0f} MB/s), {wall:5.2f} s of wall; "
        f"{added / 1024:3.0f} MB added; {seen.n_windows} windows, accept length {length}\n"
    )


if __name__ == "__main__":
    main()
