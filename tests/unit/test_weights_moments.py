"""One pass over a tensor, and the distribution of its entries: every number against numpy or scipy."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from starts import seeded

from eagle3diag.findings import plain
from eagle3diag.weights import measure
from eagle3diag.weights.entries import entries
from eagle3diag.weights.laws import nulls_for
from eagle3diag.weights.moments import moments, tiles


class TestMoments:
    @pytest.mark.parametrize(
        ("dtype", "small", "close"),
        [(torch.float32, 0, 1e-12), (torch.bfloat16, 0, 1e-6), (torch.float16, 0, 1e-6), (torch.bfloat16, 1 << 16, 1e-12)],
    )
    def test_they_equal_numpy_and_scipy_over_many_chunks(
        self, dtype: torch.dtype, small: int, close: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Sums over 40 small chunks are those of numpy and scipy over the whole: to 12 digits in float64, to six where float32 sums a row."""
        monkeypatch.setattr(sys.modules["eagle3diag.weights.moments"], "CHUNK", 300)
        monkeypatch.setattr(sys.modules["eagle3diag.weights.moments"], "_SMALL", small)
        w = (torch.randn(80, 150, generator=seeded(1)) * 0.02 + 0.003).to(dtype)
        w[7], w[:, 11] = 0, 0
        m, x = moments(w), w.double().numpy()
        assert m.mean == pytest.approx(x.mean(), abs=close * x.std())
        assert m.std == pytest.approx(x.std(), rel=close)
        assert m.abs_mean == pytest.approx(np.abs(x).mean(), rel=1e-12)
        assert m.kurtosis == pytest.approx(stats.kurtosis(x, axis=None, fisher=False), rel=1e-10)
        assert (m.max_abs, m.zeros) == (np.abs(x).max(), int((x == 0).sum()))
        assert [m.entries.beyond(bound) for bound in (0.02, 0.05)] == [int((np.abs(x) > 0.02).sum()), int((np.abs(x) > 0.05).sum())]
        assert m.row_norms is not None and m.column_norms is not None
        np.testing.assert_allclose(m.row_norms.numpy(), np.linalg.norm(x, axis=1), rtol=close)
        np.testing.assert_allclose(m.column_norms.numpy(), np.linalg.norm(x, axis=0), rtol=close)
        assert (m.zero_rows, m.zero_columns, m.nonfinite, m.constant) == (1, 1, 0, False)

    def test_a_mean_that_bf16_loses_is_a_number(self) -> None:
        """The seed case's second alarm: the mean in bf16 is far off or zero; summed as here it is the true one to nine decimals."""
        w = (torch.randn(512, 1536, generator=seeded(2)) * 0.004 + 2e-6).bfloat16()
        truth = float(w.double().numpy().mean())
        assert moments(w).mean == pytest.approx(truth, abs=1e-9)
        assert f"{moments(w).mean:.6f}" == f"{truth:.6f}"

    @pytest.mark.parametrize("many", [1 << 24, 1 << 12])
    def test_std_of_16_bit_entries_around_one_does_not_cancel(self, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """float16 at 1 +- 0.0005: mean square minus squared mean of float32 sums is 14 % off; the entries tell it, all of them or a sample."""
        monkeypatch.setattr(sys.modules["eagle3diag.weights.entries"], "MANY", many)
        monkeypatch.setattr(sys.modules["eagle3diag.weights.entries"], "SAMPLE", 1 << 16)
        w = (1 + 5e-4 * torch.randn(512, 1024, generator=seeded(4))).half()
        assert moments(w).std == pytest.approx(w.double().numpy().std(), rel=1e-9 if many > w.numel() else 0.02)

    def test_kurtosis_of_a_norm_weight_does_not_cancel(self) -> None:
        """Entries at 1 +- 1e-4 have the kurtosis that scipy finds, which raw fourth moments would lose."""
        w = 1 + 1e-4 * torch.randn(4096, generator=seeded(3), dtype=torch.float64)
        assert moments(w).kurtosis == pytest.approx(stats.kurtosis(w.numpy(), fisher=False), rel=1e-6)

    def test_non_finite_entries_are_counted_and_left_out(self) -> None:
        """NaN and infinities do not reach any moment or norm; a row of NaN is not a zero row."""
        w = torch.randn(6, 50, generator=seeded(4))
        clean = w.clone()
        w[0, 0], w[1, 1], w[5] = math.nan, math.inf, math.nan
        clean[0, 0] = clean[1, 1] = math.nan
        x = clean[:5][~clean[:5].isnan()].double().numpy()
        m = moments(w)
        assert (m.nonfinite, m.zero_rows, m.constant) == (52, 0, False)
        assert m.mean == pytest.approx(x.mean()) and m.std == pytest.approx(x.std())

    def test_a_large_tensor_is_sampled_by_rows_for_its_law_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Above the limit the law comes from evenly spaced rows; norms, counts, mean and std still from all entries."""
        w = torch.randn(400, 200, generator=seeded(41)).bfloat16()
        w[1, 3] = 40.0  # between two rows of the sample
        whole = moments(w)
        monkeypatch.setattr(sys.modules["eagle3diag.weights.entries"], "MANY", 10_000)
        monkeypatch.setattr(sys.modules["eagle3diag.weights.entries"], "SAMPLE", 20_000)
        m = moments(w)
        assert m.entries.size == 20_000 and whole.entries.size == 80_000
        assert m.std == pytest.approx(whole.std, rel=1e-6) and m.max_abs == whole.max_abs == 40.0
        assert m.kurtosis == pytest.approx(3, abs=0.15) and whole.kurtosis > 20

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    def test_counted_entries_give_the_statistics_of_the_entries(self, dtype: torch.dtype) -> None:
        """abs mean, kurtosis and counts beyond a bound equal numpy's; values that the bound itself rounds to are not beyond it."""
        w = (torch.rand(64, 96, generator=seeded(42)) * 2 - 1).to(dtype)
        e, x = entries(w), w.double().numpy()
        assert e.abs_mean == pytest.approx(np.abs(x).mean(), rel=1e-12)
        assert e.kurtosis == pytest.approx(stats.kurtosis(x, axis=None, fisher=False), rel=1e-10)
        bound = float(np.abs(x).max())
        assert e.beyond(bound) == 0 and e.beyond(0.5) == int((np.abs(x) > 0.5).sum()) and e.beyond(0.0) == int((x != 0).sum())

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_the_gap_between_laws_is_kolmogorovs(self, dtype: torch.dtype) -> None:
        """The largest gap from the true law is scipy's for float32, and within chance for bfloat16 too, where scipy's would see the rounding."""
        w = (torch.randn(300, 400, generator=seeded(43)) * 0.02).to(dtype)
        right, wrong = nulls_for((300, 400))[1], nulls_for((300, 400))[0]
        e = entries(w)
        if dtype is torch.float32:
            for null, law in ((right, stats.norm(0, 0.02)), (wrong, stats.uniform(-(400**-0.5), 2 * 400**-0.5))):
                assert e.gap(null) == pytest.approx(stats.kstest(w.numpy().ravel(), law.cdf).statistic, abs=4e-4)
        assert (e.gap(right) or 1) * math.sqrt(w.numel()) < 2 and (e.gap(wrong) or 0) > 0.1

    def test_tiles_show_where_a_matrix_is_strong(self) -> None:
        """Each tile is the root mean square of its part over that of the whole, as numpy has it; their squares average to one."""
        w = torch.randn(120, 240, generator=seeded(44))
        w[40:60, 100:120] *= 5
        grid = np.array(tiles(moments(w)))
        x = w.double().numpy().reshape(6, 20, 12, 20)
        np.testing.assert_allclose(grid, np.sqrt((x**2).mean((1, 3)) / (x**2).mean()), rtol=1e-6)
        assert grid.argmax() == 2 * 12 + 5 and (grid**2).mean() == pytest.approx(1)

    @pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (), (3,), (2, 3, 4), (1, 1)])
    def test_any_shape_is_measured(self, shape: tuple[int, ...]) -> None:
        """Empty, scalar and many-dimensional tensors give a result, with every field JSON-ready."""
        t = measure("odd", torch.ones(shape))
        assert t.size == math.prod(shape) and t.constant == (t.size > 1)
        json.dumps(plain(t), allow_nan=False)

    def test_float8_codes_are_not_compared_with_initialisations(self) -> None:
        """A float8 tensor holds codes in units of a scale: measured, but only constants are tested, and the note says so."""
        t = measure("q", torch.randn(32, 64, generator=seeded(5)).to(torch.float8_e4m3fn))
        assert {n.name for n in t.nulls} == {"zeros", "ones"} and "scale" in t.note
