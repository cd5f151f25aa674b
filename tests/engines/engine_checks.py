"""What an engine drafted and accepted, held against the replay of what it was fed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from eagle3diag.dumps import HiddenStates, Record
from eagle3diag.replay import Net
from eagle3diag.replay.acceptance import accepted, following, walk
from eagle3diag.replay.drafting import batches, draft_chains, forward, pack, read
from eagle3diag.replay.loop import NEWEST
from eagle3diag.replay.trees import draft_trees, verify

#: One round: the row that was drafted from, and what was drafted there.
Round = tuple[int, list[int]]


@dataclass
class Agreement:
    """Tokens compared, those that the replay would not have chosen, and by how much of a logit each of these lost."""

    tokens: int = 0
    gaps: tuple[float, ...] = ()

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(self.tokens + other.tokens, self.gaps + other.gaps)

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {len(self.gaps)} chosen otherwise" + (
            f", by at most {max(self.gaps):.4f} of a logit" if self.gaps else ""
        )


def fed(record: Record) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and features; the last token was sampled and never run."""
    return record.input_ids, record.features


@torch.inference_mode()
def chain_agreement(net: Net, record: Record, rounds: list[Round]) -> Agreement:
    """Every drafted token, given the engine's own tokens before it: is it the replay's first choice, and if not, how near was it?"""
    text = pack(net, [fed(record)])
    rows, chains = torch.tensor([at for at, _ in rounds]), torch.tensor([tokens for _, tokens in rounds])
    prefix, raw = read(net, text, rows)
    place = {int(t): i for i, t in enumerate(net.draft_ids.tolist())}
    gaps: list[float] = []
    for part, out, memory in batches(net, text, rows, raw, prefix):
        said = chains[torch.isin(rows, part)]
        for step in range(said.shape[1]):
            normed = net.rms(out, "norm.weight")
            logits = torch.cat([block for _, block in net._logits(normed)], -1)
            chosen = logits.gather(1, torch.tensor([[place[int(t)]] for t in said[:, step]]))[:, 0]
            gaps += (logits.max(-1).values - chosen).tolist()
            if step + 1 < said.shape[1]:
                out = forward(net, said[:, step], normed if net.norm_output else out, memory, step + 1, NEWEST)
    return Agreement(len(gaps), tuple(g for g in gaps if g > 0))


def chain_counts(net: Net, record: Record, steps: int, until: int) -> Counter[int]:
    """Accepted drafts of the rounds that a server makes on this text before row ``until``: how many rounds accepted so many."""
    ids, features = fed(record)
    text = pack(net, [(ids, features)])
    rows = torch.arange(len(text.tokens))
    truth = following(ids, len(rows), steps)
    hits = accepted(draft_chains(net, text, rows, steps, truth=truth), truth).tolist()
    return Counter(walk(hits[:until], (record.prompt_length or 1) - 1))


def tree_agreement(net: Net, record: Record, rounds: list[Round], steps: int, topk: int) -> tuple[int, Counter[int]]:
    """Rounds whose tree holds the same tokens in the same order as the engine's, and how many rounds accepted so many drafts."""
    ids, features = fed(record)
    text, slots = pack(net, [(ids, features)]), len(rounds[0][1]) + 1
    rows, truth = torch.tensor([at for at, _ in rounds]), following(ids, len(ids), steps)
    said = dict(rounds)
    same, depths = 0, Counter[int]()
    for part, forest in draft_trees(net, text, rows, steps, topk):
        kept = forest.keep(slots, steps, topk)
        tokens = forest.tokens.gather(1, kept).tolist()
        same += sum(said[at] == tokens[i] for i, at in enumerate(part.tolist()))
        depths += Counter(verify(forest, kept, truth[part]).tolist())
    return same, depths


def per_position(counts: Counter[int], steps: int) -> list[int]:
    """Rounds that accepted at least 1, 2, ... drafts."""
    return [sum(n for m, n in counts.items() if m > i) for i in range(steps)]


def named(dump: HiddenStates) -> list[Record]:
    """In order of their names, which is the order of the prompts."""
    return sorted(dump, key=lambda r: r.name)
