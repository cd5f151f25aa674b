"""How much faster it is to draft from every position at once than one position at a time: the ratio of two times in one run.

    python benchmarks/replay_speed.py TARGET [DRAFT] [DUMP]

Two plain loops are timed on every record of the dump: one that reads the record anew for every position, as a script written by hand does,
and one that keeps the keys of the record, as a server does. All ways must draft the same tokens; the replay's own way, which stops a chain
where it leaves the text, up to there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from eagle3diag.checkpoints import open_draft, open_target
from eagle3diag.dumps import open_dump
from eagle3diag.replay import Net, build
from eagle3diag.replay.acceptance import following
from eagle3diag.replay.drafting import Memory, Text, draft_chains, forward, pack, read
from eagle3diag.replay.loop import NEWEST

STEPS = 5


Records = list[tuple[torch.Tensor, torch.Tensor]]


def told(net: Net, records: Records) -> torch.Tensor:
    """All at once, each chain up to its first token that is not the text's."""
    text = pack(net, records)
    truth = torch.cat([following(ids, len(ids) - 1, STEPS) for ids, _ in records])
    return draft_chains(net, text, torch.arange(len(text.tokens)), STEPS, truth=truth)


def at_once(net: Net, records: Records) -> torch.Tensor:
    """All at once, every chain to its end."""
    text = pack(net, records)
    return draft_chains(net, text, torch.arange(len(text.tokens)), STEPS)


@torch.inference_mode()
def one_by_one(net: Net, ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Each position by itself, from the beginning of the record."""
    return torch.cat([chain(net, pack(net, [(ids[: at + 2], features[: at + 1])]), at) for at in range(len(ids) - 1)])


@torch.inference_mode()
def one_by_one_with_keys(net: Net, ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Each position by itself, with the record's keys at hand."""
    text = pack(net, [(ids, features)])
    prefix, _ = read(net, text, torch.arange(1))
    return torch.cat([chain(net, text, at, prefix) for at in range(len(ids) - 1)])


def chain(net: Net, text: Text, at: int, prefix: list[tuple[torch.Tensor, torch.Tensor]] | None = None) -> torch.Tensor:
    row = torch.tensor([at])
    if prefix is None:
        prefix, raw = read(net, text, row)
        memory = Memory.at(prefix, text, row)
    else:
        memory = Memory.at(prefix, text, row)
        raw = forward(net, text.tokens[row], text.hidden[row], memory, 0, NEWEST)
    drafted = []
    for step in range(STEPS):
        token, hidden = net.speak(raw)
        drafted.append(token)
        if step + 1 < STEPS:
            raw = forward(net, token, hidden, memory, step + 1, NEWEST)
    return torch.stack(drafted, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft", nargs="?", default="data_samples/draft")
    parser.add_argument("dump", nargs="?", default="data_samples/train")
    parser.add_argument("--joined", action="store_true", help="all records as one long one: what a record of that length costs")
    given = parser.parse_args()
    net = build(open_draft(given.draft), open_target(given.target))
    records = [(r.input_ids, r.features) for r in open_dump(given.dump)]
    if given.joined:
        records = [(torch.cat([ids for ids, _ in records]), torch.cat([features for _, features in records]))]
    ways: dict[str, Callable[[Net, Records], torch.Tensor]] = {
        "as the replay counts": told,
        "every position at once": at_once,
        "one by one, keys kept": lambda net, records: torch.cat([one_by_one_with_keys(net, *record) for record in records]),
        "one by one": lambda net, records: torch.cat([one_by_one(net, *record) for record in records]),
    }
    seconds, drafted = {}, {}
    told(net, records[:1])  # the first call of each operation is slow
    for name, way in ways.items():
        began = time.process_time()
        drafted[name] = way(net, records)
        seconds[name] = time.process_time() - began
    first = next(iter(ways))
    positions = len(drafted[first])
    drafted_there = drafted[first] >= 0  # all but what lies behind a wrong token
    print(f"{positions} positions of {len(records)} records, {STEPS} steps; processor time")
    for name in ways:
        same = int(((drafted[name] == drafted[first]) | ~drafted_there).all(1).sum())
        print(f"  {name:24} {seconds[name]:8.2f} s  {seconds[name] / seconds[first]:6.1f}  {same} of {positions} chains the same")


if __name__ == "__main__":
    main()
