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
@pytest.mark.parametrize(("gain", "norm"), [(GAIN, "the final norm"), (OTHER, "a norm of another weight"), (1.0, "a norm without weight")])
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


def only(block: int, change: Callable[[Tensor], Tensor]) -> Callable[[Blocks], Blocks]:
    return lambda blocks: [change(b) if j == block else b for j, b in enumerate(blocks)]


def blanked(block: Tensor, ranks: int, kept: int = 1) -> Tensor:
    block[:, kept * H // ranks :] = 0
    return block


def parts(block: Tensor, ranks: int, order: tuple[int, ...]) -> Tensor:
    chunks = block.chunk(ranks, -1)
    return torch.cat([chunks[i] for i in order], -1)


def gathered(blocks: Blocks) -> Blocks:
    """Each of two ranks put its own halves of the three states side by side, then the ranks were joined."""
    halves = [b.chunk(2, -1) for b in blocks]
    return list(torch.cat([h[rank] for rank in (0, 1) for h in halves], -1).split(H, -1))


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (only(1, lambda b: blanked(b, 2)), "50% of the channels of live block 1 hold nothing"),
        (only(2, lambda b: blanked(b, 4)), "75% of the channels of live block 2 hold nothing"),
        (only(0, lambda b: blanked(b, 4, 3)), "25% of the channels of live block 0 hold nothing"),
        (lambda blocks: [blanked(b, 2) for b in blocks], "block 0, 1, 2 hold nothing"),
        (only(1, lambda b: parts(b, 2, (1, 0))), "live block 1 is put together of shards"),
        (only(1, lambda b: parts(b, 4, (0, 1, 3, 2))), "live block 1 is put together of shards"),
        (only(2, lambda b: parts(b, 4, (0, 1, 2, 0))), "live block 2 is put together of shards"),
        (lambda blocks: [parts(b, 2, (0, 0)) for b in blocks], "block 0, 1, 2 is put together of shards"),
        (gathered, "block 0, 1, 2 is put together of shards"),
    ],
)
def test_shards_that_were_not_gathered_are_neither_a_drift_nor_other_layers(
    change: Callable[[Blocks], Blocks], words: str, reference: bool
) -> None:
    """Empty, exchanged, repeated, spread over the blocks; one in four too, which the median channel does not see."""
    result = compared(change, reference=reference)
    assert serious(result) == ["FM-39"] and words in result.findings[0].title
    assert not {"FM-41", "FM-42"} & {f.fault for f in result.findings}


def test_blocks_in_another_order_or_twice_are_no_shards() -> None:
    """Whole blocks keep their own names."""
    assert serious(compared(lambda b: [b[2], b[0], b[1]])) == ["FM-33"]
    assert serious(compared(lambda b: [b[2], b[1], b[2]])) == ["FM-36"]


def test_a_channel_that_a_limit_holds_or_one_row_for_all_is_no_missing_shard() -> None:
    """Counted, but fewer than a shard has; and where every row is the same, rows were repeated and no channels lost."""

    def held(block: Tensor) -> Tensor:
        block[:, 3] = 5.0
        return block

    result = compared(only(0, held))
    assert [b.constant_channels for b in result.blocks] == [1, 0, 0] and "FM-39" not in serious(result)
    assert "FM-39" not in serious(compared(lambda blocks: [b[:1].expand_as(b) for b in blocks]))


def test_a_norm_and_a_gain_without_one_are_told_apart_block_by_block() -> None:
    """One block normed, one raw where normed was trained: each is said; a gain alone is H3, also where all tokens are nearly of one length."""
    mixed = compared(lambda b: [*normed(OTHER)(b[:1]), b[1], b[2]], lambda b: [b[0], *normed(OTHER)(b[1:2]), b[2]])
    title = "live block 0 is normed, where the raw state was trained and live block 1 is raw, where the normed state was trained"
    assert serious(mixed) == ["FM-35"] and mixed.findings[0].title == title

    def even(blocks: Blocks) -> Blocks:
        length = 1 + 0.02 * torch.rand(len(blocks[0]), 1, generator=torch.Generator().manual_seed(1))
        return [b * length for b in normed(1.0)(blocks)]

    assert serious(compared(lambda b: [OTHER * x for x in even(b)], even)) == ["H3"]


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_gain_or_an_offset_for_each_channel_is_named_though_the_direction_fits(block: int, reference: bool) -> None:
    """The reference's cosine does not see it, the trained moments do."""
    gain, offset = 10 * OTHER, 3 * GAIN.roll(3)
    for change in (lambda b: b * gain, lambda b: b + offset, lambda b: b * gain - offset):
        result = compared(only(block, change), reference=reference)
        assert serious(result) == ["H3"] and f"live block {block} has another scale or offset" in result.findings[0].title


def test_a_drift_that_goes_as_far_as_the_worst_that_is_known_is_one() -> None:
    """Cosines of 0.998, 0.75 and 0.52, as from blocks 1, 57 and 58 of gemma4 in sgl-project/sglang#27540: every state is the declared one."""

    def drifted(blocks: Blocks) -> Blocks:
        g = torch.Generator().manual_seed(5)
        noise = [(1 / cosine**2 - 1) ** 0.5 for cosine in (0.998, 0.75, 0.52)]
        return [b + torch.randn(b.shape, generator=g) * b.std(0) * n for b, n in zip(blocks, noise, strict=True)]

    result = compared(drifted, reference=True)
    assert 0.45 < result.blocks[2].standardised.median < 0.6
    assert serious(result) == ["FM-41"]


@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_block_that_is_no_boundary_is_named_whichever_it_is(block: int) -> None:
    """Channels in any order: not only the first block, since a drift does not go so far."""
    order = torch.randperm(H, generator=torch.Generator().manual_seed(3))
    result = compared(only(block, lambda b: b[:, order]), reference=True)
    assert serious(result) == ["FM-31"] and f"live block {block} matches no boundary" in result.findings[0].title


def test_broken_rows_are_left_out_of_the_scale_and_counted_by_token() -> None:
    """Most tokens of two records zero: H2 alone, no factor of 0, and the number of tokens, not of rows times blocks."""

    def broken(blocks: Blocks) -> Blocks:
        for b in blocks:
            b[5:65] = 0
        blocks[1][66] = 0  # a token that one block alone has lost
        blocks[2][67], blocks[0][68, 3] = float("nan"), float("inf")
        return blocks

    result = compared(broken)
    assert serious(result) == ["H2"]
    assert [e.value for e in result.findings[0].evidence] == [3 * 60 + 3, 3 * 2]
    assert (result.zero_tokens, result.nonfinite_tokens) == (183, 6)
    for b in result.blocks:
        assert (
            b.zero_rows >= 180
            and b.norm_ratio == pytest.approx(1)
            and b.relative_error == 0
            and b.live_norm == pytest.approx(b.train_norm, rel=0.02)
        )
        assert all(o.standardised == pytest.approx(1) for o in b.trend if o.tokens)


def test_rows_written_twice_are_counted_by_token() -> None:
    """Of three blocks at once, and of one."""

    def repeated(blocks: Blocks) -> Blocks:
        for b in blocks:
            b[20:24] = b[19]
        blocks[1][30] = blocks[1][29]
        return blocks

    result = compared(repeated)
    assert serious(result) == ["H2"] and result.duplicate_tokens == 3 * 5 and result.findings[0].evidence[0].value == 15


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("block", [0, 1, 2])
def test_one_block_of_other_tokens_is_named(block: int, reference: bool) -> None:
    """Not a run of rows that padding moved: the other blocks stay where they are."""
    result = compared(only(block, lambda b: b.roll(1, 0)), reference=reference)
    assert serious(result) == ["H6"] and result.findings[0].title == f"the state of live block {block} is that of the token 1 earlier"


def test_blocks_that_are_shifted_apart_are_named_apart() -> None:
    """One earlier, one later."""
    title = compared(lambda b: [b[0].roll(1, 0), b[1].roll(-2, 0), b[2]]).findings[0].title
    assert title == "the state of live block 0 is that of the token 1 earlier and the state of live block 1 is that of the token 2 later"
