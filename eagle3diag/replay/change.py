"""A counterfactual: one thing done differently in a replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from eagle3diag.dumps import Record
from eagle3diag.replay.loop import Loop
from eagle3diag.replay.net import Net


def _same_net(net: Net) -> Net:
    return net


def _same_loop(loop: Loop) -> Loop:
    return loop


def _same_features(record: Record, features: Tensor) -> Tensor:
    return features


@dataclass(frozen=True)
class Change:
    """One small, named change: of the draft (``net``), of how it is driven (``loop``), or of what it is fed (``features``, called with
    the record and its features [T, W]). Changes compose by being listed.

    ``one_of_many``: the fault comes in forms that nobody could list (which other request, which random weights, how wide a window), and this
    stands for them: its accept length is theirs, its single rounds need not be."""

    fault: str
    name: str
    net: Callable[[Net], Net] = _same_net
    features: Callable[[Record, Tensor], Tensor] = _same_features
    loop: Callable[[Loop], Loop] = _same_loop
    one_of_many: bool = False
