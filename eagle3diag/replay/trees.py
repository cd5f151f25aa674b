"""Draft trees as SGLang grows them (EAGLE-2): every candidate of every level, the best of them kept, and the walk that verifies them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.replay.drafting import Memory, Text, batches, forward, read
from eagle3diag.replay.loop import NEWEST, Loop
from eagle3diag.replay.net import Net

ROOT = -1


@dataclass(frozen=True, eq=False)
class Forest:
    """All candidates of N trees, each [N, K + (steps - 1) * K * K] in SGLang's order: level by level, in a level by parent slot.

    ``tokens``: target ids. ``scores``: product of the draft's probabilities from the root, float32. ``parents``: index of the candidate
    that each hangs from, :data:`ROOT` for the first level.
    """

    tokens: Tensor
    scores: Tensor
    parents: Tensor

    def keep(self, slots: int, steps: int, topk: int) -> Tensor:
        """Indices [N, slots - 1], ascending, of the candidates that a tree of so many slots holds (the root takes one).

        A tree of fewer steps is the beginning of a deeper one, so one forest serves every depth up to its own.
        Source: SGLang ``eagle_utils.py::organize_draft_results``.
        """
        return self.scores[:, : candidates(steps, topk)].topk(slots - 1, -1).indices.sort(-1).values


def candidates(steps: int, topk: int) -> int:
    """Candidates of a tree: ``topk`` on the first level, ``topk`` times ``topk`` on each later one.

    >>> candidates(3, 4)
    36
    """
    return topk + (steps - 1) * topk * topk


@torch.inference_mode()
def draft_trees(net: Net, text: Text, rows: Tensor, steps: int, topk: int, loop: Loop = NEWEST) -> Iterator[tuple[Tensor, Forest]]:
    """Trees from ``rows`` [N], some rows at a time: (the rows, their candidates). Each level after the first is one forward of ``topk`` rows
    a tree."""
    prefix, raw = read(net, text, rows, loop)
    for part, out, memory in batches(net, text, rows, raw, prefix, wide=topk):
        yield part, _grow(net, out, memory, steps, topk, loop)


def _grow(net: Net, raw: Tensor, memory: Memory, steps: int, topk: int, loop: Loop) -> Forest:
    """Source: SGLang ``eagle_worker_v2.py::draft_forward`` and ``spec_utils.py::select_top_k_tokens``; reference sglang.md 6.3."""
    n = len(raw)
    share, token, hidden = _branch(net, raw, topk)  # [n, topk], and the state that every branch starts from [n, H]
    slot_score, slot_token, slot_index = share, token, torch.arange(topk, device=net.device).expand(n, topk)
    slot_hidden, tree = hidden[:, None].expand(n, topk, -1), torch.arange(n, device=net.device)
    memory = memory.take(tree.repeat_interleave(topk))
    tokens, scores, parents = [token], [share], [torch.full_like(token, ROOT)]
    for step in range(1, steps):
        raw = forward(net, slot_token.flatten(), slot_hidden.flatten(0, 1), memory, step, loop)
        share, token, hidden = _branch(net, raw, topk)
        score = (slot_score.flatten()[:, None] * share).view(n, topk * topk)
        token = token.view(n, topk * topk)
        tokens.append(token)
        scores.append(score)
        parents.append(slot_index.repeat_interleave(topk, 1))
        best = score.topk(topk, -1)
        slot = best.indices // topk  # the parent's
        slot_score, slot_token = best.values, token.gather(1, best.indices)
        slot_index = candidates(step, topk) + best.indices
        slot_hidden = hidden.view(n, topk, -1).gather(1, slot[..., None].expand(-1, -1, hidden.shape[-1]))
        if loop.branch_keys == "ancestors":
            memory = memory.take((tree[:, None] * topk + slot).flatten())
    return Forest(torch.cat(tokens, 1), torch.cat(scores, 1), torch.cat(parents, 1))


def _branch(net: Net, raw: Tensor, topk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Shares and target ids of each row's ``topk`` next tokens, and the state it carries on."""
    normed = net.rms(raw, "norm.weight")
    share, ids = net.best(normed, topk, shares=True)
    return share.exp(), net.draft_ids[ids], normed if net.norm_output else raw


def verify(forest: Forest, kept: Tensor, truth: Tensor) -> Tensor:
    """How far the text follows each tree: accepted drafts [N] when greedy verification meets ``truth`` [N, steps].

    Of two children with one token the first in order is taken, as SGLang's ``verify_tree_greedy`` does.
    """
    tokens, parents = forest.tokens.gather(1, kept), forest.parents.gather(1, kept)
    node = torch.full((len(kept),), ROOT, device=kept.device)
    depth, alive = torch.zeros_like(node), torch.ones_like(node, dtype=torch.bool)
    for wanted in truth.unbind(1):
        match = (parents == node[:, None]) & (tokens == wanted[:, None]) & alive[:, None]
        alive = match.any(1)
        depth += alive
        node = torch.where(alive, kept.gather(1, match.long().argmax(1, keepdim=True))[:, 0], node)
    return depth
