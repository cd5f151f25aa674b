"""A Prometheus page (``/metrics``) of SGLang or vLLM: the few counters and gauges that tell what was accepted."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

_SAMPLE = re.compile(r"(vllm|sglang):(\w+)(?:\{(.*)\})?\s+([-+0-9.eEinfaNI]+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
LARGEST = 2.0**53
"""A counter beyond this has lost its last digits as a float, and is none of ours."""


@dataclass(frozen=True)
class Counts:
    """Totals since the server started, summed over its engines. ``positions[i]``: rounds that accepted at least ``i + 1`` drafts."""

    engine: str
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    positions: tuple[int, ...] = ()
    requests: int | None = None
    generated: int | None = None
    running: int | None = None
    accept_length: float | None = None  # SGLang's gauges: of the last window that was logged
    accept_rate: float | None = None
    steps: int | None = None
    num_draft_tokens: int | None = None

    def since(self, before: Counts) -> Counts:
        """What was added after ``before``; gauges are taken as they stand. A counter that went back (a restart) becomes None."""

        def less(now: int | None, then: int | None) -> int | None:
            return None if now is None or now < (then or 0) else now - (then or 0)

        then = before.positions + (0,) * (len(self.positions) - len(before.positions))
        positions = tuple(now - was for now, was in zip(self.positions, then, strict=False))
        counted: dict[str, Any] = {name: less(getattr(self, name), getattr(before, name)) for name in _COUNTED}
        return replace(self, positions=() if any(n < 0 for n in positions) else positions, **counted)


_COUNTED = ("rounds", "drafted", "accepted", "requests", "generated")
"""What only grows; the rest stands as it is shown."""

#: Names without the engine and without ``_total``. vLLM: v1/spec_decode/metrics.py, v1/metrics/loggers.py; SGLang: metrics_collector.py.
_COUNTERS = {
    "vllm": {
        "spec_decode_num_drafts": "rounds",
        "spec_decode_num_draft_tokens": "drafted",
        "spec_decode_num_accepted_tokens": "accepted",
        "request_success": "requests",
        "generation_tokens": "generated",
        "num_requests_running": "running",
    },
    "sglang": {
        "spec_verify_calls": "rounds",
        "num_requests": "requests",
        "generation_tokens": "generated",
        "num_running_reqs": "running",
        "spec_num_steps": "steps",
        "spec_num_draft_tokens": "num_draft_tokens",
    },
}
_GAUGES = {"spec_accept_length": "accept_length", "spec_accept_rate": "accept_rate"}
_MAXIMA = ("steps", "num_draft_tokens")  # the same on every rank, so not to be summed


def read_metrics(text: str) -> Counts | None:
    """The counts of a page; None where it holds nothing of SGLang or vLLM."""
    engine: str | None = None
    whole: dict[str, int] = {}
    gauges: dict[str, list[float]] = {}
    positions: dict[int, int] = {}
    for name, metric, labels, value in _samples(text):
        engine = engine or name
        if name != engine or not math.isfinite(value):
            continue
        if metric == "spec_decode_num_accepted_tokens_per_pos":
            position = dict(_LABEL.findall(labels)).get("position", "")
            if position.isascii() and position.isdigit() and int(position) < 64:
                positions[int(position)] = positions.get(int(position), 0) + round(value)
        elif metric in _GAUGES and engine == "sglang":
            gauges.setdefault(_GAUGES[metric], []).append(value)
        elif (known := _COUNTERS[engine].get(metric)) and 0 <= value < LARGEST:
            whole[known] = max(whole.get(known, 0), round(value)) if known in _MAXIMA else whole.get(known, 0) + round(value)
    if engine is None:
        return None
    dense = tuple(positions.get(i, 0) for i in range(max(positions, default=-1) + 1))
    shown: dict[str, Any] = {name: _mean(values) for name, values in gauges.items()}
    return Counts(engine, positions=dense, steps=whole.pop("steps", 0) or len(dense) or None, **whole, **shown)


def _samples(text: str) -> Iterator[tuple[str, str, str, float]]:
    for line in text.splitlines():
        if line.startswith(("vllm:", "sglang:")) and (match := _SAMPLE.match(line)):
            try:
                yield match[1], match[2].removesuffix("_total"), match[3] or "", float(match[4])
            except ValueError:
                continue


def _mean(values: list[float]) -> float | None:
    shown = [v for v in values if v > 0]  # an idle rank shows 0
    return sum(shown) / len(shown) if shown else None
