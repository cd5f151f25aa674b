"""compare(): its numbers are those of a plain slow implementation, its rows are the right ones, and planted differences are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cosine as scipy_cosine

from eagle3diag import BadArgument, MismatchedInputs, compare
from eagle3diag.checkpoints import Target
from eagle3diag.compare import Comparison, Quantiles
from eagle3diag.compare.gain import final_norm_gain
from eagle3diag.compare.identity import standardised
from eagle3diag.compare.metrics import ChannelMoments, rows_cosine, rows_norm, rows_relative_error, rows_rms
from eagle3diag.compare.rows import Scale
from eagle3diag.dumps import DumpWriter, HiddenStates, TargetIdentity
from eagle3diag.findings import plain

H, LAYERS, AUX = 24, 8, (2, 4, 6)
TARGET = TargetIdentity(name="toy", config_hash="0" * 16, dtype="float32", n_layers=LAYERS, hidden_size=H)


def stream(tokens: int, seed: int = 0) -> dict[int, torch.Tensor]:
    """A residual stream as targets have it: neighbours alike, norms that grow, an offset and two massive channels everywhere."""
    g = torch.Generator().manual_seed(seed)
    offset = torch.randn(H, generator=torch.Generator().manual_seed(99)) * 0.5
    state, states = torch.randn(tokens, H, generator=g), {}
    for b in range(LAYERS + 1):
        states[b] = state * (1 + 0.3 * b) + offset
        states[b][:, 3] += 300.0
        states[b][:, 11] -= 180.0
        states[b][0] *= 20.0  # the sink token
        state = state + 0.8 * torch.randn(tokens, H, generator=g)
    return states


def record(name: str, tokens: int, seed: int, boundaries: tuple[int, ...] = AUX, **more: Any) -> dict[str, Any]:
    states = stream(tokens, seed)
    final = states[LAYERS] / states[LAYERS].square().mean(-1, keepdim=True).sqrt()
    ids = torch.randint(0, 50, (tokens,), generator=torch.Generator().manual_seed(seed))
    return {"name": name, "input_ids": ids, "states": {b: states[b] for b in boundaries}, "final": final} | more


def dump(records: list[dict[str, Any]], side: str = "train", boundaries: tuple[int, ...] = AUX, **more: Any) -> HiddenStates:
    return HiddenStates.from_tensors(records, side=side, target=TARGET, boundaries=boundaries, **more)


def healthy(lengths: tuple[int, ...] = (40, 55, 33)) -> HiddenStates:
    return dump([record(f"r{i}", n, i) for i, n in enumerate(lengths)])


def changed(source: HiddenStates, change: Callable[[torch.Tensor], torch.Tensor]) -> HiddenStates:
    return dump(
        [{"name": r.name, "input_ids": r.input_ids, "features": change(r.features.clone())} for r in source], side="live", engine="sglang"
    )


def noisy(source: HiddenStates, scale: float = 1e-3) -> HiddenStates:
    g = torch.Generator().manual_seed(5)
    return changed(source, lambda f: f * (1 + scale * torch.randn(f.shape, generator=g)))


# -- numbers against a slow implementation -----------------------------------------------------------------------------------------


def slow(train: HiddenStates, live: HiddenStates, block: int) -> dict[str, Any]:
    """The definitions, one token at a time, with numpy and scipy in float64."""
    cut = slice(block * H, (block + 1) * H)
    xs = [x for r in train for x in r.features[1:, cut].double().numpy()]
    ys = [y for r in live for y in r.features[1:, cut].double().numpy()]
    mean, std = np.mean(xs, axis=0), np.std(xs, axis=0)
    pairs = list(zip(xs, ys, strict=True))
    return {
        "tokens": len(xs),
        "train_norm": np.median([np.linalg.norm(x) for x in xs]),
        "live_norm": np.median([np.linalg.norm(y) for y in ys]),
        "norm_ratio": np.median([np.linalg.norm(y) / np.linalg.norm(x) for x, y in pairs]),
        "relative_error": np.median([np.linalg.norm(y - x) / np.linalg.norm(x) for x, y in pairs]),
        "cosine": [1 - scipy_cosine(x, y) for x, y in pairs],
        "standardised": [1 - scipy_cosine((x - mean) / std, (y - mean) / std) for x, y in pairs],
    }


def test_every_number_of_a_block_equals_the_slow_implementation() -> None:
    """Norms, ratio, relative error and both cosines, the sink token left out."""
    train = healthy()
    live = noisy(train, 0.3)
    result = compare(train, live)
    assert [b.boundary for b in result.blocks] == list(AUX) and result.aligned_tokens == 128 and result.hidden_size == H
    for i, block in enumerate(result.blocks):
        expected = slow(train, live, i)
        assert block.tokens == expected["tokens"] == 125
        for name in ("train_norm", "live_norm", "norm_ratio", "relative_error"):
            assert getattr(block, name) == pytest.approx(expected[name], rel=1e-5), name
        for name in ("cosine", "standardised"):
            got, values = getattr(block, name), expected[name]
            assert got.mean == pytest.approx(np.mean(values), abs=1e-6)
            for q, value in ((1, got.p1), (5, got.p5), (50, got.median)):
                assert value == pytest.approx(np.percentile(values, q), abs=1e-6)


def test_order_and_shift_equal_the_slow_implementation() -> None:
    """Each side is standardised by its own moments before the cosine is taken."""
    train = healthy()
    live = noisy(train, 0.3)
    result = compare(train, live)

    def standardised(source: HiddenStates, block: int) -> list[np.ndarray]:
        rows = [r.features[:, block * H : (block + 1) * H].double().numpy() for r in source]
        counted = np.concatenate([r[1:] for r in rows])
        return [(r - counted.mean(0)) / counted.std(0) for r in rows]

    for i in range(3):
        for j in range(3):
            a, b = standardised(train, i), standardised(live, j)
            values = [1 - scipy_cosine(x[t], y[t]) for x, y in zip(a, b, strict=True) for t in range(1, len(x))]
            assert result.order[i][j] == pytest.approx(np.median(values), abs=1e-5)
    for s, got in result.shift:
        values = [
            1 - scipy_cosine(x[t + s], y[t])
            for block in range(3)
            for x, y in zip(standardised(train, block), standardised(live, block), strict=True)
            for t in range(1, len(x))
            if 1 <= t + s < len(x)
        ]
        assert got == pytest.approx(np.mean(values), abs=1e-5)


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40), bad=st.lists(st.sampled_from([np.nan, np.inf]), max_size=3)
)
@settings(deadline=None, max_examples=60)
def test_quantiles_are_numpys(values: list[float], bad: list[float]) -> None:
    """Linear interpolation, values that are not finite left out."""
    got = Quantiles.of(torch.tensor(values + bad))
    p1, p5, p50 = np.percentile(np.array(values), [1, 5, 50])
    assert (got.p1, got.p5, got.median) == pytest.approx((p1, p5, p50), rel=1e-9, abs=1e-6)
    assert got.mean == pytest.approx(np.array(values).mean(), rel=1e-9, abs=1e-6)


@given(cuts=st.lists(st.integers(1, 39), max_size=6), seed=st.integers(0, 10**6), offset=st.sampled_from([0.0, 1e4, -3e6]))
@settings(deadline=None, max_examples=40)
def test_moments_do_not_depend_on_how_the_rows_come(cuts: list[int], seed: int, offset: float) -> None:
    """Any split of the rows gives numpy's mean and standard deviation, also far from zero; odd rows are ignored."""
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(seed)) + offset
    moments = ChannelMoments(5)
    for part in np.split(np.arange(40), sorted(cuts)):
        moments.update(x[torch.from_numpy(part)])
    moments.update(torch.zeros(2, 5))
    moments.update(torch.full((1, 5), float("nan")))
    exact = x.double().numpy()
    np.testing.assert_allclose(moments.mean.numpy(), exact.mean(0), atol=1e-6)  # of a deviation of one
    np.testing.assert_allclose(moments.std.numpy(), exact.std(0), rtol=1e-6)
    np.testing.assert_allclose(standardised(x, Scale.of([moments])).numpy(), (exact - exact.mean(0)) / exact.std(0), atol=1e-3)


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-30, 1e-6, 0.5, 7.0, 1e18, -2.0]))
@settings(deadline=None, max_examples=40)
def test_cosine_does_not_depend_on_scale(seed: int, scale: float) -> None:
    """Neither tiny nor huge rows over- or underflow; a negative scale turns the sign."""
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(6, 32, generator=g), torch.randn(6, 32, generator=g)
    expected = torch.nn.functional.cosine_similarity(x.double(), y.double()).float()
    torch.testing.assert_close(rows_cosine(x, y * scale), expected * np.sign(scale), atol=1e-5, rtol=0)
    torch.testing.assert_close(rows_cosine(x * scale, x), torch.full((6,), float(np.sign(scale))), atol=1e-6, rtol=0)
    torch.testing.assert_close(rows_norm(y * scale), (y.double() * scale).norm(dim=-1), rtol=1e-5, atol=0)


def test_metrics_of_odd_rows() -> None:
    """Zero rows and rows with NaN have no cosine; a zero train row has no relative error; no row is a silent 1.0."""
    x = torch.tensor([[1.0, 2.0], [0.0, 0.0], [1.0, float("nan")], [3e38, 3e38]])
    assert rows_cosine(x, x).isnan().tolist() == [False, True, True, False]
    assert rows_relative_error(x, torch.zeros(4, 2)).nan_to_num(-1).tolist() == [1.0, -1.0, -1.0, 1.0]
    assert float(rows_norm(x)[3]) == pytest.approx(3e38 * 2**0.5)
    gain = torch.tensor([2.0, 1e-12, -0.5])
    assert rows_rms(torch.tensor([[2.0, 5.0, 0.5]]), gain).item() == pytest.approx(1.0)
    assert np.isnan(Quantiles.of(torch.tensor([float("nan")])).median)


# -- properties of the whole -------------------------------------------------------------------------------------------------------


@given(chunk=st.integers(1, 70))
@settings(deadline=None, max_examples=15)
def test_results_do_not_depend_on_the_chunk_size(chunk: int) -> None:
    """Chunks bound memory; they may not change a number."""
    train = healthy((30, 21))
    live, reference = noisy(train, 0.2), dump([record(f"r{i}", n, i, tuple(range(9))) for i, n in enumerate((30, 21))], "reference")
    one, other = (plain(compare(train, live, reference=reference, target=torch.ones(H), chunk_tokens=c)) for c in (512, chunk))
    assert_alike(one, other)


def assert_alike(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_alike(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_alike(a, b)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5)
    else:
        assert one == other


def test_equal_sides_agree_exactly() -> None:
    """The same dump twice: cosine 1, no error, shift 0, identity order."""
    result = compare(healthy(), healthy())
    for block in result.blocks:
        assert block.cosine.p1 == pytest.approx(1, abs=1e-6) and block.standardised.p1 == pytest.approx(1, abs=1e-6)
        assert block.norm_ratio == 1 and block.relative_error == 0 and block.zero_rows == block.nonfinite_live == 0
    assert max(result.shift, key=lambda item: item[1])[0] == 0 and not result.unaligned and not result.single


@given(permutation=st.permutations(range(3)))
@settings(deadline=None, max_examples=6)
def test_permuted_blocks_are_found(permutation: list[int]) -> None:
    """The column maxima of ``order`` say which train block each live block is (H7)."""
    train = healthy()
    live = changed(train, lambda f: torch.cat([f[:, i * H : (i + 1) * H] for i in permutation], -1))
    order = compare(train, live).order
    assert [max(range(3), key=lambda i: order[i][j]) for j in range(3)] == list(permutation)


@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
def test_a_shift_of_tokens_is_found(shift: int) -> None:
    """Live token t holds the state of train token t + s (H6)."""
    train = healthy()
    result = compare(train, changed(train, lambda f: f.roll(-shift, 0)))
    best = max(result.shift, key=lambda item: item[1])
    assert best[0] == shift and best[1] > 0.8  # not 1: the sink token, moved onto a counted row, widens the live deviations
    assert dict(result.shift)[0] < 0.2


def test_plain_cosine_is_fooled_by_massive_channels_and_the_standardised_one_is_not() -> None:
    """Unrelated tokens look alike (0.99) under the plain cosine because of two channels that every token shares."""
    train = healthy()
    unrelated = dump([record(f"r{i}", n, i) | {"states": {b: stream(n, 50 + i)[b] for b in AUX}} for i, n in enumerate((40, 55, 33))])
    for block in compare(train, unrelated).blocks:
        assert block.cosine.median > 0.99 and abs(block.standardised.median) < 0.2


def test_a_reference_names_the_boundaries() -> None:
    """Served boundaries 1, 3, 5 are told from the declared 2, 4, 6 by the best reference boundary, and the final state by -1 (H5)."""
    lengths = (40, 55, 33)
    reference = dump([record(f"r{i}", n, i, tuple(range(LAYERS + 1))) for i, n in enumerate(lengths)], "reference")
    train = dump([record(f"r{i}", n, i) for i, n in enumerate(lengths)])
    live = dump(
        [
            {"name": f"r{i}", "input_ids": r.input_ids, "features": torch.cat([r.state(1), r.state(5), r.final], -1)}
            for i, r in enumerate(reference)
            if r.final is not None
        ],
        "live",
    )
    result = compare(train, live, reference=reference)
    assert result.reference_boundaries == (*range(LAYERS + 1), -1)
    best = [max(result.reference_boundaries, key=lambda b: result.reference[result.reference_boundaries.index(b)][j]) for j in range(3)]
    assert best == [1, 5, -1]


def test_a_single_live_vector_is_compared_with_every_train_block_and_the_final_state() -> None:
    """One H-wide vector where three were trained on (FM-01): blocks cannot be paired, and the final normed state is the one that fits."""
    train = healthy()
    live = dump([{"name": r.name, "input_ids": r.input_ids, "features": r.final} for r in train], "live", counters={"fc_calls": 0})
    result = compare(train, live)
    assert result.blocks == () and result.worst == () and result.shift == ()
    assert (result.train.width_in_h, result.live.width_in_h, result.live.width) == (3.0, 1.0, H)
    assert [(b.block, b.boundary) for b in result.single] == [(0, 2), (1, 4), (2, 6), (3, -1)]
    assert max(result.single, key=lambda b: b.standardised.median).boundary == -1
    assert result.single[-1].standardised.median == pytest.approx(1) and result.single[-1].relative_error == 0
    assert len(result.order) == 3 and len(result.order[0]) == 1
    assert result.live.counters == {"fc_calls": 0}


@pytest.mark.parametrize("blocks", [2, 9])
def test_another_number_of_blocks_is_still_identified(blocks: int) -> None:
    """One block too few, or all of them (FM-30, FM-32): no pairs, but ``order`` says what they are."""
    reference = dump([record("r0", 60, 0, tuple(range(LAYERS + 1)))])
    served = (2, 4) if blocks == 2 else tuple(range(9))
    live = dump(
        [{"name": r.name, "input_ids": r.input_ids, "features": torch.cat([r.state(b) for b in served], -1)} for r in reference], "live"
    )
    result = compare(dump([record("r0", 60, 0)]), live)
    assert result.blocks == result.single == () and result.live.width_in_h == blocks
    found = [served[max(range(blocks), key=lambda j: row[j])] for row in result.order]
    assert found[:2] == [2, 4] and (blocks == 2 or found[2] == 6)
    odd = compare(healthy(), changed(healthy(), lambda f: f[:, :-5]))
    assert (odd.blocks, odd.single, odd.order) == ((), (), ()) and odd.live.width == 3 * H - 5


def test_a_normed_live_block_has_rms_one_after_division_by_the_gain() -> None:
    """H8: with the right gain a normed block gives 1, a raw one does not; without a target there is no number."""
    train = healthy()
    gain = torch.rand(H, generator=torch.Generator().manual_seed(3)) + 0.5
    normed = changed(train, lambda f: torch.cat([f[:, : 2 * H], unit(f[:, 2 * H :]) * gain], -1))
    assert compare(train, normed, target=gain).live_final_rms == pytest.approx(1, abs=1e-4)
    raw = compare(train, noisy(train), target=gain).live_final_rms
    assert raw is not None and raw > 5
    assert compare(train, normed).live_final_rms is None
    with pytest.raises(MismatchedInputs, match="25 channels"):
        compare(train, normed, target=torch.ones(25))


@pytest.mark.parametrize(("family", "offset"), [("llama", 0.0), ("gemma3_text", 1.0)])
@pytest.mark.parametrize("path", [(), ("text_config",), ("thinker_config", "text_config")])
def test_families_whose_norm_multiplies_by_one_plus_the_weight(family: str, offset: float, path: tuple[str, ...]) -> None:
    """The gain is what the norm multiplies by, also when the text config is nested in that of a multimodal target, once or twice."""
    weight = torch.randn(H, generator=torch.Generator().manual_seed(3)).bfloat16()
    raw: dict[str, object] = {"model_type": family, "hidden_size": H}
    for key in reversed(path):
        raw = {"model_type": "wrapper", key: raw}
    target = Target("toy", raw, {"model.norm.weight": weight})
    assert torch.equal(final_norm_gain(target), weight.float() + offset)


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.square().mean(-1, keepdim=True).sqrt()


def test_zero_and_broken_rows_are_counted_and_kept_out() -> None:
    """Their number is reported; the other tokens' cosines stay at 1."""
    train = dump([record("r0", 40, 0)])

    def break_rows(f: torch.Tensor) -> torch.Tensor:
        f[5:9, :H] = 0
        f[20, H + 1] = float("nan")
        f[21, H + 1] = float("inf")
        return f

    first, second, third = compare(train, changed(train, break_rows)).blocks
    assert (first.zero_rows, second.zero_rows, third.zero_rows) == (4, 0, 0)
    assert (first.nonfinite_live, second.nonfinite_live, second.nonfinite_train) == (0, 2, 0)
    for block in (first, second, third):
        assert block.cosine.p1 == pytest.approx(1, abs=1e-6) and block.standardised.p1 == pytest.approx(1, abs=1e-5)
        assert block.tokens == 39


def test_dead_channels_and_dead_sides_do_not_divide_by_zero() -> None:
    """A channel that never varies tells nothing; a live side of zeros has no cosine at all, and says how many rows are zero."""
    train = dump([record("r0", 30, 0)])
    flat = changed(train, lambda f: f.index_fill(1, torch.tensor([0, H]), 2.0))
    assert compare(flat, flat).blocks[0].standardised.p1 == pytest.approx(1, abs=1e-6)
    dead = compare(train, changed(train, torch.zeros_like)).blocks[0]
    assert np.isnan(dead.cosine.median) and np.isnan(dead.standardised.median) and dead.zero_rows == 29 and dead.norm_ratio == 0


def test_the_worst_tokens_and_the_series_point_at_the_planted_token() -> None:
    """One token of one block replaced: it leads the list, with its position, and shows in the series."""
    train = healthy()

    def spoil(f: torch.Tensor) -> torch.Tensor:
        if len(f) == 55:
            f[17, H : 2 * H] = f[40, H : 2 * H]
        return f

    result = compare(train, changed(train, spoil))
    worst = result.worst[0]
    assert (worst.record, worst.block, worst.position) == ("r1", 1, 17) and worst.standardised < 0.5 < result.worst[1].standardised
    assert worst.cosine > 0.9  # the plain one would not have found it
    series = next(s for s in result.series if (s.record, s.block) == ("r1", 1))
    assert series.positions == tuple(range(55)) and min(series.standardised) == series.standardised[17] == pytest.approx(worst.standardised)
    assert series.train_norm[0] > 10 * series.train_norm[1]  # the sink token is in the series, and only there


def test_series_are_short() -> None:
    """At most 400 points, the ends among them, and three records."""
    train = dump([record(f"r{i}", 1000, i) for i in range(5)])
    result = compare(train, train)
    assert {s.record for s in result.series} == {"r0", "r1", "r2"} and all(len(s.positions) == 400 for s in result.series)
    assert result.series[0].positions[0] == 0 and result.series[0].positions[-1] == 999


def test_a_comparison_is_plain_frozen_values() -> None:
    """No tensors inside; it goes to JSON as it is."""
    result = compare(healthy(), noisy(healthy()))
    assert isinstance(result, Comparison)
    json.dumps(plain(result), allow_nan=False)
    assert result.train.engine == "unknown" and result.live.engine == "sglang" and result.train.tokens == 128
    assert result == compare(healthy(), noisy(healthy()))


# -- alignment ---------------------------------------------------------------------------------------------------------------------


def test_records_are_found_by_their_ids_when_names_differ_or_lie() -> None:
    """Other names and another order on the live side; a name that belongs to other tokens is not believed."""
    train = healthy()
    renamed = [train[1], train[2], train[0]]
    live = dump([{"name": f"r{i}", "input_ids": r.input_ids, "features": r.features} for i, r in enumerate(renamed)], "live")
    result = compare(train, live)
    assert result.aligned_tokens == 128 and not result.unaligned and result.blocks[0].relative_error == 0


def test_a_name_is_not_believed_when_another_record_fits_better() -> None:
    """Two answers to one long prompt, whose names are swapped: the shared prompt does not tie them to the wrong record."""
    one, two = record("r0", 40, 0), record("r1", 40, 0)
    two["input_ids"] = torch.cat([two["input_ids"][:30], (two["input_ids"][30:] + 1) % 50])
    two["states"] = {b: torch.cat([s[:30], s[30:] * 3]) for b, s in two["states"].items()}
    result = compare(dump([one, two]), dump([two | {"name": "r0"}, one | {"name": "r1"}], "live"))
    assert result.aligned_tokens == 80 and not result.unaligned and {b.relative_error for b in result.blocks} == {0.0}


@pytest.mark.parametrize("shorter", ["live", "train"])
def test_the_common_prefix_is_compared(shorter: str) -> None:
    """The last tokens of an answer are never fed, and trainers cut long samples: neither is a difference."""
    whole, cut = dump([record("r0", 40, 0)]), record("r0", 40, 0)
    cut = {"name": "r0", "input_ids": cut["input_ids"][:31], "states": {b: s[:31] for b, s in cut["states"].items()}}
    sides = (whole, dump([cut])) if shorter == "live" else (dump([cut]), whole)
    result = compare(*sides)
    assert result.aligned_tokens == 31 and not result.unaligned and result.blocks[0].relative_error == 0


def test_an_answer_that_takes_another_turn_is_compared_up_to_there_and_named() -> None:
    """Half of the shorter record must be common; less is another sequence."""
    train, ids = healthy(), healthy()[0].input_ids
    for at, aligned in ((30, 30), (12, 0)):
        other = ids.clone()
        other[at:] = (other[at:] + 1) % 50
        live = dump(
            [
                {"name": "r0", "input_ids": other, "features": train[0].features},
                {"name": "r1", "input_ids": train[1].input_ids, "features": train[1].features},
            ],
            "live",
        )
        result = compare(train, live)
        assert result.aligned_tokens == aligned + 55 and len(result.unaligned) == 1
        assert result.unaligned[0].startswith("r0: ") and f"token {at}" in result.unaligned[0]


def test_rows_after_a_cached_prefix_are_placed_by_their_positions() -> None:
    """A server that found the prompt in its cache captures the tail only; no token of it is the sink."""
    train = healthy()
    live = dump(
        [
            {"name": f"x{i}", "input_ids": r.input_ids[9:], "features": r.features[9:], "positions": torch.arange(9, len(r.input_ids))}
            for i, r in enumerate(train)
        ],
        "live",
    )
    result = compare(train, live)
    assert result.aligned_tokens == 128 - 27 == result.blocks[0].tokens and result.blocks[0].relative_error == 0
    assert result.series[0].positions[0] == 9


def live_rows(*pieces: tuple[HiddenStates, int, slice], pad: int = 0) -> dict[str, Any]:
    """Ids and features of pieces of records, as a recorder may have written them in one; ``pad`` rows of token 0 at both ends."""
    ids = [torch.zeros(pad, dtype=torch.long), *(d[i].input_ids[s] for d, i, s in pieces), torch.zeros(pad, dtype=torch.long)]
    rows = [torch.zeros(pad, 3 * H), *(d[i].features[s] for d, i, s in pieces), torch.zeros(pad, 3 * H)]
    return {"name": "flat", "input_ids": torch.cat(ids), "features": torch.cat(rows)}


ALL = slice(None)


@pytest.mark.parametrize(
    ("pieces", "pad", "aligned", "said"),
    [
        ([(0, slice(15, None))], 0, 25, "begins at token 15"),  # a prefix found in the cache, without positions
        ([(0, slice(0, 12)), (0, slice(20, None))], 0, 32, "8 tokens are not in live, after token 11"),  # a chunk that was not recorded
        ([(0, ALL)], 5, 40, "rows 45 to 49 are in no train record"),  # padding on both sides
        ([(0, ALL), (2, ALL), (1, ALL)], 0, 128, ""),  # three requests in one batch
        ([(0, slice(10, None)), (1, slice(9, None))], 0, 76, "begins at token 9"),  # two of them behind cached prefixes
        ([(1, slice(0, 30)), (1, slice(30, None))], 0, 55, ""),  # two chunks, joined
    ],
)
def test_rows_are_found_whatever_the_recorder_left_out_or_joined(
    pieces: list[tuple[int, slice]], pad: int, aligned: int, said: str
) -> None:
    """Every aligned row is the right one (no difference), and what is missing or too much is said."""
    train = healthy()
    result = compare(train, dump([live_rows(*((train, i, s) for i, s in pieces), pad=pad)], "live"))
    assert result.aligned_tokens == aligned and not result.unaligned
    assert all(b.relative_error == 0 and b.cosine.p1 == pytest.approx(1, abs=1e-6) for b in result.blocks)
    assert any(said in line for line in result.absent) or not said


def test_chunks_of_a_prefill_are_records_of_their_standardised() -> None:
    """Each chunk with its positions is placed in the same train record."""
    train = healthy()
    r = train[1]
    chunks = [
        {"name": f"c{k}", "input_ids": r.input_ids[s], "features": r.features[s], "positions": torch.arange(55)[s]}
        for k, s in enumerate((slice(0, 20), slice(20, 40), slice(40, 55)))
    ]
    result = compare(train, dump(chunks, "live"))
    assert result.aligned_tokens == 55 and result.blocks[1].relative_error == 0 and not result.unaligned
    assert sum("no part of it is in live" in line for line in result.absent) == 2


def test_texts_that_part_and_meet_again_are_not_aligned_behind_the_turn() -> None:
    """The same words after another context have other states: nothing behind the turn is compared."""
    train = healthy()
    ids = train[1].input_ids.clone()
    ids[30:33] = (ids[30:33] + 1) % 50
    result = compare(train, dump([{"name": "r1", "input_ids": ids, "features": train[1].features * 5}], "live"))
    assert result.aligned_tokens == 30 and "parts from 'r1' at token 30" in result.unaligned[0]


def test_nothing_in_common_is_an_error_that_says_so() -> None:
    """What, where, what to do."""
    other = dump([record("r0", 40, 70)], "live")
    with pytest.raises(MismatchedInputs, match=r"no record of .* has the token ids") as raised:
        compare(healthy(), other)
    assert raised.value.where == "input_ids" and "same token ids" in str(raised.value.hint)


def test_targets_of_different_sizes_are_an_error() -> None:
    """Blocks of another hidden size cannot be compared."""
    small = TargetIdentity("small", "1" * 16, "float32", LAYERS, 10)
    live = HiddenStates.from_tensors(
        [{"name": "r0", "input_ids": healthy()[0].input_ids, "features": torch.randn(40, 30)}], side="live", target=small
    )
    with pytest.raises(MismatchedInputs, match="hidden size 24, live from one of 10"):
        compare(healthy(), live)


def test_records_of_different_widths_are_an_error() -> None:
    """One dump, one layout."""
    train = healthy()
    live = dump(
        [
            {"name": r.name, "input_ids": r.input_ids, "features": r.features if i else r.features[:, :H]}
            for i, r in enumerate(reversed(list(train)))
        ],
        "live",
    )
    with pytest.raises(MismatchedInputs, match="72 wide, but the first record's are 24"):
        compare(train, live)


# -- sources -----------------------------------------------------------------------------------------------------------------------


def test_paths_dumps_records_tensors_and_tapes_are_all_taken(tmp_path: Path) -> None:
    """Whatever the form, the numbers are the same."""
    train = healthy()
    with DumpWriter(tmp_path / "train", side="train", target=TARGET, engine="speculators", boundaries=AUX) as writer:
        for r in train:
            writer.add(name=r.name, input_ids=r.input_ids, states={b: r.state(b) for b in AUX}, final=r.final)
    live = noisy(train)

    class FinishedTape:
        dump = live

    expected = compare(train, live)
    for a, b in ((tmp_path / "train", live), (str(tmp_path / "train"), list(live)), (list(train), FinishedTape())):
        got = compare(a, b, hidden_size=H)  # type: ignore[arg-type]
        assert [x.cosine for x in got.blocks] == [x.cosine for x in expected.blocks]
    assert compare(tmp_path / "train", live).train.name == "train"
    one = compare(train[0], live[0], hidden_size=H)
    assert one.aligned_tokens == 40
    tensors = compare([r.features for r in train], [r.features for r in live], hidden_size=H)
    assert [x.cosine for x in tensors.blocks] == [x.cosine for x in expected.blocks]
    assert compare([r.features for r in train], live).aligned_tokens == 128


def test_plain_tensors_are_paired_row_by_row() -> None:
    """Without a hidden size, equal widths are the usual three states, and a narrower live side sets it."""
    x = torch.randn(30, 3 * H, generator=torch.Generator().manual_seed(0)).bfloat16()
    result = compare(x, x[:25])
    assert result.aligned_tokens == 25 and len(result.blocks) == 3 and "side by side" in result.assumed[0]
    assert compare(x[:, :-2], x[:, :-2]).hidden_size == 3 * H - 2, "which three do not divide"
    assert result.train.dtype == "bfloat16" and len(result.unaligned) == 1
    narrow = compare(x, x[:, H : 2 * H])
    assert narrow.hidden_size == H and max(narrow.single, key=lambda b: b.cosine.median).block == 1


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (torch.randn(4), BadArgument),
        (torch.ones(4, 4).long(), BadArgument),
        (torch.randn(0, 4), BadArgument),
        ([], BadArgument),
        (3, BadArgument),
        ([torch.randn(4, 4)] * 2, MismatchedInputs),
    ],
)
def test_wrong_sources_are_named(source: Any, error: type[Exception]) -> None:
    """The side and what was found are in the message."""
    with pytest.raises(error):
        compare(torch.randn(4, 4), source)
    with pytest.raises(BadArgument):
        compare(torch.randn(4, 4), torch.randn(4, 4), chunk_tokens=0)
    with pytest.raises(BadArgument):
        compare(torch.randn(4, 4), torch.randn(4, 4), hidden_size=-1)
