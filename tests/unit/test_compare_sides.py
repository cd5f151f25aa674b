"""compare() and what the two dumps say of themselves: swapped sides, one dump twice, declared boundaries, and no hidden size at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eagle3diag import MismatchedInputs, compare
from eagle3diag.dumps import HiddenStates, TargetIdentity

H, TOKENS = 24, 60


def stream(boundaries: int = 9, seed: int = 0) -> list[torch.Tensor]:
    """A residual stream: each boundary is the one below and something new."""
    g = torch.Generator().manual_seed(seed)
    states = [torch.randn(TOKENS, H, generator=g)]
    for _ in range(boundaries):
        states.append(states[-1] + 0.8 * torch.randn(TOKENS, H, generator=g))
    return states


def dump(side: str, boundaries: tuple[int, ...], states: list[torch.Tensor] | None = None, **more: Any) -> HiddenStates:
    held = states or stream()
    target = TargetIdentity(name="toy", config_hash="0" * 16, dtype="float32", n_layers=9, hidden_size=H)
    records = [{"name": "r", "input_ids": torch.arange(TOKENS), "states": {b: held[b] for b in boundaries}}]
    return HiddenStates.from_tensors(records, side=side, target=target, boundaries=boundaries, **more)


def test_swapped_dumps_are_an_error_that_says_so() -> None:
    """A mirrored comparison would name a mirrored fault."""
    train, live = dump("train", (2, 4, 6)), dump("live", (2, 4, 6), engine="sglang")
    with pytest.raises(MismatchedInputs, match=r"recorded live.*from training") as caught:
        compare(live, train)
    assert caught.value.hint == "give them in the order train, live"
    assert compare(train, live).ok and compare(live, live).ok, "two engines may be compared with each other"


def test_one_dump_given_twice_is_noted() -> None:
    """Agreement to the last bit is no success to be proud of; a single rounding ends the note."""
    train = dump("train", (2, 4, 6))
    assert [f.fault for f in compare(train, train).findings] == ["D2"] and compare(train, train).ok
    rounded = dump("live", (2, 4, 6), [s.bfloat16().float() for s in stream()])
    assert "D2" not in [f.fault for f in compare(train, rounded).findings]


@pytest.mark.parametrize(("captured", "fault"), [((3, 5, 7), "FM-29"), ((1, 3, 5), "FM-29"), ((2, 4, 8), "FM-28"), ((1, 5, 7), "FM-28")])
def test_declared_boundaries_name_the_wrong_ones_without_a_reference(captured: tuple[int, ...], fault: str) -> None:
    """The recorder wrote down what the engine captured: no reference is needed to say which layers those are."""
    result = compare(dump("train", (2, 4, 6)), dump("live", captured, engine="sglang"))
    finding = next(f for f in result.findings if f.fault in ("FM-28", "FM-29"))
    assert (finding.fault, finding.severity.label) == (fault, "error")
    assert ", ".join(map(str, captured)) in finding.title and "2, 4, 6" in finding.title


def test_declared_boundaries_alone_are_no_fault() -> None:
    """States that agree under other numbers are the same states: a convention of the manifest, not a fault of the draft's food."""
    held = stream()
    moved = [held[0], *held]
    assert compare(dump("train", (2, 4, 6)), dump("live", (3, 5, 7), [s + 1e-4 for s in moved])).ok


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_another_order_is_no_rotation_where_nobody_states_the_hidden_size(order: tuple[int, ...]) -> None:
    """A permutation of three states keeps all distances between tokens, as a rotation of one wide state does; it is still a permutation."""
    held = stream()
    train, live = (torch.cat([held[b] for b in blocks], -1) for blocks in ((2, 5, 8), [(2, 5, 8)[i] for i in order]))
    result = compare(train, live)
    assert [f.fault for f in result.findings if f.severity.label == "error"] == ["FM-33"]
    assert result.hidden_size == H and "side by side" in result.assumed[0]


def test_the_target_states_the_hidden_size() -> None:
    """Its final norm is as long as a state is wide, so nothing has to be assumed."""
    held = stream()
    fused = torch.cat([held[2], held[5]], -1)
    result = compare(fused, fused + 1e-4, target=torch.ones(H))
    assert (result.hidden_size, len(result.blocks), result.assumed) == (H, 2, ())
