"""One pair of 2,048 x 21,504 bf16 states: all per-token metrics of compare(), beside torch.testing.assert_close on the same pair.

    python benchmarks/compare_pair.py [--tokens 2048] [--hidden 7168] [--rounds 3]

Prints processor time as a ratio to assert_close (which passes: its tolerances are wide), both on one thread, and the most memory that each
needed on top of the two tensors. Ratios of one run are what counts.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable
from time import process_time

import torch

from eagle3diag import compare
from eagle3diag.compare.align import align
from eagle3diag.compare.measure import measure
from eagle3diag.compare.sampling import Layout
from eagle3diag.compare.sources import load


def pair(tokens: int, hidden: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Train and live states of three blocks, apart by rounding."""
    g = torch.Generator().manual_seed(0)
    train = torch.empty(tokens, 3 * hidden, dtype=torch.bfloat16)
    live = torch.empty_like(train)
    for i in range(0, tokens, 64):
        x = torch.randn(min(64, tokens - i), 3 * hidden, generator=g)
        train[i : i + 64] = x.bfloat16()
        live[i : i + 64] = (x * (1 + 0.002 * torch.randn(x.shape, generator=g))).bfloat16()
    return train, live


def best(call: Callable[[], object], rounds: int) -> float:
    """The shortest of some runs, in seconds of processor time."""
    taken = []
    for _ in range(rounds):
        start = process_time()
        call()
        taken.append(process_time() - start)
    return min(taken)


def calls(tokens: int, hidden: int) -> dict[str, Callable[[], object]]:
    train, live = pair(tokens, hidden)
    alignment = align(load(train, "train"), load(live, "live"))
    layout = Layout(hidden, 3 * hidden, 3 * hidden)
    return {
        "assert_close": lambda: torch.testing.assert_close(live, train, rtol=0.5, atol=0.5),
        "per-token metrics": lambda: measure(alignment, layout, (), None),
        "compare(), everything": lambda: compare(train, live, hidden_size=hidden),
    }


def memory(name: str, tokens: int, hidden: int) -> float:
    """Most memory in MB that one call needed on top of what was there, in a process of its own."""
    command = [sys.executable, __file__, "--tokens", str(tokens), "--hidden", str(hidden), "--memory-of", name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    made = calls(given.tokens, given.hidden)
    if given.memory_of:
        calls(64, 64)[given.memory_of]()  # what is loaded once does not count
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        made[given.memory_of]()
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
        return
    seconds = {name: best(call, given.rounds) for name, call in made.items()}
    for name, taken in seconds.items():
        more = memory(name, given.tokens, given.hidden)
        print(f"{name:24} {taken:6.2f} s = {taken / seconds['assert_close']:5.2f} x assert_close, {more:6.0f} MB more memory")


if __name__ == "__main__":
    main()
