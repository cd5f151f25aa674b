"""What a diagnosis is made of: plain values."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3diag.audit import Audit
from eagle3diag.compare import Comparison
from eagle3diag.findings import Finding, Result
from eagle3diag.replay import Replay
from eagle3diag.serving import Acceptance
from eagle3diag.weights import WeightReport


@dataclass(frozen=True)
class Counterfactual:
    """A replay with one thing broken (or, for a series, several: ``fault`` is then ``FM-01+FM-05``).

    ``distance``: its accept length from the observed one; None when nothing was observed. ``served_alike`` of ``served_rounds`` recorded rounds
    of the server accept as many drafts as this replay does from the same row.
    """

    fault: str
    name: str
    accept_length: float
    accept_length_interval: tuple[float, float]
    p: tuple[float, ...]
    distance: float | None
    served_alike: int = 0
    served_rounds: int = 0

    @classmethod
    def of(cls, fault: str, name: str, replay: Replay, observed: float | None = None) -> Counterfactual:
        """What one ``replay`` says, beside the ``observed`` accept length."""
        distance = None if observed is None else abs(replay.accept_length - observed)
        beside = replay.served_alike, replay.served_rounds
        return cls(fault, name, replay.accept_length, replay.accept_length_interval, replay.p, distance, *beside)

    @property
    def served_share(self) -> float | None:
        """As of a :class:`~eagle3diag.replay.Replay`."""
        return self.served_alike / self.served_rounds if self.served_rounds else None


@dataclass(frozen=True)
class Ranked:
    """A finding, most likely explanation first.

    Attributes
    ----------
    weight: its share of the explanation of the observed number; over all findings, suspects and "none of these" they sum to one.
    certainty: probability that it is present at all, whatever it costs.
    predicted: its counterfactual nearest to what was observed. cost: accept length that it costs here, alone; None without a replay.
    """

    finding: Finding
    weight: float
    predicted: Counterfactual | None
    cost: float | None
    certainty: float = 1.0


@dataclass(frozen=True)
class Suspect:
    """A fault that the evidence given could not have shown and that would explain the number. ``tell``: what would show it."""

    fault: str
    title: str
    weight: float
    predicted: Counterfactual | None
    tell: str


@dataclass(frozen=True)
class Stage:
    """One step of the waterfall: the accept length that is left, and what took the difference to the stage before."""

    name: str
    accept_length: float
    why: str


@dataclass(frozen=True)
class Diagnosis(Result):
    """What was found, most likely explanation first, with every measurement it rests on.

    Attributes
    ----------
    none_of_these, as_trained: shares of the explanation kept for a cause that is not listed, and for "nothing is lost".
    series: replays with several of the faults that were found, at once.
    waterfall: where acceptance is lost, from a perfect draft to what was observed.
    """

    verdict: str
    observed: Acceptance | None
    replay: Replay | None
    live_replay: Replay | None
    counterfactuals: tuple[Counterfactual, ...]
    ranked: tuple[Ranked, ...]
    none_of_these: float
    audit: Audit | None
    comparison: Comparison | None
    weights: WeightReport | None
    trail: tuple[str, ...]
    missing: tuple[str, ...]
    as_trained: float = 0.0
    series: tuple[Counterfactual, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    waterfall: tuple[Stage, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(r.finding for r in self.ranked)
