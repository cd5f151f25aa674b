"""A server's own order: round after round from where the last one ended, each record at its own pace. Able to show faults whose keys depend on
what was accepted before, and nothing else needs it: drafting from every position at once is faster."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.replay.attention import Keys, attend
from eagle3diag.replay.drafting import Text, read
from eagle3diag.replay.loop import NEWEST, Loop
from eagle3diag.replay.net import Net


@torch.inference_mode()
def serve(net: Net, text: Text, truth: Tensor, begins: Tensor, loop: Loop = NEWEST, served: Tensor | None = None) -> Tensor:
    """Accepted drafts of every round by the row that it was drafted from [T], -1 elsewhere. Keys of accepted drafts stay as the draft made them.

    All records take one forward at a time together, whatever step of its round each is at, so that the weights are read no more often than the
    longest record has forwards. A ``mute`` one only makes keys.

    Parameters
    ----------
    truth: [T, steps], the tokens that follow each row. begins: [T], the first row from this one on that a round of its record can start from,
    -1 where none is left. served: [T], how many drafts a server accepted in the round from a row, -1 where it had none: these rounds are
    followed, so that what each leaves behind is what the server's left.
    """
    by_row = torch.full((len(text.tokens),), -1, device=net.device)
    starts = torch.tensor(text.starts, device=net.device)
    record = (starts.diff() > 0).nonzero()[:, 0]
    record = record[begins[starts[record]] >= 0]
    cache, row = _Cache.of(net, text, record, loop), begins[starts[record]]
    step, mute = torch.zeros_like(row), torch.zeros_like(row, dtype=torch.bool)
    tokens, hidden = text.tokens[row], text.hidden[row]
    while len(record):
        said, carried = net.speak(cache.forward(net, text, row, tokens, hidden, step, loop))
        right = (said == truth[row, step]) & ~mute
        step = step + right
        over = ~right | (step == truth.shape[1])
        by_row[row[over & ~mute]] = step[over & ~mute]
        accepted = step if served is None else torch.where(served[row] >= 0, served[row], step)
        ahead = begins[torch.minimum(row + torch.where(mute, 0, accepted) + 1, starts[record + 1] - 1)]
        # no draft step has read the last of a round that was accepted whole: its keys are made from true states, before the next round
        unread = over & ~mute & (accepted == truth.shape[1]) & (ahead == row + accepted + 1) & (net.layers > 1)
        row = torch.where(over, ahead - unread.long(), row)
        mute = unread
        going = row >= 0
        if not bool(going.all()):
            cache = cache.take(going)
            record, row, step, over, mute, said, carried = (x[going] for x in (record, row, step, over, mute, said, carried))
        step = step.masked_fill(over, 0)
        tokens, hidden = torch.where(over, text.tokens[row], said), torch.where(over[:, None], text.hidden[row], carried)
    return by_row


@dataclass(frozen=True, eq=False)
class _Cache:
    """What each of N records holds: per layer keys and values [N, kv_heads, L, width] by place in the record, float32."""

    layers: list[Keys]

    @classmethod
    def of(cls, net: Net, text: Text, record: Tensor, loop: Loop) -> _Cache:
        """Keys of true states, of every place."""
        prefix, _ = read(net, text, text.tokens.new_empty(0), loop)
        places = torch.arange(text.longest, device=net.device)
        starts, ends = (torch.tensor(x, device=net.device)[record] for x in (text.starts[:-1], text.starts[1:]))
        rows = torch.minimum(starts[:, None] + places, ends[:, None] - 1)

        def by_place(kept: Tensor) -> Tensor:
            return kept[text.last[rows]].float().transpose(1, 2).contiguous()

        return cls([(by_place(keys), by_place(values)) for keys, values in prefix])

    def take(self, some: Tensor) -> _Cache:
        return _Cache([(keys[some], values[some]) for keys, values in self.layers])

    def forward(self, net: Net, text: Text, row: Tensor, tokens: Tensor, hidden: Tensor, step: Tensor, loop: Loop) -> Tensor:
        """One forward of every record: at its ``row`` [N] and ``step`` [N], tokens [N] and hidden [N, H] to raw outputs [N, H]. Its keys stay."""
        place = text.place[row] + step
        position = place + loop.position_offset * (step > 0)
        lowest = text.first[row] - text.first[row - text.place[row]]
        every = torch.arange(len(row), device=net.device)
        for layer, (keys, values) in enumerate(self.layers):
            mixed = net.mix(layer, tokens, hidden)
            for kept, made in zip((keys, values), net.keys(layer, mixed, position), strict=True):
                kept[every, :, place] = made.float()
            window = net.windows[layer]
            first = lowest if window is None else torch.maximum(lowest, place - window + 1)
            low, high = int(first.min()), int(place.max()) + 1
            span = torch.arange(low, high, device=net.device)
            visible = (span >= first[:, None]) & (span <= place[:, None])
            queries = net.queries(layer, mixed, position)
            found = attend(queries, (keys[:, :, low:high], values[:, :, low:high]), visible, net.attention.scale(net))
            hidden = net.finish(layer, tokens, hidden, found)
        return hidden
