"""A net held against a dump: every record drafted from, every setting verified, all counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.checkpoints.tensors import dtype_name
from eagle3diag.dumps import HiddenStates, Record
from eagle3diag.errors import BadArgument, MismatchedInputs
from eagle3diag.progress import track
from eagle3diag.replay.acceptance import accepted, following, tally, walk
from eagle3diag.replay.change import Change
from eagle3diag.replay.drafting import draft_chains, pack
from eagle3diag.replay.loop import NEWEST, Loop
from eagle3diag.replay.net import Net
from eagle3diag.replay.result import RecordReplay, Replay
from eagle3diag.replay.rounds import serve
from eagle3diag.replay.sampling import Sampled, Teacher, expected_of_chains, expected_of_trees, expected_when_both_sample
from eagle3diag.replay.settings import Cost, Setting, SettingReplay
from eagle3diag.replay.trees import draft_trees, verify


@dataclass(frozen=True)
class Sampling:
    """The target's ``head`` [V, H] and the temperature that it samples at."""

    head: Tensor
    temperature: float


@dataclass(frozen=True, eq=False)
class _Item:
    """A record as it is drafted from: ``answers`` are its runs of the target's own text, each from the row that a server first drafts from
    to behind its last token."""

    record: Record
    ids: Tensor
    features: Tensor
    answers: tuple[tuple[int, int], ...]

    def whole(self, rows: int) -> Tensor:
        """Tokens of the answer that each of the first ``rows`` rows can draft for [rows]; -1 outside of answers."""
        left = torch.full((rows,), -1)
        for first, end in self.answers:
            at = torch.arange(min(first, rows), min(end, rows))
            left[at] = end - 1 - at
        return left

    def walk(self, accepted_at: list[int]) -> list[int]:
        """The rounds of a server, answer by answer."""
        return [m for first, _ in self.answers for m in walk(accepted_at, first)]


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


def _packs(net: Net, dump: HiddenStates, changes: tuple[Change, ...]) -> Iterator[list[_Item]]:
    """Records together, as many as the budget holds the features of."""
    items: list[_Item] = []
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
        items.append(_Item(record, ids, features, _answers(record)))
        taken += size
    if items:
        yield items


def _replay(net: Net, items: list[_Item], loop: Loop, counts: _Counts, sampling: Sampling | None) -> None:
    text = pack(net, [(i.ids, i.features) for i in items], loop, [i.answers[0][0] for i in items])
    sizes = [b - a for a, b in zip(text.starts, text.starts[1:], strict=False)]
    deepest = max(s.steps for s in counts.settings)
    truth = torch.cat([following(i.ids, n, deepest) for i, n in zip(items, sizes, strict=True)]).to(net.device)
    whole = torch.cat([i.whole(n) for i, n in zip(items, sizes, strict=True)]).to(net.device)
    served = torch.cat([_served(i.record, n) for i, n in zip(items, sizes, strict=True)]).to(net.device)
    teacher = None
    if sampling is not None:
        finals = [_final(i.record) for i in items]
        teacher = Teacher.of(net, sampling.head, finals, text, sampling.temperature)
    accepts = {s: torch.full((len(text.tokens),), -1, device=net.device) for s in counts.settings}
    for topk in dict.fromkeys(s.topk for s in counts.settings):
        level = [s for s in counts.settings if s.topk == topk]
        rows = (whole > min(s.steps for s in level)).nonzero()[:, 0]
        far = max(s.steps for s in level)
        if topk == 1:
            chains = draft_chains(net, text, rows, far, loop, truth[rows, :far])
            for s in level:
                accepts[s][rows] = accepted(chains[:, : s.steps], truth[rows, : s.steps])
            if teacher is not None and counts.settings[0] in level:
                keep = whole[rows] > counts.settings[0].steps
                ahead = truth[rows[keep], : counts.settings[0].steps]
                both = expected_when_both_sample(net, teacher, text, rows[keep], ahead, loop)
                counts.expect(len(ahead), expected_of_chains(teacher, rows[keep], chains[keep], ahead), both)
            continue
        for part, forest in draft_trees(net, text, rows, far, topk, loop):
            for s in level:
                kept = forest.keep(s.num_draft_tokens, s.steps, topk)
                accepts[s][part] = verify(forest, kept, truth[part, : s.steps])
                if teacher is not None and s is counts.settings[0]:
                    keep = whole[part] > s.steps
                    some = type(forest)(forest.tokens[keep], forest.scores[keep], forest.parents[keep])
                    counts.expect(int(keep.sum()), expected_of_trees(teacher, part[keep], some, kept[keep], truth[part[keep], : s.steps]))
    for s in counts.settings:
        accepts[s][whole <= s.steps] = -1
        if loop.keep_draft_keys:
            runs = [(i, a + min(f, n), a + max(min(n, e - 1 - s.steps), 0))
                    for i, a, n in zip(items, text.starts, sizes, strict=False) for f, e in i.answers]  # fmt: skip
            begins, ends = (torch.tensor([run[k] for run in runs], device=net.device) for k in (1, 2))
            rounds, accepts[s] = serve(net, text, truth[:, : s.steps], begins, ends, loop, served)
            counts.rounds[s] += [[m for (i, *_), made in zip(runs, rounds, strict=True) if i is item for m in made] for item in items]
            continue
        for item, a, b in zip(items, text.starts, text.starts[1:], strict=False):
            hits = accepts[s][a:b].tolist()
            counts.rounds[s].append(item.walk(hits))
            counts.everywhere[s].append([h for h in hits if h >= 0])
    own = counts.settings[0].steps
    counts.beside(served, accepts[counts.settings[0]])
    reach = torch.isin(truth[:, :own], net.draft_ids).long().cumprod(1).sum(1).masked_fill(whole <= own, -1)
    for item, a, b in zip(items, text.starts, text.starts[1:], strict=False):
        counts.capped.append(item.walk(reach[a:b].tolist()))
        counts.names.append(item.record.name)
        said = torch.cat([item.ids[first + 2 : end] for first, end in item.answers])
        counts.said += int(torch.isin(said, net.draft_ids.cpu()).sum())
        counts.tokens += len(said)


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


def _final(record: Record) -> Tensor:
    final = record.final
    if final is None:
        raise BadArgument(
            "sampled acceptance needs the target's final states, which this dump does not store",
            where=f"record {record.name}",
            hint="capture with Transformers (eagle3diag capture), which stores them, or leave the temperature out",
        )
    return final


def _served(record: Record, rows: int) -> Tensor:
    """Accepted drafts of the server's rounds by the row that they were drafted from [rows]; -1 where none is recorded."""
    stored = record.accepted
    return torch.full((rows,), -1) if stored is None else stored[:rows].long()


def _answers(record: Record) -> tuple[tuple[int, int], ...]:
    """Runs of the target's own text: the row of the last token before each, and the row behind its last. All of it where nothing is said."""
    if record.prompt_length is not None:
        prompt, positions = record.prompt_length, record.positions
        rows = prompt if positions is None else int((positions < prompt).sum())
        return ((max(rows - 1, 0), record.tokens),)
    mask = record.loss_mask
    if mask is None or not bool(mask.any()):
        return ((0, record.tokens),)
    edges = torch.cat([mask.new_zeros(1), (mask != 0).to(mask.dtype), mask.new_zeros(1)]).diff()
    begins, ends = (edges > 0).nonzero()[:, 0].tolist(), (edges < 0).nonzero()[:, 0].tolist()
    return tuple((max(begin - 1, 0), end) for begin, end in zip(begins, ends, strict=True))


def _check_ids(ids: Tensor, net: Net, record: Record) -> None:
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(net.embedding):
        raise MismatchedInputs(
            f"token id {int(ids.max())} is outside the target's vocabulary of {len(net.embedding)}",
            where=f"record {record.name}",
            hint="give the target that the dump was made with",
        )
