"""Broken files: names, heads, maps, configs and weights as exporters leave them, and what an engine holds of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.injection.engine import Held
from benchmarks.injection.kinds import Broken
from benchmarks.injection.world import World
from eagle3diag.checkpoints import Draft


def memory(shape: Any, seed: int) -> Tensor:
    """What an allocator may hand out: rows of zeros and rows of old values."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw) * 0.03 * (torch.rand(shape[0], generator=draw) < 0.5).float()[:, None]


def layer_name(world: World) -> str:
    return "midlayer." if any(n.startswith("midlayer.") for n in world.draft.tensors) else "layers.0."


def dropped(world: World, draw: random.Random, prefixes: tuple[str, ...], engines: tuple[str, ...]) -> Broken:
    prefix, seed = draw.choice(prefixes), draw.randrange(1000)
    lost = {
        n: torch.ones_like(w) if w.dim() == 1 else memory(w.shape, seed) for n, w in world.net.weights.items() if n.startswith("layers.0.")
    }
    old = layer_name(world)
    return Broken(world.draft.replace(rename=lambda n: n.replace(old, prefix)), world.net.with_weights(lost), engine=draw.choice(engines))


def no_head(world: World, draw: random.Random) -> Broken:
    head = memory(world.net.head.shape, draw.randrange(1000))
    return Broken(world.draft.replace(tensors={"lm_head.weight": None}), world.net.but(head=head))


def config(world: World, draw: random.Random, fields: dict[str, Any], net: Callable[[World], Held] | None) -> Broken:
    """A wrong config, and what an engine makes of it; None: it ends at start."""
    draft = Draft.from_tensors(world.draft.tensors, {**world.draft.config.raw, **fields}, path=world.draft.path)  # None is null here
    return Broken(draft, net(world) if net is not None else None)


def target_head(world: World) -> Held:
    head = world.target.head().float()
    return world.net.but(head=head, ids=torch.arange(len(head)))


def first_rows(world: World) -> Held:
    return world.net.but(head=world.net.embedding[: len(world.net.ids)])


def whole(world: World, draw: random.Random, rows: int) -> Broken:
    """The draft without a head and without a reduced vocabulary, under a config that says that it owns a head of ``rows`` rows."""
    v = len(world.net.embedding)
    tensors: dict[str, Tensor | None] = {"lm_head.weight": None, "t2d": torch.ones(v, dtype=torch.bool), "d2t": torch.zeros(v).long()}
    head = memory((v, world.net.embedding.shape[1]), draw.randrange(1000))
    draft = world.draft.replace(tensors=tensors, config={"draft_vocab_size": rows})
    return Broken(draft, world.net.but(head=head, ids=torch.arange(v)))


def map(world: World, draw: random.Random, kind: str) -> Broken:
    n, v = len(world.net.ids), len(world.net.embedding)
    rows = torch.arange(n)
    other = torch.tensor(sorted(draw.sample(range(v), n)))
    d2t = {"none": None, "absolute": world.net.ids, "arange": rows, "zeros": torch.zeros(n).long(), "another run's": other - rows}[kind]
    ids = rows if d2t is None else (rows + d2t).clamp(0, v - 1)
    return Broken(world.draft.replace(tensors={"d2t": d2t}), world.net.but(ids=ids))


def map_dropped(world: World, draw: random.Random) -> Broken:
    return Broken(world.draft, world.net.but(ids=torch.arange(len(world.net.ids))))


def first_ids(world: World, draw: random.Random) -> Broken:
    """Trained on the first ids: the head is the target's rows of them, as a start that was hardly moved."""
    n, v = len(world.net.ids), len(world.net.embedding)
    head = world.target.head()[:n].float()
    marks = torch.zeros(v, dtype=torch.bool)
    marks[:n] = True
    tensors: dict[str, Tensor | None] = {"d2t": torch.zeros(n).long(), "t2d": marks, "lm_head.weight": head.to(torch.bfloat16)}
    return Broken(world.draft.replace(tensors=tensors), world.net.but(head=head, ids=torch.arange(n)))


def random_embedding(world: World, draw: random.Random, engine: str) -> Broken:
    g = torch.Generator().manual_seed(draw.randrange(1000))
    table = torch.randn(world.net.embedding.shape, generator=g) * 0.02
    net = world.net.but(embedding=table) if engine.startswith("vllm") else world.net
    fields: dict[str, Any] = {}
    if engine.startswith("vllm"):  # which takes boundaries, at the top level
        fields = {"eagle_aux_hidden_state_layer_ids": list(world.boundaries), "eagle_config": None}
    draft = world.draft.replace(tensors={"embed_tokens.weight": table.to(torch.bfloat16)}, config=fields)
    return Broken(draft, net, engine=engine)


def stored(world: World, ending: str) -> str:
    """The checkpoint's name of a weight of the first layer."""
    return next(n for n in world.draft.tensors if n.endswith(ending) and "layers.1." not in n)


def packed(world: World, draw: random.Random) -> Broken:
    """Query heads in the order of another packing, written so by the exporter."""
    net, name = world.net, "layers.0.self_attn.q_proj.weight"
    w = net.weights[name]
    heads = w.view(net.heads, -1, w.shape[1])
    turned = heads.view(net.kv_heads, net.heads // net.kv_heads, -1, w.shape[1]).transpose(0, 1).reshape(w.shape)
    return Broken(
        world.draft.replace(tensors={stored(world, "q_proj.weight"): turned.to(torch.bfloat16)}), net.with_weights({name: turned})
    )


def norm_unread(world: World, draw: random.Random) -> Broken:
    return Broken(world.draft.replace(config={"norm_before_fc": None, "eagle_config": without(world, "norm_before_fc")}),
                  world.net.but(norm_before_fc=False))  # fmt: skip


def without(world: World, field: str) -> dict[str, Any]:
    return {n: v for n, v in dict(world.draft.config.raw["eagle_config"]).items() if n != field}


def old_engine(world: World, draw: random.Random) -> Broken:
    """SGLang before 0.5.17 has no norm before fc."""
    return Broken(world.draft, world.net.but(norm_before_fc=False), engine=draw.choice(["0.5.12", "0.5.14", "0.5.16"]))


def cut(world: World, draw: random.Random) -> Broken:
    """One rank's part of the projections."""
    names = [n for n in world.draft.tensors if n.endswith(("gate_proj.weight", "up_proj.weight"))]
    return Broken(world.draft.replace(tensors={n: world.draft.tensors[n][: len(world.draft.tensors[n]) // 2] for n in names}), None)


def empty_block(world: World, draw: random.Random) -> Broken:
    """A save that lost a matrix: zeros where the MLP's output was."""
    name = stored(world, "down_proj.weight")
    zero = torch.zeros_like(world.draft.tensors[name])
    return Broken(world.draft.replace(tensors={name: zero}), world.net.with_weights({"layers.0.mlp.down_proj.weight": zero.float()}))


def biases(world: World, draw: random.Random) -> Broken:
    """Trained with biases that the engine does not build; the file has them, so the trained draft is the one with them."""
    g = torch.Generator().manual_seed(draw.randrange(1000))
    name = stored(world, "v_proj.weight").replace(".weight", ".bias")
    bias = torch.randn(len(world.net.weights["layers.0.self_attn.v_proj.weight"]), generator=g) * 0.05
    return Broken(world.draft.replace(tensors={name: bias.to(torch.bfloat16)}, config={"attention_bias": True}), world.net)


def coarse(world: World, draw: random.Random) -> Broken:
    """A conversion that went through three bits, per row."""

    def rounded(w: Tensor) -> Tensor:
        step = w.float().abs().amax(-1, keepdim=True) / 3
        return (w.float() / step).round().clamp(-3, 3) * step

    names = [n for n, w in world.draft.tensors.items() if n.endswith("proj.weight") or n == "fc.weight"]
    made = {n: rounded(world.draft.tensors[n]) for n in names}
    held = {"layers.0." + n.split("midlayer.")[-1].removeprefix("layers.0.") if n != "fc.weight" else n: w for n, w in made.items()}
    held = {n.replace("layers.0.layers.1.", "layers.1."): w for n, w in held.items()}
    return Broken(world.draft.replace(tensors={n: w.to(torch.bfloat16) for n, w in made.items()}), world.net.with_weights(held))
