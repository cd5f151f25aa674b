"""A server's own order: round after round from where the last one ended, every record in step. The plain replay; slow, and able to show
faults whose keys depend on what was accepted before."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3diag.replay.attention import Keys
from eagle3diag.replay.drafting import Memory, Text, forward, read
from eagle3diag.replay.loop import NEWEST, Loop
from eagle3diag.replay.net import Net


@torch.inference_mode()
def serve(
    net: Net, text: Text, truth: Tensor, at: Tensor, until: Tensor, loop: Loop = NEWEST, served: Tensor | None = None
) -> tuple[list[list[int]], Tensor]:
    """Accepted drafts of every round of every record; and the same by the row that the round was drafted from [T], -1 elsewhere.

    Parameters
    ----------
    truth: [T, steps], the tokens that follow each row. at: [R], the row that each record is first drafted from; until: [R], the first row
    that a round can no longer start from. served: [T], how many drafts a server accepted in the round from a row, -1 where it had none:
    these rounds are followed, so that what each leaves behind is what the server's left.
    """
    prefix, _ = read(net, text, at, loop)
    rounds: list[list[int]] = [[] for _ in at]
    by_row = torch.full((len(text.tokens),), -1, device=net.device)
    record, steps = torch.arange(len(at), device=net.device), truth.shape[1]
    unread = at.new_empty(0)  # rows of accepted drafts that no draft step has read: their keys are the target's, but see kept ones
    while len(record := record[at[record] < until[record]]):
        rows = at[record]
        if loop.keep_draft_keys:
            _first(net, text, unread, prefix, loop)
        accepted, own = _chain(net, text, rows, prefix, truth[rows], loop)
        if loop.keep_draft_keys:
            _keep(prefix, own, rows)
            unread = rows[accepted == steps] + steps
        by_row[rows] = accepted
        for r, m in zip(record.tolist(), accepted.tolist(), strict=True):
            rounds[r].append(m)
        if served is not None:
            accepted = torch.where(served[rows] >= 0, served[rows], accepted)
        at = at.index_put((record,), rows + accepted + 1)
    return rounds, by_row


def _first(net: Net, text: Text, rows: Tensor, prefix: list[Keys], loop: Loop) -> tuple[Tensor, Memory]:
    """The first forward of some rows, which makes their keys anew."""
    memory = Memory.at(prefix, text, rows)
    if not len(rows):
        return text.hidden[rows], memory
    return forward(net, text.tokens[rows], text.hidden[rows], memory, 0, loop, anew=rows), memory


Own = list[tuple[Tensor, list[Keys]]]  # per draft step: which chains were still right, and the keys that they left per layer


def _chain(net: Net, text: Text, rows: Tensor, prefix: list[Keys], truth: Tensor, loop: Loop) -> tuple[Tensor, Own]:
    """Accepted drafts [N] of the chains from ``rows``, each followed while it is right, and the keys of what was accepted."""
    raw, memory = _first(net, text, rows, prefix, loop)
    alive, accepted, own = torch.arange(len(rows), device=rows.device), torch.zeros_like(rows), []
    for step in range(truth.shape[1]):
        tokens, hidden = net.speak(raw)
        right = (tokens == truth[alive, step]).nonzero()[:, 0]
        alive, tokens, hidden, memory = alive[right], tokens[right], hidden[right], memory.take(right)
        accepted[alive] += 1
        if not len(alive) or step == truth.shape[1] - 1:
            break
        raw = forward(net, tokens, hidden, memory, step + 1, loop)
        own.append((alive, [layer[-1] for layer in memory.own]))
    return accepted, own


def _keep(prefix: list[Keys], own: Own, rows: Tensor) -> None:
    """Put the draft's keys of accepted tokens in the place of those that the target's states would give."""
    for step, (alive, made) in enumerate(own, start=1):
        for (keys, values), (k, v) in zip(prefix, made, strict=True):
            keys[rows[alive] + step], values[rows[alive] + step] = k, v
