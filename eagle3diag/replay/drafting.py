"""Drafting a greedy chain: from every position at once, and one position at a time (the plain reference).

Position ``t`` holds the pair (embedding of token ``t+1``, features of position ``t``) and its output predicts token ``t+2``. A server
that has committed tokens up to ``t+1`` drafts from position ``t``: the first forward reads the true features, each later one the
draft's own output and own token, at RoPE positions ``t+1``, ``t+2``, ... Keys of earlier positions are those of true features, since
engines rewrite them after every verification (SGLang ``eagle_worker_v2.py::_draft_extend_for_decode``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3diag.replay.net import Net

#: Bytes of attention scores held at once by :func:`draft_everywhere`.
SCORE_BUDGET = 128 * 1024 * 1024


@torch.inference_mode()
def draft_everywhere(net: Net, ids: Tensor, features: Tensor, steps: int) -> Tensor:
    """Draft ``steps`` tokens from every position in ``steps`` forwards.

    Parameters
    ----------
    ids: token ids [T]. features: [F, W] with F <= T; position ``t`` is drafted from while ``t < F`` and token ``t+1`` exists.

    Returns
    -------
    Target ids [N, steps], int64: row ``t`` is the chain drafted from position ``t``.
    """
    n = min(len(features), len(ids) - 1)
    place = torch.arange(n)
    start = net.fuse(features[:n].float())
    first = net.mix(ids[1 : n + 1], start)
    prefix = net.keys(first, place)
    size = max(1, SCORE_BUDGET // (4 * net.heads * max(n, 1)))
    chains = [_draft_from(net, part, ids, start, prefix, steps) for part in place.split(size)]
    return torch.cat(chains) if chains else torch.empty(0, steps, dtype=torch.int64)


def _draft_from(net: Net, at: Tensor, ids: Tensor, start: Tensor, prefix: tuple[Tensor, Tensor], steps: int) -> Tensor:
    hidden, token, chain = start[at], ids[at + 1], []
    own: list[tuple[Tensor, Tensor]] = []  # keys and values of this chain's own forwards, after the first
    visible = torch.arange(len(start))[None, :] <= at[:, None]
    for step in range(steps):
        position = at + step + (net.position_offset if step else 0)
        mixed = net.mix(token, hidden)
        query = net.queries(mixed, position)
        if step:
            own.append(net.keys(mixed, position))
        score = torch.einsum("qhd,khd->qhk", query, prefix[0]).masked_fill(~visible[:, None, :], -torch.inf)
        share = torch.cat([score, *((query * k).sum(-1, keepdim=True) for k, _ in own)], -1).softmax(-1)
        attended = torch.einsum("qhk,khd->qhd", share[..., : len(start)], prefix[1])
        for i, (_, value) in enumerate(own):
            attended = attended + share[..., len(start) + i, None] * value
        token, hidden = net.speak(net.finish(hidden, attended.flatten(1)))
        chain.append(token)
    return torch.stack(chain, 1)


@torch.inference_mode()
def draft_one(net: Net, ids: Tensor, features: Tensor, steps: int, at: int) -> Tensor:
    """The chain drafted from position ``at`` alone, [steps]: the plain loop that :func:`draft_everywhere` must equal."""
    start = net.fuse(features[: at + 1].float())
    keys, values = net.keys(net.mix(ids[1 : at + 2], start), torch.arange(at + 1))
    hidden, token, chain = start[at:], ids[at + 1 : at + 2], []
    for step in range(steps):
        position = torch.tensor([at + step + (net.position_offset if step else 0)])
        mixed = net.mix(token, hidden)
        if step:
            k, v = net.keys(mixed, position)
            keys, values = torch.cat([keys, k]), torch.cat([values, v])
        query = net.queries(mixed, position)[0]
        share = (keys * query).sum(-1).softmax(0)  # [keys, heads]
        attended = (share[..., None] * values).sum(0)
        token, hidden = net.speak(net.finish(hidden, attended.flatten()[None]))
        chain.append(token)
    return torch.cat(chain)
