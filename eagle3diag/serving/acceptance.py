"""What a server reported of its drafts, as counts, with the definitions of accept length and accept rate kept apart."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from eagle3diag.bounds import broken
from eagle3diag.errors import BadArgument, UnreadableFile
from eagle3diag.files import absent, kind, read_text
from eagle3diag.intervals import Z95, exact, variance
from eagle3diag.serving.metrics import Counts, read_metrics
from eagle3diag.serving.rates import length_of, rate_of


@dataclass(frozen=True)
class Acceptance:
    """Accepted drafts over rounds.

    Attributes
    ----------
    steps, num_draft_tokens: draft forwards a round, and slots of the tree (``steps + 1`` in a chain).
    drafted: proposed drafts, where they were counted; an engine may cut a round short.
    p: unconditional per-position acceptance when known. accept_length: counts the bonus token; used where there are no counts.
    printed_rate: the accept rate as the engine printed it, in whatever definition its version has.
    windows: how many windows of a log the mean is over. tokens, distinct: tokens that were written, and the share of them that differ.
    """

    rounds: int | None = None
    accepted: int | None = None
    steps: int | None = None
    num_draft_tokens: int | None = None
    p: tuple[float, ...] = ()
    accept_length: float | None = None
    engine: str | None = None
    engine_version: str | None = None
    drafted: int | None = None
    printed_rate: float | None = None
    windows: int | None = None
    tokens: int | None = None
    distinct: float | None = None

    @classmethod
    def from_histogram(cls, histogram: Sequence[int], *, steps: int, num_draft_tokens: int | None = None, **engine: Any) -> Acceptance:
        """From ``histogram[m]`` = rounds that accepted ``m`` drafts (SGLang's ``spec_correct_drafts_histogram``, chain).

        >>> Acceptance.from_histogram([1, 0, 3], steps=2).accept_length
        2.5
        """
        rounds = sum(histogram)
        hits = [sum(histogram[i:]) for i in range(1, steps + 1)]
        return cls(
            rounds=rounds,
            accepted=sum(hits),
            steps=steps,
            num_draft_tokens=num_draft_tokens or steps + 1,
            p=tuple(h / rounds for h in hits) if rounds else (),
            accept_length=1 + sum(hits) / rounds if rounds else None,
            **engine,
        )

    @classmethod
    def from_metrics(cls, counts: Counts, engine_version: str | None = None) -> Acceptance:
        """From the totals of a ``/metrics`` page, or the difference of two."""
        rounds, steps = counts.rounds, counts.steps
        if not steps and counts.drafted and rounds and counts.drafted % rounds == 0:
            steps = counts.drafted // rounds
        return cls(
            rounds=rounds,
            accepted=counts.accepted,
            steps=steps,
            num_draft_tokens=counts.num_draft_tokens or (steps + 1 if steps else None),
            p=tuple(n / rounds for n in counts.positions) if rounds else (),
            accept_length=counts.accept_length,
            engine=counts.engine,
            engine_version=engine_version,
            drafted=counts.drafted,
            printed_rate=counts.accept_rate,
        )

    @classmethod
    def from_rate(
        cls, rate: float, kind: str, *, steps: int | None = None, num_draft_tokens: int | None = None, **engine: Any
    ) -> Acceptance:
        """From a printed accept rate of a known ``kind`` (:data:`~eagle3diag.serving.rates.RATES`).

        >>> Acceptance.from_rate(0.20, "biased", num_draft_tokens=5).length
        1.0
        """
        length = length_of(rate, kind, steps=steps, num_draft_tokens=num_draft_tokens)
        steps = steps or (num_draft_tokens - 1 if num_draft_tokens else None)
        return cls(accept_length=length, steps=steps, num_draft_tokens=num_draft_tokens, printed_rate=rate, **engine)

    @property
    def length(self) -> float | None:
        """Accept length, from counts where there are any."""
        return 1 + self.accepted / self.rounds if self.rounds and self.accepted is not None else self.accept_length

    @property
    def rate(self) -> float | None:
        """The strict accept rate: accepted drafts / proposed drafts. In a tree all slots but the root are proposed."""
        if self.drafted and self.accepted is not None:
            return self.accepted / self.drafted
        return self.printed_as("strict")

    @property
    def biased_rate(self) -> float | None:
        """What SGLang 0.5.5.post3 to 0.5.10 would have printed: accept length / slots, which is 1/slots when nothing is accepted."""
        return self.printed_as("biased") if self.num_draft_tokens else None

    def printed_as(self, kind: str) -> float | None:
        """The rate in the definition ``kind``; None where the accept length or the drafts a round are not known."""
        if self.length is None or not (self.steps or self.num_draft_tokens):
            return None
        return rate_of(self.length, kind, steps=self.steps, num_draft_tokens=self.num_draft_tokens)

    @property
    def histogram(self) -> tuple[float, ...]:
        """Share of rounds that accepted exactly ``m`` drafts, from ``p``; empty without it."""
        reached = (1.0, *self.p, 0.0)
        return tuple(here - after for here, after in pairwise(reached)) if self.p else ()

    @property
    def c(self) -> tuple[float, ...]:
        """Conditional acceptance per position: ``c[0] = p[0]``, ``c[i] = p[i] / p[i - 1]``; ends where nothing came that far."""
        before = (1.0, *self.p)
        return tuple(share / earlier for share, earlier in zip(self.p, before, strict=False) if earlier > 0)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the accept length from counts; None without counts.

        With ``p``, from the spread of accepted drafts between rounds: they come in runs, so counting every proposed draft as a trial of
        its own would claim too much. Without it, and where nothing or everything was accepted, the exact one of accepted / proposed.
        """
        if not self.rounds or self.accepted is None or not self.steps:
            return None
        if len(self.p) == self.steps and 0 < self.accepted < self.rounds * self.steps:
            mean = self.accepted / self.rounds
            half = Z95 * math.sqrt(variance(self.p) / self.rounds)
            return max(1.0, 1 + mean - half), min(1.0 + self.steps, 1 + mean + half)
        low, high = exact(min(self.accepted, self.rounds * self.steps), self.rounds * self.steps)
        return 1 + self.steps * low, 1 + self.steps * high

    @property
    def p_intervals(self) -> tuple[tuple[float, float], ...]:
        """Exact 95 % intervals of ``p``; empty without counts."""
        return tuple(exact(round(share * self.rounds), self.rounds) for share in self.p) if self.rounds else ()


def read_acceptance(source: object) -> Acceptance:
    """An :class:`Acceptance` from one, from a mapping of its fields, from a bare accept length, or from a file.

    A file may hold such a mapping as JSON, a saved probe, SGLang's answer to ``/server_info``, or a page of ``/metrics``.

    Raises
    ------
    BadArgument: none of these, or an accept length below 1. UnreadableFile: the file holds nothing of the kind.
    """
    if isinstance(source, Acceptance):
        return source
    if isinstance(source, (int, float)) and not isinstance(source, bool):
        return Acceptance(accept_length=_length(float(source)))
    if isinstance(source, (str, os.PathLike)):
        text = str(source)
        try:
            return Acceptance(accept_length=_length(float(text)))
        except ValueError:
            source = _read(Path(text))
    if isinstance(source, Acceptance):
        return source
    if isinstance(source, Mapping) and isinstance(source.get("acceptance"), Mapping):
        source = source["acceptance"]  # a saved probe
    if not isinstance(source, Mapping):
        raise BadArgument(f"{type(source).__name__} is not an acceptance", hint="give an accept length, counts as JSON, or an Acceptance")
    if isinstance(source.get("internal_states"), Sequence):
        return _server_info(source)
    return _fields(source)


def _fields(source: Mapping[str, Any]) -> Acceptance:
    known = {k: v for k, v in source.items() if k in Acceptance.__dataclass_fields__}
    try:
        if not all(isinstance(known.get(name), str | None) for name in ("engine", "engine_version")):
            raise TypeError("no name")
        if "histogram" in source and "steps" in source:
            counts = [_count(n) for n in source["histogram"]]
            if len(counts) > _count(source["steps"]) + 1:
                raise ValueError("more accepted than proposed")
            slots = _count(source["num_draft_tokens"]) if source.get("num_draft_tokens") else None
            names = {k: known.get(k) for k in ("engine", "engine_version")}
            return Acceptance.from_histogram(counts, steps=_count(source["steps"]), num_draft_tokens=slots, **names)
        for name in ("rounds", "accepted", "steps", "num_draft_tokens", "drafted", "windows", "tokens"):
            if known.get(name) is not None:
                known[name] = _count(known[name])
        for name in ("accept_length", "printed_rate", "distinct"):
            if known.get(name) is not None:
                known[name] = _finite(known[name])
        value = Acceptance(**{**known, "p": tuple(_finite(x) for x in known.get("p") or ())})
        length = value.length
    except (TypeError, ValueError, OverflowError):
        raise BadArgument(
            "the acceptance has a field of the wrong type or size",
            hint="whole numbers for counts, a list for p; histogram[m] = rounds that accepted m of `steps` drafts",
        ) from None
    if said := broken(value, "acceptance"):
        raise BadArgument(said, hint="shares are within 0 and 1, counts not below 0")
    if length is None and value.rounds != 0:
        queried = "data" in source and "status" in source
        found = "is an answer of Prometheus, not of a server" if queried else "has neither counts nor an accept length"
        raise BadArgument(
            f"the acceptance {found}", hint="give `curl URL/metrics` of the server as a file, rounds and accepted, or accept_length"
        )
    if length is not None:
        _length(length)
    return value


def _server_info(info: Mapping[str, Any]) -> Acceptance:
    """SGLang's own mean since the start, over its data-parallel ranks (``internal_states[i].avg_spec_accept_length``)."""
    states = [s for s in info["internal_states"] if isinstance(s, Mapping)]
    means = [
        float(m) for s in states if isinstance(m := s.get("avg_spec_accept_length"), (int, float)) and not isinstance(m, bool) and m >= 1
    ]
    if not means:
        raise BadArgument(
            "this /server_info has no accept length yet", hint="send a few requests first; it is refreshed every 40 decode rounds"
        )
    steps, slots = info.get("speculative_num_steps"), info.get("speculative_num_draft_tokens")
    return Acceptance(
        accept_length=_length(sum(means) / len(means)),
        steps=steps if isinstance(steps, int) else None,
        num_draft_tokens=slots if isinstance(slots, int) else None,
        engine="sglang",
        engine_version=version if isinstance(version := info.get("version"), str) else None,
    )


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or not 0 <= value < 1 << 53:
        raise ValueError("no count")
    return int(value)


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("no number")
    return float(value)


def _length(value: float) -> float:
    if not 1.0 <= value < 1000:
        raise BadArgument(f"an accept length is at least 1 (the bonus token counts), not {value:g}", hint="is this an accept rate?")
    return value


def _read(path: Path) -> Any:
    """The JSON of a file, or the acceptance of a page of metrics."""
    if not kind(path):
        hint = "check the path; an accept length is a plain number, such as 1.03, and no rate"
        raise absent(path, "is not an accept length, and there is no such file", hint)
    text = read_text(path, errors="replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        counts = read_metrics(text)
        if counts is None:
            raise UnreadableFile(
                "is neither JSON nor a page of /metrics", where=path, hint="see data_samples/live/eagle3/acceptance.json for the fields"
            ) from None
        seen = Acceptance.from_metrics(counts)
        if seen.length is None and seen.rounds is None:
            raise UnreadableFile(
                "is a page of /metrics without speculative decoding", where=path, hint="is a draft being served?"
            ) from None
        return seen
