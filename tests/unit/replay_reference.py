"""A random toy draft of any shape, and the same draft once more: plain, slow, float64, one row at a time, from the published formulas."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eagle3diag.dumps import HiddenStates, TargetIdentity
from eagle3diag.replay import draft_everywhere
from eagle3diag.replay.attention import Grouped, Latent
from eagle3diag.replay.net import Net
from eagle3diag.replay.rope import Rope

H, HEADS, KV, DIM, INNER, V, VD, AUX = 32, 4, 2, 8, 48, 96, 40, 3
LATENT = Latent(heads=HEADS, q_rank=12, kv_rank=10, plain=6, turned=4, value=5)
Array = NDArray[np.float64]
Cache = list[list[tuple[int, Array, Array]]]  # per layer: slot, keys and values per head


def toy_net(
    seed: int = 0, *, layers: int = 1, latent: Latent | None = None, biases: bool = False, head_norms: bool = False, **switches: Any
) -> Net:
    """A random draft whose choices are far from ties; ``switches`` are fields of the net."""
    g = torch.Generator().manual_seed(seed)

    def w(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g) * 2 / math.sqrt(shape[-1])

    def norm(size: int) -> torch.Tensor:
        return torch.rand(size, generator=g) + 0.5

    weights: dict[str, torch.Tensor] = {}
    for i in range(layers):
        width = H if i else 2 * H
        if latent:
            shapes = {
                "kv_a_proj_with_mqa": (latent.kv_rank + latent.turned, width),
                "kv_b_proj": (HEADS * (latent.plain + latent.value), latent.kv_rank),
                "o_proj": (H, HEADS * latent.value),
            }
            size = HEADS * (latent.plain + latent.turned)
            shapes |= (
                {"q_a_proj": (latent.q_rank, width), "q_b_proj": (size, latent.q_rank)} if latent.q_rank else {"q_proj": (size, width)}
            )
            weights[f"layers.{i}.self_attn.kv_a_layernorm.weight"] = norm(latent.kv_rank)
            weights[f"layers.{i}.self_attn.q_a_layernorm.weight"] = norm(latent.q_rank or 1)
        else:
            shapes = {"q_proj": (HEADS * DIM, width), "k_proj": (KV * DIM, width), "v_proj": (KV * DIM, width), "o_proj": (H, HEADS * DIM)}
        weights |= {f"layers.{i}.self_attn.{n}.weight": w(*s) for n, s in shapes.items()}
        if biases:
            weights |= {f"layers.{i}.self_attn.{n}.bias": w(s[0]) for n, s in shapes.items()}
            weights["fc.bias"] = w(H)
        if head_norms:
            weights |= {f"layers.{i}.self_attn.{n}_norm.weight": norm(DIM) for n in "qk"}
        weights |= {
            f"layers.{i}.mlp.{n}.weight": w(*s)
            for n, s in {"gate_proj": (INNER, H), "up_proj": (INNER, H), "down_proj": (H, INNER)}.items()
        }
        weights |= {f"layers.{i}.{n}.weight": norm(H) for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}
    weights |= {"fc.weight": w(H, AUX * H), "norm.weight": norm(H), "input_norm.weight": norm(AUX * H)}
    weights |= {f"fc_norm.{i}.weight": norm(H) for i in range(AUX)}
    ids = torch.randperm(V, generator=g)[:VD].sort().values
    rope = Rope(latent.turned, 1e4, interleaved=True) if latent else Rope(DIM, 1e4)
    net = Net(weights, w(V, H), w(VD, H), ids, latent or Grouped(HEADS, KV, DIM), rope, 1e-5, windows=(None,) * layers)
    return dataclasses.replace(net, **switches)


def text(seed: int, tokens: int, width: int = AUX * H) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids [tokens] and features [tokens, width]."""
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, V, (tokens,), generator=g), torch.randn(tokens, width, generator=g)


def dump_of(*records: tuple[torch.Tensor, torch.Tensor], prompt_length: int = 3, **parts: list[torch.Tensor]) -> HiddenStates:
    """A dump in memory of (ids, features) pairs."""
    identity = TargetIdentity("toy", "0", "float32", 4, H)
    rows = [
        {"name": str(i), "input_ids": ids, "features": fed, "prompt_length": prompt_length, **{n: p[i] for n, p in parts.items()}}
        for i, (ids, fed) in enumerate(records)
    ]
    return HiddenStates.from_tensors(rows, side="train", target=identity, boundaries=(1, 2, 3))


class Plain:
    """The draft in numpy. Only plain rotations: scalings have their own test."""

    def __init__(self, net: Net, position_offset: int = 0) -> None:
        self.net, self.offset = net, position_offset
        self.p = {name: w.double().numpy() for name, w in net.weights.items()}
        self.table, self.head, self.ids = net.embedding.double().numpy(), net.head.double().numpy(), net.draft_ids.tolist()

    def rms(self, x: Array, name: str) -> Array:
        return x / np.sqrt((x * x).mean() + self.net.eps) * self.p[name + ".weight"]

    def linear(self, x: Array, name: str) -> Array:
        out = self.p[name + ".weight"] @ x
        return out + self.p[name + ".bias"] if name + ".bias" in self.p else out

    def turn(self, x: Array, position: int) -> Array:
        out, rope = x.copy(), self.net.rope
        half = rope.width // 2
        for i in range(half):
            first, second = (2 * i, 2 * i + 1) if rope.interleaved else (i, i + half)
            angle = position * rope.theta ** (-2 * i / rope.width)
            a, b = x[first], x[second]
            out[first], out[second] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
        return out

    def fuse(self, row: Array) -> Array:
        if len(row) == H:
            return row
        if self.net.norm_before_fc:
            row = self.rms(row, "input_norm")
        if self.net.fc_norm:
            row = np.concatenate([self.rms(part, f"fc_norm.{i}") for i, part in enumerate(np.split(row, AUX))])
        return self.linear(row, "fc")

    def heads(self, at: str, x: Array, position: int) -> tuple[list[Array], list[Array], list[Array]]:
        """Queries, keys and values of every query head; latent attention as its paper writes it, keys and values spelled out per head."""
        a = self.net.attention
        if isinstance(a, Latent):
            q = (
                self.linear(self.rms(self.linear(x, at + "q_a_proj"), at + "q_a_layernorm"), at + "q_b_proj")
                if a.q_rank
                else self.linear(x, at + "q_proj")
            )
            latent, turned = np.split(self.linear(x, at + "kv_a_proj_with_mqa"), [a.kv_rank])
            spelled = self.linear(self.rms(latent, at + "kv_a_layernorm"), at + "kv_b_proj").reshape(HEADS, -1)
            shared = self.turn(turned, position)
            queries = [np.concatenate([h[: a.plain], self.turn(h[a.plain :], position)]) for h in q.reshape(HEADS, -1)]
            return queries, [np.concatenate([h[: a.plain], shared]) for h in spelled], [h[a.plain :] for h in spelled]
        q, k, v = (self.linear(x, f"{at}{n}_proj").reshape(-1, DIM) for n in "qkv")
        if at + "q_norm.weight" in self.p:
            q, k = [self.rms(h, at + "q_norm") for h in q], [self.rms(h, at + "k_norm") for h in k]
        group = HEADS // KV
        return (
            [self.turn(h, position) for h in q],
            [self.turn(k[i // group], position) for i in range(HEADS)],
            [v[i // group] for i in range(HEADS)],
        )

    def row(self, token: int, hidden: Array, slot: int, cache: Cache, step: int = 0) -> Array:
        """One row: leaves its keys in ``cache`` and attends to all that are there, its own included."""
        net = self.net
        for i in range(net.layers):
            at = f"layers.{i}."
            if i == 0:
                x = np.concatenate([self.rms(self.table[token], at + "input_layernorm"), self.rms(hidden, at + "hidden_norm")])
            else:
                x = self.rms(hidden, at + net.deep_norm)
            queries, keys, values = self.heads(at + "self_attn.", x, slot + (self.offset if step else 0))
            cache[i].append((slot, np.array(keys), np.array(values)))
            seen = [(k, v) for s, k, v in cache[i] if net.windows[i] is None or slot - s < net.windows[i]]
            out = []
            for h, q in enumerate(queries):
                score = np.array([k[h] @ q for k, _ in seen]) / math.sqrt(len(q))
                share = np.exp(score - score.max())
                out.append(sum(s * v[h] for s, (_, v) in zip(share / share.sum(), seen, strict=True)))
            if i == 0 and net.residual != "raw":
                hidden = self.rms(hidden, at + "hidden_norm") if net.residual == "normed" else self.table[token]
            hidden = hidden + self.linear(np.concatenate(out), at + "self_attn.o_proj")
            y = self.rms(hidden, at + "post_attention_layernorm")
            gate = self.linear(y, at + "mlp.gate_proj")
            hidden = hidden + self.linear(gate / (1 + np.exp(-gate)) * self.linear(y, at + "mlp.up_proj"), at + "mlp.down_proj")
        return hidden

    def read(self, ids: list[int], features: Array, at: int) -> tuple[Array, Cache]:
        """Rows 0 to ``at`` from true features: the last raw output and all keys."""
        cache: Cache = [[] for _ in range(self.net.layers)]
        for t in range(at + 1):
            raw = self.row(ids[t + 1], self.fuse(features[t]), t, cache)
        return raw, cache

    def choices(self, raw: Array) -> tuple[Array, Array]:
        """Softmax over the draft vocabulary, and the state carried on."""
        normed = self.rms(raw, "norm")
        logits = self.head @ normed
        share = np.exp(logits - logits.max())
        return share / share.sum(), normed if self.net.norm_output else raw

    def chain(self, ids: list[int], features: Array, steps: int, at: int) -> list[int]:
        return self.drafted(*self.read(ids, features, at), steps, at)

    def drafted(self, raw: Array, cache: Cache, steps: int, at: int) -> list[int]:
        """The greedy chain that goes on from the raw output of position ``at``."""
        chain: list[int] = []
        for step in range(1, steps + 1):
            share, hidden = self.choices(raw)
            chain.append(self.ids[int(share.argmax())])
            if step < steps:
                raw = self.row(chain[-1], hidden, at + step, cache, step)
        return chain

    def tree(
        self, ids: list[int], features: Array, steps: int, topk: int, slots: int, at: int, branch_keys: str
    ) -> list[tuple[int, int, int]]:
        """The kept nodes in order: (token, number of the parent node or -1, depth), by the pseudo-code of sglang.md 6.3."""
        raw, prefix = self.read(ids, features, at)
        share, hidden = self.choices(raw)
        order = np.argsort(-share)[:topk]
        pool = [(float(share[i]), self.ids[i], -1, 1) for i in order]  # score, token, parent in the pool, depth
        frontier = list(range(topk))
        states, caches = [hidden] * topk, [[list(layer) for layer in prefix] for _ in range(topk)]
        for step in range(1, steps):
            fresh, carried = [], []
            for slot, index in enumerate(frontier):
                raw = self.row(pool[index][1], states[slot], at + step, caches[slot], step)
                share, hidden = self.choices(raw)
                carried.append(hidden)
                fresh += [(pool[index][0] * float(share[i]), self.ids[i], index, step + 1) for i in np.argsort(-share)[:topk]]
            best = sorted(range(topk * topk), key=lambda i: -fresh[i][0])[:topk]
            frontier, states = [len(pool) + i for i in best], [carried[i // topk] for i in best]
            if branch_keys == "ancestors":
                caches = [[list(layer) for layer in caches[i // topk]] for i in best]
            pool += fresh
        kept = sorted(sorted(range(len(pool)), key=lambda i: -pool[i][0])[: slots - 1])
        return [(pool[i][1], kept.index(pool[i][2]) if pool[i][2] >= 0 else -1, pool[i][3]) for i in kept]

    def serve(self, ids: list[int], features: Array, steps: int, answers: list[tuple[int, int]], keep: bool) -> list[int]:
        """Rounds of a server, one row at a time, through answers that each begin at a row and end before a token; ``keep``: rows of accepted
        drafts are not made anew from true features."""
        cache: Cache = [[] for _ in range(self.net.layers)]
        row, rounds = 0, []
        for at, end in answers:
            while at + 1 + steps < end:
                for t in range(row, at + 1):
                    raw = self.row(ids[t + 1], self.fuse(features[t]), t, cache)
                chain = self.drafted(raw, cache, steps, at)
                m = next((i for i, token in enumerate(chain) if token != ids[at + 2 + i]), steps)
                kept = min(m, steps - 1) if keep else 0
                cache = [[entry for entry in layer if entry[0] <= at + kept] for layer in cache]
                rounds.append(m)
                at, row = at + m + 1, at + kept + 1
        return rounds


def agreeing_text(net: Net, tokens: int, seed: int = 0, steps: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """A text that follows the draft for 2, 0, 3, 1, 4, ... tokens and then says something else; and its features."""
    ids, features = text(seed, tokens)
    said, follow = ids.tolist()[:2], [2, 0, 3, 1, steps]
    while len(said) < tokens:
        m = follow[len(said) % len(follow)]
        chain = draft_everywhere(net, torch.tensor(said), features, steps)[-1].tolist()
        said += [*chain[:m], (chain[min(m, steps - 1)] + 1) % V]
    return torch.tensor(said[:tokens]), features
