"""What a server reported of its drafts, as counts, with the definitions of accept length and accept rate kept apart."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3diag.errors import BadArgument, UnreadableFile
from eagle3diag.intervals import Z95, wilson


def strict_from_biased(rate: float, slots: int) -> float:
    """SGLang 0.5.5.post3 to 0.5.10 printed (accepted + bonus) / slots; the strict rate is accepted / (slots - 1).

    Printed values are rounded, so one just below the floor ``1 / slots`` is the floor.

    >>> round(strict_from_biased(0.20, 5), 4), round(strict_from_biased(0.21, 5), 4), strict_from_biased(0.33, 3)
    (0.0, 0.0125, 0.0)

    Raises
    ------
    BadArgument: fewer than two slots, or a rate outside ``1 / slots .. 1``, which is then of another kind.
    """
    if slots < 2:
        raise BadArgument(f"slots must be at least 2, not {slots}", hint="give --speculative-num-draft-tokens")
    if not 1 / slots - 0.005 <= rate <= 1:
        raise BadArgument(f"a biased rate at {slots} slots is {1 / slots:.2f} to 1, not {rate:g}", hint="is it a strict rate?")
    return max(0.0, (rate * slots - 1) / (slots - 1))


@dataclass(frozen=True)
class Acceptance:
    """Accepted drafts over rounds. ``steps`` is the number of drafts proposed a round, ``slots`` the tree slots (``steps + 1`` in a
    chain); ``p`` the unconditional per-position acceptance when known. ``accept_length`` counts the bonus token."""

    rounds: int | None = None
    accepted: int | None = None
    steps: int | None = None
    slots: int | None = None
    p: tuple[float, ...] = ()
    accept_length: float | None = None
    engine: str | None = None
    engine_version: str | None = None

    @classmethod
    def from_histogram(cls, histogram: Sequence[int], *, steps: int, slots: int | None = None, **engine: Any) -> Acceptance:
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
            slots=slots or steps + 1,
            p=tuple(h / rounds for h in hits) if rounds else (),
            accept_length=1 + sum(hits) / rounds if rounds else None,
            **engine,
        )

    @property
    def length(self) -> float | None:
        """Accept length, from counts where there are any."""
        return 1 + self.accepted / self.rounds if self.rounds and self.accepted is not None else self.accept_length

    @property
    def rate(self) -> float | None:
        """The strict accept rate: accepted drafts / proposed drafts."""
        return None if self.length is None or not self.steps else (self.length - 1) / self.steps

    @property
    def biased_rate(self) -> float | None:
        """What SGLang 0.5.5.post3 to 0.5.10 would have printed: accept length / slots, which is 1/slots when nothing is accepted."""
        return None if self.length is None or not self.slots else self.length / self.slots

    @property
    def c(self) -> tuple[float, ...]:
        """Conditional acceptance per position: ``c[0] = p[0]``, ``c[i] = p[i] / p[i - 1]``; ends where nothing came that far."""
        before = (1.0, *self.p)
        return tuple(share / earlier for share, earlier in zip(self.p, before, strict=False) if earlier > 0)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the accept length from counts; None without counts.

        With ``p``, from the spread of accepted drafts between rounds: they come in runs, so counting every proposed draft as a trial of
        its own would claim too much. Without it, and where nothing or everything was accepted, Wilson on accepted / proposed.
        """
        if not self.rounds or self.accepted is None or not self.steps:
            return None
        if len(self.p) == self.steps and 0 < self.accepted < self.rounds * self.steps:
            mean = self.accepted / self.rounds
            variance = max(sum((2 * i + 1) * share for i, share in enumerate(self.p)) - mean * mean, 0.0)  # E[A^2] = sum (2i+1) P(A > i)
            half = Z95 * math.sqrt(variance / self.rounds)
            return max(1.0, 1 + mean - half), min(1.0 + self.steps, 1 + mean + half)
        low, high = wilson(self.accepted, self.rounds * self.steps)
        return 1 + self.steps * low, 1 + self.steps * high


def read_acceptance(source: object) -> Acceptance:
    """An :class:`Acceptance` from one, from a mapping of its fields, from a JSON file of them, or from a bare accept length.

    Raises
    ------
    BadArgument: none of these, or an accept length below 1. UnreadableFile: the file holds no such mapping.
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
    if not isinstance(source, Mapping):
        raise BadArgument(f"{type(source).__name__} is no acceptance", hint="give an accept length, counts as JSON, or an Acceptance")
    known = {k: v for k, v in source.items() if k in Acceptance.__dataclass_fields__}
    if "histogram" in source and "steps" in source:
        try:
            counts = [int(n) for n in source["histogram"]]
            return Acceptance.from_histogram(
                counts,
                steps=int(source["steps"]),
                slots=int(source["slots"]) if source.get("slots") else None,
                engine=known.get("engine"),
                engine_version=known.get("engine_version"),
            )
        except (TypeError, ValueError):
            raise BadArgument("the histogram is no list of counts", hint="histogram[m] = rounds that accepted m drafts") from None
    try:
        value = Acceptance(**{**known, "p": tuple(float(x) for x in known.get("p", ()))})
        length = value.length
    except (TypeError, ValueError, ZeroDivisionError):
        raise BadArgument("the acceptance has a field of the wrong type", hint="whole numbers for counts, a list for p") from None
    if length is None:
        raise BadArgument("the acceptance has neither counts nor an accept length", hint="give rounds and accepted, or accept_length")
    return value


def _length(value: float) -> float:
    if not 1.0 <= value < 1000:
        raise BadArgument(f"an accept length is at least 1 (the bonus token counts), not {value:g}", hint="is this an accept rate?")
    return value


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableFile(f"cannot be opened: {error.strerror}", where=path, hint="check the path") from None
    except (ValueError, RecursionError):
        raise UnreadableFile("is not JSON", where=path, hint="see data_samples/live/eagle3/acceptance.json for the fields") from None
