"""How many drafts were accepted, in the one definition that this library uses, and the conversions from the engines' others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, isfinite, lgamma, log, log1p, sqrt

from eagle3diag.errors import BadArgument

#: Two-sided 95 % point of the normal distribution.
Z95 = 1.959963984540054


@dataclass(frozen=True)
class Acceptance:
    """Acceptance over a number of verify rounds; a field is None (or empty) where the source did not say.

    Attributes
    ----------
    rounds: verify rounds, one per request and target forward. accepted: drafts accepted in them.
    steps: drafts proposed per round, ``k``. slots: tree slots per round (SGLang's ``num_draft_tokens``; ``k + 1`` for a chain).
    p: unconditional acceptance per position, ``p[i]`` = share of rounds in which the first ``i + 1`` drafts were all accepted.
    accept_length: 1 + accepted drafts per round (the bonus token counted); at least 1.0.
    engine, engine_version: who said so.

    >>> seen = Acceptance.from_histogram([60, 25, 10, 5, 0], steps=4, slots=5)
    >>> seen.accept_length, round(seen.rate, 2), seen.p
    (1.6, 0.15, (0.4, 0.15, 0.05, 0.0))
    >>> seen.biased_rate                # what SGLang 0.5.5.post3 to 0.5.10 would have printed
    0.32
    """

    rounds: int | None = None
    accepted: int | None = None
    steps: int | None = None
    slots: int | None = None
    p: tuple[float, ...] = ()
    accept_length: float | None = None
    engine: str | None = None
    engine_version: str | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "accepted", "steps", "slots"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise BadArgument(f"{name} is {value}", hint="counts cannot be negative")
        if self.accept_length is not None and not (isfinite(self.accept_length) and self.accept_length >= 1.0):
            raise BadArgument(f"accept_length is {self.accept_length}", hint="it counts the bonus token, so it is at least 1.0")
        if any(not 0.0 <= value <= 1.0 for value in self.p):
            raise BadArgument(f"p is {self.p}", hint="acceptance per position is a share between 0 and 1")

    @classmethod
    def from_counts(
        cls,
        rounds: int,
        accepted: int,
        *,
        steps: int | None = None,
        slots: int | None = None,
        accepted_per_position: Sequence[int] = (),
        engine: str | None = None,
        engine_version: str | None = None,
    ) -> Acceptance:
        """From counters such as SGLang's ``spec_verify_ct`` and ``spec_num_correct_drafts``, or vLLM's ``num_drafts``,
        ``num_accepted_tokens`` and ``num_accepted_tokens_per_pos``. Zero rounds give no accept length.

        Raises
        ------
        BadArgument: more was accepted than proposed, or the positions do not add up to ``accepted``.
        """
        if steps is not None and accepted > rounds * steps:
            raise BadArgument(f"{accepted} drafts accepted of {rounds * steps} proposed", hint="rounds are counted per request, not per batch")
        if accepted_per_position and sum(accepted_per_position) != accepted:
            raise BadArgument(f"positions add up to {sum(accepted_per_position)}, not {accepted}", hint="give counts, not rates")
        return cls(
            rounds=rounds,
            accepted=accepted,
            steps=steps,
            slots=slots,
            p=tuple(count / rounds for count in accepted_per_position) if rounds else (),
            accept_length=1 + accepted / rounds if rounds else None,
            engine=engine,
            engine_version=engine_version,
        )

    @classmethod
    def from_histogram(
        cls,
        histogram: Sequence[int],
        steps: int | None = None,
        slots: int | None = None,
        *,
        engine: str | None = None,
        engine_version: str | None = None,
    ) -> Acceptance:
        """From SGLang's ``spec_correct_drafts_histogram``: entry ``k`` counts the rounds that accepted ``k`` drafts.

        A server leaves out the empty end (``[n]`` alone: nothing was ever accepted). ``steps`` defaults to the last entry given.

        Raises
        ------
        BadArgument: a negative count, or rounds that accepted more than ``steps``.
        """
        if any(count < 0 for count in histogram):
            raise BadArgument(f"histogram is {list(histogram)}", hint="counts cannot be negative")
        deepest = max((k for k, count in enumerate(histogram) if count), default=0)
        positions = max(len(histogram) - 1, 0) if steps is None else steps
        if deepest > positions:
            raise BadArgument(f"a round accepted {deepest} drafts of {positions}", hint="steps is the number of drafts per round")
        per_position = [sum(histogram[i:]) for i in range(1, positions + 1)]
        return cls.from_counts(
            sum(histogram),
            sum(per_position),
            steps=positions or None,
            slots=slots,
            accepted_per_position=per_position,
            engine=engine,
            engine_version=engine_version,
        )

    @classmethod
    def strict_from_biased(cls, rate: float, slots: int) -> float:
        """The strict rate behind one that SGLang 0.5.5.post3 to 0.5.10 printed: accepted drafts and bonus over all slots.

        Printed values are rounded, so one a little below the floor ``1 / slots`` counts as the floor.

        >>> Acceptance.strict_from_biased(0.20, slots=5), round(Acceptance.strict_from_biased(0.21, slots=5), 4)
        (0.0, 0.0125)

        Raises
        ------
        BadArgument: ``slots`` below 2, or a rate that no count could give.
        """
        if slots < 2:
            raise BadArgument(f"slots is {slots}", hint="a round has at least two slots: the committed token and one draft")
        if not 1 / slots - 0.005 <= rate <= 1.0:
            raise BadArgument(f"a biased rate of {rate} with {slots} slots", hint=f"it lies between {1 / slots:.2f} and 1; is it a strict rate?")
        return max(0.0, (rate * slots - 1) / (slots - 1))

    @property
    def accepted_per_round(self) -> float | None:
        """``A = AL - 1``."""
        return None if self.accept_length is None else self.accept_length - 1

    @property
    def rate(self) -> float | None:
        """The strict accept rate ``A / k``: 0 when nothing is accepted, 1 when everything is."""
        if self.accepted_per_round is None or not self.steps:
            return None
        return self.accepted_per_round / self.steps

    @property
    def biased_rate(self) -> float | None:
        """``AL / slots``: what SGLang 0.5.5.post3 to 0.5.10 printed as accept rate; ``1 / slots`` when nothing is accepted."""
        if self.accept_length is None or not self.slots:
            return None
        return self.accept_length / self.slots

    @property
    def c(self) -> tuple[float, ...]:
        """Conditional acceptance per position, ``c[0] = p[0]``, ``c[i] = p[i] / p[i - 1]``; ends where nothing came that far."""
        conditional: list[float] = []
        for i, value in enumerate(self.p):
            before = self.p[i - 1] if i else 1.0
            if before == 0.0:
                break
            conditional.append(value / before)
        return tuple(conditional)

    @property
    def p_interval(self) -> tuple[tuple[float, float], ...]:
        """95 % Wilson interval of each ``p[i]``; empty without the number of rounds."""
        if not self.rounds:
            return ()
        return tuple(wilson(round(value * self.rounds), self.rounds) for value in self.p)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the accept length, from counts; None without them.

        With the acceptance per position known, from the variance of accepted drafts per round. Otherwise, and where nothing or
        everything was accepted, exactly (Clopper-Pearson) as if the proposed drafts were accepted independently: for zero accepted
        drafts in ``n`` rounds this ends at about ``1 + 3.7 / n``. Rounds are taken as independent, which those of one text are not quite.
        """
        if not self.rounds or self.accepted is None:
            return None
        mean, most = self.accepted / self.rounds, self.steps or max(self.accepted, 1)
        if self.p and 0 < self.accepted < self.rounds * most:
            # E[A^2] = sum of (2 i + 1) P(A > i), since A takes whole values
            variance = max(sum((2 * i + 1) * value for i, value in enumerate(self.p)) - mean**2, 0.0)
            half = Z95 * sqrt(variance / self.rounds)
            return max(1.0, 1 + mean - half), min(1.0 + most, 1 + mean + half)
        low, high = clopper_pearson(min(self.accepted, self.rounds * most), self.rounds * most)
        return 1 + most * low, 1 + most * high


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95 % Wilson score interval of a share; good at 0 and 1, where the usual one has no width.

    >>> tuple(round(x, 4) for x in wilson(0, 100))
    (0.0, 0.037)
    """
    _check_counts(successes, trials)
    share, weight = successes / trials, Z95**2 / trials
    centre = (share + weight / 2) / (1 + weight)
    half = Z95 * sqrt(share * (1 - share) / trials + weight / (4 * trials)) / (1 + weight)
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return low, high


def clopper_pearson(successes: int, trials: int) -> tuple[float, float]:
    """95 % exact (Clopper-Pearson) interval of a share: the shares under which the count is not in a 2.5 % tail.

    >>> tuple(round(x, 4) for x in clopper_pearson(0, 100))
    (0.0, 0.0362)
    """
    _check_counts(successes, trials)
    low = 0.0 if successes == 0 else _solve(lambda share: 1 - _binomial_cdf(successes - 1, trials, share), 0.025, rising=True)
    high = 1.0 if successes == trials else _solve(lambda share: _binomial_cdf(successes, trials, share), 0.025, rising=False)
    return low, high


def _check_counts(successes: int, trials: int) -> None:
    if trials < 1 or not 0 <= successes <= trials:
        raise BadArgument(f"{successes} of {trials}", hint="a share needs at least one trial, and no more successes than trials")


def _binomial_cdf(successes: int, trials: int, share: float) -> float:
    """``P(X <= successes)`` for ``X ~ Binomial(trials, share)``, through the regularised incomplete beta function."""
    return 1.0 - _beta_share(share, successes + 1, trials - successes)


def _beta_share(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta ``I_x(a, b)`` by its continued fraction (Lentz; Numerical Recipes 6.4)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges quickly on the other side
        return 1.0 - _beta_share(1 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1.0 / _apart_from_zero(1.0 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, 10_000):
        for term in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1.0 / _apart_from_zero(1.0 + term * d, tiny)
            c = _apart_from_zero(1.0 + term / c, tiny)
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return front * fraction


def _apart_from_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny


def _solve(tail: Callable[[float], float], level: float, *, rising: bool) -> float:
    """The share at which a monotone tail probability equals ``level``, by bisection to the last bits of a double."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if (tail(middle) < level) == rising:
            low = middle
        else:
            high = middle
    return (low + high) / 2


__all__ = ["Acceptance", "clopper_pearson", "wilson"]
