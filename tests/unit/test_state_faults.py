"""Faults of captured states that two dumps show, injected into small plain states: what is named, and which direction and blocks it has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eagle3diag import compare
from eagle3diag.compare import Comparison
from eagle3diag.dumps import HiddenStates, TargetIdentity
from eagle3diag.findings import Severity

H, AUX = 32, (2, 4, 6)
TARGET = TargetIdentity(name="toy", config_hash="0" * 16, dtype="float32", n_layers=8, hidden_size=H)
GAIN, OTHER = (torch.rand(H, generator=torch.Generator().manual_seed(i)) + 0.3 for i in (7, 8))

Blocks = list[Tensor]


def states(tokens: int, seed: int, layers: int = 9) -> Blocks:
    """States of every boundary; tokens differ in length."""
    g = torch.Generator().manual_seed(seed)
    state, made = torch.randn(tokens, H, generator=g), []
    for _ in range(layers):
        made.append(state * (1 + 2 * torch.rand(tokens, 1, generator=torch.Generator().manual_seed(seed))) + 0.3)
        state = state + 0.7 * torch.randn(tokens, H, generator=g)
    return made


def compared(
    live: Callable[[Blocks], Blocks], train: Callable[[Blocks], Blocks] = lambda b: b, target: bool = False, reference: bool = False
) -> Comparison:
    """Both sides made of the same aux states."""
    whole = [states(n, i) for i, n in enumerate((90, 70, 80))]
    ids = [torch.arange(len(w[0])) + 100 * i for i, w in enumerate(whole)]

    def dump(made: list[dict[str, object]], side: str, boundaries: tuple[int, ...]) -> HiddenStates:
        rows = [{"name": f"r{i}", "input_ids": ids[i]} | m for i, m in enumerate(made)]
        return HiddenStates.from_tensors(rows, side=side, target=TARGET, boundaries=boundaries)

    def fed(change: Callable[[Blocks], Blocks]) -> list[dict[str, object]]:
        return [{"features": torch.cat(change([w[b].clone() for b in AUX]), -1)} for w in whole]

    known = dump([{"states": dict(enumerate(w))} for w in whole], "reference", ()) if reference else None
    return compare(dump(fed(train), "train", AUX), dump(fed(live), "live", ()), target=GAIN if target else None, reference=known)


def serious(c: Comparison) -> list[str]:
    return [f.fault for f in c.findings if f.severity > Severity.NOTE]


def normed(gain: Tensor | float) -> Callable[[Blocks], Blocks]:
    return lambda blocks: [b / b.square().mean(-1, keepdim=True).sqrt() * gain for b in blocks]


@pytest.mark.parametrize("target", [True, False])
@pytest.mark.parametrize(("gain", "norm"), [(GAIN, "the final norm"), (OTHER, "another norm"), (1.0, "a norm without weight")])
def test_a_norm_on_one_side_is_named_whichever_it_is_and_on_which(gain: Tensor | float, norm: str, target: bool) -> None:
    """The final norm's gain, another layer's, none: with the target as without, and never the other way round."""
    after, before = compared(normed(gain), target=target), compared(lambda b: b, normed(gain), target=target)
    said = norm if target or isinstance(gain, float) else "a norm"
    for result, kind, word in ((after, "normed", "0, 1, 2 is normed"), (before, "un-normed", "0, 1, 2 is raw")):
        assert [(o.best.kind, o.best.norm) for o in result.origins] == [(kind, said)] * 3
        assert serious(result) == ["FM-35"] and word in result.findings[0].title
        assert said in str(result.findings[0].evidence)


def test_the_same_states_are_silent() -> None:
    """Nothing above a note, whatever is known."""
    for target in (True, False):
        for reference in (True, False):
            assert serious(compared(lambda b: b, target=target, reference=reference)) == []
