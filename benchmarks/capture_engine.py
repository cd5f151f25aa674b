"""What recording inside an SGLang server costs: forwards with the recorder over the same forwards without, in turns in one run.

    python benchmarks/capture_engine.py --target DIR [--tokens 256] [--requests 8] [--steps 8] [--rounds 15] [--clock wall] [--limit 1.10]

The recorder is the one that ``--forward-hooks`` loads, its writing thread included; the engine around it is a stand-in that runs a real
target eagerly and feeds a fusion three states wide. A round times a prefill, and verifies of five slots for several requests, plain and
recorded right after one another and in alternating order; the medians of the paired ratios are printed. Exit status 1 above ``--limit``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache

from eagle3diag.capture.sglang import record_runner
from eagle3diag.dumps import open_dump

SLOTS, ACCEPTED, N_AUX = 5, 3, 3


class Target(nn.Module):
    """A Transformers decoder behind the arguments of SGLang's: flat ids and positions, and a batch that says what they are."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder, self.embed_tokens, self.layers = decoder, decoder.embed_tokens, decoder.layers
        self.config, self.layers_to_capture = decoder.config, [2, 15, 27]
        self.cache: Any = None

    def forward(self, ids: Tensor, positions: Tensor, batch: Any) -> tuple[Tensor, list[Tensor]]:
        out = self.decoder(input_ids=ids.view(len(batch.rids), -1), past_key_values=self.cache, use_cache=True).last_hidden_state
        final = out.flatten(0, 1)
        return final, [final * 0.5] * N_AUX


class Draft(nn.Module):
    """No more of a draft than its fusion."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.fc = nn.Linear(N_AUX * size, size, bias=False, dtype=dtype)

    def forward(self, ids: Tensor, positions: Tensor, batch: Any) -> Tensor:
        out: Tensor = self.fc(batch.spec_info.hidden_states)
        return out


class Engine:
    """Prefills and verifies as SGLang's worker would, eagerly."""

    def __init__(self, folder: str) -> None:
        decoder = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval().model
        weight = decoder.embed_tokens.weight
        self.runner, self.draft = nn.ModuleDict({"model": Target(decoder)}), nn.ModuleDict({"model": Draft(weight.shape[1], weight.dtype)})

    def forward(self, mode: str, requests: int, start: int, width: int) -> None:
        ids = torch.arange(3, 3 + requests * width)
        positions = torch.arange(start, start + width).repeat(requests)
        rids = [f"r{i}" for i in range(requests)]
        batch = SimpleNamespace(input_ids=ids, positions=positions, rids=rids, extend_seq_lens_cpu=[width] * requests)
        batch.forward_mode = SimpleNamespace(name=mode)
        _, aux = self.runner["model"](ids, positions, batch)
        fed = torch.cat(aux, -1)
        batch.spec_info = SimpleNamespace(hidden_states=fed, num_accept_tokens=torch.full((requests,), ACCEPTED))
        batch.forward_mode = SimpleNamespace(name="EXTEND" if mode == "EXTEND" else "DRAFT_EXTEND_V2")
        self.draft["model"](ids, positions, batch)

    def prefill(self, tokens: int) -> None:
        self.runner["model"].cache = DynamicCache()
        self.forward("EXTEND", 1, 0, tokens)

    def verify(self, requests: int, steps: int) -> None:
        self.runner["model"].cache = DynamicCache()
        self.forward("EXTEND", requests, 0, 4)
        for step in range(steps):
            self.forward("TARGET_VERIFY", requests, 4 + step * ACCEPTED, SLOTS)


#: CPU time is of all threads of this process, the writer's included, and does not see what else a busy machine does.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def seconds(run: Callable[[], None], engine: Engine, out: Path | None, clock: Callable[[], float]) -> float:
    """The time inside; opening and closing the dump is not the forward's."""
    with nullcontext() if out is None else record_runner(engine.runner, str(out), draft=engine.draft):
        start = clock()
        run()
        taken = clock() - start
    if out is not None:
        assert open_dump(out).complete and len(open_dump(out))
    return taken


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--limit", type=float, default=1.10)
    args = parser.parse_args()
    engine, worst = Engine(args.target), 0.0
    runs = {"prefill": partial(engine.prefill, args.tokens), "verify": partial(engine.verify, args.requests, args.steps)}
    with tempfile.TemporaryDirectory() as folder:
        for name, run in runs.items():
            run()
            ratios = []
            for number in range(args.rounds):
                taken: dict[bool, float] = {}
                for recorded in (False, True) if number % 2 else (True, False):
                    taken[recorded] = seconds(run, engine, Path(folder, f"{name}-{number}") if recorded else None, CLOCKS[args.clock])
                ratios.append(taken[True] / taken[False])
            ratio, (low, _, high) = statistics.median(ratios), statistics.quantiles(ratios, n=4)
            worst = max(worst, ratio)
            print(f"{name}: recorded / plain = {ratio:.3f} (quartiles {low:.3f} .. {high:.3f}, {len(ratios)} paired rounds)")
    return int(worst > args.limit)


if __name__ == "__main__":
    sys.exit(main())
