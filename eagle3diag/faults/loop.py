"""Faults of the draft's own forward and of the loop around it (catalogue group D): what each would do to this draft, shown by replay.

Nothing in a checkpoint or a dump shows them directly, except where the audit sees a tensor dropped: they are the engine's doing. So each
entry is a counterfactual and no detector, and only those are offered that would change this draft at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eagle3diag.case import Case
from eagle3diag.dumps import HiddenStates, Record
from eagle3diag.faults.base import IN_FILES, Fault
from eagle3diag.findings import Finding
from eagle3diag.replay import Change, Loop, Net
from eagle3diag.replay.attention import Grouped

OTHER_BASES = (10000.0, 500000.0, 1000000.0)
"""RoPE bases that a lost or ignored one is usually replaced by: the default of every engine, Llama 3's and Qwen's."""

WINDOWS = tuple(2**n for n in range(4, 13))
"""Tokens that a draft may see where it was trained to see all: 128 to 4096 are what targets' configs and ``--speculative-draft-window-size``
hold, smaller ones show what a window does to short texts. One is harmless where no text is longer."""


def _unseen(case: Case) -> Finding | None:
    return None


def _norms_ignored(case: Case) -> Iterator[Change]:
    """FM-20: each norm that the draft has, left out; its flag lies where the engine does not look."""
    net = case.net
    if net is None:
        return
    if net.norm_before_fc:
        yield Change("FM-20", "norm before fc not applied", net=lambda n: replace(n, norm_before_fc=False))
    if net.fc_norm:
        yield Change("FM-20", "norms of the aux states not applied", net=lambda n: replace(n, fc_norm=False))
    if any(name.endswith(("q_norm.weight", "k_norm.weight")) for name in net.weights):
        yield Change("FM-20", "q and k norms dropped", net=without("q_norm.weight", "k_norm.weight"))


def _biases_dropped(case: Case) -> Iterator[Change]:
    """FM-26: SGLang builds q, k and v without biases whatever the config says."""
    if case.net is not None and any(name.endswith(".bias") for name in case.net.weights):
        yield Change("FM-26", "biases dropped", net=without(".bias"))


def without(*endings: str) -> Callable[[Net], Net]:
    """A net that lacks the weights with these endings."""
    return lambda net: replace(net, weights={n: w for n, w in net.weights.items() if not n.endswith(endings)})


def _packed(case: Case) -> Iterator[Change]:
    """FM-19: query heads one after the other where they come group by group, and the reverse; with as many groups as heads a group it is one."""
    if case.net is None or not isinstance(a := case.net.attention, Grouped) or not 1 < a.kv_heads < a.heads:
        return
    size = a.heads // a.kv_heads
    for count in dict.fromkeys((a.kv_heads, size)):
        yield Change("FM-19", f"query heads packed {count} by {a.heads // count}", net=_repacked(count))


def _repacked(count: int) -> Callable[[Net], Net]:
    def net(healthy: Net) -> Net:
        def turned(w: Tensor) -> Tensor:
            heads: Tensor = w.unflatten(0, (count, healthy.attention.heads // count, -1))
            return heads.transpose(0, 1).flatten(0, 2)

        names = [n for n in healthy.weights if ".q_proj." in n]
        return replace(healthy, weights={**healthy.weights, **{n: turned(healthy.weights[n]) for n in names}})

    return net


def _map_dropped(case: Case) -> Iterator[Change]:
    """FM-14: the map is in the file, and the engine looks for it under another name."""
    if case.net is not None and not torch.equal(case.net.draft_ids, torch.arange(len(case.net.head))):
        yield Change("FM-14", "map not read: draft ids are target ids", net=lambda n: replace(n, draft_ids=torch.arange(len(n.head))))


def _own_embedding(case: Case) -> Iterator[Change]:
    """FM-09: an engine that keeps the file's embedding, against the target's that it should have been."""
    if case.net is None or case.draft is None or case.target is None or "embed_tokens.weight" not in case.draft:
        return
    theirs = case.target.embedding()
    if case.net.embedding.shape == theirs.shape and not torch.equal(case.net.embedding, theirs):
        yield Change("FM-09", "the target's embedding instead of the file's", net=lambda n: replace(n, embedding=theirs))


def _carried(case: Case) -> Iterator[Change]:
    """FM-46: the other of the two states carried to the next step."""
    if case.net is not None:
        name = "raw state carried on instead of the normed" if case.net.norm_output else "normed state carried on instead of the raw"
        yield Change("FM-46", name, net=lambda n: replace(n, norm_output=not n.norm_output))


def _residual(case: Case) -> Iterator[Change]:
    """FM-47: ``norm_before_residual`` the other way round, and the residual taken from the embedding."""
    if case.net is None:
        return
    if case.net.residual == "normed":
        yield Change("FM-47", "residual before the norm instead of after it", net=lambda n: replace(n, residual="raw"))
    else:
        yield Change("FM-47", "residual after the norm instead of before it", net=lambda n: replace(n, residual="normed"))
    yield Change("FM-47", "residual from the embedding", net=lambda n: replace(n, residual="embedding"))


def _pairs(case: Case) -> Iterator[Change]:
    """FM-48: each token beside the state of the position before, or after."""
    if case.net is not None:
        yield Change("FM-48", "state of the position before", features=_moved(1))
        yield Change("FM-48", "state of the position after", features=_moved(-1))


def _moved(rows: int) -> Callable[[Record, Tensor], Tensor]:
    def features(record: Record, fed: Tensor) -> Tensor:
        edge = fed[:1] if rows > 0 else fed[-1:]
        return torch.cat([edge, fed[:-1]] if rows > 0 else [fed[1:], edge])[: len(fed)]

    return features


def _positions(case: Case) -> Iterator[Change]:
    """FM-49: the draft's own steps rotated one position off against the keys of the text; +1 is SGLang's up to 0.5.11."""
    if case.net is not None:
        for offset in (1, -1):
            yield Change("FM-49", f"positions of later steps off by {offset:+d}", loop=_offset(offset))


def _offset(by: int) -> Callable[[Loop], Loop]:
    return lambda loop: replace(loop, position_offset=loop.position_offset + by)


def _stale(case: Case) -> Iterator[Change]:
    if case.net is not None and case.topk == 1:  # of trees the replay makes every key anew
        yield Change("FM-50", "keys of accepted drafts kept, not made anew", loop=lambda loop: replace(loop, keep_draft_keys=True))


def _prefix_missing(case: Case) -> Iterator[Change]:
    if case.net is not None:
        yield Change("FM-51", "no keys for the prompt", loop=lambda loop: replace(loop, prefix="answer"), one_of_many=True)
        yield Change("FM-51", "no keys for the first half of the prompt", loop=lambda loop: replace(loop, prefix="half"), one_of_many=True)


def _other_pages(case: Case) -> Iterator[Change]:
    """FM-52: pages that read as zeros, so that attention brings nothing; and pages of another request."""
    if case.net is None:
        return
    yield Change("FM-52", "keys and values read as zeros", net=_deaf)
    if case.train is not None and len(case.train) > 1:
        yield Change("FM-52", "keys of another request", loop=lambda loop: replace(loop, prefix="another"), one_of_many=True)


def _deaf(net: Net) -> Net:
    zero = {n: torch.zeros_like(w) for n, w in net.weights.items() if n.endswith("self_attn.o_proj.weight")}
    return replace(net, weights={**net.weights, **zero})


def _rope(case: Case) -> Iterator[Change]:
    """FM-53: the target's base and scaling, another base, the scaling ignored, neighbours turned where halves were trained."""
    if case.net is None:
        return
    own = case.net.rope.theta, case.net.rope.scaling
    theirs = case.target.rope if case.target is not None else own
    if theirs != own:
        yield Change("FM-53", f"the target's RoPE (base {theirs[0]:g}) instead of base {own[0]:g}", net=_turned(*theirs))
    for base in OTHER_BASES:
        if base not in (own[0], theirs[0]):
            yield Change("FM-53", f"RoPE base {base:g} instead of {own[0]:g}", net=_turned(base, own[1]), one_of_many=True)
    if case.net.rope.scaling:
        yield Change("FM-53", "RoPE scaling ignored", net=lambda n: replace(n, rope=replace(n.rope, scaling=None)))
    style = "halves" if case.net.rope.interleaved else "neighbours"
    yield Change("FM-53", f"RoPE over {style}", net=lambda n: replace(n, rope=replace(n.rope, interleaved=not n.rope.interleaved)))


def _turned(base: float, scaling: Mapping[str, Any] | None) -> Callable[[Net], Net]:
    return lambda net: replace(net, rope=replace(net.rope, theta=base, scaling=scaling))


def _windows(case: Case) -> Iterator[Change]:
    """FM-56: a trained window not served; one served that was not trained, where a text is long enough to feel it."""
    if case.net is None:
        return
    if any(case.net.windows):
        yield Change("FM-56", "trained window not served", net=lambda n: replace(n, windows=(None,) * n.layers))
    elif case.train is not None:
        longest = max(r.tokens for r in case.train)
        for window in (w for w in WINDOWS if w < longest):
            yield Change("FM-56", f"window of {window} served, not trained", net=_seeing(window), one_of_many=True)


def _seeing(window: int) -> Callable[[Net], Net]:
    return lambda net: replace(net, windows=(window,) * net.layers)


def _rows_mixed(case: Case) -> Iterator[Change]:
    """FM-59: the draft's batch gathers the states of another request."""
    if case.net is None or case.train is None or len(case.train) < 2:
        return
    yield Change("FM-59", "states of the next request", features=_gathered(case.train, 1), one_of_many=True)
    if len(case.train) > 2:
        yield Change("FM-59", "states of the request before", features=_gathered(case.train, -1), one_of_many=True)


def _gathered(dump: HiddenStates, by: int) -> Callable[[Record, Tensor], Tensor]:
    """Rows of the record so many places on."""
    numbers = {name: i for i, name in enumerate(dump.names)}

    def features(record: Record, fed: Tensor) -> Tensor:
        if record.name not in numbers:
            return fed
        other = dump[(numbers[record.name] + by) % len(dump)].features
        return other[torch.arange(len(fed)) % len(other)] if other.shape[-1] == fed.shape[-1] else fed

    return features


ANCESTORS = Change("FM-50", "a branch reads its ancestors", loop=lambda loop: replace(loop, branch_keys="ancestors"))
"""What SGLang issue 7523 costs in a tree: there a branch reads the column of its slot, whoever its parent was. Replays of trees do as
SGLang does, so this change undoes the fault. A chain knows no difference, which is why no entry of the catalogue offers it."""

# Accept lengths where a draft is otherwise healthy: signatures of the catalogue (the "symptom" of each entry)
FAULTS = (
    Fault("FM-09", _unseen, _own_embedding, IN_FILES),
    Fault("FM-14", _unseen, _map_dropped, typical=(1.0, 1.15)),
    Fault("FM-19", _unseen, _packed, typical=(1.0, 1.6)),
    Fault("FM-20", _unseen, _norms_ignored, typical=(1.1, 2.5)),
    Fault("FM-26", _unseen, _biases_dropped),
    Fault("FM-46", _unseen, _carried, typical=(1.2, 2.0)),
    Fault("FM-47", _unseen, _residual, typical=(1.0, 1.3)),
    Fault("FM-48", _unseen, _pairs, typical=(1.0, 2.5)),
    Fault("FM-49", _unseen, _positions, typical=(1.5, 3.5)),
    Fault("FM-50", _unseen, _stale, typical=(1.5, 3.0)),
    Fault("FM-51", _unseen, _prefix_missing, typical=(1.0, 3.0)),
    Fault("FM-52", _unseen, _other_pages, typical=(1.0, 1.6)),
    Fault("FM-53", _unseen, _rope, typical=(1.3, 3.5)),
    Fault("FM-56", _unseen, _windows, typical=(1.3, 2.5)),
    Fault("FM-59", _unseen, _rows_mixed, typical=(1.0, 2.0)),
)
