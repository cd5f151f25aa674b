"""Other rows than trained: which states are captured, in what form, in whose place; and an engine that drives the draft otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.injection.kinds import Broken
from benchmarks.injection.world import Fed, World
from eagle3diag.dumps import Record


def feeds(world: World, draw: random.Random, fed: Callable[[random.Random], Fed], served: bool = True, flags: str = "") -> Broken:
    return Broken(world.draft, world.net if served else None, fed(draw), flags=flags)


def at(boundaries: Callable[[World], tuple[int, ...]]) -> Callable[[random.Random], Fed]:
    return lambda draw: lambda world, r: torch.cat([r.state(b) for b in boundaries(world)], -1)


def other_layers(world: World, draw: random.Random) -> Broken:
    n, declared = world.target.n_layers, world.boundaries
    while True:
        chosen = tuple(sorted(draw.sample(range(1, n), len(declared))))
        moved = [a - b for a, b in zip(chosen, declared, strict=True)]
        if len(set(moved)) > 1 and all(abs(m) > 1 for m in moved):
            return feeds(world, draw, at(lambda _, chosen=chosen: chosen))  # type: ignore[misc]


def order(world: World, draw: random.Random) -> Broken:
    order = list(world.boundaries)
    while tuple(order) == world.boundaries:
        draw.shuffle(order)
    return Broken(world.draft, world.net, lambda w, r: torch.cat([r.state(b) for b in order], -1))


def eagle(world: World, draw: random.Random) -> Broken:
    n = len(world.net.ids)
    net = world.net.but(head=world.target.head()[:n].float(), ids=torch.arange(n))
    return Broken(world.draft, net, final, algorithm="--speculative-algorithm EAGLE ")


def final(world: World, record: Record) -> Tensor:
    assert record.final is not None
    return record.final


def each(change: Callable[[World, Record, int], Tensor]) -> Callable[[random.Random], Fed]:
    """The same change on every declared boundary."""
    return lambda draw: lambda world, r: torch.cat([change(world, r, b) for b in world.boundaries], -1)


def branch(world: World, r: Record, b: int) -> Tensor:
    return r.state(b).float() - r.state(b - 1).float()


def normed(world: World, r: Record, b: int) -> Tensor:
    x = r.state(b).float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * world.target.final_norm().float()


def half_sum(world: World, r: Record, b: int) -> Tensor:
    below = r.state(b - 1).float()
    return below + 0.5 * (r.state(b).float() - below)


def rotated(draw: random.Random) -> Fed:
    g = torch.Generator().manual_seed(draw.randrange(1000))
    made: dict[int, Tensor] = {}

    def turn(world: World, r: Record, b: int) -> Tensor:
        x = r.state(b).float()
        q = made.setdefault(0, torch.linalg.qr(torch.randn(x.shape[1], x.shape[1], generator=g))[0])
        return x @ q

    return lambda world, r: torch.cat([turn(world, r, b) for b in world.boundaries], -1)


def overwritten(draw: random.Random) -> Fed:
    return lambda world, r: torch.cat([r.state(world.boundaries[-1])] * len(world.boundaries), -1)


def moved(by: int) -> Callable[[random.Random], Fed]:
    return lambda draw: lambda world, r: torch.roll(world.trained(r), by, 0)


def padded(draw: random.Random) -> Fed:
    """From some row on, rows of zeros are taken for tokens, and the rest comes late."""

    def fed(world: World, r: Record) -> Tensor:
        x = world.trained(r)
        at, n = len(x) // 2, 4
        return torch.cat([x[:at], torch.zeros(n, x.shape[1], dtype=x.dtype), x[at:-n]])

    return fed


def swapped(draw: random.Random) -> Fed:
    """The last two thirds of a request are another one's rows."""

    def fed(world: World, r: Record) -> Tensor:
        records = world.once("by name", lambda: {x.name: x for x in world.states})
        names = list(records)
        other = world.trained(records[names[(names.index(r.name) + 1) % len(names)]])
        x, at = world.trained(r), r.tokens // 3
        rows = torch.arange(at, len(x)).clamp(max=len(other) - 1)
        return torch.cat([x[:at], other[rows]])

    return fed


def not_finite(draw: random.Random) -> Fed:
    def fed(world: World, r: Record) -> Tensor:
        x = world.trained(r).clone()
        x[5::7] = torch.nan
        return x

    return fed


def noisy(spread: float) -> Callable[[random.Random], Fed]:
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


def eight_bits(draw: random.Random) -> Fed:
    """Every state goes through float8 once a block below it."""

    def fed(world: World, r: Record) -> Tensor:
        g, parts = torch.Generator().manual_seed(sum(map(ord, r.name))), []
        for b in world.boundaries:
            x = r.state(b).float()
            parts.append(x * (1 + (torch.rand(x.shape, generator=g) - 0.5) * 2**-3 * b**0.5 / 1.7))
        return torch.cat(parts, -1)

    return fed


def scaled(draw: random.Random) -> Fed:
    factor = draw.choice([0.22, 0.5, 4.0])
    return lambda world, r: world.trained(r) * factor


def holds(world: World, draw: random.Random, **changes: Any) -> Broken:
    return Broken(world.draft, world.net.but(**changes))


def other_carry(world: World, draw: random.Random) -> Broken:
    return holds(world, draw, carry="raw" if world.net.carry == "normed" else "normed")


def arrives(world: World, draw: random.Random, by: int) -> Broken:
    return Broken(world.draft, world.net, after=moved(by)(draw))


def mixed(world: World, draw: random.Random) -> Broken:
    """The draft's batch gathers the rows of the neighbour; the recorder sees them before."""

    def after(world: World, r: Record) -> Tensor:
        records = world.once("by name", lambda: {x.name: x for x in world.states})
        names = list(records)
        other = world.trained(records[names[(names.index(r.name) + 1) % len(names)]])
        return other[torch.arange(r.tokens) % len(other)]

    return Broken(world.draft, world.net, after=after)


def half_embedding(world: World, draw: random.Random) -> Broken:
    """One rank's half of the table in place of the other's."""
    table = world.net.embedding
    half = len(table) // 2
    return holds(world, draw, embedding=torch.cat([table[half : 2 * half], table[half:]]))


def launch(world: World, draw: random.Random, served: bool = True, **changes: Any) -> Broken:
    return Broken(world.draft, world.net if served else None, **changes)
