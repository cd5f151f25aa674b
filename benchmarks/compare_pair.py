"""One pair of 2,048 x 21,504 bf16 states: all per-token metrics of compare(), beside torch.testing.assert_close on the same pair.

    python benchmarks/compare_pair.py [--tokens 2048] [--hidden 7168] [--rounds 3]

Prints processor time as a ratio to assert_close (which passes: its tolerances are wide), all on one thread, and the most memory that each
needed on top of the two tensors. Rounds take turns; the medians of the ratios within a round are what counts. Where SGLang is installed
(``PYTHONPATH=tools/sglang_cpu/shims:. .venv-sglang/bin/python``) its own comparator is measured on the same pair.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import accumulate
from statistics import median
from time import process_time

import torch

from eagle3diag import compare
from eagle3diag.compare.align import Alignment, align
from eagle3diag.compare.measure import finish, measure, numbered, plan
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


def seconds(call: Callable[[], object]) -> float:
    """Of processor time."""
    start = process_time()
    call()
    return process_time() - start


def comparator(train: torch.Tensor, live: torch.Tensor) -> Callable[[], object] | None:
    """SGLang's comparison of two dumped tensors, with its numbers per token; None where it is not installed."""
    try:
        from sglang.srt.debug_utils.comparator.tensor_comparator.comparator import compare_tensor_pair
    except ImportError:
        return None
    return lambda: compare_tensor_pair(train, live, name="hidden_states", seq_dim=0)


def calls(tokens: int, hidden: int) -> dict[str, Callable[[], object]]:
    train, live = pair(tokens, hidden)
    alignment = align(load(train, "train"), load(live, "live"))
    layout = Layout(hidden, 3 * hidden, 3 * hidden)
    theirs = comparator(train, live)
    return {
        "assert_close": lambda: torch.testing.assert_close(live, train, rtol=0.5, atol=0.5),
        "per-token metrics": lambda: _per_token(alignment, layout),
        "compare(), everything": lambda: compare(train, live, hidden_size=hidden),
        **({"SGLang's comparator": theirs} if theirs else {}),
    }


def _per_token(alignment: Alignment, layout: Layout) -> object:
    planned = plan(alignment, layout, (), None)
    assert planned is not None
    return finish(planned, measure(planned, numbered(alignment)))


def most_held(call: Callable[[], object]) -> float:
    """The most memory in MB that tensors of a call held at once, by torch's own account of every allocation."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    assert profile.profiler is not None and profile.profiler.kineto_results is not None
    changes = [e.nbytes() for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(accumulate(changes, initial=0)) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    made = calls(given.tokens, given.hidden)
    rounds = [{name: seconds(call) for name, call in made.items()} for _ in range(given.rounds)]
    for name, call in made.items():
        ratio = median(r[name] / r["assert_close"] for r in rounds)
        best = min(r[name] for r in rounds)
        print(f"{name:24} {best:6.2f} s, {ratio:5.2f} x assert_close, {most_held(call):6.0f} MB more memory", flush=True)


if __name__ == "__main__":
    main()
