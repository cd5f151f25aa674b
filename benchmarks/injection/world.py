"""The material: one draft, one target, its own answers with every boundary captured, and servers that are simulated from them.

A simulated server walks the target's answers with the draft *as the engine would hold it*: whatever an injection did to weights, map,
loop or features is in it. Its counts come from prompts other than those of the dumps, so that no replay can reproduce them exactly.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eagle3diag.capture import capture
from eagle3diag.checkpoints import Draft, Target, open_draft, open_target
from eagle3diag.dumps import DumpWriter, HiddenStates, Record, open_dump
from eagle3diag.replay import Change, Net, build, run
from eagle3diag.serving import Acceptance

STEPS = 4
ANSWER = 64  # new tokens per prompt
LAUNCH = (
    "python -m sglang.launch_server --model-path target --speculative-algorithm {algorithm} --speculative-draft-model-path draft "
    f"--speculative-num-steps {STEPS} --speculative-eagle-topk 1 --speculative-num-draft-tokens {STEPS + 1}"
)

Features = Callable[[Record, Tensor], Tensor]


@dataclass(frozen=True)
class World:
    """``states`` hold every boundary of every prompt, so that any fault of capture can be put together from them."""

    draft: Draft
    target: Target
    states: HiddenStates
    net: Net

    @property
    def boundaries(self) -> tuple[int, ...]:
        return self.states.boundaries

    def draw(self, seed: int, dumped: int = 8, served: int = 12) -> tuple[list[int], list[int]]:
        """Disjoint prompts for the dumps and for the server."""
        chosen = random.Random(seed).sample(range(len(self.states)), dumped + served)
        return chosen[:dumped], chosen[dumped:]

    def train(self, prompts: Sequence[int]) -> HiddenStates:
        """What the trainer would have dumped: the declared boundaries and the final state, nothing more."""
        records = [
            {
                "name": r.name,
                "input_ids": r.input_ids,
                "states": {b: r.state(b) for b in self.boundaries},
                "final": r.final,
                "prompt_length": r.prompt_length,
            }
            for r in self.states.select(prompts)
        ]
        return HiddenStates.from_tensors(
            records, side="train", target=self.states.target, engine="transformers", boundaries=self.boundaries
        )

    def live(self, prompts: Sequence[int], features: Features, seed: int) -> HiddenStates:
        """What a recorder in the engine would have dumped: the fed rows in bf16, as another kernel would have rounded them."""
        draw = torch.Generator().manual_seed(seed)

        def rounded(rows: Tensor) -> Tensor:  # one bf16 ulp either way on a third of the entries: cosine 0.9999 with the rows as they are
            noise = (torch.rand(rows.shape, generator=draw) - 0.5) * 2**-7
            return (rows.float() * (1 + noise)).to(torch.bfloat16)

        records = [
            {"name": r.name, "input_ids": r.input_ids, "features": rounded(features(r, r.features)), "prompt_length": r.prompt_length}
            for r in self.states.select(prompts)
        ]
        return HiddenStates.from_tensors(records, side="live", target=self.states.target, engine="sglang", engine_version="0.5.23")

    def serve(self, prompts: Sequence[int], net: Net, features: Features) -> Acceptance:
        """Counts of a server that holds ``net`` and feeds it ``features``."""
        played = run(net, self.states.select(prompts), steps=STEPS, changes=(Change("", "served", features=features),))
        rounds = played.rounds
        hits = [round(p * rounds) for p in played.p]
        return Acceptance(rounds, sum(hits), STEPS, STEPS + 1, tuple(h / rounds for h in hits), 1 + sum(hits) / rounds, "sglang", "0.5.23")


def as_fed(record: Record, features: Tensor) -> Tensor:
    """A healthy engine feeds what was trained on."""
    return features


def open_world(draft: Path, target: Path, prompts: Path, cache: Path) -> World:
    """Capture every boundary on the target's own greedy answers, once; ``cache`` is the dump that later runs open."""
    opened, base = open_draft(draft), open_target(target)
    if not cache.exists():
        _capture(base, prompts, cache, opened.config.aux_boundaries or ())
    return World(opened, base, open_dump(cache), build(opened, base))


def _capture(target: Target, prompts: Path, out: Path, boundaries: tuple[int, ...]) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target.path, dtype="auto").eval()
    every = range(target.n_layers + 1)
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    writer: DumpWriter | None = None
    with torch.inference_mode():
        for n, row in enumerate(rows):
            with capture(model, every, side="reference") as tape:
                model(input_ids=torch.tensor([row["prompt_ids"] + row["output_ids"]]), use_cache=False)
            record = tape.dump[0]
            if writer is None:
                writer = DumpWriter(out, "reference", tape.dump.target, tape.dump.engine, tape.dump.engine_version, boundaries)
            states = {b: record.state(b) for b in every}
            name, length = f"prompt-{n:03}", len(row["prompt_ids"])
            writer.add(name=name, input_ids=record.input_ids, states=states, final=record.final, prompt_length=length)
    if writer is not None:
        writer.close()
