"""How far and how wide to draft, what that costs, and which choice serves best."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eagle3diag.errors import BadArgument
from eagle3diag.replay.trees import candidates


@dataclass(frozen=True)
class Setting:
    """``steps`` draft forwards a round, ``topk`` branches of a node (1: a chain), ``num_draft_tokens`` verified, the root counted:
    the slots of the tree.

    Raises
    ------
    BadArgument: a number below one, a chain whose slots are not ``steps + 1``, or a tree of more slots than it has candidates.
    """

    steps: int
    topk: int
    num_draft_tokens: int

    def __post_init__(self) -> None:
        if self.steps < 1 or self.topk < 1:
            raise BadArgument(
                f"steps must be at least 1, not {self.steps}" if self.steps < 1 else f"topk must be at least 1, not {self.topk}"
            )
        most = candidates(self.steps, self.topk) + 1
        if self.topk == 1 and self.num_draft_tokens != most:
            raise BadArgument(
                f"a chain of {self.steps} steps fills {most} slots, not {self.num_draft_tokens}", hint="leave num_draft_tokens out"
            )
        if not 2 <= self.num_draft_tokens <= most:
            raise BadArgument(f"{self.num_draft_tokens} slots: a tree of {self.steps} steps and top-k {self.topk} fills 2 to {most}")

    @classmethod
    def of(cls, steps: int, topk: int = 1, num_draft_tokens: int | None = None) -> Setting:
        """A chain needs no slots named; a tree does."""
        if num_draft_tokens is None and topk > 1:
            raise BadArgument("a tree needs its number of slots", hint="give num_draft_tokens (--slots), as the server is started with")
        return cls(steps, topk, steps + 1 if num_draft_tokens is None else num_draft_tokens)

    @classmethod
    def parse(cls, text: str) -> Setting:
        """
        >>> Setting.parse("5:4:16"), Setting.parse("3")
        (Setting(steps=5, topk=4, num_draft_tokens=16), Setting(steps=3, topk=1, num_draft_tokens=4))
        """
        parts = text.strip().split(":")
        if not 1 <= len(parts) <= 3 or not all(p.isdecimal() and len(p) < 6 for p in parts):
            raise BadArgument(f"{text!r} is not a setting", hint="write STEPS, STEPS:TOPK or STEPS:TOPK:SLOTS, such as 5:4:16")
        return cls.of(*map(int, parts))


@dataclass(frozen=True)
class Cost:
    """What a round costs beside one plain decoding step of the target, which is 1.

    ``draft``: one draft forward. ``slot``: each slot that the target verifies besides the root. Measure both on the server: they depend on
    batch, kernels and hardware, and no file says them.
    """

    draft: float
    slot: float = 0.0

    def __post_init__(self) -> None:
        if not all(math.isfinite(c) and c >= 0 for c in (self.draft, self.slot)):
            raise BadArgument(f"costs are {self.draft} and {self.slot}, expected numbers of at least 0")

    @classmethod
    def parse(cls, text: str) -> Cost:
        """
        >>> Cost.parse("0.05,0.01")
        Cost(draft=0.05, slot=0.01)
        """
        try:
            numbers = [float(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 2:
            raise BadArgument(f"{text!r} is not a cost", hint="write DRAFT or DRAFT,SLOT, such as 0.05,0.01")
        return cls(*numbers)

    def speedup(self, accept_length: float, setting: Setting) -> float:
        """Tokens per time, against decoding without a draft.

        >>> round(Cost(draft=0.05).speedup(2.4, Setting.of(4)), 2)
        2.0
        """
        return accept_length / (1 + self.draft * setting.steps + self.slot * (setting.num_draft_tokens - 1))


@dataclass(frozen=True)
class SettingReplay:
    """What one setting would have accepted, and what it gains under the given cost; None without one."""

    setting: Setting
    rounds: int
    p: tuple[float, ...]
    accept_length: float
    accept_length_interval: tuple[float, float]
    speedup: float | None
