"""What an engine would have fed with each fault of its states, made from what it did feed: one change of real rows for every fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3diag.dumps import HiddenStates, Record, TargetIdentity

H, AUX = 576, (2, 15, 27)


@dataclass(frozen=True)
class Sequence:
    """One sequence of both sides: what Transformers computed, at every boundary, and what an engine fed of the same tokens.

    ``partial[b]``: boundary b with half of the last block's MLP sum missing; ``late``: the boundaries when only five tokens are
    attended to from the middle on; ``inside``: between attention and MLP of the block above b; ``eight``: with the target's weights rounded
    to 8 bits.
    """

    name: str
    ids: Tensor
    states: dict[int, Tensor]
    final: Tensor
    fed: Tensor
    partial: dict[int, Tensor]
    late: dict[int, Tensor]
    inside: dict[int, Tensor]
    eight: dict[int, Tensor]

    @property
    def blocks(self) -> list[Tensor]:
        return list(self.fed.split(H, -1))

    def noisy(self, block: int, state: Tensor) -> Tensor:
        """Another state with the noise that the real engine has at this block."""
        noise = self.blocks[block].float() - self.states[AUX[block]].float()
        return (state.float() + noise).bfloat16()


def sequences(target: Path, live: Iterable[Record]) -> list[Sequence]:
    """Both sides of each record that an engine fed from: the target is run again here, in bfloat16, whole and in its broken forms."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    layers = model.model.layers
    held: dict[str, Tensor] = {}
    for b in AUX:
        layers[b - 1].mlp.down_proj.register_forward_hook(lambda m, a, out, b=b: held.__setitem__(f"in{b}", a[0][0]))
        layers[b].post_attention_layernorm.register_forward_pre_hook(lambda m, a, b=b: held.__setitem__(f"mid{b}", a[0][0]))
    model.model.norm.register_forward_pre_hook(lambda _, a: held.__setitem__("last", a[0][0]))

    def run(ids: Tensor) -> tuple[dict[int, Tensor], Tensor]:
        with torch.no_grad():
            out = model.model(ids[None], output_hidden_states=True).hidden_states
        return {**{b: s[0] for b, s in enumerate(out[:-1])}, len(layers): held["last"]}, out[-1][0]

    made: list[Any] = []
    for record in live:
        ids = record.input_ids
        n = len(ids)
        states, final = run(ids)
        inside = {b: held[f"mid{b}"].detach() for b in AUX}
        partial = {}
        for b in AUX:
            x, w = held[f"in{b}"], layers[b - 1].mlp.down_proj.weight
            partial[b] = (states[b] - x[:, : x.shape[1] // 2] @ w[:, : w.shape[1] // 2].T).detach()
        with torch.no_grad():
            seen = torch.stack([ids[t - 4 : t + 1] for t in range(n // 2, n)])
            near = model.model(seen, output_hidden_states=True).hidden_states
        late = {b: torch.cat([states[b][: n // 2], near[b][:, -1]]) for b in AUX}
        made.append([record.name, ids, states, final, record.features, partial, late, inside])
    with torch.no_grad():
        for p in model.model.layers.parameters():
            if p.dim() == 2:
                scale = p.abs().amax() / 448
                p.copy_((p / scale).to(torch.float8_e4m3fn).to(p.dtype) * scale)
    return [Sequence(*parts, run(parts[1])[0]) for parts in made]


def dump(target: TargetIdentity, rows: list[dict[str, Any]], side: str, boundaries: tuple[int, ...] = AUX) -> HiddenStates:
    return HiddenStates.from_tensors(rows, side=side, target=target, boundaries=boundaries, engine="sglang")


Change = Callable[[Sequence, Tensor], Tensor]  # (sequence, gain of the final norm) -> features


def blockwise(change: Callable[[Sequence, int, Tensor], Tensor], only: tuple[int, ...] = (0, 1, 2)) -> Change:
    def features(s: Sequence, _: Tensor) -> Tensor:
        return torch.cat([change(s, j, b).bfloat16() if j in only else b for j, b in enumerate(s.blocks)], -1)

    return features


def at(boundaries: tuple[int, ...], kind: str = "states") -> Change:
    return lambda s, _: torch.cat([s.noisy(j, getattr(s, kind)[b]) for j, b in enumerate(boundaries)], -1)


def normed(weight: Callable[[Tensor], Tensor], only: tuple[int, ...] = (0, 1, 2)) -> Change:
    """Blocks after a norm, whose weight is made of the final norm's."""

    def features(s: Sequence, gain: Tensor) -> Tensor:
        blocks = [b.float() for b in s.blocks]
        out = [b / b.square().mean(-1, keepdim=True).sqrt() * weight(gain) if j in only else b for j, b in enumerate(blocks)]
        return torch.cat(out, -1).bfloat16()

    return features


def rows(change: Callable[[Tensor], Tensor]) -> Change:
    return lambda s, _: change(s.fed.clone())


def repeated(f: Tensor) -> Tensor:
    f[20:26] = f[19]
    return f


def put(where: slice, value: float) -> Change:
    def change(f: Tensor) -> Tensor:
        f[where, 3 * 100] = value
        return f

    return rows(change)


def blank(f: Tensor) -> Tensor:
    f[30:36] = 0
    return f


def rolled(f: Tensor) -> Tensor:
    """A run of the batch begins two rows too late, as when padding of the request before is counted."""
    f[20:44] = f[18:42].clone()
    return f


ROTATION = torch.linalg.qr(torch.randn(H, H, generator=torch.Generator().manual_seed(0)))[0]

#: name -> (what the engine would have fed, fault that must be named first and alone)
INJECTED: dict[str, tuple[Change, str]] = {
    "one token later": (rows(lambda f: f.roll(-1, 0)), "H6"),
    "one token earlier": (rows(lambda f: f.roll(1, 0)), "H6"),
    "three tokens later": (rows(lambda f: f.roll(-3, 0)), "H6"),
    "one block one token earlier": (blockwise(lambda s, j, b: b.roll(1, 0), (0,)), "H6"),
    "half the scale": (rows(lambda f: f * 0.5), "H3"),
    "five per cent more": (rows(lambda f: f * 1.05), "H3"),
    "scaled by sqrt(H) in one block": (blockwise(lambda s, j, b: b * 24, (0,)), "H3"),
    "last block normed": (normed(lambda gain: gain, (2,)), "FM-35"),
    "all blocks normed": (normed(lambda gain: gain), "FM-35"),
    "all blocks normed by other weights": (normed(lambda gain: gain.roll(1)), "FM-35"),
    "all blocks normed without a weight": (normed(torch.ones_like), "FM-35"),
    "branch of the last block only": (blockwise(lambda s, j, b: s.noisy(j, s.states[AUX[j]] - s.states[AUX[j] - 1]), (1, 2)), "FM-34"),
    "sums of one rank of two": (at(AUX, "partial"), "FM-37"),
    "rotated": (blockwise(lambda s, j, b: b.float() @ ROTATION), "FM-38"),
    "buffer overwritten by the last": (blockwise(lambda s, j, b: s.blocks[2], (0,)), "FM-36"),
    "buffer overwritten by the next": (blockwise(lambda s, j, b: s.blocks[1], (0,)), "FM-36"),
    "rows written twice": (rows(repeated), "H2"),
    "rows of zeros": (rows(blank), "H2"),
    "an infinity": (put(slice(7, 9), float("inf")), "H2"),
    "a NaN": (put(slice(7, 9), float("nan")), "H2"),
    "half of one block empty": (blockwise(lambda s, j, b: b.index_fill(1, torch.arange(H // 2, H), 0), (1,)), "FM-39"),
    "a quarter of every block empty": (blockwise(lambda s, j, b: b.index_fill(1, torch.arange(H // 4), 0)), "FM-39"),
    "one rank's half for both": (blockwise(lambda s, j, b: torch.cat([b[:, : H // 2]] * 2, -1)), "FM-39"),
    "ranks in another order in one block": (blockwise(lambda s, j, b: b.roll(H // 2, 1), (1,)), "FM-39"),
    "a weight for each channel folded in": (lambda s, gain: torch.cat([b * gain.roll(1) for b in s.blocks], -1).bfloat16(), "H3"),
    "one block in another scale for each channel": (blockwise(lambda s, j, b: b * torch.linspace(0.5, 2, H), (0,)), "H3"),
    "a run moved by padding": (rows(rolled), "FM-39"),
    "another order": (lambda s, _: torch.cat([s.blocks[i] for i in (2, 0, 1)], -1), "FM-33"),
    "one boundary late": (at((3, 16, 28)), "FM-29"),
    "one boundary early": (at((1, 14, 26)), "FM-29"),
    "another set": (at((5, 10, 20)), "FM-28"),
    "a block missing": (lambda s, _: s.fed[:, : 2 * H], "H1"),
    "all blocks": (lambda s, _: torch.cat([s.states[b] for b in range(31)], -1), "FM-32"),
    "a window of five tokens from the middle on": (at(AUX, "late"), "H12"),
    "between attention and MLP": (at(AUX, "inside"), "FM-31"),
    "states of the last stage only": (lambda s, _: s.fed[:, H:], "FM-40"),
    "one state of the last stage": (lambda s, _: s.fed[:, 2 * H :], "FM-40"),
    "the last state alone": (lambda s, _: s.final, "FM-01"),
}  # fmt: skip

#: Legal: another dtype, fewer tokens, requests joined, positions stated, weights of the target in 8 bits (which cost little where measured).
LEGAL: dict[str, Change] = {
    "as the engine fed it": rows(lambda f: f),
    "in float32": rows(lambda f: f.float()),
    "in float16": rows(lambda f: f.half()),
    "through fp8 and back": rows(lambda f: (f.float() / 8).to(torch.float8_e4m3fn).float() * 8),
    "an 8-bit target": at(AUX, "eight"),
}

#: Without all boundaries some faults cannot be told from another set of layers; then that doubt is what must be said.
DOUBTFUL = {"one boundary late", "one boundary early", "another set", "branch of the last block only",
            "sums of one rank of two", "between attention and MLP"}  # fmt: skip

#: name -> (boundaries trained on, boundaries fed, fault with a reference, fault without)
PLACES: dict[str, tuple[tuple[int, ...], tuple[int, ...], list[str], list[str]]] = {
    "the last boundary never captured": ((2, 15, 30), (2, 15), ["FM-30"], ["FM-30"]),
    "the one before it instead": ((2, 15, 30), (2, 15, 29), ["FM-30"], ["FM-28"]),
    "the last boundary captured": ((2, 15, 30), (2, 15, 30), [], []),
    "numbers of a stage that begins at block 15": ((2, 8, 12), (17, 23, 27), ["FM-40"], ["FM-28"]),
    "another set that is no stage's": ((2, 8, 12), (17, 22, 27), ["FM-28"], ["FM-28"]),
}
