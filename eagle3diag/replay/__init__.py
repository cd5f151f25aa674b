"""The draft replayed offline in plain torch: the accept length to expect, without a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.checkpoints import Draft, Target, open_draft, open_target
from eagle3diag.dumps import HiddenStates, Record, open_dump
from eagle3diag.errors import BadArgument, MismatchedInputs
from eagle3diag.findings import Finding, Result
from eagle3diag.replay.acceptance import accepted, tally, walk
from eagle3diag.replay.drafting import draft_everywhere, draft_one
from eagle3diag.replay.net import Net, build

__all__ = ["Change", "Net", "RecordReplay", "Replay", "build", "check_target", "draft_everywhere", "draft_one", "replay", "run"]


def _same_net(net: Net) -> Net:
    return net


def _same_features(record: Record, features: Tensor) -> Tensor:
    return features


@dataclass(frozen=True)
class Change:
    """One thing done differently in a replay: a small, named change of the draft or its loop (``net``), or of what it is fed
    (``features``, called with the record and its features [T, W]). Changes compose by being listed."""

    fault: str
    name: str
    net: Callable[[Net], Net] = _same_net
    features: Callable[[Record, Tensor], Tensor] = _same_features


@dataclass(frozen=True)
class RecordReplay:
    """One sequence: rounds a server would have made, and their mean accept length."""

    name: str
    rounds: int
    accept_length: float


@dataclass(frozen=True)
class Replay(Result):
    """What greedy chains of ``steps`` drafts would have been accepted.

    Attributes
    ----------
    p: unconditional per-position acceptance over the served rounds, [steps]; ``c``: conditional. ``p_interval``: 95 %, Wilson.
    accept_length: 1 + accepted drafts per round; ``accept_length_interval``: 95 %, bootstrap over records.
    every_position_p: the same ``p`` over every position of the answers instead of the served rounds.
    out_of_vocabulary: share of answer tokens that the draft vocabulary cannot say: a cap on ``p[0]``.
    vocabulary_cap: accept length of a draft that is right whenever its vocabulary holds the token.
    changes: names of the changes applied; empty for the draft as it is.
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
    vocabulary_cap: float = float("nan")
    changes: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        from eagle3diag.faults import judge

        return judge(self)


def replay(
    draft: str | os.PathLike[str] | Draft,
    dump: str | os.PathLike[str] | HiddenStates,
    *,
    target: str | os.PathLike[str] | Target | None = None,
    steps: int = 4,
    changes: Iterable[Change] = (),
) -> Replay:
    """Replay the draft on a dump: greedy chains of ``steps`` tokens, accepted where they equal the recorded text.

    The recorded text has to be the target's own greedy answer. ``target`` lends its embedding (and its head, where the draft has none).

    Raises
    ------
    BadArgument: ``steps`` is not positive, or the draft is of a kind that the replay does not know.
    MismatchedInputs: dump, draft and target do not belong together. MissingPart: something needed is not there.
    """
    opened, states = open_draft(draft), open_dump(dump)
    base = None if target is None else open_target(target)
    if base is not None:
        check_target(states, base)
    net = build(opened, base)
    return run(net, states, steps=steps, changes=tuple(changes), draft=opened.name)


def run(net: Net, dump: HiddenStates, *, steps: int = 4, changes: tuple[Change, ...] = (), draft: str = "draft") -> Replay:
    """:func:`replay` of a net that is already built; what counterfactuals use, so that weights are read once."""
    if steps < 1:
        raise BadArgument(f"steps must be at least 1, not {steps}", hint="give the number of draft forwards a round")
    for change in changes:
        net = change.net(net)
    rounds_of, everywhere, records, capped = [], [], [], []
    said = total = 0
    for record in dump:
        ids = record.input_ids
        _check_ids(ids, net, record)
        features = record.features
        for change in changes:
            features = change.features(record, features)
        hits = accepted(draft_everywhere(net, ids, features, steps), ids)
        first = _first_position(record)
        rounds = walk(hits, first)
        rounds_of.append(rounds)
        everywhere.append([int(h) for h in hits[first:] if h >= 0])
        records.append(RecordReplay(record.name, len(rounds), 1 + sum(rounds) / len(rounds) if rounds else float("nan")))
        sayable = torch.isin(ids, net.draft_ids)
        said += int(sayable[first + 2 :].sum())
        total += len(sayable[first + 2 :])
        capped.append(walk(accepted(_perfect(ids, sayable, steps), ids), first))
    counts, all_positions = tally(rounds_of, steps), tally(everywhere, steps)
    return Replay(
        draft=draft,
        dump=os.path.basename(dump.path) if dump.path else f"{dump.side} in memory",
        steps=steps,
        rounds=counts.rounds,
        p=counts.p,
        p_interval=counts.p_interval,
        c=tuple(p / q if q else float("nan") for p, q in zip(counts.p, (1.0, *counts.p), strict=False)),
        accept_length=counts.accept_length,
        accept_length_interval=counts.interval,
        every_position_p=all_positions.p,
        out_of_vocabulary=1 - said / total if total else float("nan"),
        records=tuple(records),
        vocabulary_cap=tally(capped, steps).accept_length,
        changes=tuple(c.name for c in changes),
    )


def _perfect(ids: Tensor, sayable: Tensor, steps: int) -> Tensor:
    """The chains of a draft that is right wherever the token is sayable (and says -1 elsewhere), [T-1-steps, steps]."""
    said = torch.where(sayable, ids, -1)[2:]
    return said.unfold(0, steps, 1) if len(said) >= steps else ids.new_empty(0, steps)


def check_target(dump: HiddenStates, target: Target) -> None:
    """Raise :class:`~eagle3diag.errors.MismatchedInputs` when the dump says it was made with a target of other sizes."""
    for what, theirs, ours in (
        ("hidden size", dump.target.hidden_size, target.hidden_size),
        ("number of blocks", dump.target.n_layers, target.n_layers),
    ):
        if theirs and theirs != ours:
            raise MismatchedInputs(
                f"the dump was made with {dump.target.name}, of {what} {theirs}; this target has {ours}",
                where=f"{dump.side} dump and {target.name}",
                hint="give the target that the dump was made with",
            )


def _first_position(record: Record) -> int:
    """The position a server first drafts from: the last token of the prompt."""
    if record.prompt_length is not None:
        return max(record.prompt_length - 1, 0)
    mask = record.loss_mask
    return max(int(mask.long().argmax()) - 1, 0) if mask is not None and bool(mask.any()) else 0


def _check_ids(ids: Tensor, net: Net, record: Record) -> None:
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(net.embedding):
        raise MismatchedInputs(
            f"token id {int(ids.max())} is outside the target's vocabulary of {len(net.embedding)}",
            where=f"record {record.name}",
            hint="give the target that the dump was made with",
        )
