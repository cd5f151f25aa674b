"""Measurements that many cases share, made once: the same weights, the same two dumps, the same change of the same draft on the same dump.

Nothing of what is judged changes by it, only what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from importlib import import_module
from typing import Any

from torch import Tensor

from eagle3diag.replay import Net

_kept: dict[Hashable, Any] = {}
_alive: list[Any] = []  # what a key names by its id must not be freed


def _once(key: Hashable, make: Callable[[], Any], *objects: Any) -> Any:
    if key not in _kept:
        _kept[key] = make()
        _alive.extend(objects)
    return _kept[key]


def _print(tensor: Tensor) -> tuple[float, float, int]:
    flat = tensor.detach().flatten().double()
    return float(flat.sum()), float((flat * flat).sum() + flat[::7].sum()), flat.numel()


def _print_of(net: Net) -> Hashable:
    tensors = {**net.weights, "head": net.head, "ids": net.draft_ids, "embedding": net.embedding[:512]}
    fields = (net.attention, str(net.rope), net.windows, net.residual, net.norm_before_fc, net.fc_norm, net.norm_output, net.deep_norm)
    return (fields, tuple((n, _print(t)) for n, t in sorted(tensors.items())))


def share() -> None:
    """From now on, for this process."""
    case, report = import_module("eagle3diag.case"), import_module("eagle3diag.weights.report")  # functions of these names hide them
    run, compare, measure = case.run, case.compare, report.measure
    prints: dict[int, Hashable] = {}

    def known(net: Net) -> Hashable:
        if id(net) not in prints:
            prints[id(net)] = _print_of(net)
            _alive.append(net)
        return prints[id(net)]

    def run_once(net: Net, dump: Any, **given: Any) -> Any:
        names = tuple((c.fault, c.name) for c in given["changes"])
        if any("in the live dump" in name or "other run" in name or "instead" in name for _, name in names):
            return run(net, dump, **given)  # the name does not say it all
        if dump[0].accepted is not None:
            return run(net, dump, **given)  # the rounds are those of one server
        rest = tuple((k, str(v)) for k, v in sorted(given.items()) if k != "changes")
        return _once(("run", known(net), id(dump), names, rest), lambda: run(net, dump, **given), dump)

    def compare_once(train: Any, live: Any, **given: Any) -> Any:
        if live[0].accepted is not None:
            return compare(train, live, **given)
        key = ("compare", id(train), id(live), id(given.get("reference")), id(given.get("target")))
        return _once(key, lambda: compare(train, live, **given), train, live, given)

    def measure_once(name: str, tensor: Tensor, **given: Any) -> Any:
        key = (
            "measure",
            name,
            _print(tensor),
            str(tensor.dtype),
            tuple(tensor.shape),
            tuple((k, str(v)) for k, v in sorted(given.items())),
        )
        return _once(key, lambda: measure(name, tensor, **given))

    case.run, case.compare, report.measure = run_once, compare_once, measure_once
