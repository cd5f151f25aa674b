"""Acceptance to expect when the target samples, from its distribution and the draft's: no coin is thrown.

The recorded text stands for what the target would have sampled: the share of a round that goes on past a token is known only along it. With
``x`` drawn from the target's ``p``, these are unbiased (conditional expectations of what the verifiers do):

* the engines' own drafts are the draft's most likely tokens, whatever the temperature. SGLang's ``tree_speculative_sampling_target_only``
  and vLLM's rejection of one-hot drafts both accept a child with the target's share of it:
  ``P(accept i) = E[prod_{j<i} 1(x_j drafted) * sum over children of p]``.
* drafts sampled from the draft's ``q`` (Leviathan et al., arXiv 2211.17192): ``P(accept i) = E[prod_{j<i} min(1, q(x_j) / p(x_j)) *
  sum over tokens of min(p, q)]``, the draft continued with the text's own tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle3diag.replay.drafting import Text, batches, forward, read
from eagle3diag.replay.loop import Loop
from eagle3diag.replay.net import Net
from eagle3diag.replay.trees import ROOT, Forest


@dataclass(frozen=True)
class Sampled:
    """Expected acceptance at ``temperature``, over every position of the answers.

    Attributes
    ----------
    p: unconditional, per depth, of the most likely tokens as drafts, which is what engines propose. accept_length: ``1 + sum(p)``.
    drafted_p, drafted_accept_length: the same when the draft samples too, at the same temperature; empty and None for trees.
    positions: how many positions were averaged.
    """

    temperature: float
    positions: int
    p: tuple[float, ...]
    accept_length: float
    drafted_p: tuple[float, ...] = ()
    drafted_accept_length: float | None = None


@dataclass(frozen=True, eq=False)
class Teacher:
    """The target's distribution behind each row of a text: ``final`` [T, H] is its normed state one position on, ``net`` has its head."""

    net: Net
    final: Tensor
    temperature: float

    @classmethod
    def of(cls, net: Net, head: Tensor, finals: list[Tensor], text: Text, temperature: float) -> Teacher:
        """``finals``: of each record [F, H]; where a record's last row has none its share is never asked for."""
        rows = [torch.cat([f[1 : n + 1], f[:1].expand(max(n + 1 - len(f), 0), -1)]) for f, n in zip(finals, _lengths(text), strict=True)]
        lends = replace(net, head=head.to(net.device), draft_ids=torch.arange(len(head), device=net.device))
        return cls(lends, torch.cat(rows).to(net.device, net.dtype), temperature)

    def shares(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """The target's share of ``tokens`` [N, C] after each of ``rows`` [N] and the token it embeds."""
        size = max(1, self.net.budget // (8 * (len(self.net.head) + self.net.embedding.shape[1])))
        parts = zip(rows.split(size), tokens.split(size), strict=True)
        return torch.cat([self.net.shares_of(self.final[r], t, self.temperature) for r, t in parts])


def _lengths(text: Text) -> list[int]:
    return [b - a for a, b in zip(text.starts, text.starts[1:], strict=False)]


def expected_of_chains(teacher: Teacher, rows: Tensor, chains: Tensor, truth: Tensor) -> Tensor:
    """Expected acceptance per depth, summed over ``rows`` [N]: [steps]. Past the first wrong token nothing is known, nor needed."""
    total = torch.zeros(truth.shape[1], device=rows.device)
    alive = torch.arange(len(rows), device=rows.device)
    for depth in range(truth.shape[1]):
        if not len(alive):
            break
        total[depth] = teacher.shares(rows[alive] + depth, chains[alive, depth : depth + 1]).sum()
        alive = alive[chains[alive, depth] == truth[alive, depth]]
    return total


def expected_of_trees(teacher: Teacher, rows: Tensor, forest: Forest, kept: Tensor, truth: Tensor) -> Tensor:
    """The same for trees: at each node that the text reaches, the target's shares of its children together."""
    tokens, parents = forest.tokens.gather(1, kept), forest.parents.gather(1, kept)
    total = torch.zeros(truth.shape[1], device=rows.device)
    node = torch.full((len(rows),), ROOT, device=rows.device)
    alive = torch.arange(len(rows), device=rows.device)
    for depth in range(truth.shape[1]):
        if not len(alive):
            break
        child = parents[alive] == node[alive, None]
        total[depth] = (teacher.shares(rows[alive] + depth, tokens[alive]) * child).sum()
        match = child & (tokens[alive] == truth[alive, depth, None])
        node[alive] = kept[alive].gather(1, match.long().argmax(1, keepdim=True))[:, 0]
        alive = alive[match.any(1)]
    return total


@torch.inference_mode()
def expected_when_both_sample(net: Net, teacher: Teacher, text: Text, rows: Tensor, truth: Tensor, loop: Loop) -> Tensor:
    """Expected acceptance per depth of chains that the draft samples, summed over ``rows`` [N]: [steps]."""
    prefix, raw = read(net, text, rows, loop)
    total, done = torch.zeros(truth.shape[1], device=net.device), 0
    inside = net.draft_ids.clamp(0, len(teacher.net.head) - 1)
    wide = max(1, (len(net.head) + len(teacher.net.head)) // (4 * net.embedding.shape[1]))
    for part, out, memory in batches(net, text, rows, raw, prefix, wide):
        follows, weight = truth[done : done + len(part)], torch.ones(len(part), device=net.device)
        done += len(part)
        for depth in range(truth.shape[1]):
            normed = net.rms(out, "norm.weight")
            q = torch.cat([logits for _, logits in net._logits(normed)], -1).div(teacher.temperature).softmax(-1)
            p = (
                torch.cat([logits for _, logits in teacher.net._logits(teacher.final[part + depth])], -1)
                .div(teacher.temperature)
                .softmax(-1)
            )
            total[depth] += (weight * torch.minimum(p[:, inside], q).sum(1)).sum()
            token = follows[:, depth]
            said = (net.draft_ids[None, :] == token[:, None]).to(q.dtype)
            weight = weight * ((said * q).sum(1) / p.gather(1, token[:, None])[:, 0]).clamp(max=1)
            if depth + 1 < truth.shape[1]:
                out = forward(net, token, normed if net.norm_output else out, memory, depth + 1, loop)
    return total
