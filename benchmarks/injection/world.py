"""The material: one draft, one target, its own answers with every boundary captured, and servers that are simulated from them.

A simulated server (:mod:`benchmarks.injection.engine`) walks the target's answers with the draft *as the engine would hold it*: whatever an
injection did to weights, map, loop or features is in it. Its counts come from prompts other than those of the dumps, so that no replay can
reproduce them exactly.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.injection.engine import Held, held, rounds
from eagle3diag.capture import capture
from eagle3diag.checkpoints import Draft, Target, open_draft, open_target
from eagle3diag.dumps import DumpWriter, HiddenStates, Record, open_dump
from eagle3diag.serving import Acceptance

STEPS = 4
DUMPED, SERVED = 6, 12  # prompts of the dumps and of the server
LAUNCH = (
    "{environment}python -m sglang.launch_server --model-path target {algorithm}--speculative-draft-model-path draft "
    "--speculative-num-steps {steps} --speculative-eagle-topk 1 --speculative-num-draft-tokens {slots}{flags}"
)


@dataclass(frozen=True, eq=False)
class World:
    """``states`` hold every boundary of every prompt, so that any fault of capture can be put together from them."""

    name: str
    draft: Draft
    target: Target
    states: HiddenStates
    net: Held
    dumped: int = DUMPED
    served: int = SERVED
    made: dict[Any, Any] = field(default_factory=dict)

    @property
    def boundaries(self) -> tuple[int, ...]:
        return self.draft.config.aux_boundaries or ()

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What many cases share is made once."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def draw(self, seed: int) -> tuple[list[int], list[int]]:
        """Disjoint prompts for the dumps and for the server."""
        chosen = random.Random(seed).sample(range(len(self.states)), self.dumped + self.served)
        return chosen[: self.dumped], chosen[self.dumped :]

    def trained(self, record: Record) -> Tensor:
        """What the draft was trained on: the declared boundaries, side by side."""
        return torch.cat([record.state(b) for b in self.boundaries], -1)

    def train(self, seed: int) -> HiddenStates:
        """What the trainer would have dumped: the declared boundaries and the final state, nothing more."""

        def make() -> HiddenStates:
            records = [
                {
                    "name": r.name,
                    "input_ids": r.input_ids,
                    "states": {b: r.state(b) for b in self.boundaries},
                    "final": r.final,
                    "prompt_length": r.prompt_length,
                }
                for r in self.states.select(self.draw(seed)[0])
            ]
            return HiddenStates.from_tensors(
                records, side="train", target=self.states.target, engine="transformers", boundaries=self.boundaries
            )

        return self.once(("train", seed), make)

    def reference(self, seed: int) -> HiddenStates:
        return self.once(("reference", seed), lambda: self.states.select(self.draw(seed)[0]))

    def live(self, seed: int, key: str, fed: Fed) -> HiddenStates:
        """What a recorder in the engine would have dumped: the fed rows in bf16, as another kernel would have rounded them."""

        def make() -> HiddenStates:
            draw = torch.Generator().manual_seed(seed)

            def rounded(rows: Tensor) -> Tensor:
                """One bf16 ulp either way on a third of the entries: cosine 0.9999 with the rows as they are. What is one buffer stays one."""
                h = self.target.hidden_size
                noise = torch.rand(len(rows), h, generator=draw).repeat(1, rows.shape[1] // h)
                return (rows.float() * (1 + (noise - 0.5) * 2**-7)).to(torch.bfloat16)

            records = [
                {"name": r.name, "input_ids": r.input_ids, "features": rounded(fed(self, r)), "prompt_length": r.prompt_length}
                for r in self.states.select(self.draw(seed)[0])
            ]
            return HiddenStates.from_tensors(records, side="live", target=self.states.target, engine="sglang", engine_version="0.5.23")

        return self.once(("live", seed, key), make)

    def serve(self, seed: int, net: Held, fed: Fed, steps: int = STEPS) -> Acceptance:
        """Counts of a server that holds ``net`` and feeds it ``fed``."""
        served = self._rounds(net, list(self.states.select(self.draw(seed)[1])), fed, steps)
        return counted([m for made in served for m in made], steps)

    def recorded(self, live: HiddenStates, seed: int, net: Held, after: Fed | None, steps: int) -> HiddenStates:
        """``live`` with the rounds of the requests in it: the server that was recorded holds ``net``, and is fed the rows of the dump, or
        those that ``after`` makes of the prompt's."""
        if after is None:
            served = self._rounds(net, list(live), lambda _, r: r.features, steps)
        else:
            served = self._rounds(net, list(self.states.select(self.draw(seed)[0])), after, steps)
        made = []
        for r, one in zip(live, served, strict=True):
            accepted, at = torch.full((r.tokens,), -1), first(r)
            for m in one:
                accepted[at] = m
                at += m + 1
            made.append(
                {"name": r.name, "input_ids": r.input_ids, "features": r.features, "prompt_length": r.prompt_length, "accepted": accepted}
            )
        return HiddenStates.from_tensors(made, side="live", target=live.target, engine=live.engine, engine_version=live.engine_version)

    def _rounds(self, net: Held, records: Sequence[Record], fed: Fed, steps: int) -> list[list[int]]:
        """Accepted drafts of every round of every record."""
        made = []
        for n, r in enumerate(records):
            other = None
            if net.foreign:
                before = records[n - 1]
                with torch.inference_mode():
                    other = net.read(before.input_ids, fed(self, before).float())[0]
            made.append(rounds(net, r.input_ids, fed(self, r).float(), first(r), steps, other))
        return made

    def healthy(self, seed: int) -> Acceptance:
        return self.once(("healthy", seed), lambda: self.serve(seed, self.net, as_trained))


Fed = Callable[[World, Record], Tensor]


def first(record: Record) -> int:
    """The row that a server first drafts from: the last of the prompt."""
    return (record.prompt_length or 1) - 1


def as_trained(world: World, record: Record) -> Tensor:
    """A healthy engine feeds what was trained on."""
    return world.trained(record)


def counted(made: Sequence[int], steps: int) -> Acceptance:
    hits = [sum(m >= i for m in made) for i in range(1, steps + 1)]
    n = len(made)
    return Acceptance(n, sum(hits), steps, steps + 1, tuple(h / n for h in hits), 1 + sum(hits) / n, "sglang", "0.5.23")


def open_world(name: str, draft: Path, target: Path, prompts: Path | None, cache: Path) -> World:
    """Capture every boundary on the target's own greedy answers, once; ``cache`` is the dump that later runs open."""
    opened, base = open_draft(draft), open_target(target)
    if not cache.exists() and prompts is not None:
        _capture(base, prompts, cache, opened.config.aux_boundaries or ())
    return World(name, opened, base, open_dump(cache), held(opened, base))


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
