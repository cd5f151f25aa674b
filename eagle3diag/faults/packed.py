"""FM-19: a fused projection of queries, keys and values taken apart in another order than it was packed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from eagle3diag.case import Case
from eagle3diag.faults.base import Fault
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.replay import Change, Net
from eagle3diag.replay.attention import Grouped

POOR = 1.5
"""Accept length from which no other order is tried: a layer whose heads are mixed up brings next to nothing (1.1 on the sample draft)."""

BETTER = 0.3
"""Accept length that another order must gain: the right one of a scrambled layer gives back nearly all, a wrong one of a weak layer nothing."""


def by_group(heads: int, kv_heads: int) -> Tensor:
    """Where the heads of ``q, k, v``, one kind after another, stand when they are packed group by group: its queries, its key, its value.

    >>> by_group(4, 2).tolist()
    [0, 1, 4, 6, 2, 3, 5, 7]
    """
    groups = torch.arange(kv_heads)[:, None]
    queries = torch.arange(heads).view(kv_heads, -1)
    return torch.cat([queries, heads + groups, heads + kv_heads + groups], 1).flatten()


def repacked(order: Callable[[int, int], Tensor]) -> Callable[[Net], Net]:
    """The net with the heads of every layer's q, k and v, taken together, in another order."""

    def change(net: Net) -> Net:
        assert isinstance(net.attention, Grouped)
        a, weights = net.attention, dict(net.weights)
        for layer in range(net.layers):
            names = [f"layers.{layer}.self_attn.{part}_proj.weight" for part in "qkv"]
            stacked = torch.cat([weights[n] for n in names])
            moved = stacked.view(a.heads + 2 * a.kv_heads, a.head_dim, -1)[order(a.heads, a.kv_heads)].view_as(stacked)
            sizes = [len(weights[n]) for n in names]
            weights |= dict(zip(names, moved.split(sizes), strict=True))
        return replace(net, weights=weights)

    return change


#: What the file was made from, and the order that undoes it.
_ORDERS: tuple[tuple[str, Callable[[int, int], Tensor]], ...] = (
    ("one kind after another, and read group by group", by_group),
    ("group by group, and read one kind after another", lambda heads, kv_heads: by_group(heads, kv_heads).argsort()),
)


def _packed(case: Case) -> Finding | None:
    """Names and shapes are right and so are the values; only a replay tells that the rows stand elsewhere."""
    if case.net is None or not isinstance(case.net.attention, Grouped) or case.healthy is None or case.healthy.accept_length >= POOR:
        return None
    played = [(words, case.play(Change("FM-19", words, net=repacked(order)))) for words, order in _ORDERS]
    words, best = max(((w, r.accept_length) for w, r in played if r is not None), key=lambda found: found[1])
    if best < case.healthy.accept_length + BETTER:
        return None
    return Finding(
        "FM-19",
        Severity.ERROR,
        f"q, k and v hold each other's heads: they were packed {words}",
        "Shapes agree in either order, so nothing fails; every head then computes with another's weights. The trainer's loss is computed "
        "with the packed projection and does not notice.",
        (
            Evidence("accept length with the file's order", case.healthy.accept_length, None, "replay"),
            Evidence("accept length with the other order", best, None, "replay"),
        ),
        "Take the fused projection apart in the order in which the trainer packs it, and export again.",
        "replay must give the accept length of the other order.",
    )


FAULTS = (Fault("FM-19", _packed, shown_by=(("draft", "target", "train"),)),)
