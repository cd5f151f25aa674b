"""An engine in miniature: what a server holds of a draft after loading it, and the rounds that it then plays on the target's own answers.

Written from the published formulas and the engines' sources, and apart from :mod:`eagle3diag.replay`: what is injected here must be found by
code that shares nothing with it. Every operation is differentiable, since the second and third draft are trained with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3diag.checkpoints import Draft, Target

Cache = list[tuple[Tensor, Tensor]]  # per layer: keys and values [rows, heads, width]


@dataclass(frozen=True)
class Latent:
    """Sizes of multi-head latent attention."""

    kv_rank: int
    plain: int
    turned: int
    value: int


@dataclass(frozen=True, eq=False)
class Held:
    """One draft in an engine: weights by canonical name, and how they are run.

    ``offset``: added to the position of own steps. ``table``: positions that the rotation table has. ``forgets``: rows of the prompt whose
    keys are lost. ``deaf``: keys and values read as zeros. ``stale``: keys of accepted drafts are kept. ``foreign``: another request's keys.
    """

    weights: Mapping[str, Tensor]
    embedding: Tensor
    head: Tensor
    ids: Tensor
    heads: int
    kv_heads: int
    latent: Latent | None = None
    layers: int = 1
    eps: float = 1e-5
    theta: float = 1e5
    neighbours: bool = False
    norm_before_fc: bool = False
    residual: Literal["raw", "normed", "embedding"] = "raw"
    carry: Literal["raw", "normed"] = "raw"
    window: int | None = None
    offset: int = 0
    table: int | None = None
    forgets: Literal["nothing", "prompt", "most of the prompt"] = "nothing"
    deaf: bool = False
    stale: bool = False
    foreign: bool = False

    def but(self, **changes: Any) -> Held:
        return replace(self, **changes)

    def with_weights(self, weights: Mapping[str, Tensor]) -> Held:
        return replace(self, weights={**self.weights, **weights})

    # -- one row ------------------------------------------------------------------------------------------------------------------

    def rms(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weights[f"{name}.weight"]

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate ``x [N, heads, width]``; beyond the table the last row is read, as an index that is clamped does."""
        half = x.shape[-1] // 2
        at = positions if self.table is None else positions.clamp(max=self.table - 1)
        angle = at[:, None, None] * self.theta ** (-torch.arange(half) / half)
        cos, sin = angle.cos(), angle.sin()
        a, b = (x[..., ::2], x[..., 1::2]) if self.neighbours else (x[..., :half], x[..., half:])
        pair = (a * cos - b * sin, b * cos + a * sin)
        return torch.stack(pair, -1).flatten(-2) if self.neighbours else torch.cat(pair, -1)

    def project(self, i: int, mixed: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every query head, each [N, heads, width]; latent attention spelled out per head."""
        at = f"layers.{i}.self_attn."
        n = len(mixed)
        if self.latent is None:
            q, k, v = (self.linear(mixed, f"{at}{x}_proj").view(n, -1, self.width) for x in "qkv")
            group = self.heads // self.kv_heads
            return self.turn(q, positions), self.turn(k, positions).repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        m = self.latent
        q = self.linear(self.rms(self.linear(mixed, f"{at}q_a_proj"), f"{at}q_a_layernorm"), f"{at}q_b_proj").view(n, self.heads, -1)
        low, turned = self.linear(mixed, f"{at}kv_a_proj_with_mqa").split([m.kv_rank, m.turned], -1)
        both = self.linear(self.rms(low, f"{at}kv_a_layernorm"), f"{at}kv_b_proj").view(n, self.heads, -1)
        shared = self.turn(turned[:, None], positions).expand(-1, self.heads, -1)
        q = torch.cat([q[..., : m.plain], self.turn(q[..., m.plain :], positions)], -1)
        return q, torch.cat([both[..., : m.plain], shared], -1), both[..., m.plain :]

    @property
    def width(self) -> int:
        return self.weights["layers.0.self_attn.q_proj.weight"].shape[0] // self.heads

    def mix(self, i: int, tokens: Tensor, hidden: Tensor) -> Tensor:
        if i:
            return self.rms(hidden, f"layers.{i}.hidden_norm")
        embedded = self.embedding[tokens]
        return torch.cat([self.rms(embedded, "layers.0.input_layernorm"), self.rms(hidden, "layers.0.hidden_norm")], -1)

    def finish(self, i: int, tokens: Tensor, hidden: Tensor, found: Tensor) -> Tensor:
        at = f"layers.{i}."
        if i == 0 and self.residual != "raw":
            hidden = self.rms(hidden, "layers.0.hidden_norm") if self.residual == "normed" else self.embedding[tokens]
        hidden = hidden + self.linear(found.flatten(1), f"{at}self_attn.o_proj")
        x = self.rms(hidden, f"{at}post_attention_layernorm")
        return hidden + self.linear(F.silu(self.linear(x, f"{at}mlp.gate_proj")) * self.linear(x, f"{at}mlp.up_proj"), f"{at}mlp.down_proj")

    def no_keys(self) -> list[Cache]:
        """What a chain has left of its own before its first step: nothing, a layer each."""
        return [[] for _ in range(self.layers)]

    def fuse(self, fed: Tensor) -> Tensor:
        if fed.shape[-1] == self.embedding.shape[1]:  # the guard of every engine: as wide as the hidden size already
            return fed
        return self.linear(self.rms(fed, "input_norm") if self.norm_before_fc else fed, "fc")

    def logits(self, raw: Tensor) -> Tensor:
        return F.linear(self.rms(raw, "norm"), self.head)

    def carried(self, raw: Tensor) -> Tensor:
        return self.rms(raw, "norm") if self.carry == "normed" else raw

    # -- many rows ----------------------------------------------------------------------------------------------------------------

    def read(self, ids: Tensor, fed: Tensor, prompt: int = 0) -> tuple[Cache, Tensor]:
        """Every row of a text [T] from the states it is fed [T, W]: keys and values per layer, and the raw outputs [T-1, H]."""
        tokens, hidden, cache = ids[1:], self.fuse(fed[: len(ids) - 1]), []
        place = torch.arange(len(tokens))
        seen = self.visible(place, place, prompt)
        for i in range(self.layers):
            q, k, v = self.project(i, self.mix(i, tokens, hidden), place)
            cache.append((k, v))
            hidden = self.finish(i, tokens, hidden, self.attend(q, k, v, seen))
        return cache, hidden

    def visible(self, place: Tensor, keys: Tensor, prompt: int) -> Tensor:
        """[N, K]: causal, within the window, and of the prompt what is not forgotten; a row always finds itself."""
        seen = keys <= place[:, None]
        if self.window is not None:
            seen &= place[:, None] - keys < self.window
        if self.forgets != "nothing":
            kept = prompt - 1 if self.forgets == "prompt" else prompt - 6
            seen &= (keys >= kept) | (keys == place[:, None])
        return seen

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, own: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        if self.deaf:
            return torch.zeros(*q.shape[:2], v.shape[-1])
        scale = q.shape[-1] ** -0.5
        score = torch.einsum("nhd,khd->nhk", q, k).masked_fill(~seen[:, None], -math.inf)
        score = torch.cat([score, *((q * x).sum(-1, keepdim=True) for x, _ in own or ())], -1).mul(scale).softmax(-1)
        out = torch.einsum("nhk,khd->nhd", score[..., : len(k)], v)
        for j, (_, x) in enumerate(own or ()):
            out = out + score[..., len(k) + j, None] * x
        return out

    def step(self, number: int, tokens: Tensor, hidden: Tensor, rows: Tensor, cache: Cache, own: list[Cache], prompt: int = 0) -> Tensor:
        """The ``number``-th forward (from 1) of the chains that started at ``rows`` [N]; leaves its keys in ``own``, a list per layer."""
        positions = rows + number + self.offset
        for i in range(self.layers):
            q, k, v = self.project(i, self.mix(i, tokens, hidden), positions)
            own[i].append((k, v))
            keys = torch.arange(len(cache[i][0]))
            seen = self.visible(rows, keys, prompt)
            if self.window is not None:
                seen &= rows[:, None] + number - keys < self.window
            hidden = self.finish(i, tokens, hidden, self.attend(q, *cache[i], seen, own[i]))
        return hidden


def held(draft: Draft, target: Target) -> Held:
    """The draft as an engine holds it that reads everything in the file as its trainer meant it."""
    c = draft.config
    ids = draft.vocabulary.draft_ids if draft.vocabulary is not None else torch.arange(c.draft_vocab_size)
    outside = ("lm_head.weight", "embed_tokens.weight", "d2t", "t2d")
    weights = {name: draft.weight(name).float() for name in draft.canonical() if name not in outside}
    latent = None
    if c.latent is not None:
        latent = Latent(*(int(c.raw[f]) for f in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")))
    return Held(
        weights, target.embedding().float(), draft.weight("lm_head.weight").float(), ids, c.num_heads, c.num_kv_heads, latent,
        c.num_layers, c.rms_norm_eps, c.rope_theta, latent is not None, c.norm_before_fc,
        carry="normed" if c.norm_output else "raw",
    )  # fmt: skip


@torch.inference_mode()
def rounds(net: Held, ids: Tensor, fed: Tensor, first: int, steps: int, other: Cache | None = None) -> list[int]:
    """Accepted drafts of each round on one text; ``first``: the row of the last prompt token. ``other``: keys of another request."""
    cache, raw = net.read(ids, fed, first + 1)
    if other is not None:
        raw = _with_keys_of(net, ids, fed, other)
        n = len(ids) - 1
        cache = [tuple(x[torch.arange(n) % len(x)] for x in layer) for layer in other]  # type: ignore[misc]
    if net.stale:
        return _stale(net, ids, fed, first, steps)
    at, made = first, []
    hits = _chains(net, ids, cache, raw, torch.arange(first, len(ids) - 1 - steps), steps, first + 1)
    while at + 1 + steps < len(ids):
        made.append(hits[at - first])
        at += hits[at - first] + 1
    return made


def _chains(net: Held, ids: Tensor, cache: Cache, raw: Tensor, rows: Tensor, steps: int, prompt: int) -> list[int]:
    """How many drafts of the chain from each row are the text's; a chain is followed while it is right."""
    hits, alive, own = torch.zeros(len(rows), dtype=torch.long), torch.arange(len(rows)), net.no_keys()
    out = raw[rows]
    for number in range(1, steps + 1):
        said = net.ids[net.logits(out).argmax(-1)]
        right = said == ids[rows[alive] + 1 + number]
        hits[alive[right]] += 1
        alive, said, out = alive[right], said[right], out[right]
        if number == steps or not len(alive):
            break
        own = [[(k[right], v[right]) for k, v in layer] for layer in own]
        out = net.step(number, said, net.carried(out), rows[alive], cache, own, prompt)
    return hits.tolist()


def _with_keys_of(net: Held, ids: Tensor, fed: Tensor, other: Cache) -> Tensor:
    """Raw outputs of every row when it attends to another request's keys, itself aside."""
    tokens, hidden = ids[1:], net.fuse(fed[: len(ids) - 1])
    place = torch.arange(len(tokens))
    for i in range(net.layers):
        q, k, v = net.project(i, net.mix(i, tokens, hidden), place)
        theirs, keys = other[i], torch.arange(len(other[i][0]))
        hidden = net.finish(i, tokens, hidden, net.attend(q, *theirs, keys < place[:, None], [(k, v)]))
    return hidden


def _stale(net: Held, ids: Tensor, fed: Tensor, first: int, steps: int) -> list[int]:
    """One row after the other: rows of accepted drafts keep the keys that the draft made from its own states."""
    cache, raw = net.read(ids, fed, first + 1)
    cache = [(k.clone(), v.clone()) for k, v in cache]
    at, made, anew = first, [], first + 1
    while at + 1 + steps < len(ids):
        for t in range(anew, at + 1):  # rows not yet made: from true states, over what the cache holds
            out = _one(net, ids[t + 1 : t + 2], net.fuse(fed[t : t + 1]), torch.tensor([t]), cache, write=True)
            raw[t] = out[0]
        out, own, row, hits = raw[at : at + 1], net.no_keys(), torch.tensor([at]), 0
        for number in range(1, steps + 1):
            said = net.ids[net.logits(out).argmax(-1)]
            if said != ids[at + 1 + number]:
                break
            hits += 1
            if number < steps:
                out = net.step(number, said, net.carried(out), row, cache, own, first + 1)
        kept = min(hits, steps - 1)
        for i in range(net.layers):
            for j, (k, v) in enumerate(own[i][:kept]):
                cache[i][0][at + 1 + j], cache[i][1][at + 1 + j] = k[0], v[0]
        made.append(hits)
        at, anew = at + hits + 1, at + kept + 1
    return made


def _one(net: Held, token: Tensor, hidden: Tensor, row: Tensor, cache: Cache, *, write: bool) -> Tensor:
    for i in range(net.layers):
        q, k, v = net.project(i, net.mix(i, token, hidden), row)
        if write:
            cache[i][0][row], cache[i][1][row] = k, v
        keys = torch.arange(len(cache[i][0]))
        hidden = net.finish(i, token, hidden, net.attend(q, *cache[i], net.visible(row, keys, 0)))
    return hidden
