"""Distances to initialisations, structure, number formats, and the seed case's printed figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy import stats
from starts import low_rank, seeded, start
from torch import Tensor

from eagle3diag.faults.trained import judge_weights
from eagle3diag.faults.verdict import format_of, verdict
from eagle3diag.findings import Severity
from eagle3diag.weights import from_moments, laws, measure, weights
from eagle3diag.weights.grid import grid
from eagle3diag.weights.moments import moments
from eagle3diag.weights.printed import UNIMODAL_LIMIT


class TestNulls:
    @pytest.mark.parametrize("law", [laws.UNIFORM, laws.NORMAL, laws.TRUNCATED], ids=lambda law: law.kind)
    def test_absolute_moments_are_those_of_the_density(self, law: laws.Law) -> None:
        """Moments of the laws equal scipy's integrals."""
        cut = stats.truncnorm(-2, 2)
        density = {
            "normal": stats.norm(),
            "uniform": stats.uniform(-math.sqrt(3), 2 * math.sqrt(3)),
            "truncated": stats.truncnorm(-2, 2, scale=1 / cut.std()),
        }[law.kind]
        assert law.reach == pytest.approx(density.support()[1])
        x = np.linspace(-2.5, 2.5, 41)
        np.testing.assert_allclose(law.below(torch.tensor(x)).numpy(), density.cdf(x), atol=1e-12)
        for power, value in ((1, law.first), (3, law.third), (4, law.kurtosis), (6, law.sixth), (8, law.eighth)):
            assert density.expect(lambda x, p=power: abs(x) ** p) == pytest.approx(value, rel=1e-6)

    def test_standard_errors_are_those_of_a_simulation(self) -> None:
        """Over 400 starts the z of std, kurtosis and abs mean have a std of 1 within 10 %."""
        for law in ("uniform_fan_in", "normal_0.02"):
            found = [measure("w", start(law, (50, 100), seeded(i)), spectra="none").null(law) for i in range(400)]
            for field in ("z_std", "z_kurtosis", "z_abs_mean"):
                assert np.std([getattr(n, field) for n in found]) == pytest.approx(1.0, abs=0.1), (law, field)

    @pytest.mark.parametrize("columns", [1728, 3072, 7680, 12288])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_torch_linear_starts_at_the_first_null(self, columns: int, dtype: torch.dtype) -> None:
        """``nn.Linear`` as torch makes it, then rounded: std within 5 standard errors, and no entry beyond the rounded bound."""
        torch.manual_seed(columns)
        w = torch.nn.Linear(columns, 64, bias=False).weight.detach().to(dtype)
        n = measure("fc.weight", w, spectra="none").null("uniform_fan_in")
        assert n is not None and n.z_std is not None and n.max_over_bound is not None
        assert abs(n.z_std) < 5 and n.beyond == 0 and n.max_over_bound <= 1

    @pytest.mark.parametrize("law", ["uniform_fan_in", "normal_0.02"])
    def test_rounded_entries_in_a_wider_dtype_are_the_rounded_ones(self, law: str) -> None:
        """bf16 weights that were saved as float32 repeat their values; the distance to the law is that of the bf16 tensor itself."""
        w = start(law, (512, 1024), seeded(5)).bfloat16()
        narrow, wide = (measure("w", t, spectra="none").null(law) for t in (w, w.float()))
        assert narrow is not None and wide is not None
        assert wide.law_gap == pytest.approx(narrow.law_gap, rel=1e-6) and wide.beyond == narrow.beyond
        exact = stats.uniform(-(1024**-0.5), 2 * 1024**-0.5) if law == "uniform_fan_in" else stats.norm(0, 0.02)
        values, counts = np.unique(w.float().numpy(), return_counts=True)
        edges = (values[1:].astype(np.float64) + values[:-1]) / 2
        gap = np.abs(exact.cdf(edges) - counts.cumsum()[:-1] / counts.sum()).max()
        assert wide.law_gap == pytest.approx(gap, abs=1e-4)  # looked at in 4096 places

    def test_rounding_to_bf16_lifts_the_bound_and_hardly_the_std(self) -> None:
        """F = 3072: the bound 0.018042 is stored as 0.018066; the std changes by millionths, as a fine grid shows."""
        null = laws.nulls_for((1024, 3072))[0]
        assert laws.edge(null, 1, torch.float32) == pytest.approx(0.018042, abs=1e-6)
        assert laws.edge(null, 1, torch.bfloat16) == pytest.approx(0.018066, abs=1e-6)
        for null in (laws.nulls_for((1024, 3072))[0], laws.nulls_for((64, 64))[0]):
            assert null.bound is not None
            grid = (torch.arange(1 << 22, dtype=torch.float64) + 0.5) / (1 << 22) * null.bound
            for dtype in (torch.bfloat16, torch.float16):
                root = float(grid.to(dtype).double().square().mean().sqrt())
                assert laws.rounded_std(null, dtype) == pytest.approx(root, rel=2e-7)
                assert laws.rounded_std(null, dtype) == pytest.approx(null.std, rel=1e-5)
        normal = laws.Null("normal", 0.02, laws.NORMAL)
        cells = torch.special.ndtri((torch.arange(1 << 22, dtype=torch.float64) + 0.5) / (1 << 22)) * 0.02
        change = cells.bfloat16().double().square().mean().sqrt() / cells.square().mean().sqrt()
        assert laws.rounded_std(normal, torch.bfloat16) / 0.02 == pytest.approx(float(change), rel=2e-7)

    @pytest.mark.parametrize("name", ["xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"])
    def test_scales_are_torchs(self, name: str) -> None:
        """A matrix that ``torch.nn.init`` filled meets the null of that name in law, scale and bound."""
        w = torch.empty(300, 500)
        getattr(torch.nn.init, f"{name}_")(w, generator=seeded(12))
        t = measure("w", w, spectra="none")
        n = t.null(name)
        assert t.nearest_null == name and n is not None and n.z_std is not None and n.z_law is not None
        assert abs(n.z_std) < 4 and n.z_law < 2 and (n.beyond == 0 or name.endswith("normal"))

    def test_a_normal_law_cut_at_two_stds_is_told_from_a_whole_one(self) -> None:
        """torch's trunc_normal_ with its ends at two stds meets the truncated null; with its default ends it is a plain normal."""
        w = torch.empty(300, 500)
        torch.nn.init.trunc_normal_(w, std=0.02, a=-0.04, b=0.04, generator=seeded(13))
        n = measure("w", w, spectra="none").null("truncated_normal_0.02")
        assert n is not None and n.z_std is not None and n.z_law is not None and abs(n.z_std) < 4 and n.z_law < 2 and n.beyond == 0
        torch.nn.init.trunc_normal_(w, std=0.02, generator=seeded(13))
        assert measure("w", w, spectra="none").nearest_null == "normal_0.02"

    def test_law_gaps_are_chance_for_the_true_law_and_large_for_others(self) -> None:
        """Over 200 starts the largest sqrt(N) gap for the true law stays below 2.2 (chance: 1 in 8000 each), in bfloat16 as in float32."""
        for dtype in (torch.bfloat16, torch.float32):
            for law in ("uniform_fan_in", "normal_0.02"):
                found = [measure("w", start(law, (60, 200), seeded(i)).to(dtype), spectra="none").null(law) for i in range(50)]
                assert max(n.z_law or 9 for n in found if n is not None) < 2.2

    def test_the_configs_own_range_is_tested(self) -> None:
        """``initializer_range`` 0.006 adds a null of that name, which a start of that scale meets."""
        w = torch.randn(100, 300, generator=seeded(13)) * 0.006
        assert measure("w", w, initializer_range=0.006).nearest_null == "normal_0.006"

    def test_a_small_independent_change_is_implied_by_the_std(self) -> None:
        """Adding 22 % of independent noise moves the std by 2.5 %, from which 22 % is read back."""
        g = seeded(14)
        w = start("uniform_fan_in", (256, 768), g)
        w = w + 0.2267 * w.std() * torch.randn(w.shape, generator=g)
        n = measure("w", w, spectra="none").null("uniform_fan_in")
        assert n is not None and n.std_ratio == pytest.approx(1.0254, abs=0.003) and n.implied_update == pytest.approx(0.2267, abs=0.015)
        assert n.beyond_share is not None and n.beyond_share == pytest.approx(0.051, abs=0.005)
        assert n.edge_update == pytest.approx(0.2267, abs=0.015) and n.update_error is not None
        assert abs((n.implied_update or 0) - 0.2267) < 4 * n.update_error

    def test_the_bound_shows_updates_that_the_std_hides(self) -> None:
        """3 % of independent change moves the std of 200,000 entries by 0.3 standard errors; the entries beyond the bound give 3 %."""
        g = seeded(53)
        w = start("uniform_fan_in", (256, 768), g)
        n = measure("w", w + 0.03 * w.std() * torch.randn(w.shape, generator=g), spectra="none").null("uniform_fan_in")
        assert n is not None and n.z_std is not None and abs(n.z_std) < 3 and n.edge_update == pytest.approx(0.03, abs=0.004)

    def test_structure_expects_what_shuffling_gives(self) -> None:
        """The expected spreads hold for a shuffled real-looking matrix, whatever its law: all z within 4, before it far out."""
        g = seeded(15)
        w = torch.randn(120, 360, generator=g) * torch.linspace(0.8, 1.2, 120)[:, None]
        shuffled = w.flatten()[torch.randperm(w.numel(), generator=g)].reshape(w.shape)
        before, after = measure("fc.weight", w).structure, measure("fc.weight", shuffled).structure
        assert before is not None and after is not None and after.z_block is not None
        assert before.z_row > 20 and (before.top_row < 12 or before.top_row > 107) and abs(before.top_row_z) > 4
        assert max(abs(after.z_row), abs(after.z_column), abs(after.z_block)) < 4


def on_grid(w: Tensor, codes: int, group: int) -> Tensor:
    """``w`` through a symmetric grid of this many codes on either side, scaled per ``group`` neighbours, and back."""
    grouped = w.view(w.shape[0], -1, group)
    step = grouped.abs().amax(-1, keepdim=True) / codes
    return ((grouped / step).round() * step).view_as(w)


class TestGrid:
    CASES: ClassVar[dict[str, tuple[Callable[[Tensor], Tensor], str | None]]] = {
        "smooth": (lambda w: w, None),
        "int8 per row": (lambda w: on_grid(w, 127, w.shape[1]), "int8"),
        "int8 in groups": (lambda w: on_grid(w, 127, 128), "int8"),
        "int8 per tensor": (lambda w: (w / (w.abs().max() / 127)).round() * (w.abs().max() / 127), "int8"),
        "int4 in groups": (lambda w: on_grid(w, 7, 128), "4 bits in groups of 128 or more"),
        "int4 in small groups": (lambda w: on_grid(w, 7, 32), "4 bits in groups of 32"),
        "float8 per tensor": (lambda w: (w / (w.abs().max() / 448)).to(torch.float8_e4m3fn).float() * (w.abs().max() / 448), "float8 e4m3"),
        "float8 per row": (
            lambda w: (w / (w.abs().amax(1, keepdim=True) / 448)).to(torch.float8_e4m3fn).float() * (w.abs().amax(1, keepdim=True) / 448),
            "float8 e4m3",
        ),
        "float8 e5m2": (lambda w: w.to(torch.float8_e5m2).float(), "float8 e5m2"),
    }

    @pytest.mark.parametrize("name", CASES)
    def test_formats_are_told_from_smooth_entries(self, name: str) -> None:
        """Uniform, normal and heavy-tailed entries, stored in three dtypes: every format by its name, and no smooth matrix by any."""
        through, expected = self.CASES[name]
        g = seeded(54)
        normal = torch.randn(96, 768, generator=g)
        for w in (normal * 0.02, start("uniform_fan_in", (96, 768), g), normal * torch.randn(96, 768, generator=g) * 0.02):
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                assert format_of(grid(through(w).to(dtype))) == expected, (name, dtype)

    def test_what_is_too_narrow_or_zero_is_not_judged(self) -> None:
        """Rows under 128 entries and zero matrices have no grid; nearly empty matrices have few values for another reason."""
        assert grid(torch.randn(5, 100)) is None and grid(torch.zeros(4, 256)) is None
        pruned = torch.randn(64, 256, generator=seeded(55)) * (torch.rand(64, 256, generator=seeded(56)) > 0.95)
        assert verdict(measure("w", pruned)).quantised is None


class TestSeedCase:
    def test_the_seeds_figures_exclude_every_start_and_conclude_nothing(self) -> None:
        """std 0.004037 and abs mean 0.003556 of [7168, 21504]: 2.5 % above the default start, z about 700, ratio above 0.866."""
        f = from_moments((7168, 21504), 0.004037, 0.003556)
        uniform = f.distances[0]
        assert f.nearest == uniform.name == "uniform_fan_in" and uniform.std_ratio == pytest.approx(1.0254, abs=2e-4)
        assert uniform.z_std == pytest.approx(704, abs=2) and uniform.implied_update == pytest.approx(0.227, abs=0.001)
        assert f.possible == () and set(f.excluded) >= {"uniform_fan_in", "normal_0.02", "xavier_uniform", "xavier_normal"}
        assert f.above_unimodal and f.abs_over_std == pytest.approx(0.881, abs=5e-4)
        assert [round(edge, 3) for edge in f.band] == [0.25, 0.934]
        assert "singular values" in f.unknown[0]

    def test_figures_of_a_true_start_stay_possible(self) -> None:
        """Printed figures of a fresh fc leave the default start possible, whether or not the abs mean is given."""
        w = start("uniform_fan_in", (256, 768), seeded(16))
        m = moments(w)
        for abs_mean in (round(m.abs_mean, 6), None):
            f = from_moments(w.shape, round(m.std, 6), abs_mean)
            assert f.possible == ("uniform_fan_in",) and not f.above_unimodal

    def test_no_symmetric_unimodal_law_exceeds_the_limit(self) -> None:
        """mean |w| / std is at most 0.8660 for uniform, normal, Laplace, triangular and for a uniform with noise added."""
        g = seeded(17)
        u = torch.rand(200_000, generator=g, dtype=torch.float64) * 2 - 1
        v = torch.rand(200_000, generator=g, dtype=torch.float64) * 2 - 1
        for x in (u, torch.randn(200_000, generator=g), torch.randn(200_000, generator=g) * u.abs(), u + v, u + 0.3 * v):
            assert float(x.abs().mean() / x.std()) < UNIMODAL_LIMIT + 0.001

    def test_five_percent_of_rank_eight_energy_shows_in_the_spectrum_only(self) -> None:
        """[256, 768]: the std moves to 1.024 of the start's, as in the seed, yet at least six singular values clear 1.05 x the edge."""
        g = seeded(18)
        t = measure("fc.weight", low_rank(start("uniform_fan_in", (256, 768), g), 8, 0.05, g).bfloat16())
        n = t.null("uniform_fan_in")
        assert n is not None and t.spectrum is not None and n.std_ratio == pytest.approx(1.024, abs=0.004)
        assert sum(v > 1.05 * t.spectrum.band_high for v in t.spectrum.singular_values) >= 6 and t.spectrum.outside >= 6
        report = weights({"fc.weight": low_rank(start("uniform_fan_in", (256, 768), g), 8, 0.05, g)})
        (finding,) = judge_weights(report)
        assert finding.severity is Severity.NOTE and "looks fresh" in finding.title.lower() and "mean" in finding.because
