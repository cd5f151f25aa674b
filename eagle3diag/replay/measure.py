"""A net held against a dump: every record drafted from, every setting verified, all counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from eagle3diag.checkpoints.tensors import dtype_name
from eagle3diag.dumps import HiddenStates, Record
from eagle3diag.errors import BadArgument, MismatchedInputs
from eagle3diag.progress import track
from eagle3diag.replay.acceptance import accepted, tally
from eagle3diag.replay.batch import Batch, Item, Sampling, answers_of
from eagle3diag.replay.change import Change
from eagle3diag.replay.drafting import draft_chains
from eagle3diag.replay.loop import NEWEST, Loop
from eagle3diag.replay.net import Net
from eagle3diag.replay.result import RecordReplay, Replay
from eagle3diag.replay.rounds import serve
from eagle3diag.replay.sampling import Sampled, expected_of_chains, expected_of_trees, expected_when_both_sample
from eagle3diag.replay.settings import Cost, Setting, SettingReplay
from eagle3diag.replay.trees import Forest, draft_trees, verify


def run(
    net: Net,
    dump: HiddenStates,
    *,
    steps: int = 4,
    topk: int = 1,
    num_draft_tokens: int | None = None,
    changes: tuple[Change, ...] = (),
    draft: str = "draft",
    loop: Loop = NEWEST,
    engine: str | None = None,
    settings: Sequence[Setting] = (),
    cost: Cost | None = None,
    sampling: Sampling | None = None,
) -> Replay:
    """:func:`~eagle3diag.replay.replay` of a net that is already built; what counterfactuals use, so that weights are read once."""
    own = Setting.of(steps, topk, num_draft_tokens)
    wanted = tuple(dict.fromkeys((own, *settings)))
    for change in changes:
        net, loop = change.net(net), change.loop(loop)
    if loop.keep_draft_keys and any(s.topk > 1 for s in wanted):
        raise BadArgument("keys that the draft keeps are replayed for chains only", hint="topk=1")
    net = net.for_length(max((r.tokens for r in dump), default=0) + max(s.steps for s in wanted))
    counts = _Counts(wanted)
    for items in _packs(net, dump, changes):
        _replay(net, items, loop, counts, sampling)
    return counts.result(
        draft=draft,
        dump=dump.name,
        changes=tuple(c.name for c in changes),
        engine=engine,
        dtype=dtype_name(net.dtype),
        cost=cost,
        temperature=sampling.temperature if sampling else None,
    )


def _packs(net: Net, dump: HiddenStates, changes: tuple[Change, ...]) -> Iterator[list[Item]]:
    """Records together, as many as the budget holds the features of."""
    items: list[Item] = []
    taken = 0
    for record in track(dump, "replay"):
        ids, features = record.input_ids, record.features
        _check_ids(ids, net, record)
        for change in changes:
            features = change.features(record, features)
        size = 4 * len(ids) * (features.shape[-1] + 4 * net.embedding.shape[1])
        if items and taken + size > net.budget:
            yield items
            items, taken = [], 0
        items.append(Item(record, ids, features, answers_of(record)))
        taken += size
    if items:
        yield items


def _replay(net: Net, items: list[Item], loop: Loop, counts: _Counts, sampling: Sampling | None) -> None:
    own = counts.settings[0]
    batch = Batch.of(net, items, loop, max(s.steps for s in counts.settings), sampling)
    if loop.keep_draft_keys:
        accepts = {s: _in_order(net, batch, loop, s, counts) for s in counts.settings}
    else:
        accepts = _everywhere(net, batch, loop, counts)
        for s in counts.settings:
            for item, hits in batch.by_item(accepts[s]):
                counts.rounds[s].append(item.walk(hits))
                counts.everywhere[s].append([h for h in hits if h >= 0])
    counts.beside(batch.served, accepts[own])
    reach = torch.isin(batch.truth[:, : own.steps], net.draft_ids).long().cumprod(1).sum(1).masked_fill(batch.whole <= own.steps, -1)
    for item, hits in batch.by_item(reach):
        counts.capped.append(item.walk(hits))
        counts.names.append(item.record.name)
        said = torch.cat([item.ids[first + 2 : end] for first, end in item.answers])
        counts.said += int(torch.isin(said, net.draft_ids.cpu()).sum())
        counts.tokens += len(said)


def _everywhere(net: Net, batch: Batch, loop: Loop, counts: _Counts) -> dict[Setting, Tensor]:
    """Accepted drafts from every row of the answers [T], -1 elsewhere, for every setting: those of one top-k are read off the same drafts."""
    accepts = {s: torch.full((len(batch.text.tokens),), -1, device=net.device) for s in counts.settings}
    for topk in dict.fromkeys(s.topk for s in counts.settings):
        level = [s for s in counts.settings if s.topk == topk]
        rows, far = (batch.whole > min(s.steps for s in level)).nonzero()[:, 0], max(s.steps for s in level)
        if topk == 1:
            chains = draft_chains(net, batch.text, rows, far, loop, batch.truth[rows, :far])
            for s in level:
                accepts[s][rows] = accepted(chains[:, : s.steps], batch.truth[rows, : s.steps])
            if counts.settings[0] in level:
                _expect_of_chains(net, batch, loop, rows, chains, counts)
            continue
        for part, forest in draft_trees(net, batch.text, rows, far, topk, loop):
            for s in level:
                kept = forest.keep(s.num_draft_tokens, s.steps, topk)
                accepts[s][part] = verify(forest, kept, batch.truth[part, : s.steps])
                if s is counts.settings[0]:
                    _expect_of_trees(batch, part, forest, kept, counts)
    return {s: hits.masked_fill(batch.whole <= s.steps, -1) for s, hits in accepts.items()}


def _in_order(net: Net, batch: Batch, loop: Loop, setting: Setting, counts: _Counts) -> Tensor:
    """The same where a round depends on those before it, so that they are played one after the other; the rounds are counted on the way."""
    begins = batch.begins(setting.steps)
    by_row = serve(net, batch.text, batch.truth[:, : setting.steps], begins, loop, batch.served)
    counts.rounds[setting] += [[m for m in hits if m >= 0] for _, hits in batch.by_item(by_row)]
    return by_row


def _expect_of_chains(net: Net, batch: Batch, loop: Loop, rows: Tensor, chains: Tensor, counts: _Counts) -> None:
    own = counts.settings[0]
    if batch.teacher is not None:
        keep = batch.whole[rows] > own.steps
        ahead = batch.truth[rows[keep], : own.steps]
        both = expected_when_both_sample(net, batch.teacher, batch.text, rows[keep], ahead, loop)
        counts.expect(len(ahead), expected_of_chains(batch.teacher, rows[keep], chains[keep], ahead), both)


def _expect_of_trees(batch: Batch, rows: Tensor, forest: Forest, kept: Tensor, counts: _Counts) -> None:
    own = counts.settings[0]
    if batch.teacher is not None:
        keep = batch.whole[rows] > own.steps
        some = Forest(forest.tokens[keep], forest.scores[keep], forest.parents[keep])
        counts.expect(int(keep.sum()), expected_of_trees(batch.teacher, rows[keep], some, kept[keep], batch.truth[rows[keep], : own.steps]))


class _Counts:
    """Rounds of every setting, record by record, and what they come to."""

    def __init__(self, settings: tuple[Setting, ...]) -> None:
        self.settings = settings
        self.rounds: dict[Setting, list[list[int]]] = {s: [] for s in settings}
        self.everywhere: dict[Setting, list[list[int]]] = {s: [] for s in settings}
        self.capped: list[list[int]] = []  # of a draft that is right whenever its vocabulary holds the token
        self.names: list[str] = []
        self.said = self.tokens = self.positions = 0
        self.expected: list[Tensor] = []
        self.pairs = torch.zeros(settings[0].steps + 1, settings[0].steps + 1, dtype=torch.int64)

    def expect(self, positions: int, *sums: Tensor) -> None:
        self.positions += positions
        self.expected = [a + b for a, b in zip(self.expected, sums, strict=True)] if self.expected else list(sums)

    def beside(self, served: Tensor, replayed: Tensor) -> None:
        """Count rounds of a server against the replay's from the same rows: accepted drafts of both [T], -1 where there was no round."""
        steps = len(self.pairs) - 1
        both = (served >= 0) & (served <= steps) & (replayed >= 0)
        pairs = served[both].long() * (steps + 1) + replayed[both]
        self.pairs += torch.bincount(pairs.cpu(), minlength=self.pairs.numel()).view_as(self.pairs)

    def result(
        self,
        *,
        draft: str,
        dump: str,
        changes: tuple[str, ...],
        engine: str | None,
        dtype: str,
        cost: Cost | None,
        temperature: float | None,
    ) -> Replay:
        tallies = {s: tally(self.rounds[s], s.steps) for s in self.settings}
        own, everywhere = self.settings[0], self.everywhere[self.settings[0]]
        counts = tallies[own]
        records = zip(self.names, self.rounds[own], strict=True)
        return Replay(
            draft=draft,
            dump=dump,
            steps=own.steps,
            rounds=counts.rounds,
            p=counts.p,
            p_interval=counts.p_interval,
            c=tuple(p / q if q else float("nan") for p, q in zip(counts.p, (1.0, *counts.p), strict=False)),
            accept_length=counts.accept_length,
            accept_length_interval=counts.interval,
            every_position_p=tally(everywhere, own.steps).p if everywhere else (),
            out_of_vocabulary=1 - self.said / self.tokens if self.tokens else float("nan"),
            vocabulary_cap=tally(self.capped, own.steps).accept_length,
            records=tuple(RecordReplay(name, len(r), 1 + sum(r) / len(r) if r else float("nan")) for name, r in records),
            changes=changes,
            topk=own.topk,
            num_draft_tokens=own.num_draft_tokens,
            engine=engine,
            dtype=dtype,
            sampled=None if temperature is None else self._sampled(temperature),
            settings=tuple(
                SettingReplay(s, t.rounds, t.p, t.accept_length, t.interval, cost.speedup(t.accept_length, s) if cost else None)
                for s, t in tallies.items()
            ),
            cost=cost,
            served=tuple(map(tuple, self.pairs.tolist())) if int(self.pairs.sum()) else (),
        )

    def _sampled(self, temperature: float) -> Sampled:
        p, *both = [
            tuple((e / max(self.positions, 1)).tolist()) for e in self.expected or [torch.full((self.settings[0].steps,), torch.nan)]
        ]
        return Sampled(temperature, self.positions, p, 1 + sum(p), both[0] if both else (), 1 + sum(both[0]) if both else None)


def _check_ids(ids: Tensor, net: Net, record: Record) -> None:
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(net.embedding):
        raise MismatchedInputs(
            f"token id {int(ids.max())} is outside the target's vocabulary of {len(net.embedding)}",
            where=f"record {record.name}",
            hint="give the target that the dump was made with",
        )
