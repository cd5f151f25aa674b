"""The laws that initialisations draw entries from, and which of them trainers use for a weight of a given shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

CUT = 2.0
"""Where a truncated normal ends, in stds of the normal before truncation (JAX's initialisers and timm's)."""


@dataclass(frozen=True)
class Law:
    """A symmetric law of unit variance: absolute moments 1, 3, 4, 6 and 8 (the even ones give the sampling errors), and ``reach``, the
    largest value it can take (infinite for the normal law)."""

    kind: Literal["uniform", "normal", "truncated"]
    first: float
    third: float
    kurtosis: float
    sixth: float
    eighth: float
    reach: float = math.inf

    @property
    def kurtosis_variance(self) -> float:
        """Asymptotic ``N * Var`` of the sample kurtosis (delta method; 24 for the normal law)."""
        k = self.kurtosis
        return (self.eighth - k * k) - 4 * k * (self.sixth - k) + 4 * k * k * (k - 1)

    @property
    def first_variance(self) -> float:
        """Asymptotic ``N * Var`` of ``mean |w| / std`` (delta method; 0.045 for the normal law, Geary 1935)."""
        r = self.first
        return (1 - r * r) - r * (self.third - r) + r * r * (self.kurtosis - 1) / 4

    def below(self, x: Tensor) -> Tensor:
        """The distribution function at ``x`` (float64, in stds)."""
        if self.kind == "uniform":
            found: Tensor = (x / self.reach + 1) / 2
        elif self.kind == "normal":
            found = torch.special.ndtr(x)
        else:
            outside = NormalDist().cdf(-CUT)
            found = (torch.special.ndtr(x * CUT / self.reach) - outside) / (1 - 2 * outside)
        return found.clamp(0, 1)


def _truncated() -> Law:
    """The normal law cut at ``CUT``: moments by parts, ``E|z|^k = (k-1) E|z|^(k-2) - 2 CUT^(k-1) phi(CUT) / P``, rescaled to variance one."""
    z = NormalDist()
    inside, end = 1 - 2 * z.cdf(-CUT), 2 * z.pdf(CUT)
    m = {0: 1.0, 1: (2 * z.pdf(0) - end) / inside}
    for k in range(2, 9):
        m[k] = (k - 1) * m[k - 2] - CUT ** (k - 1) * end / inside
    s = math.sqrt(m[2])
    return Law("truncated", m[1] / s, m[3] / s**3, m[4] / s**4, m[6] / s**6, m[8] / s**8, CUT / s)


UNIFORM = Law("uniform", math.sqrt(3) / 2, 3 * math.sqrt(3) / 4, 9 / 5, 27 / 7, 9.0, math.sqrt(3))
NORMAL = Law("normal", math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi), 3.0, 15.0, 105.0)
TRUNCATED = _truncated()


@dataclass(frozen=True)
class Null:
    """One initialisation: a constant ``value``, or a ``law`` of this ``std`` (before rounding to the stored dtype)."""

    name: str
    std: float
    law: Law | None = None
    value: float | None = None

    @property
    def bound(self) -> float | None:
        """What no entry exceeds before rounding; None for the normal law and for constants."""
        return self.std * self.law.reach if self.law is not None and math.isfinite(self.law.reach) else None


CONSTANTS = (Null("zeros", 0.0, value=0.0), Null("ones", 0.0, value=1.0))


def nulls_for(shape: Sequence[int], *, fan_in: int | None = None, initializer_range: float | None = None) -> tuple[Null, ...]:
    """The initialisations that trainers and engines use for a weight of this shape.

    ``uniform_fan_in`` is ``nn.Linear``'s own start, Kaiming uniform with ``a = sqrt(5)``, which is U(-1/sqrt(F), 1/sqrt(F)): SafeAILab,
    SpecForge up to mid 2026, ModelOpt, AngelSlim, TorchSpec, and SGLang's fallback for a missing fc. ``normal_0.02``: speculators,
    SpecForge 0.2, Automodel; ``normal_0.01``: Megatron as ModelOpt sets it; a different ``initializer_range`` of the config is added under
    its own value. ``truncated_normal_0.02`` is cut at two stds, as in JAX and timm (torch's ``trunc_normal_`` cuts at +-2 and is normal).
    ``normal_1`` is ``nn.Embedding``'s. The Kaiming and Xavier starts are what people set by hand. One dimension has the constants only.
    """
    if len(shape) < 2:
        return CONSTANTS
    fan_out, columns = shape[0], math.prod(shape[1:])
    fan = fan_in or columns
    if fan < 1 or fan_out < 1:
        return CONSTANTS
    glorot = math.sqrt(2 / (fan + fan_out))
    scales = dict.fromkeys([0.02, *([initializer_range] if initializer_range else []), 0.01])
    return (
        Null("uniform_fan_in", 1 / math.sqrt(3 * fan), UNIFORM),
        *(Null(f"normal_{scale:g}", scale, NORMAL) for scale in scales),
        Null("truncated_normal_0.02", 0.02 * CUT / TRUNCATED.reach, TRUNCATED),
        Null("xavier_uniform", glorot, UNIFORM),
        Null("xavier_normal", glorot, NORMAL),
        Null("kaiming_uniform", math.sqrt(2 / fan), UNIFORM),
        Null("kaiming_normal", math.sqrt(2 / fan), NORMAL),
        Null("lecun_normal", 1 / math.sqrt(fan), NORMAL),
        Null("normal_1", 1.0, NORMAL),
        *CONSTANTS,
    )


def edge(null: Null, size: int, dtype: torch.dtype) -> float:
    """What no entry of the null exceeds after rounding to ``dtype`` (bounded laws), or one entry of ``size`` does on average (normal).

    In bfloat16 the bound 0.018042 is stored as 0.018066, so comparing with the bound itself would call every fresh weight trained.
    """
    if null.value is not None:
        return abs(null.value)
    reach = null.bound if null.bound is not None else null.std * NormalDist().inv_cdf(1 - 0.5 / max(size, 2))
    reach *= 1 + 2.0**-22  # the generator works in float32, where the bound itself is rounded
    return max(reach, float(torch.tensor(reach, dtype=torch.float32).to(dtype).double()))


@lru_cache(maxsize=256)
def rounded_std(null: Null, dtype: torch.dtype) -> float:
    """Std of the null after rounding to ``dtype``: exact for the 16-bit types, by summing over their values; else the null's own.

    The correction is a few millionths, up or down with the bound's place between two powers of two.
    """
    if dtype not in (torch.bfloat16, torch.float16) or null.law is None:
        return null.std
    values = positive_values(dtype)
    edges = (values[1:] + values[:-1]) / 2
    below = 2 * null.law.below(edges / null.std) - 1
    share = torch.cat([below, below.new_ones(1)]).diff(prepend=below.new_zeros(1))
    return math.sqrt(float((values.square() * share).sum()))


@lru_cache(maxsize=2)
def positive_values(dtype: torch.dtype) -> Tensor:
    """Every finite value of a 16-bit float type from 0 up, ascending, float64."""
    codes = torch.arange(torch.tensor(torch.finfo(dtype).max, dtype=dtype).view(torch.int16).item() + 1, dtype=torch.int16)
    return codes.view(dtype).double()
