"""What a replay gives: plain values."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3diag.findings import Result
from eagle3diag.replay.sampling import Sampled
from eagle3diag.replay.settings import Cost, SettingReplay


@dataclass(frozen=True)
class RecordReplay:
    """One sequence: rounds a server would have made, and their mean accept length."""

    name: str
    rounds: int
    accept_length: float


@dataclass(frozen=True)
class Replay(Result):
    """What greedy drafts would have been accepted by a greedy target.

    Attributes
    ----------
    steps, topk, num_draft_tokens: draft forwards a round, branches of a node (1: a chain), slots verified with the root.
    p: unconditional per-position acceptance over the served rounds, [steps]; ``c``: conditional. ``p_interval``: 95 %, Wilson.
    accept_length: 1 + accepted drafts per round; ``accept_length_interval``: 95 %, bootstrap over records.
    every_position_p: the same ``p`` over every position of the answers instead of the served rounds; empty where what a position accepts
        depends on the rounds before it.
    out_of_vocabulary: share of answer tokens that the draft vocabulary cannot say: a cap on ``p[0]``.
    vocabulary_cap: accept length of a draft that is right whenever its vocabulary holds the token.
    changes: names of the changes applied; empty for the draft as it is.
    engine: whose loop was replayed, as given. dtype: what was computed in.
    sampled: what to expect when the target samples; None when no temperature was given.
    served: where the dump holds the rounds of a server (``accepted``): how many of them the server accepted ``i`` drafts in, and the replay
        ``j`` from the same row, [steps + 1, steps + 1]; empty otherwise.
    settings: every (steps, topk, num_draft_tokens) that was asked for, the replay's own first; ``cost``: what rates them.
    """

    draft: str
    dump: str
    steps: int
    rounds: int
    p: tuple[float, ...]
    p_interval: tuple[tuple[float, float], ...]
    c: tuple[float, ...]
    accept_length: float
    accept_length_interval: tuple[float, float]
    every_position_p: tuple[float, ...]
    out_of_vocabulary: float
    records: tuple[RecordReplay, ...]
    vocabulary_cap: float | None = None
    changes: tuple[str, ...] = ()
    topk: int = 1
    num_draft_tokens: int = 0
    engine: str | None = None
    dtype: str = "float32"
    sampled: Sampled | None = None
    settings: tuple[SettingReplay, ...] = ()
    cost: Cost | None = None
    served: tuple[tuple[int, ...], ...] = ()

    @property
    def served_rounds(self) -> int:
        """Rounds of a server that the replay was held against, one by one."""
        return sum(map(sum, self.served))

    @property
    def served_alike(self) -> int:
        """Those of them in which the replay accepts just as many drafts."""
        return sum(row[i] for i, row in enumerate(self.served))

    @property
    def served_share(self) -> float | None:
        """:attr:`served_alike` of :attr:`served_rounds`; None without a round."""
        return self.served_alike / self.served_rounds if self.served_rounds else None

    @property
    def best(self) -> SettingReplay | None:
        """The setting that serves most tokens per time under ``cost``; None without one, or without a round."""
        rated = [s for s in self.settings if s.speedup is not None and s.rounds]
        return max(rated, key=lambda s: s.speedup or 0.0, default=None)
