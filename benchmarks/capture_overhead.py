"""What capturing costs: time of a target forward with hooks over the same forward without, measured in turns in one run.

    python benchmarks/capture_overhead.py --target DIR [--boundaries 2,15,27] [--tokens 256] [--steps 16] [--rounds 15] [--limit 1.10]

Each round times a plain and a captured prefill, and a plain and a captured stretch of decode steps, right after one another and in
alternating order, so that a busy machine slows both; the medians of the paired ratios are printed. Exit status 1 above ``--limit``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from eagle3diag import capture


def clock(run: Callable[[], Any], repeat: int, *, captured: Callable[[], Any] | None) -> float:
    """Seconds that ``repeat`` runs take inside the block; the time spent on entering and leaving it is not the forward's."""
    with captured() if captured is not None else nullcontext():
        start = time.perf_counter()
        for _ in range(repeat):
            run()
        return time.perf_counter() - start


@torch.inference_mode()
def paired_ratios(model: Any, ids: torch.Tensor, boundaries: list[int], steps: int, rounds: int) -> dict[str, list[float]]:
    """Captured over plain, per round, for a prefill of ``ids`` [B, T] and for ``steps`` decode steps after it."""

    def prefill() -> None:
        model(ids, use_cache=True)

    def decode() -> None:
        # greedy, end token ignored: every round does the same work; the prompt is short, so the steps dominate
        model.generate(ids[:, :8], max_new_tokens=steps, do_sample=False, eos_token_id=None, pad_token_id=0)

    found: dict[str, list[float]] = {"prefill": [], "decode": []}
    for name, run in (("prefill", prefill), ("decode", decode)):
        run()
        for number in range(rounds):
            times: dict[bool, float] = {}
            for hooked in (False, True) if number % 2 else (True, False):
                times[hooked] = clock(run, 1, captured=(lambda: capture(model, boundaries)) if hooked else None)
            found[name].append(times[True] / times[False])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--boundaries", default="2,15,27")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=1.10)
    args = parser.parse_args()
    model: Any = AutoModelForCausalLM.from_pretrained(args.target, dtype="auto")
    model.eval()
    ids = torch.randint(0, model.config.vocab_size, (args.batch, args.tokens), generator=torch.Generator().manual_seed(0))
    boundaries = [int(b) for b in args.boundaries.split(",")]
    worst = 0.0
    for name, ratios in paired_ratios(model, ids, boundaries, args.steps, args.rounds).items():
        ratio, (low, _, high) = statistics.median(ratios), statistics.quantiles(ratios, n=4)
        worst = max(worst, ratio)
        print(f"{name}: captured / plain = {ratio:.3f} (quartiles {low:.3f} .. {high:.3f}, {len(ratios)} paired rounds)")
    return int(worst > args.limit)


if __name__ == "__main__":
    raise SystemExit(main())
