"""The faults, each put into the real material in its own way; none of this is shared with the counterfactuals that are to find it.

A row of :data:`INJECTIONS` is a fault of the catalogue, how it is injected, and what makes it: a broken file, other rows that are fed, other
weights or another loop in the engine, another command line. Healthy drafts and legal oddities are in :data:`HEALTHY`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.injection.engine import Held
from benchmarks.injection.world import STEPS, Fed, World, as_trained
from eagle3diag.checkpoints import Draft
from eagle3diag.dumps import Record


@dataclass(frozen=True, eq=False)
class Broken:
    """One broken deployment: the files on disk, what the engine holds and feeds, and how it was started.

    ``held`` None: the server ends at start, so nothing is counted. ``fed``: rows as the engine captures and the recorder sees them.
    ``after``: rows as they arrive in the draft's forward, where they are other ones.
    """

    draft: Draft
    held: Held | None
    fed: Fed = as_trained
    after: Fed | None = None
    algorithm: str = "--speculative-algorithm EAGLE3 "
    engine: str = "0.5.23"
    flags: str = ""
    slots: int = 5
    steps: int = STEPS
    environment: str = ""


Seen = Literal["files", "dumps", "number"]


@dataclass(frozen=True)
class Injection:
    """``seen``: which evidence shows it: checkpoint and command line; the dumps; or nothing but the number that it costs.
    ``drafts``: the drafts that can have it; empty: all."""

    fault: str
    name: str
    make: Callable[[World, random.Random], Broken]
    seen: Seen
    drafts: tuple[str, ...] = ()


# -- broken files ------------------------------------------------------------------------------------------------------------------


def _memory(shape: Any, seed: int) -> Tensor:
    """What an allocator may hand out: rows of zeros and rows of old values."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw) * 0.03 * (torch.rand(shape[0], generator=draw) < 0.5).float()[:, None]


def _layer_name(world: World) -> str:
    return "midlayer." if any(n.startswith("midlayer.") for n in world.draft.tensors) else "layers.0."


def _dropped(world: World, draw: random.Random, prefixes: tuple[str, ...], engines: tuple[str, ...]) -> Broken:
    prefix, seed = draw.choice(prefixes), draw.randrange(1000)
    lost = {
        n: torch.ones_like(w) if w.dim() == 1 else _memory(w.shape, seed) for n, w in world.net.weights.items() if n.startswith("layers.0.")
    }
    old = _layer_name(world)
    return Broken(world.draft.replace(rename=lambda n: n.replace(old, prefix)), world.net.with_weights(lost), engine=draw.choice(engines))


def _no_head(world: World, draw: random.Random) -> Broken:
    head = _memory(world.net.head.shape, draw.randrange(1000))
    return Broken(world.draft.replace(tensors={"lm_head.weight": None}), world.net.but(head=head))


def _config(world: World, draw: random.Random, fields: dict[str, Any], net: Callable[[World], Held] | None) -> Broken:
    """A wrong config, and what an engine makes of it; None: it ends at start."""
    draft = Draft.from_tensors(world.draft.tensors, {**world.draft.config.raw, **fields}, path=world.draft.path)  # None is null here
    return Broken(draft, net(world) if net is not None else None)


def _target_head(world: World) -> Held:
    head = world.target.head().float()
    return world.net.but(head=head, ids=torch.arange(len(head)))


def _first_rows(world: World) -> Held:
    return world.net.but(head=world.net.embedding[: len(world.net.ids)])


def _whole(world: World, draw: random.Random, rows: int) -> Broken:
    """The draft without a head and without a reduced vocabulary, under a config that says that it owns a head of ``rows`` rows."""
    v = len(world.net.embedding)
    tensors: dict[str, Tensor | None] = {"lm_head.weight": None, "t2d": torch.ones(v, dtype=torch.bool), "d2t": torch.zeros(v).long()}
    head = _memory((v, world.net.embedding.shape[1]), draw.randrange(1000))
    draft = world.draft.replace(tensors=tensors, config={"draft_vocab_size": rows})
    return Broken(draft, world.net.but(head=head, ids=torch.arange(v)))


def _map(world: World, draw: random.Random, kind: str) -> Broken:
    n, v = len(world.net.ids), len(world.net.embedding)
    rows = torch.arange(n)
    other = torch.tensor(sorted(draw.sample(range(v), n)))
    d2t = {"none": None, "absolute": world.net.ids, "arange": rows, "zeros": torch.zeros(n).long(), "another run's": other - rows}[kind]
    ids = rows if d2t is None else (rows + d2t).clamp(0, v - 1)
    return Broken(world.draft.replace(tensors={"d2t": d2t}), world.net.but(ids=ids))


def _map_dropped(world: World, draw: random.Random) -> Broken:
    return Broken(world.draft, world.net.but(ids=torch.arange(len(world.net.ids))))


def _first_ids(world: World, draw: random.Random) -> Broken:
    """Trained on the first ids: the head is the target's rows of them, as a start that was hardly moved."""
    n, v = len(world.net.ids), len(world.net.embedding)
    head = world.target.head()[:n].float()
    marks = torch.zeros(v, dtype=torch.bool)
    marks[:n] = True
    tensors: dict[str, Tensor | None] = {"d2t": torch.zeros(n).long(), "t2d": marks, "lm_head.weight": head.to(torch.bfloat16)}
    return Broken(world.draft.replace(tensors=tensors), world.net.but(head=head, ids=torch.arange(n)))


def _random_embedding(world: World, draw: random.Random, engine: str) -> Broken:
    g = torch.Generator().manual_seed(draw.randrange(1000))
    table = torch.randn(world.net.embedding.shape, generator=g) * 0.02
    net = world.net.but(embedding=table) if engine.startswith("vllm") else world.net
    fields: dict[str, Any] = {}
    if engine.startswith("vllm"):  # which takes boundaries, at the top level
        fields = {"eagle_aux_hidden_state_layer_ids": list(world.boundaries), "eagle_config": None}
    draft = world.draft.replace(tensors={"embed_tokens.weight": table.to(torch.bfloat16)}, config=fields)
    return Broken(draft, net, engine=engine)


def _stored(world: World, ending: str) -> str:
    return next(n for n in world.draft.tensors if n.endswith(ending))


def _packed(world: World, draw: random.Random) -> Broken:
    """Query heads in the order of another packing, written so by the exporter."""
    net, name = world.net, "layers.0.self_attn.q_proj.weight"
    w = net.weights[name]
    heads = w.view(net.heads, -1, w.shape[1])
    turned = heads.view(net.kv_heads, net.heads // net.kv_heads, -1, w.shape[1]).transpose(0, 1).reshape(w.shape)
    return Broken(
        world.draft.replace(tensors={_stored(world, "q_proj.weight"): turned.to(torch.bfloat16)}), net.with_weights({name: turned})
    )


def _norm_unread(world: World, draw: random.Random) -> Broken:
    return Broken(world.draft.replace(config={"norm_before_fc": None, "eagle_config": _without(world, "norm_before_fc")}),
                  world.net.but(norm_before_fc=False))  # fmt: skip


def _without(world: World, field: str) -> dict[str, Any]:
    return {n: v for n, v in dict(world.draft.config.raw["eagle_config"]).items() if n != field}


def _old_engine(world: World, draw: random.Random) -> Broken:
    """SGLang before 0.5.17 has no norm before fc."""
    return Broken(world.draft, world.net.but(norm_before_fc=False), engine=draw.choice(["0.5.12", "0.5.14", "0.5.16"]))


def _cut(world: World, draw: random.Random) -> Broken:
    """One rank's part of the projections."""
    names = [n for n in world.draft.tensors if n.endswith(("gate_proj.weight", "up_proj.weight"))]
    return Broken(world.draft.replace(tensors={n: world.draft.tensors[n][: len(world.draft.tensors[n]) // 2] for n in names}), None)


def _empty_block(world: World, draw: random.Random) -> Broken:
    """A save that lost a matrix: zeros where the MLP's output was."""
    name = _stored(world, "down_proj.weight")
    zero = torch.zeros_like(world.draft.tensors[name])
    return Broken(world.draft.replace(tensors={name: zero}), world.net.with_weights({"layers.0.mlp.down_proj.weight": zero.float()}))


def _biases(world: World, draw: random.Random) -> Broken:
    """Trained with biases that the engine does not build; the file has them, so the trained draft is the one with them."""
    g = torch.Generator().manual_seed(draw.randrange(1000))
    name = _stored(world, "v_proj.weight").replace(".weight", ".bias")
    bias = torch.randn(len(world.net.weights["layers.0.self_attn.v_proj.weight"]), generator=g) * 0.05
    return Broken(world.draft.replace(tensors={name: bias.to(torch.bfloat16)}, config={"attention_bias": True}), world.net)


def _coarse(world: World, draw: random.Random) -> Broken:
    """A conversion that went through three bits, per row."""

    def rounded(w: Tensor) -> Tensor:
        step = w.float().abs().amax(-1, keepdim=True) / 3
        return (w.float() / step).round().clamp(-3, 3) * step

    names = [n for n, w in world.draft.tensors.items() if n.endswith("proj.weight") or n == "fc.weight"]
    made = {n: rounded(world.draft.tensors[n]) for n in names}
    held = {"layers.0." + n.split("midlayer.")[-1].removeprefix("layers.0.") if n != "fc.weight" else n: w for n, w in made.items()}
    held = {n.replace("layers.0.layers.1.", "layers.1."): w for n, w in held.items()}
    return Broken(world.draft.replace(tensors={n: w.to(torch.bfloat16) for n, w in made.items()}), world.net.with_weights(held))


# -- what is fed ------------------------------------------------------------------------------------------------------------------


def _feeds(world: World, draw: random.Random, fed: Callable[[random.Random], Fed], served: bool = True, flags: str = "") -> Broken:
    return Broken(world.draft, world.net if served else None, fed(draw), flags=flags)


def _at(boundaries: Callable[[World], tuple[int, ...]]) -> Callable[[random.Random], Fed]:
    return lambda draw: lambda world, r: torch.cat([r.state(b) for b in boundaries(world)], -1)


def _other_layers(world: World, draw: random.Random) -> Broken:
    n, declared = world.target.n_layers, world.boundaries
    while True:
        chosen = tuple(sorted(draw.sample(range(1, n), len(declared))))
        moved = [a - b for a, b in zip(chosen, declared, strict=True)]
        if len(set(moved)) > 1 and all(abs(m) > 1 for m in moved):
            return _feeds(world, draw, _at(lambda _, chosen=chosen: chosen))  # type: ignore[misc]


def _order(world: World, draw: random.Random) -> Broken:
    order = list(world.boundaries)
    while tuple(order) == world.boundaries:
        draw.shuffle(order)
    return Broken(world.draft, world.net, lambda w, r: torch.cat([r.state(b) for b in order], -1))


def _eagle(world: World, draw: random.Random) -> Broken:
    n = len(world.net.ids)
    net = world.net.but(head=world.target.head()[:n].float(), ids=torch.arange(n))
    return Broken(world.draft, net, _final, algorithm="--speculative-algorithm EAGLE ")


def _final(world: World, record: Record) -> Tensor:
    assert record.final is not None
    return record.final


def _each(change: Callable[[World, Record, int], Tensor]) -> Callable[[random.Random], Fed]:
    """The same change on every declared boundary."""
    return lambda draw: lambda world, r: torch.cat([change(world, r, b) for b in world.boundaries], -1)


def _branch(world: World, r: Record, b: int) -> Tensor:
    return r.state(b).float() - r.state(b - 1).float()


def _normed(world: World, r: Record, b: int) -> Tensor:
    x = r.state(b).float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * world.target.final_norm().float()


def _half_sum(world: World, r: Record, b: int) -> Tensor:
    below = r.state(b - 1).float()
    return below + 0.5 * (r.state(b).float() - below)


def _rotated(draw: random.Random) -> Fed:
    g = torch.Generator().manual_seed(draw.randrange(1000))
    made: dict[int, Tensor] = {}

    def turn(world: World, r: Record, b: int) -> Tensor:
        x = r.state(b).float()
        q = made.setdefault(0, torch.linalg.qr(torch.randn(x.shape[1], x.shape[1], generator=g))[0])
        return x @ q

    return lambda world, r: torch.cat([turn(world, r, b) for b in world.boundaries], -1)


def _overwritten(draw: random.Random) -> Fed:
    return lambda world, r: torch.cat([r.state(world.boundaries[-1])] * len(world.boundaries), -1)


def _moved(by: int) -> Callable[[random.Random], Fed]:
    return lambda draw: lambda world, r: torch.roll(world.trained(r), by, 0)


def _padded(draw: random.Random) -> Fed:
    """From some row on, rows of zeros are taken for tokens, and the rest comes late."""

    def fed(world: World, r: Record) -> Tensor:
        x = world.trained(r)
        at, n = len(x) // 2, 4
        return torch.cat([x[:at], torch.zeros(n, x.shape[1], dtype=x.dtype), x[at:-n]])

    return fed


def _swapped(draw: random.Random) -> Fed:
    """The last two thirds of a request are another one's rows."""

    def fed(world: World, r: Record) -> Tensor:
        records = world.once("by name", lambda: {x.name: x for x in world.states})
        names = list(records)
        other = world.trained(records[names[(names.index(r.name) + 1) % len(names)]])
        x, at = world.trained(r), r.tokens // 3
        rows = torch.arange(at, len(x)).clamp(max=len(other) - 1)
        return torch.cat([x[:at], other[rows]])

    return fed


def _not_finite(draw: random.Random) -> Fed:
    def fed(world: World, r: Record) -> Tensor:
        x = world.trained(r).clone()
        x[5::7] = torch.nan
        return x

    return fed


def _noisy(spread: float) -> Callable[[random.Random], Fed]:
    """Errors that grow with depth, relative to each channel."""

    def make(draw: random.Random) -> Fed:
        seed = draw.randrange(1000)

        def fed(world: World, r: Record) -> Tensor:
            g = torch.Generator().manual_seed(seed + sum(map(ord, r.name)))
            parts = []
            for b in world.boundaries:
                x = r.state(b).float()
                parts.append(x + torch.randn(x.shape, generator=g) * x.std(0) * spread * b / world.target.n_layers)
            return torch.cat(parts, -1)

        return fed

    return make


def _eight_bits(draw: random.Random) -> Fed:
    """Every state goes through float8 once a block below it."""

    def fed(world: World, r: Record) -> Tensor:
        g, parts = torch.Generator().manual_seed(sum(map(ord, r.name))), []
        for b in world.boundaries:
            x = r.state(b).float()
            parts.append(x * (1 + (torch.rand(x.shape, generator=g) - 0.5) * 2**-3 * b**0.5 / 1.7))
        return torch.cat(parts, -1)

    return fed


def _scaled(draw: random.Random) -> Fed:
    factor = draw.choice([0.22, 0.5, 4.0])
    return lambda world, r: world.trained(r) * factor


# -- the loop ---------------------------------------------------------------------------------------------------------------------


def _holds(world: World, draw: random.Random, **changes: Any) -> Broken:
    return Broken(world.draft, world.net.but(**changes))


def _other_carry(world: World, draw: random.Random) -> Broken:
    return _holds(world, draw, carry="raw" if world.net.carry == "normed" else "normed")


def _arrives(world: World, draw: random.Random, by: int) -> Broken:
    return Broken(world.draft, world.net, after=_moved(by)(draw))


def _mixed(world: World, draw: random.Random) -> Broken:
    """The draft's batch gathers the rows of the neighbour; the recorder sees them before."""

    def after(world: World, r: Record) -> Tensor:
        records = world.once("by name", lambda: {x.name: x for x in world.states})
        names = list(records)
        other = world.trained(records[names[(names.index(r.name) + 1) % len(names)]])
        return other[torch.arange(r.tokens) % len(other)]

    return Broken(world.draft, world.net, after=after)


def _half_embedding(world: World, draw: random.Random) -> Broken:
    """One rank's half of the table in place of the other's."""
    table = world.net.embedding
    half = len(table) // 2
    return _holds(world, draw, embedding=torch.cat([table[half : 2 * half], table[half:]]))


def _launch(world: World, draw: random.Random, served: bool = True, **changes: Any) -> Broken:
    return Broken(world.draft, world.net if served else None, **changes)


SAMPLE, WIDE, MLA = "sample", "two layers", "latent"
DENSE = (SAMPLE, WIDE)

INJECTIONS: tuple[Injection, ...] = (
    Injection("FM-01", "flag EAGLE", _eagle, "files"),
    Injection("FM-03", "a draft, and no algorithm", partial(_launch, algorithm="", served=False), "files"),
    Injection("FM-03", "draft weights of format dummy", partial(_launch, flags=" --speculative-draft-load-format dummy", served=False), "files"),
    Injection("FM-04", "24 slots for a chain", partial(_launch, slots=24), "files"),
    Injection("FM-05", "layer under an unknown name", partial(_dropped, prefixes=("draft_layers.0.", "decoder.", "model.layer."), engines=("0.5.23",)), "files"),
    Injection("FM-05", "layers.0 in an engine before 0.5.12", partial(_dropped, prefixes=("layers.0.",), engines=("0.4.9", "0.5.4", "0.5.8", "0.5.11")), "files", (SAMPLE,)),
    Injection("FM-06", "no head", _no_head, "files"),
    Injection("FM-07", "draft_vocab_size null: the target's head", partial(_config, fields={"draft_vocab_size": None}, net=_target_head), "files"),
    Injection("FM-08", "an idle map, so no head is shared", partial(_whole, rows=49152), "files", (SAMPLE,)),
    Injection("FM-09", "random embedding in the file, SGLang", partial(_random_embedding, engine="0.5.23"), "files"),
    Injection("FM-09", "random embedding in the file, vLLM", partial(_random_embedding, engine="vllm==0.25.0"), "files", (SAMPLE,)),
    Injection("FM-10", "tie_word_embeddings true", partial(_config, fields={"tie_word_embeddings": True}, net=_first_rows), "files"),
    Injection("FM-11", "no d2t", partial(_map, kind="none"), "files"),
    Injection("FM-11", "d2t never filled", partial(_map, kind="zeros"), "files"),
    Injection("FM-12", "absolute d2t", partial(_map, kind="absolute"), "files"),
    Injection("FM-12", "arange d2t", partial(_map, kind="arange"), "files"),
    Injection("FM-13", "another run's d2t", partial(_map, kind="another run's"), "files"),
    Injection("FM-14", "map dropped by the engine", _map_dropped, "number"),
    Injection("FM-15", "the first ids as vocabulary", _first_ids, "files", (SAMPLE,)),
    Injection("FM-16", "a whole vocabulary with 64 rows of padding", partial(_whole, rows=49216), "files", (SAMPLE,)),
    Injection("FM-17", "one layer id too few", partial(_config, fields={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [14]}, "num_aux_hidden_states": 1}, net=None), "files"),
    Injection("FM-18", "head_dim 32 in the config", partial(_config, fields={"head_dim": 32}, net=None), "files", DENSE),
    Injection("FM-19", "query heads packed in another order", _packed, "number", DENSE),
    Injection("FM-20", "flag of the norm before fc lost", _norm_unread, "files", (WIDE,)),
    Injection("FM-20", "an engine before 0.5.17", _old_engine, "files", (WIDE,)),
    Injection("FM-22", "one rank's half of the MLP", _cut, "files"),
    Injection("FM-22", "a matrix of zeros", _empty_block, "files"),
    Injection("FM-23", "the target's quantisation in the config", partial(_config, fields={"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}, net=None), "files"),
    Injection("FM-26", "biases that are not built", _biases, "files", DENSE),
    Injection("FM-27", "an MLA class for dense weights", partial(_config, fields={"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, net=None), "files", (SAMPLE,)),
    Injection("FM-27", "a dense class for MLA weights", partial(_config, fields={"architectures": ["LlamaForCausalLMEagle3"]}, net=None), "files", (MLA,)),
    Injection("FM-28", "another set of layers", _other_layers, "dumps"),
    Injection("FM-29", "one boundary early", partial(_feeds, fed=_at(lambda w: tuple(b - 1 for b in w.boundaries))), "dumps"),
    Injection("FM-29", "one boundary late", partial(_feeds, fed=_at(lambda w: tuple(b + 1 for b in w.boundaries))), "dumps"),
    Injection("FM-30", "the last state missing", partial(_feeds, fed=_at(lambda w: w.boundaries[:-1]), served=False), "dumps", (SAMPLE, MLA)),
    Injection("FM-32", "states of five more layers", partial(_feeds, fed=_at(lambda w: tuple(sorted({*w.boundaries, 3, 6, 9, 20, 24}))), served=False), "dumps"),
    Injection("FM-33", "blocks in another order", _order, "dumps"),
    Injection("FM-34", "the branch without the residual", partial(_feeds, fed=_each(_branch)), "dumps"),
    Injection("FM-35", "the final norm on every state", partial(_feeds, fed=_each(_normed)), "dumps"),
    Injection("FM-36", "one buffer for all", partial(_feeds, fed=_overwritten), "dumps"),
    Injection("FM-37", "half of the last block's sum", partial(_feeds, fed=_each(_half_sum)), "dumps"),
    Injection("FM-38", "a rotated basis", partial(_feeds, fed=_rotated), "dumps"),
    Injection("FM-39", "rows of padding taken for tokens", partial(_feeds, fed=_padded), "dumps"),
    Injection("FM-39", "rows of two requests swapped", partial(_feeds, fed=_swapped), "dumps"),
    Injection("FM-40", "pipeline parallelism: the last state alone", partial(_feeds, fed=_at(lambda w: w.boundaries[-1:]), served=False, flags=" --pp-size 2"), "files", (SAMPLE, MLA)),
    Injection("FM-41", "numbers that drift with depth", partial(_feeds, fed=_noisy(0.6)), "dumps"),
    Injection("FM-42", "a target in eight bits", partial(_feeds, fed=_eight_bits), "dumps"),
    Injection("FM-43", "rows that are not finite", partial(_feeds, fed=_not_finite), "dumps"),
    Injection("H3", "another scale", partial(_feeds, fed=_scaled), "dumps"),
    Injection("H6", "states of the token before, captured so", partial(_feeds, fed=_moved(1)), "dumps"),
    Injection("FM-46", "the other state carried on", _other_carry, "number"),
    Injection("FM-47", "the residual normed", partial(_holds, residual="normed"), "number"),
    Injection("FM-47", "the residual from the embedding", partial(_holds, residual="embedding"), "number"),
    Injection("FM-48", "the state of the position before", partial(_arrives, by=1), "number"),
    Injection("FM-48", "the state of the position after", partial(_arrives, by=-1), "number"),
    Injection("FM-49", "positions one on", partial(_holds, offset=1), "number"),
    Injection("FM-49", "positions one back", partial(_holds, offset=-1), "number"),
    Injection("FM-50", "keys of accepted drafts kept", partial(_holds, stale=True), "number"),
    Injection("FM-51", "no keys of the prompt", partial(_holds, forgets="prompt"), "number"),
    Injection("FM-51", "keys of the end of the prompt only", partial(_holds, forgets="most of the prompt"), "number"),
    Injection("FM-52", "pages that read as zeros", partial(_holds, deaf=True), "number"),
    Injection("FM-52", "another request's pages", partial(_holds, foreign=True), "number"),
    Injection("FM-53", "base 10000", partial(_holds, theta=1e4), "number"),
    Injection("FM-53", "the other pairs turned", lambda w, d: _holds(w, d, neighbours=not w.net.neighbours), "number"),

    Injection("FM-56", "a window of 24 tokens", partial(_holds, window=24), "number"),
    Injection("FM-59", "the neighbour's rows", _mixed, "number"),
    Injection("FM-76", "a simulated accept length", partial(_launch, environment="SGLANG_SIMULATE_ACC_LEN=3.5 ", served=False), "files"),
    Injection("FM-78", "through three bits and back", _coarse, "number"),
)  # fmt: skip


# -- healthy, and legal oddities --------------------------------------------------------------------------------------------------


def _healthy(world: World, draw: random.Random) -> Broken:
    return Broken(world.draft, world.net)


def _files(world: World, draw: random.Random, engine: str = "0.5.23", **changes: Any) -> Broken:
    return Broken(world.draft.replace(**changes), world.net, engine=engine)


def _named(world: World, draw: random.Random, old: str, new: str) -> Broken:
    return _files(world, draw, rename=lambda n: n.replace(old, new))


def _own_embedding(world: World, draw: random.Random) -> Broken:
    return _files(world, draw, tensors={"embed_tokens.weight": world.target.embedding()})


def _ulp(world: World, draw: random.Random) -> Broken:
    """A copy that went through float16 and back."""
    return _files(world, draw, tensors={"embed_tokens.weight": world.target.embedding().half().to(torch.bfloat16)})


def _narrow_map(world: World, draw: random.Random) -> Broken:
    return _files(world, draw, tensors={"d2t": world.draft.tensors["d2t"].int()})


def _rounder(world: World, draw: random.Random) -> Broken:
    """Another kernel: twice the rounding."""
    return Broken(world.draft, world.net, lambda w, r: w.trained(r) * (1 + 2**-9 * torch.randn(r.tokens, 1)))


HEALTHY: tuple[Injection, ...] = (
    Injection("", "as it is", _healthy, "files"),
    Injection("", "layers.0, which loads since 0.5.12", partial(_named, old="midlayer.", new="layers.0."), "files", (SAMPLE,)),
    Injection("", "names with model. in front", lambda w, d: _files(w, d, rename=lambda n: n if "2" in n or n == "lm_head.weight" else f"model.{n}"), "files", (SAMPLE, WIDE)),
    Injection("", "a copy of the target's embedding", _own_embedding, "files"),
    Injection("", "the same through float16", _ulp, "files"),
    Injection("", "no t2d, which serving does not use", lambda w, d: _files(w, d, tensors={"t2d": None}), "files"),
    Injection("", "d2t in int32", _narrow_map, "files"),
    Injection("", "a release between", lambda w, d: _files(w, d, engine=d.choice(["0.5.18", "0.5.20", "0.5.22"])), "files"),
    Injection("", "the trainer's notes in the config", lambda w, d: _files(w, d, config={"ttt_length": 7, "transformers_version": "4.57.1"}), "files"),
    Injection("", "more rounding than usual", _rounder, "dumps"),
)  # fmt: skip


def of(world: World, rows: tuple[Injection, ...] = INJECTIONS) -> list[Injection]:
    """The rows that this draft can have."""
    return [i for i in rows if not i.drafts or world.name in i.drafts]


def pairs(world: World, draw: random.Random, count: int) -> Iterator[tuple[Injection, Injection]]:
    """Pairs of a fault of the files, under which the server starts, and one of what is fed."""
    rows = of(world)
    files = [i for i in rows if i.fault in ("FM-05", "FM-06", "FM-10", "FM-11", "FM-12", "FM-13") and "engine" not in i.name]
    fed = [i for i in rows if i.fault in ("FM-01", "FM-28", "FM-29", "FM-33", "FM-34", "FM-35", "FM-38", "H6")]
    for _ in range(count):
        yield draw.choice(files), draw.choice(fed)


def both(first: Broken, second: Broken) -> Broken:
    """A deployment with the files of the first and the features and flags of the second."""
    held = second.held if second.algorithm.endswith("EAGLE ") else first.held
    return replace(first, held=held, fed=second.fed, after=second.after, algorithm=second.algorithm, flags=second.flags)
