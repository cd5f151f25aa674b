"""Every fault that two dumps can show, injected into what the real engine fed: named first and alone; healthy and legal twins are silent.

Thresholds were set while looking at these same records: what passes here shows that they fit, not that they hold on unseen ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle3diag.checkpoints import Target
from eagle3diag.compare import Comparison, compare
from eagle3diag.compare.gain import final_norm_gain
from eagle3diag.dumps import HiddenStates, open_dump
from eagle3diag.findings import Severity

HALF = range(5, 10)
H, AUX = 576, (2, 15, 27)


@dataclass(frozen=True)
class Sequence:
    """One sequence of both sides: what Transformers computed, at every boundary, and what SGLang fed, cut to the tokens of both.

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


@pytest.fixture(scope="module")
def sequences(target_folder: Path, samples: Path, train: HiddenStates) -> list[Sequence]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.bfloat16)
    live = {r.name: r for r in open_dump(samples / "live" / "eagle3" / "live")}
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
    for record in (train[i] for i in HALF):
        r = live[record.name]
        n = min(record.tokens, r.tokens)
        n = n if torch.equal(record.input_ids[:n], r.input_ids[:n]) else int((record.input_ids[:n] == r.input_ids[:n]).int().argmin())
        ids = record.input_ids[:n]
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
        made.append([record.name, ids, states, final, r.features[:n], partial, late, inside])
    with torch.no_grad():
        for p in model.model.layers.parameters():
            if p.dim() == 2:
                scale = p.abs().amax() / 448
                p.copy_((p / scale).to(torch.float8_e4m3fn).to(p.dtype) * scale)
    return [Sequence(*parts, run(parts[1])[0]) for parts in made]


def dump(train: HiddenStates, rows: list[dict[str, Any]], side: str, boundaries: tuple[int, ...] = AUX) -> HiddenStates:
    return HiddenStates.from_tensors(rows, side=side, target=train.target, boundaries=boundaries, engine="sglang")


@pytest.fixture(scope="module")
def reference(train: HiddenStates, sequences: list[Sequence]) -> HiddenStates:
    rows = [{"name": s.name, "input_ids": s.ids, "states": s.states, "final": s.final} for s in sequences]
    return dump(train, rows, "reference", ())


Change = Callable[[Sequence, Tensor], Tensor]  # (sequence, gain of the final norm) -> features


def blockwise(change: Callable[[Sequence, int, Tensor], Tensor], only: tuple[int, ...] = (0, 1, 2)) -> Change:
    def features(s: Sequence, _: Tensor) -> Tensor:
        return torch.cat([change(s, j, b).bfloat16() if j in only else b for j, b in enumerate(s.blocks)], -1)

    return features


def at(boundaries: tuple[int, ...], kind: str = "states") -> Change:
    return lambda s, _: torch.cat([s.noisy(j, getattr(s, kind)[b]) for j, b in enumerate(boundaries)], -1)


def normed(s: Sequence, gain: Tensor) -> Tensor:
    x = s.fed.float()
    last = x[:, 2 * H :]
    return torch.cat([x[:, : 2 * H], last / last.square().mean(-1, keepdim=True).sqrt() * gain], -1).bfloat16()


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
    "half the scale": (rows(lambda f: f * 0.5), "H3"),
    "five per cent more": (rows(lambda f: f * 1.05), "H3"),
    "scaled by sqrt(H) in one block": (blockwise(lambda s, j, b: b * 24, (0,)), "H3"),
    "last block normed": (normed, "FM-35"),
    "branch of the last block only": (blockwise(lambda s, j, b: s.noisy(j, s.states[AUX[j]] - s.states[AUX[j] - 1]), (1, 2)), "FM-34"),
    "sums of one rank of two": (at(AUX, "partial"), "FM-37"),
    "rotated": (blockwise(lambda s, j, b: b.float() @ ROTATION), "FM-38"),
    "buffer overwritten by the last": (blockwise(lambda s, j, b: s.blocks[2], (0,)), "FM-36"),
    "buffer overwritten by the next": (blockwise(lambda s, j, b: s.blocks[1], (0,)), "FM-36"),
    "rows written twice": (rows(repeated), "H2"),
    "rows of zeros": (rows(blank), "H2"),
    "an infinity": (put(slice(7, 9), float("inf")), "H2"),
    "a NaN": (put(slice(7, 9), float("nan")), "H2"),
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


def compared(
    train: HiddenStates, sequences: list[Sequence], change: Change, gain: Tensor, reference: HiddenStates | None, target: Target | None
) -> Comparison:
    live = dump(train, [{"name": s.name, "input_ids": s.ids, "features": change(s, gain)} for s in sequences], "live", ())
    return compare(train, live, reference=reference, target=target)


def serious(result: Comparison) -> list[str]:
    return [f.fault for f in result.findings if f.severity > Severity.NOTE]


@pytest.fixture(scope="module")
def gain(target: Target) -> Tensor:
    return final_norm_gain(target)


#: Without all boundaries some faults cannot be told from another set of layers; then that doubt is what must be said.
DOUBTFUL = {"one boundary late", "one boundary early", "another set", "branch of the last block only",
            "sums of one rank of two", "between attention and MLP"}  # fmt: skip


@pytest.mark.parametrize("name", INJECTED)
def test_with_a_reference_each_fault_is_named(
    name: str, train: HiddenStates, sequences: list[Sequence], reference: HiddenStates, target: Target, gain: Tensor
) -> None:
    """First and alone."""
    change, fault = INJECTED[name]
    assert serious(compared(train, sequences, change, gain, reference, target)) == [fault]


@pytest.mark.parametrize("name", INJECTED)
def test_from_two_dumps_alone(name: str, train: HiddenStates, sequences: list[Sequence], gain: Tensor) -> None:
    """No target, no reference: named as well, or the doubt is."""
    change, fault = INJECTED[name]
    found = serious(compared(train, sequences, change, gain, None, None))
    assert found == (["FM-28"] if name in DOUBTFUL else [fault])


@pytest.mark.parametrize("name", LEGAL)
@pytest.mark.parametrize("known", [True, False])
def test_legal_twins_are_silent(
    name: str, known: bool, train: HiddenStates, sequences: list[Sequence], reference: HiddenStates, target: Target, gain: Tensor
) -> None:
    """Nothing above a note."""
    result = compared(train, sequences, LEGAL[name], gain, reference if known else None, target if known else None)
    assert serious(result) == []
    notes = [f.fault for f in result.findings]
    assert notes == (["H4"] if name in ("as the engine fed it", "in float32", "in float16") else notes)


def test_rows_swapped_between_requests(train: HiddenStates, sequences: list[Sequence], gain: Tensor) -> None:
    """Twenty rows of two sequences changed places: said as that, with both names."""
    fed = [s.fed.clone() for s in sequences]
    fed[0][20:40], fed[1][20:40] = sequences[1].fed[20:40], sequences[0].fed[20:40]
    live = dump(train, [{"name": s.name, "input_ids": s.ids, "features": f} for s, f in zip(sequences, fed, strict=True)], "live", ())
    finding = compare(train, live).findings[0]
    assert finding.fault == "FM-39" and "different requests" in finding.title
    assert sequences[0].name in str(finding.evidence) and sequences[1].name in str(finding.evidence)


#: name -> (boundaries trained on, boundaries fed, fault with a reference, fault without)
PLACES: dict[str, tuple[tuple[int, ...], tuple[int, ...], list[str], list[str]]] = {
    "the last boundary never captured": ((2, 15, 30), (2, 15), ["FM-30"], ["FM-30"]),
    "the one before it instead": ((2, 15, 30), (2, 15, 29), ["FM-30"], ["FM-28"]),
    "the last boundary captured": ((2, 15, 30), (2, 15, 30), [], []),
    "numbers of a stage that begins at block 15": ((2, 8, 12), (17, 23, 27), ["FM-40"], ["FM-28"]),
    "another set that is no stage's": ((2, 8, 12), (17, 22, 27), ["FM-28"], ["FM-28"]),
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", PLACES)
def test_boundaries_that_engines_cannot_reach(
    name: str, known: bool, train: HiddenStates, sequences: list[Sequence], reference: HiddenStates
) -> None:
    """The state behind the last block, and layers of other stages: named first and alone."""
    trained, fed, with_reference, without = PLACES[name]
    sides = [
        dump(train, [{"name": s.name, "input_ids": s.ids, "features": made(s)} for s in sequences], side, boundaries)
        for side, boundaries, made in (
            ("train", trained, lambda s: torch.cat([s.states[b] for b in trained], -1)),
            ("live", (), lambda s: at(fed)(s, s.final)),
        )
    ]
    assert serious(compare(*sides, reference=reference if known else None)) == (with_reference if known else without)
