"""The finer numbers of a comparison against independent references: rounding, CKA, Gram matrices, origins, places; and one dump alone."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from builders import IDENTITY, TARGET_CONFIG
from small import H as SMALL_H
from small import V
from test_compare import LAYERS, H, dump, healthy, noisy, record, stream

from eagle3diag import BadArgument, MismatchedInputs, check_dump, compare
from eagle3diag.checkpoints import Target
from eagle3diag.compare import rounding
from eagle3diag.compare.hypotheses import fit
from eagle3diag.compare.identity import gram_numbers
from eagle3diag.compare.metrics import ChannelMoments
from eagle3diag.compare.rows import Scale, compare_rows
from eagle3diag.dumps import HiddenStates
from eagle3diag.findings import Severity

# -- rounding ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", sorted(rounding.SIGNIFICANT_BITS))
def test_one_rounding_is_one_step(dtype: str) -> None:
    """Values spread over octaves, rounded once by torch: the error is that of one step, by the formula."""
    g = torch.Generator().manual_seed(0)
    x = torch.exp2(torch.rand(40, 2000, generator=g, dtype=torch.float64) * 6 - 3) * torch.randn(40, 2000, generator=g).sign()
    error = x.to(getattr(torch, dtype)).double() - x
    assert float((error / x).square().mean().sqrt()) == pytest.approx(rounding.unit(dtype), rel=0.03)


def test_steps_of_a_comparison_count_roundings() -> None:
    """Through bf16 once: one step of bf16, 64 of fp16, a fraction of fp8. Massive channels and offsets leave the order of magnitude."""
    g = torch.Generator().manual_seed(0)
    x = torch.exp2(torch.rand(600, 64, generator=g) * 4 - 2) * torch.randn(600, 64, generator=g).sign()
    steps = dict(compare(x, x.bfloat16(), hidden_size=64).blocks[0].rounding)
    assert steps["bfloat16"] == pytest.approx(1, rel=0.2)
    assert steps["float16"] == pytest.approx(64 * steps["bfloat16"]) and steps["float8_e4m3fn"] < 0.01
    x[:, 3] *= 1000
    x[:, 7] += 500 + 40 * torch.rand(600, generator=g)
    assert 0.3 < dict(compare(x, x.bfloat16(), hidden_size=64).blocks[0].rounding)["bfloat16"] < 3
    same = compare(x, x.clone(), hidden_size=64)
    assert dict(same.blocks[0].rounding)["bfloat16"] == 0 and same.blocks[0].sqnr == float("inf")
    assert [f.fault for f in same.findings] == ["D2"]  # no engine rounds like that


# -- rows --------------------------------------------------------------------------------------------------------------------------


def test_the_fused_rows_equal_the_definitions() -> None:
    """Every column against numpy in float64, on rows with an offset, tiny and huge ones among them."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 3, 32, generator=g) + 5, torch.randn(50, 3, 32, generator=g) + 5
    y[10:20] = x[10:20] * 1.001
    x[3], y[3] = x[3] * 1e20, y[3] * 1e20
    moments = [ChannelMoments(32) for _ in range(3)]
    for i, one in enumerate(moments):
        one.update(x[4:, i])
    got = compare_rows(lambda part, _: (x[part], y[part]), 50, 16, Scale.of(moments))
    a, b = x.double().numpy(), y.double().numpy()
    mean, std = np.stack([m.mean.numpy() for m in moments]), np.stack([m.std.numpy() for m in moments])

    def cosine(p: Any, q: Any) -> Any:
        return (p * q).sum(-1) / np.sqrt((p * p).sum(-1) * (q * q).sum(-1))

    expected = {
        "cosine": cosine(a, b),
        "centred": cosine(a - mean, b - mean),
        "standardised": cosine((a - mean) / std, (b - mean) / std),
        "train_norm": np.sqrt((a * a).sum(-1)),
        "relative_error": np.sqrt(((b - a) ** 2).sum(-1) / (a * a).sum(-1)),
        "error": np.sqrt((((b - a) / std) ** 2).mean(-1)),
        "largest": np.abs(b - a).max(-1),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(got, name).numpy(), values, rtol=2e-5, atol=2e-6, err_msg=name)


def test_the_largest_difference_has_its_place() -> None:
    """Record, position, channel and both values; the sink token's does not count."""
    train = healthy()

    def spoil(f: torch.Tensor) -> torch.Tensor:
        if len(f) == 55:
            f[17, H + 5] += 9000
        f[0] += 1e6
        return f

    live = dump([{"name": r.name, "input_ids": r.input_ids, "features": spoil(r.features.clone())} for r in train], "live")
    found = compare(train, live).blocks[1].largest
    assert found is not None and (found.record, found.position, found.channel) == ("r1", 17, 5)
    assert found.live - found.train == pytest.approx(9000) and found.train == pytest.approx(float(train[1].state(4)[17, 5]))
    assert compare(train, live).blocks[0].largest is None


def test_repeated_rows_are_counted_where_train_has_none() -> None:
    """Bit for bit, whatever the chunk; rows that repeat on both sides are no finding."""
    train = healthy()

    def repeat(f: torch.Tensor) -> torch.Tensor:
        f[10:14, :H] = f[9, :H]
        return f

    live = dump([{"name": r.name, "input_ids": r.input_ids, "features": repeat(r.features.clone())} for r in train], "live")
    for chunk in (None, 3, 11):
        assert [b.duplicate_rows for b in compare(train, live, chunk_tokens=chunk).blocks] == [12, 0, 0]
    assert [b.duplicate_rows for b in compare(live, live).blocks] == [0, 0, 0]


def test_the_trend_is_told_by_octaves() -> None:
    """Noise from token 32 on shows in the octaves from there."""
    train = healthy()

    def late(f: torch.Tensor) -> torch.Tensor:
        f[32:] += torch.randn(f[32:].shape, generator=torch.Generator().manual_seed(1))
        return f

    live = dump([{"name": r.name, "input_ids": r.input_ids, "features": late(r.features.clone())} for r in train], "live")
    trend = compare(train, live).blocks[0].trend
    assert [o.first for o in trend] == [1, 2, 4, 8, 16, 32] and sum(o.tokens for o in trend) == 125
    assert all(o.standardised > 0.999 for o in trend[:5]) and trend[5].standardised < 0.95


# -- identity ----------------------------------------------------------------------------------------------------------------------


def test_cka_is_the_unbiased_estimator() -> None:
    """Against the formula with explicit matrices; 1 under rotation and scale, near 0 for unrelated states with more channels than tokens."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 16, generator=g), torch.randn(40, 16, generator=g)
    y = y + x

    def hsic(k: Any, ell: Any) -> float:
        n = len(k)
        k, ell = k - np.diag(np.diag(k)), ell - np.diag(np.diag(ell))
        one = np.ones(n)
        total = np.trace(k @ ell) + (one @ k @ one) * (one @ ell @ one) / ((n - 1) * (n - 2)) - 2 * (one @ k @ ell @ one) / (n - 2)
        return float(total / (n * (n - 3)))

    k, ell = (z.double().numpy() @ z.double().numpy().T for z in (x - x.mean(0), y - y.mean(0)))
    assert gram_numbers(x, y)[0] == pytest.approx(hsic(k, ell) / np.sqrt(hsic(k, k) * hsic(ell, ell)), abs=1e-5)
    q = torch.linalg.qr(torch.randn(16, 16, generator=g))[0]
    turned = gram_numbers(x, x @ q)
    assert turned == pytest.approx((1, 0), abs=1e-4) and gram_numbers(x, 3 * x @ q)[0] == pytest.approx(1, abs=1e-5)
    wide = [torch.randn(64, 2000, generator=g) for _ in range(2)]
    assert abs(gram_numbers(*wide)[0]) < 0.1


def test_fit_is_the_share_of_variance() -> None:
    """1 for itself, 0 for the mean, below 0 for worse; a few massive channels do not decide."""
    g = torch.Generator().manual_seed(0)
    y = torch.randn(200, 32, generator=g)
    assert fit(y, y) == 1 and fit(y.mean(0).expand_as(y), y) == pytest.approx(0, abs=1e-6) and fit(-y, y) < -2
    wrong = y.clone()
    wrong[:, :3] += 1e4
    assert fit(wrong, y) == 1


def test_origins_name_what_a_block_is() -> None:
    """With all boundaries at hand: another boundary, a branch, a share of a block's output, another token, a factor."""
    lengths = (60, 75)
    rows = [record(f"r{i}", n, i, tuple(range(LAYERS + 1))) for i, n in enumerate(lengths)]
    reference = dump(rows, "reference", ())
    train = dump([record(f"r{i}", n, i) for i, n in enumerate(lengths)])

    def live(change: Any) -> HiddenStates:
        return dump(
            [
                {"name": r["name"], "input_ids": r["input_ids"], "features": change(stream(n, i))}
                for i, (r, n) in enumerate(zip(rows, lengths, strict=True))
            ],
            "live",
        )

    cases: dict[str, tuple[Any, tuple[str, int, int]]] = {
        "boundary 3": (lambda s: s[3], ("as it is", 3, 0)),
        "half": (lambda s: s[2] * 0.5, ("scaled", 2, 0)),
        "branch": (lambda s: s[2] - s[1], ("branch", 2, 0)),
        "no embedding": (lambda s: s[2] - s[0], ("less embedding", 2, 0)),
        "share": (lambda s: s[1] + 0.6 * (s[2] - s[1]), ("partial sum", 2, 0)),
        "next token": (lambda s: s[2].roll(-1, 0), ("as it is", 2, 1)),
    }
    for name, (change, expected) in cases.items():
        result = compare(train, live(lambda s, change=change: torch.cat([change(s), s[4], s[6]], -1)), reference=reference)
        best = result.origins[0].best
        assert (best.kind, best.source, best.shift) == expected, name
        assert best.fit > 0.9 and result.origins[1].margin == 0 and result.origins[1].best == result.origins[1].declared
    assert compare(train, noisy(train)).origins[0].best.kind == "as it is"


def test_rows_from_elsewhere_are_found() -> None:
    """Rows of two sequences that changed places: where each of them belongs."""
    train = healthy()
    features = [r.features.clone() for r in train]
    features[0][10:14], features[1][10:14] = train[1].features[10:14], train[0].features[10:14]
    live = dump([{"name": r.name, "input_ids": r.input_ids, "features": f} for r, f in zip(train, features, strict=True)], "live")
    found = {(d.record, d.position): (d.best_record, d.best_position, d.best_cosine) for d in compare(train, live).displaced[:8]}
    assert len(found) == 8
    for (name, position), (other, there, cosine) in found.items():
        assert {name, other} == {"r0", "r1"} and position == there and 10 <= there < 14 and cosine > 0.99


def test_many_tokens_keep_memory_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what is kept, quantiles come from evenly spread tokens; counts and the largest difference from all."""
    train = healthy((300, 250))
    live = noisy(train, 0.2)
    whole = compare(train, live).blocks[0]
    monkeypatch.setattr(sys.modules["eagle3diag.compare.measure"], "KEPT_TOKENS", 200)
    few = compare(train, live).blocks[0]
    assert few.tokens == whole.tokens == 548 and few.largest == whole.largest
    assert few.standardised.median == pytest.approx(whole.standardised.median, abs=0.1)


# -- one dump alone ----------------------------------------------------------------------------------------------------------------


def knowing(seed: int = 0) -> Target:
    """A target whose head row v is the direction of token v."""
    g = torch.Generator().manual_seed(seed)
    head = torch.nn.functional.normalize(torch.randn(V, SMALL_H, generator=g), dim=-1)
    gain = (torch.rand(SMALL_H, generator=g) + 0.5) * torch.randn(SMALL_H, generator=g).sign()
    tensors = {"model.embed_tokens.weight": head, "lm_head.weight": head, "model.norm.weight": gain}
    return Target("knowing", TARGET_CONFIG, tensors)


def predicting(target: Target, shift: int = 1, normed: bool = True, part: str = "final", **more: Any) -> list[dict[str, Any]]:
    """Records whose last states give the token at ``shift`` through the head, which the norm's gain turns into other directions."""
    made = []
    gain = target.final_norm()
    for i in range(4):
        g = torch.Generator().manual_seed(i)
        ids = torch.randint(0, V, (40,), generator=g)
        final = target.head()[ids.roll(-shift)] * 6 + 0.05 * torch.randn(40, SMALL_H, generator=g)
        final = final / final.square().mean(-1, keepdim=True).sqrt()
        rows = final if normed else final / gain * (20 + 10 * torch.rand(40, 1, generator=g))
        states = {b: torch.randn(40, SMALL_H, generator=g) for b in (2, 3)}
        made.append({"name": f"r{i}", "input_ids": ids, "states": states, part: rows} | more)
    return made


def alone(records: list[dict[str, Any]]) -> HiddenStates:
    return HiddenStates.from_tensors(records, side="train", target=IDENTITY, boundaries=(2, 3))


def serious(result: Any) -> list[str]:
    return [f.fault for f in result.findings if f.severity > Severity.NOTE]


def test_a_sound_dump_is_silent() -> None:
    """Normed as it says, un-normed as it says, and without a target."""
    target = knowing()
    normed = check_dump(alone(predicting(target)), target=target)
    raw = check_dump(alone(predicting(target, normed=False, part="last")), target=target)
    for result, form in ((normed, "as it is"), (raw, "after the norm")):
        assert serious(result) == [] and result.declared is not None
        assert (result.declared.form, result.declared.shift) == (form, 1) and result.declared.agreement > 0.95
        assert result.records == 4 and result.tokens == 160 and "check" in str(result)
    assert check_dump(alone(predicting(target))).readings == ()
    assert check_dump(alone(predicting(target)), sample=2).records == 2


def exchanged(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each record with the last states of the next one."""
    return [a | {"final": b["final"]} for a, b in zip(records, records[1:] + records[:1], strict=True)]


@pytest.mark.parametrize(
    ("records", "fault", "word"),
    [
        (lambda t: predicting(t, normed=False), "H8", "not normed"),
        (lambda t: predicting(t, part="last"), "H8", "normed already"),
        (lambda t: predicting(t, shift=0), "H6", "at +0"),
        (lambda t: predicting(t, shift=2), "H6", "at +2"),
        (lambda t: predicting(knowing(9)), "D0", "do not predict"),
        (lambda t: exchanged(predicting(t)), "FM-39", "other requests"),
    ],
)
def test_last_states_that_say_something_else(records: Any, fault: str, word: str) -> None:
    """Read the wrong way, shifted, of another target, of another request: each is said."""
    target = knowing()
    result = check_dump(alone(records(target)), target=target)
    assert serious(result) == [fault] and word in result.findings[0].title


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda r: r["states"][2][5:8].zero_(), "H2"),
        (lambda r: r["states"][3][5].fill_(float("nan")), "H2"),
        (lambda r: r["states"][3][5:9].copy_(r["states"][3][4].clone()), "H2"),
        (lambda r: r["states"].update({2: r["states"][3]}), "FM-36"),
        (lambda r: [s.zero_() for s in r["states"].values()], "H2"),
    ],
)
def test_rows_that_are_broken(spoil: Any, fault: str) -> None:
    """Zero, NaN, repeated, one buffer for two: found without anything to compare with."""
    records = predicting(knowing())
    for r in records:
        spoil(r)
    assert fault in serious(check_dump(alone(records)))


def test_another_targets_width_is_an_error() -> None:
    """Last states that the target's head cannot take."""
    target = knowing()
    wide = [{"name": "a", "input_ids": [1, 2, 3], "final": torch.zeros(3, 7)}]
    with pytest.raises(MismatchedInputs, match="7 wide"):
        check_dump(HiddenStates.from_tensors(wide, side="train", target=IDENTITY), target=target)
    with pytest.raises(BadArgument):
        check_dump(alone(predicting(target)), sample=0)
