"""Causes that are in no list: what a server could do to a draft, and no fault of the catalogue names. Right is "none of these".

The diagnosis keeps :data:`eagle3diag.diagnose.explain.NONE_OF_THESE` for them; the matrix draws as many of them as that, so that a share means
what it says there too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.injection.engine import Cache, Held
from benchmarks.injection.kinds import Broken, Injection
from benchmarks.injection.world import World

UNLISTED = "unlisted"


class _Rectified(Held):
    """Another activation in the MLP than trained."""

    def finish(self, i: int, tokens: Tensor, hidden: Tensor, found: Tensor) -> Tensor:
        at = f"layers.{i}."
        hidden = hidden + self.linear(found.flatten(1), f"{at}self_attn.o_proj")
        x = self.rms(hidden, f"{at}post_attention_layernorm")
        return hidden + self.linear(F.relu(self.linear(x, f"{at}mlp.gate_proj")) * self.linear(x, f"{at}mlp.up_proj"), f"{at}mlp.down_proj")


class _OtherWidth(Held):
    """Scores scaled for heads of a quarter of the width."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, own: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        return super().attend(2 * q, k, v, seen, own)


class _Forgetful(Held):
    """A step does not see the keys of the steps before it in its round."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, own: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        return super().attend(q, k, v, seen, own[-1:] if own else own)


class _FromOne(Held):
    """Norm weights counted from one, where the file counts them from zero."""

    def rms(self, x: Tensor, name: str) -> Tensor:
        return super().rms(x, name) + x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class _OtherHalves(Held):
    """The state before the embedding in the layer's input."""

    def mix(self, i: int, tokens: Tensor, hidden: Tensor) -> Tensor:
        mixed = super().mix(i, tokens, hidden)
        return torch.cat(mixed.chunk(2, -1)[::-1], -1) if i == 0 else mixed


class _OneStep(Held):
    """From the second own step on the state is read from a buffer that nothing fills."""

    def step(self, number: int, tokens: Tensor, hidden: Tensor, rows: Tensor, cache: Cache, own: list[Cache], prompt: int = 0) -> Tensor:
        return super().step(number, tokens, hidden if number == 1 else torch.zeros_like(hidden), rows, cache, own, prompt)


class _Banned(Held):
    """Some tokens may not be drafted: a list that is meant for the target's answers of another request."""

    def logits(self, raw: Tensor) -> Tensor:
        logits = super().logits(raw)
        logits[:, ::6] = -torch.inf
        return logits


def _run_by(world: World, draw: random.Random, engine: Callable[..., Held]) -> Broken:
    return Broken(world.draft, engine(**vars(world.net)))


def _weights(world: World, draw: random.Random, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Broken:
    return Broken(world.draft, world.net.with_weights(change(dict(world.net.weights))))


def _swapped(one: str, other: str) -> Any:
    return partial(_weights, change=lambda w: {one: w[other], other: w[one]})


def _mlp_twice(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: 2 * w for n, w in weights.items() if n.endswith("mlp.down_proj.weight")}


def _embedding_one_off(world: World, draw: random.Random) -> Broken:
    return Broken(world.draft, world.net.but(embedding=world.net.embedding.roll(1, 0)))


CAUSES: tuple[Injection, ...] = tuple(
    Injection(UNLISTED, name, make, "number")
    for name, make in (
        ("another activation", partial(_run_by, engine=_Rectified)),
        ("scores scaled for another width", partial(_run_by, engine=_OtherWidth)),
        ("steps that do not see each other", partial(_run_by, engine=_Forgetful)),
        ("norm weights counted from one", partial(_run_by, engine=_FromOne)),
        ("state before embedding", partial(_run_by, engine=_OtherHalves)),
        ("states of later steps lost", partial(_run_by, engine=_OneStep)),
        ("tokens that may not be drafted", partial(_run_by, engine=_Banned)),
        ("gate and up swapped", _swapped("layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight")),
        ("the two norms of the input swapped", _swapped("layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight")),
        ("an MLP that every rank adds", partial(_weights, change=_mlp_twice)),
        ("embedding rows one off", _embedding_one_off),
    )
)
