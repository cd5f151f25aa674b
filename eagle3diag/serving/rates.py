"""The definitions of "accept rate" that engines print, and conversion between them: all are linear in the accept length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from eagle3diag.errors import BadArgument

Per = Literal["steps", "steps + 1", "slots - 1", "slots"]


@dataclass(frozen=True)
class Rate:
    """``rate = (accept length - 1 + bonus) / per``: whether the bonus token is counted, and by what a round is divided."""

    bonus: int
    per: Per
    printed_by: str

    def divisor(self, steps: int | None, num_draft_tokens: int | None) -> int:
        """Drafts or slots a round; in a chain ``num_draft_tokens = steps + 1``, so either may be missing there."""
        if self.per.startswith("steps"):
            count = steps if steps else (num_draft_tokens - 1 if num_draft_tokens else None)
            extra = self.per == "steps + 1"
        else:
            count = num_draft_tokens - 1 if num_draft_tokens else steps
            extra = self.per == "slots"
        if not count or count < 1:
            raise BadArgument("a rate needs the number of drafts a round", hint="give steps or num_draft_tokens")
        return count + extra


#: By kind, as the catalogue of engine facts names them (``engines.sglang.ACCEPT_RATE``).
RATES: Mapping[str, Rate] = {
    "strict": Rate(0, "slots - 1", "vLLM `Avg Draft acceptance rate`; SGLang since 0.5.11; SGLang `meta_info` since 0.5.5.post3"),
    "biased": Rate(1, "slots", "SGLang 0.5.5.post3 to 0.5.10"),
    "biased by steps": Rate(1, "steps + 1", "SGLang 0.5.4 and 0.5.5; vLLM V0 `System efficiency`"),
    "by depth": Rate(0, "steps", "accepted drafts over the longest path: what a tree can reach at most"),
}


def rate_of(length: float, kind: str, *, steps: int | None = None, num_draft_tokens: int | None = None) -> float:
    """What an engine of this ``kind`` prints at an accept length.

    >>> rate_of(1.0, "biased", num_draft_tokens=5), rate_of(1.0, "strict", num_draft_tokens=5), rate_of(2.5, "by depth", steps=3)
    (0.2, 0.0, 0.5)
    """
    rate = _known(kind)
    return (length - 1 + rate.bonus) / rate.divisor(steps, num_draft_tokens)


def length_of(rate: float, kind: str, *, steps: int | None = None, num_draft_tokens: int | None = None) -> float:
    """The accept length behind a printed rate. Printed values are rounded, so one just below the floor is the floor.

    >>> round(length_of(0.21, "biased", num_draft_tokens=5), 2), length_of(0.33, "biased", num_draft_tokens=3)
    (1.05, 1.0)

    Raises
    ------
    BadArgument: the rate is outside what this kind can be, so it is of another kind; or neither steps nor num_draft_tokens is given.
    """
    known = _known(kind)
    per = known.divisor(steps, num_draft_tokens)
    floor = known.bonus / per
    if not floor - 0.005 <= rate <= 1:
        raise BadArgument(f"a {kind} rate at {per} a round is {floor:.2f} to 1, not {rate:g}", hint="is it a rate of another kind?")
    return max(1.0, rate * per + 1 - known.bonus)


def strict_from_biased(rate: float, num_draft_tokens: int) -> float:
    """SGLang 0.5.5.post3 to 0.5.10 printed (accepted + bonus) / slots; the strict rate is accepted / (slots - 1).

    >>> round(strict_from_biased(0.20, 5), 4), round(strict_from_biased(0.21, 5), 4), strict_from_biased(0.33, 3)
    (0.0, 0.0125, 0.0)

    Raises
    ------
    BadArgument: fewer than two slots, or a rate outside ``1 / slots .. 1``, which is then of another kind.
    """
    if num_draft_tokens < 2:
        raise BadArgument(f"num_draft_tokens must be at least 2, not {num_draft_tokens}", hint="give --speculative-num-draft-tokens")
    return rate_of(length_of(rate, "biased", num_draft_tokens=num_draft_tokens), "strict", num_draft_tokens=num_draft_tokens)


def _known(kind: str) -> Rate:
    if kind not in RATES:
        raise BadArgument(f"{kind!r} is not a kind of accept rate", hint=f"known: {', '.join(RATES)}")
    return RATES[kind]
