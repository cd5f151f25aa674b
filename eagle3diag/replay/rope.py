"""Rotary positions in every scaling that drafts are trained or served with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from eagle3diag.checkpoints.fields import Fields
from eagle3diag.errors import BadArgument, UnreadableFile


@dataclass(frozen=True)
class Rope:
    """Rotation of the first ``width`` channels of a head; the others pass unturned (partial rotary).

    Attributes
    ----------
    theta: base. scaling: the config's raw object with ``rope_type`` set, None for the plain rotation.
    context: ``max_position_embeddings``. interleaved: pairs are neighbours (DeepSeek) instead of halves of the head (Llama).
    length: tokens of the longest sequence: dynamic and longrope choose their table by it.
    """

    width: int
    theta: float = 10000.0
    scaling: Mapping[str, Any] | None = None
    context: int = 2048
    interleaved: bool = False
    length: int = 0

    @cached_property
    def table(self) -> tuple[Tensor, float]:
        """Angle per position of every pair [width / 2], float32, and the factor on cos and sin.

        Raises
        ------
        BadArgument: a scaling that the replay does not know. UnreadableFile: a field of the scaling is missing or of the wrong type.
        """
        plain = self.theta ** (-torch.arange(0, self.width, 2, dtype=torch.float32) / self.width)
        kind = str(self.scaling["rope_type"]) if self.scaling else "default"
        if kind not in _SCALINGS:
            known = ", ".join(sorted(_SCALINGS))
            raise BadArgument(f"replay does not know RoPE scaling {kind!r}", hint=f"known: {known}; audit, weights and compare still work")
        try:
            angles, factor = _SCALINGS[kind](self, plain)
        except (ArithmeticError, ValueError, RuntimeError) as error:  # a logarithm of nothing, a number that no tensor holds
            raise UnreadableFile(f"RoPE scaling {kind!r} cannot be computed ({error})", where="config.json") from error
        if not (angles.isfinite().all() and math.isfinite(factor)):
            raise UnreadableFile(f"RoPE scaling {kind!r} gives angles that are not numbers", where="config.json")
        return angles, factor

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """``x`` [N, heads, head_dim] rotated at ``positions`` [N], in the dtype of ``x``."""
        frequency, factor = self.table
        angle = positions[:, None, None].float() * frequency.to(x.device)
        cos, sin = angle.cos() * factor, angle.sin() * factor
        turned, rest = x[..., : self.width].float(), x[..., self.width :]
        a, b = (turned[..., ::2], turned[..., 1::2]) if self.interleaved else turned.chunk(2, -1)
        pair = (a * cos - b * sin, b * cos + a * sin)
        turned = torch.stack(pair, -1).flatten(-2) if self.interleaved else torch.cat(pair, -1)
        return torch.cat([turned.to(x.dtype), rest], -1)

    def number(self, name: str, default: float | None = None) -> float:
        """A field of the scaling."""
        found = Fields(self.scaling or {}, "rope_scaling").number(name)
        if found is None and default is None:
            raise UnreadableFile(f"rope_scaling has no {name}, which {(self.scaling or {}).get('rope_type')} needs", where="config.json")
        return found if found is not None else float(default or 0)

    @property
    def original(self) -> float:
        """The length that the target was trained on before its context was stretched."""
        return self.number("original_max_position_embeddings", self.context)


def stretch_of_scores(factor: float, scale: float = 1.0) -> float:
    """YaRN's ``mscale`` (arXiv 2309.00071, eq. 22, as DeepSeek writes it): 1 where nothing is stretched."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _default(rope: Rope, plain: Tensor) -> tuple[Tensor, float]:
    """Also M-RoPE: the three position ids of a text token are equal, so its sections turn alike."""
    return plain, 1.0


def _linear(rope: Rope, plain: Tensor) -> tuple[Tensor, float]:
    return plain / rope.number("factor"), 1.0


def _dynamic(rope: Rope, plain: Tensor) -> tuple[Tensor, float]:
    """NTK-aware: the base grows with the length beyond the context. ``alpha`` (Hunyuan) fixes the growth instead."""
    if rope.scaling and rope.scaling.get("alpha"):
        growth = rope.number("alpha")
    else:
        factor = rope.number("factor")
        growth = factor * max(rope.length, rope.context) / rope.context - (factor - 1)
    return plain * (growth ** (rope.width / (rope.width - 2))) ** (-torch.arange(0, rope.width, 2) / rope.width), 1.0


def _yarn(rope: Rope, plain: Tensor) -> tuple[Tensor, float]:
    """Between interpolation and none, by how often a pair turns within the original length (arXiv 2309.00071)."""
    factor = rope.number("factor", rope.context / rope.original)
    scaling = rope.scaling or {}

    def pair_that_turns(times: float) -> float:
        return rope.width * math.log(rope.original / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(rope.number("beta_fast", 32)), pair_that_turns(rope.number("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.width - 1)
    ramp = ((torch.arange(rope.width // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        scores = stretch_of_scores(factor, rope.number("mscale")) / stretch_of_scores(factor, rope.number("mscale_all_dim"))
    else:
        scores = stretch_of_scores(factor)
    return plain / factor * ramp + plain * (1 - ramp), rope.number("attention_factor", scores)


def _longrope(rope: Rope, plain: Tensor) -> tuple[Tensor, float]:
    """One divisor per pair, of two lists: within the original length and beyond it (arXiv 2402.13753)."""
    name = "long_factor" if rope.length > rope.original else "short_factor"
    divisors = (rope.scaling or {}).get(name)
    if not isinstance(divisors, list) or len(divisors) != len(plain) or not all(isinstance(d, (int, float)) and d > 0 for d in divisors):
        raise UnreadableFile(f"rope_scaling.{name} must hold {len(plain)} positive numbers", where="config.json")
    factor = rope.number("factor", max(rope.context / rope.original, 1.0))
    scores = math.sqrt(1 + math.log(factor) / math.log(rope.original)) if factor > 1 else 1.0
    return plain / torch.tensor(divisors, dtype=torch.float32), rope.number("attention_factor", scores)


def _llama3(rope: Rope, plain: Tensor) -> tuple[Tensor, float]:
    """Slow pairs are divided, fast ones kept, those between blended (Llama 3.1)."""
    factor, low, high = rope.number("factor"), rope.number("low_freq_factor"), rope.number("high_freq_factor")
    turns = rope.original * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * kept + plain / factor * (1 - kept), 1.0


_SCALINGS: Mapping[str, Callable[[Rope, Tensor], tuple[Tensor, float]]] = {
    "default": _default,
    "mrope": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "deepseek_yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
    "llama3": _llama3,
}
