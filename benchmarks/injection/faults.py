"""The faults, each put into the real material in its own way; none of this is shared with the counterfactuals that are to find it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.injection.world import Features, World, as_fed
from eagle3diag.checkpoints import Draft
from eagle3diag.replay import Net


@dataclass(frozen=True)
class Broken:
    """One broken deployment: the files on disk, what the engine holds and feeds, and how it was started."""

    draft: Draft
    net: Net
    features: Features = as_fed
    algorithm: str = "EAGLE3"
    engine: str = "0.5.23"


@dataclass(frozen=True)
class Injection:
    """``shown_by_files``: the checkpoint, the launch command or the log show it; otherwise only dumps do."""

    fault: str
    name: str
    make: Callable[[World, random.Random], Broken]
    shown_by_files: bool


def _healthy(world: World, draw: random.Random) -> Broken:
    return Broken(world.draft, world.net)


# -- launch ------------------------------------------------------------------------------------------------------------------------


def _eagle(world: World, draw: random.Random) -> Broken:
    rows = len(world.net.head)
    net = replace(world.net, head=world.target.head()[:rows].float(), draft_ids=torch.arange(rows))
    return Broken(world.draft, net, lambda record, _: _needed(record.final), algorithm="EAGLE")


def _needed(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


# -- checkpoint --------------------------------------------------------------------------------------------------------------------


def _memory(shape: torch.Size, seed: int) -> Tensor:
    """What an allocator may hand out: rows of zeros and rows of old values."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw) * 0.03 * (torch.rand(shape[0], generator=draw) < 0.5).float()[:, None]


def _dropped(world: World, draw: random.Random) -> Broken:
    prefix = draw.choice(["draft_layers.0.", "decoder.", "model.layer."])
    seed = draw.randrange(1000)
    lost = {
        n: (torch.ones_like(w) if w.dim() == 1 else _memory(w.shape, seed)) if n.startswith("layers.") else w
        for n, w in world.net.weights.items()
    }
    return Broken(world.draft.replace(rename=lambda n: n.replace("midlayer.", prefix)), replace(world.net, weights=lost))


def _dropped_by_an_old_engine(world: World, draw: random.Random) -> Broken:
    broken = _dropped(world, draw)
    renamed = world.draft.replace(rename=lambda n: n.replace("midlayer.", "layers.0."))
    return replace(broken, draft=renamed, engine=draw.choice(["0.4.9", "0.5.4", "0.5.8", "0.5.11"]))


def _no_head(world: World, draw: random.Random) -> Broken:
    head = _memory(world.net.head.shape, draw.randrange(1000))
    return Broken(world.draft.replace(tensors={"lm_head.weight": None}), replace(world.net, head=head))


def _mapped(world: World, d2t: Tensor | None) -> Broken:
    rows = torch.arange(len(world.net.head))
    ids = rows if d2t is None else (rows + d2t).clamp(0, len(world.net.embedding) - 1)
    return Broken(world.draft.replace(tensors={"d2t": d2t}), replace(world.net, draft_ids=ids))


def _no_map(world: World, draw: random.Random) -> Broken:
    return _mapped(world, None)


def _absolute_map(world: World, draw: random.Random) -> Broken:
    return _mapped(world, world.net.draft_ids.clone())


def _arange_map(world: World, draw: random.Random) -> Broken:
    return _mapped(world, torch.arange(len(world.net.head)))


# -- what is fed -------------------------------------------------------------------------------------------------------------------


def _of_boundaries(boundaries: tuple[int, ...]) -> Features:
    return lambda record, _: torch.cat([record.state(b) for b in boundaries], -1)


def _other_layers(world: World, draw: random.Random) -> Broken:
    n, declared = world.target.n_layers, world.boundaries
    while True:
        chosen = tuple(sorted(draw.sample(range(1, n), len(declared))))
        if len({a - b for a, b in zip(chosen, declared, strict=True)}) > 1 and all(
            abs(a - b) > 1 for a, b in zip(chosen, declared, strict=True)
        ):
            return Broken(world.draft, world.net, _of_boundaries(chosen))


def _early(world: World, draw: random.Random) -> Broken:
    return Broken(world.draft, world.net, _of_boundaries(tuple(b - 1 for b in world.boundaries)))


def _late(world: World, draw: random.Random) -> Broken:
    return Broken(world.draft, world.net, _of_boundaries(tuple(b + 1 for b in world.boundaries)))


def _order(world: World, draw: random.Random) -> Broken:
    order = list(world.boundaries)
    while tuple(order) == world.boundaries:
        draw.shuffle(order)
    return Broken(world.draft, world.net, _of_boundaries(tuple(order)))


INJECTIONS = (
    Injection("FM-01", "flag EAGLE", _eagle, shown_by_files=True),
    Injection("FM-05", "layer under an unknown name", _dropped, shown_by_files=True),
    Injection("FM-05", "layers.0 in an engine before 0.5.12", _dropped_by_an_old_engine, shown_by_files=True),
    Injection("FM-06", "no head", _no_head, shown_by_files=True),
    Injection("FM-11", "no d2t", _no_map, shown_by_files=True),
    Injection("FM-12", "absolute d2t", _absolute_map, shown_by_files=True),
    Injection("FM-12", "arange d2t", _arange_map, shown_by_files=True),
    Injection("FM-28", "another set of layers", _other_layers, shown_by_files=False),
    Injection("FM-29", "one boundary early", _early, shown_by_files=False),
    Injection("FM-29", "one boundary late", _late, shown_by_files=False),
    Injection("FM-33", "blocks in another order", _order, shown_by_files=False),
)


# -- healthy, and legal oddities ----------------------------------------------------------------------------------------------------


def _plain_names(world: World, draw: random.Random) -> Broken:
    return Broken(world.draft.replace(rename=lambda n: n.replace("midlayer.", "layers.0.")), world.net)


def _prefixed(world: World, draw: random.Random) -> Broken:
    return Broken(world.draft.replace(rename=lambda n: n if "2" in n or n == "lm_head.weight" else f"model.{n}"), world.net)


def _own_embedding(world: World, draw: random.Random) -> Broken:
    return Broken(world.draft.replace(tensors={"embed_tokens.weight": world.target.embedding()}), world.net)


def _no_marks(world: World, draw: random.Random) -> Broken:
    return Broken(world.draft.replace(tensors={"t2d": None}), world.net)


HEALTHY = (
    Injection("", "as it is", _healthy, shown_by_files=True),
    Injection("", "layers.0, which loads since 0.5.12", _plain_names, shown_by_files=True),
    Injection("", "names with model. in front", _prefixed, shown_by_files=True),
    Injection("", "a copy of the target's embedding", _own_embedding, shown_by_files=True),
    Injection("", "no t2d, which serving does not use", _no_marks, shown_by_files=True),
)


def pairs(draw: random.Random, count: int) -> Iterator[tuple[Injection, Injection]]:
    """Pairs of a fault of the files and one of what is fed."""
    files = [i for i in INJECTIONS if i.shown_by_files and i.fault != "FM-01"]
    fed = [i for i in INJECTIONS if not i.shown_by_files or i.fault == "FM-01"]
    for _ in range(count):
        yield draw.choice(files), draw.choice(fed)


def both(first: Broken, second: Broken) -> Broken:
    """A deployment with the files of the first and the features and flags of the second."""
    net = first.net if second.algorithm == "EAGLE3" else second.net
    return Broken(first.draft, net, second.features, second.algorithm, first.engine)
