"""Singular values and what they say: against numpy, against theory, and planted signals found or honestly not."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special
from starts import low_rank, seeded, start
from torch import Tensor

from eagle3diag.weights import Spectrum, measure, noise_band
from eagle3diag.weights.moments import moments
from eagle3diag.weights.spectrum import TRACY_WIDOM_999, fit_bulk, misfit, spectrum, tail
from eagle3diag.weights.values import from_gram, gram, krylov, leading, wide


def spectrum_of(w: Tensor, exact: bool = True) -> Spectrum:
    m = moments(w)
    found = from_gram(gram(wide(w))) if exact else krylov(wide(w)).values
    return spectrum(found, w.shape[0], w.shape[1], m.std, m.square)


class TestSpectrum:
    @pytest.mark.parametrize("shape", [(40, 130), (130, 40), (64, 64), (2, 300)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_values_and_ranks_equal_numpys(self, shape: tuple[int, int], dtype: torch.dtype) -> None:
        """All singular values through the Gram matrix are numpy's; so are the ranks made of them."""
        w = torch.randn(*shape, generator=seeded(6)).to(dtype)
        truth = np.linalg.svd(w.double().numpy(), compute_uv=False)
        found = from_gram(gram(wide(w)))
        np.testing.assert_allclose(found.values.numpy(), truth, rtol=1e-9, atol=1e-7 * truth[0])
        s, p = spectrum_of(w), truth / truth.sum()
        assert s.stable_rank == pytest.approx((truth**2).sum() / truth[0] ** 2, rel=1e-9)
        assert s.effective_rank == pytest.approx(math.exp(-(p * np.log(p)).sum()), rel=1e-9)

    def test_the_noise_band_is_marchenko_pasturs_and_holds_noise(self) -> None:
        """The band of the seed case is 0.250 to 0.934, and a drawn matrix fills its own band to within 2 %."""
        assert [round(x, 3) for x in noise_band(7168, 21504, 0.004037)[:2]] == [0.25, 0.934]
        values = from_gram(gram(torch.randn(300, 900, generator=seeded(7)))).values
        low, high, edge = noise_band(300, 900, 1.0)
        assert float(values[0]) == pytest.approx(high, rel=0.02) and float(values[-1]) == pytest.approx(low, rel=0.02)
        assert float(values[0]) < edge

    def test_the_tracy_widom_quantile_solves_painleve(self) -> None:
        """Integrating the Hastings-McLeod solution of Painleve II gives F1(3.2724) = 0.999."""
        q0, slope = special.airy(8.0)[:2]

        def slopes(s: float, y: np.ndarray) -> list[float]:
            q, p, _, _, k = y
            return [p, s * q + 2 * q**3, -k, -q, -q * q]

        end = integrate.solve_ivp(slopes, [8.0, TRACY_WIDOM_999], [q0, slope, 0, 0, 0], rtol=1e-11, atol=1e-15).y[:, -1]
        assert math.exp(-end[3] / 2) * math.sqrt(math.exp(-end[2])) == pytest.approx(0.999, abs=2e-6)

    def test_the_edge_is_exceeded_about_once_in_a_thousand(self) -> None:
        """Johnstone's scaling with the 0.999 quantile: of 1500 noise matrices [24, 72], at most 5 exceed it (expected 1.5)."""
        w = torch.randn(1500, 24, 72, generator=seeded(8), dtype=torch.float64)
        top = torch.linalg.matrix_norm(w, ord=2)
        assert int((top > noise_band(24, 72, 1.0)[2]).sum()) <= 5
        assert int((top > noise_band(24, 72, 1.0)[1]).sum()) > 30  # the plain edge would raise alarms all the time

    @pytest.mark.parametrize("ratio", [0.05, 1 / 3, 0.8, 1.0])
    def test_the_bulk_fit_has_the_laws_own_transform(self, ratio: float) -> None:
        """scipy's quadrature of the Marchenko-Pastur density gives the mean of 1 / (1 + x) that the fit aims at, and its quantiles lie where the
        fitted distribution says."""
        low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2

        def density(x: float) -> float:
            return math.sqrt(max(0.0, (high - x) * (x - low))) / (2 * math.pi * ratio * x)

        goal = (math.sqrt(4 + ratio * ratio) - 2 + ratio) / (2 * ratio)
        assert integrate.quad(lambda x: density(x) / (1 + x), low, high, limit=200)[0] == pytest.approx(goal, abs=1e-5)
        places = low + (high - low) * np.linspace(0, 1, 80) ** 2  # closer where the density of a square matrix has its pole
        below = [integrate.quad(density, low, x, limit=200)[0] for x in places[1:-1]]
        squares = np.interp((np.arange(500) + 0.5) / 500, [0, *below, 1], places)
        values = torch.tensor(np.sqrt(squares)).flip(0)
        assert misfit(values, ratio, 1.0, 1) < 0.02 < misfit(values * 1.1, ratio, 1.0, 1)

    def test_the_bulk_keeps_the_starts_std_under_a_signal(self) -> None:
        """A rank-6 signal of 40 % of the energy moves the std by 18 %, the bulk std by less than 1 %; exactly those six stand outside."""
        g = seeded(9)
        w = low_rank(torch.randn(200, 600, generator=g), 6, 0.4, g)
        assert moments(w).std == pytest.approx(1.183, abs=0.01)
        for s in (spectrum_of(w), spectrum_of(w, exact=False)):
            assert s.bulk_std == pytest.approx(1.0, abs=0.01) and s.outside == s.bulk_outside == 6
            assert 0.4 / 1.4 < s.bulk_outside_energy < 0.4 / 1.4 + 0.04  # signal, and some noise along it
        assert (spectrum_of(w).bulk_misfit or 1) < 0.02

    def test_the_tail_exponent_is_the_one_that_was_drawn(self) -> None:
        """400 squares from a density x^-3 above the edge: the exponent comes back within three of its standard errors."""
        u = torch.rand(400, generator=seeded(45), dtype=torch.float64)
        exponent = tail((u ** (-1 / 2)).sqrt() * 1.7, 1.7)
        assert exponent == pytest.approx(3, abs=3 * 2 / 20)
        assert tail(torch.ones(9) * 2, 1.0) is None

    def test_top_values_are_lower_bounds_and_find_the_same_outliers(self) -> None:
        """The Krylov values never exceed the true ones (float32 rounding apart), and count the same values above the edge."""
        g = seeded(10)
        for matrix in (low_rank(torch.randn(300, 700, generator=g), 5, 0.15, g), torch.randn(700, 300, generator=g)):
            w = matrix.bfloat16()
            full, found = from_gram(gram(wide(w))).values, krylov(wide(w), 16, 8).values
            assert bool((found.values <= full[: len(found.values)] * (1 + 1e-5)).all())
            exact, quick = spectrum_of(w), spectrum_of(w, exact=False)
            assert quick.outside == exact.outside and quick.stable_rank == pytest.approx(exact.stable_rank, rel=1e-3)
            assert not quick.exact and "lower bounds" in quick.method

    def test_a_krylov_space_is_as_good_as_it_says_on_noise(self) -> None:
        """Noise [768, 2304], where no value stands apart: the 24 largest to 1e-3, errors not understated, effective rank within 1 %, bulk std
        within 0.5 %. (At [7168, 21504] with the widths in use: benchmarks/weights_krylov.py.)"""
        w = torch.randn(768, 2304, generator=seeded(46))
        truth = from_gram(gram(w)).values
        found = krylov(w, 24, 16).values
        assert float((1 - found.values[:24] / truth[:24]).abs().max()) < 1e-3
        assert bool((truth[:24] - found.values[:24] <= 3 * found.errors[:24]).all())
        s = spectrum(found, 768, 2304, 1.0, float(truth.square().sum()))
        p = truth / truth.sum()
        assert s.effective_rank == pytest.approx(float(torch.exp(-(p * p.log()).sum())), rel=0.01)
        assert s.bulk_std == pytest.approx(1.0, rel=5e-3) and s.bulk_outside == 0

    def test_a_space_that_is_exhausted_gives_no_ghosts(self) -> None:
        """Rank 3 in 200 x 300: three values as numpy has them, the rest nothing, and no value above the largest."""
        g = seeded(47)
        w = torch.randn(200, 3, generator=g) @ torch.randn(3, 300, generator=g)
        truth = np.linalg.svd(w.numpy(), compute_uv=False)
        found = krylov(w, 16, 6).values.values.numpy()
        np.testing.assert_allclose(found[:3], truth[:3], rtol=1e-5)
        assert found[3:].max() < 2e-3 * truth[0]

    @pytest.mark.parametrize("shape", [(120, 300), (300, 120)])
    def test_leading_directions_are_numpys(self, shape: tuple[int, int]) -> None:
        """Both sides of the five planted directions, up to sign."""
        g = seeded(48)
        w = low_rank(torch.randn(*shape, generator=g), 5, 3.0, g)
        left, values, right = leading(w, 5)
        u, s, v = np.linalg.svd(w.numpy(), full_matrices=False)
        np.testing.assert_allclose(values.numpy(), s[:5], rtol=1e-4)
        np.testing.assert_allclose(np.abs((left.numpy() * u[:, :5]).sum(0)), 1, atol=1e-3)
        np.testing.assert_allclose(np.abs((right.numpy() * v[:5].T).sum(0)), 1, atol=1e-3)

    def test_large_matrices_are_summed_in_float32_and_say_what_that_costs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A spectrum over three decades: 1e-4 above a tenth of the largest value, 1e-3 above 0.03, and what is worse is marked."""
        monkeypatch.setattr(sys.modules["eagle3diag.weights.values"], "DOUBLE_FLOPS", 0.0)
        g = seeded(49)
        q, r = (torch.linalg.qr(torch.randn(k, 256, generator=g, dtype=torch.float64)).Q for k in (256, 700))
        planted = torch.logspace(0, -3, 256, dtype=torch.float64)
        w = ((q * planted) @ r.T).float()
        truth = torch.linalg.svdvals(w.double())
        found = from_gram(gram(w))
        off = (found.values / truth - 1).abs()
        assert float(off[truth > 0.1].max()) < 1e-4 and float(off[truth > 0.03].max()) < 1e-3
        assert bool(((found.values - truth).abs() <= found.errors).all())
        s = spectrum(found, 256, 700, moments(w).std, float(w.double().square().sum()))
        assert 0.02 < s.accurate_above < 0.031

    def test_long_spectra_are_thinned_but_keep_their_top(self) -> None:
        """Of 900 values 600 are kept, the 200 largest among them."""
        values = torch.linspace(3, 1, 900)
        s = spectrum_of(torch.diag(values))
        assert len(s.singular_values) == 600 and s.count == 900
        np.testing.assert_allclose(s.singular_values[:200], values[:200].numpy(), rtol=1e-6)


SHAPES = st.tuples(st.integers(20, 90), st.integers(20, 90))


class TestInvariance:
    """What must not change when a matrix is turned, scaled or shuffled by rows; on random matrices with and without a signal."""

    @staticmethod
    def drawn(shape: tuple[int, int], seed: int) -> Tensor:
        g = seeded(seed)
        w = torch.randn(*shape, generator=g, dtype=torch.float64)
        return low_rank(w.float(), 1 + seed % 3, 0.3, g).double() if seed % 2 else w

    @staticmethod
    def close(a: Spectrum, b: Spectrum, scale: float = 1.0) -> None:
        one, other = np.square(np.array(a.singular_values) * scale), np.square(b.singular_values)
        np.testing.assert_allclose(
            one, other, rtol=2e-7, atol=1e-13 * other[0]
        )  # eigenvalues of a Gram matrix: known to a part of the largest
        for field in ("outside", "bulk_outside", "count"):
            assert getattr(a, field) == getattr(b, field)
        for field in ("outside_energy", "highest_over_edge", "stable_rank", "effective_rank", "tracy_widom", "bulk_misfit"):
            assert getattr(a, field) == pytest.approx(getattr(b, field), rel=1e-6, abs=1e-9)
        assert a.bulk_std * scale == pytest.approx(b.bulk_std, rel=1e-6)

    @settings(max_examples=15)
    @given(SHAPES, st.integers(0, 10_000))
    def test_of_the_transpose(self, shape: tuple[int, int], seed: int) -> None:
        """A matrix and its transpose have one spectrum, and swap their row and column structure."""
        w = self.drawn(shape, seed)
        self.close(spectrum_of(w), spectrum_of(w.T))
        a, b = measure("w", w, spectra="none").structure, measure("w", w.T.contiguous(), spectra="none").structure
        assert a is not None and b is not None
        assert (a.z_row, a.z_column, a.top_row) == pytest.approx((b.z_column, b.z_row, b.top_column), rel=1e-6)

    @settings(max_examples=15)
    @given(SHAPES, st.integers(0, 10_000), st.floats(1e-4, 1e4))
    def test_of_the_scale(self, shape: tuple[int, int], seed: int, scale: float) -> None:
        """Multiplying by a number multiplies the values and changes no ratio, count or z."""
        w = self.drawn(shape, seed)
        self.close(spectrum_of(w), spectrum_of(w * scale), scale)
        a, b = measure("w", w, spectra="none").structure, measure("w", w * scale, spectra="none").structure
        assert a is not None and b is not None and (a.z_row, a.z_column) == pytest.approx((b.z_row, b.z_column), rel=1e-6)

    @settings(max_examples=15)
    @given(SHAPES, st.integers(0, 10_000))
    def test_of_the_order_of_the_rows(self, shape: tuple[int, int], seed: int) -> None:
        """Shuffled rows leave the spectrum, the structure and the law as they are."""
        w = self.drawn(shape, seed)
        shuffled = w[torch.randperm(shape[0], generator=seeded(seed + 1))]
        self.close(spectrum_of(w), spectrum_of(shuffled))
        a, b = measure("w", w, spectra="none"), measure("w", shuffled, spectra="none")
        assert a.structure is not None and b.structure is not None
        assert (a.structure.z_row, a.structure.z_column) == pytest.approx((b.structure.z_row, b.structure.z_column), rel=1e-6)
        assert (a.std, a.kurtosis, a.abs_mean) == pytest.approx((b.std, b.kurtosis, b.abs_mean), rel=1e-9)

    @settings(max_examples=15)
    @given(st.integers(30, 60), st.integers(0, 1000))
    def test_planted_spectra_come_back(self, m: int, seed: int) -> None:
        """Any descending values between random orthogonal sides are recovered."""
        g = seeded(seed)
        planted = torch.rand(m, generator=g, dtype=torch.float64).sort(descending=True).values + 0.01
        left, right = (torch.linalg.qr(torch.randn(k, m, generator=g, dtype=torch.float64)).Q for k in (m, 2 * m))
        np.testing.assert_allclose(spectrum_of((left * planted) @ right.T).singular_values, planted, rtol=1e-7)


class TestDetection:
    """A planted direction is found above the stated limit, and honestly not below it."""

    @pytest.mark.parametrize("shape", [(128, 384), (256, 256)])
    def test_a_direction_shows_above_the_limit_only(self, shape: tuple[int, int]) -> None:
        """At twice the stated energy the largest value leaves the band in all of 6 matrices, at half of it in none."""
        limit = 1 / math.sqrt(shape[0] * shape[1])
        for factor, expected in ((3.0, True), (0.4, False)):
            for seed in range(6):
                g = seeded(700 + seed)
                w = torch.randn(*shape, generator=g)
                signal = torch.outer(*(torch.randn(k, generator=g) for k in shape))
                w += signal * math.sqrt(factor * limit) * float(w.norm() / signal.norm())
                s = spectrum_of(w)
                assert s.visible_energy == pytest.approx(limit) and (s.tracy_widom > 5) is expected, (factor, seed, s.tracy_widom)

    @pytest.mark.parametrize("rank", [1, 4, 16])
    def test_as_many_as_were_planted_are_counted(self, rank: int) -> None:
        """Rank-r signals with ten times the limit each: r values outside the bulk, whose energy is theirs and a little noise."""
        g = seeded(50 + rank)
        limit = 1 / math.sqrt(256 * 768)
        w = low_rank(start("normal_0.02", (256, 768), g), rank, 10 * rank * limit, g)
        s = spectrum_of(w)
        assert s.bulk_outside == rank and s.bulk_std == pytest.approx(0.02, rel=0.01)
        share = 10 * rank * limit / (1 + 10 * rank * limit)
        assert share < s.bulk_outside_energy < 1.6 * share

    def test_pure_noise_fits_its_bulk(self) -> None:
        """The fitted std is the entries' own within 0.5 %, nothing is left outside, and the misfit is that of a rigid spectrum, about 1 / m."""
        for law in ("uniform_fan_in", "normal_0.02"):
            w = start(law, (300, 500), seeded(51))
            s = spectrum_of(w)
            assert s.bulk_std == pytest.approx(float(w.std()), rel=5e-3) and s.bulk_outside == 0
            assert (s.bulk_misfit or 1) < 3 / 300

    def test_the_fit_does_not_need_the_whole_spectrum(self) -> None:
        """A quadrature of 100 nodes with unequal shares gives the std that all 400 values give, to 1 %."""
        w = torch.randn(400, 900, generator=seeded(52))
        exact = from_gram(gram(w))
        few = krylov(w, 20, 5).values
        assert len(few.values) == 100
        assert fit_bulk(few, 400, 900).std == pytest.approx(fit_bulk(exact, 400, 900).std, rel=1e-2)
