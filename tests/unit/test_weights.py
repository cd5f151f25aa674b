"""The weights, measured: every number against numpy, scipy or a simulation."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy import integrate, special, stats
from starts import draft, low_rank, seeded, start

from eagle3diag.checkpoints import open_draft
from eagle3diag.errors import BadArgument, MissingPart
from eagle3diag.faults.trained import judge_moments, judge_weights
from eagle3diag.findings import Severity, plain
from eagle3diag.weights import from_moments, measure, noise_band, nulls, weights
from eagle3diag.weights.moments import moments
from eagle3diag.weights.spectrum import TRACY_WIDOM_999, gram_values, noise_median, spectrum, top_values


class TestMoments:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_they_equal_numpy_and_scipy_over_many_chunks(self, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
        """Moments merged over 40 small chunks are those of numpy and scipy over the whole, in float64."""
        monkeypatch.setattr(sys.modules["eagle3diag.weights.moments"], "CHUNK", 300)
        w = (torch.randn(80, 150, generator=seeded(1)) * 0.02 + 0.003).to(dtype)
        w[7], w[:, 11] = 0, 0
        m, x = moments(w, (0.02, 0.05)), w.double().numpy()
        assert m.mean == pytest.approx(x.mean(), rel=1e-12)
        assert m.std == pytest.approx(x.std(), rel=1e-12)
        assert m.abs_mean == pytest.approx(np.abs(x).mean(), rel=1e-12)
        assert m.kurtosis == pytest.approx(stats.kurtosis(x, axis=None, fisher=False), rel=1e-10)
        assert (m.max_abs, m.zeros) == (np.abs(x).max(), int((x == 0).sum()))
        assert m.beyond == (int((np.abs(x) > 0.02).sum()), int((np.abs(x) > 0.05).sum()))
        assert m.row_norms is not None and m.column_norms is not None
        np.testing.assert_allclose(m.row_norms.numpy(), np.linalg.norm(x, axis=1), rtol=1e-12)
        np.testing.assert_allclose(m.column_norms.numpy(), np.linalg.norm(x, axis=0), rtol=1e-12)
        assert (m.zero_rows, m.zero_columns, m.nonfinite, m.constant) == (1, 1, 0, False)

    def test_a_mean_that_bf16_loses_is_a_number(self) -> None:
        """The seed case's second alarm: the mean in bf16 is far off or zero; accumulated in float64 it is the true one."""
        w = (torch.randn(512, 1536, generator=seeded(2)) * 0.004 + 2e-6).bfloat16()
        truth = float(w.double().numpy().mean())
        assert moments(w).mean == pytest.approx(truth, rel=1e-9)
        assert f"{moments(w).mean:.6f}" == f"{truth:.6f}"

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


class TestSpectrum:
    @pytest.mark.parametrize("shape", [(40, 130), (130, 40), (64, 64), (2, 300)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_values_and_ranks_equal_numpys(self, shape: tuple[int, int], dtype: torch.dtype) -> None:
        """All singular values through the Gram matrix are numpy's; so are the ranks made of them."""
        w = torch.randn(*shape, generator=seeded(6)).to(dtype)
        truth = np.linalg.svd(w.double().numpy(), compute_uv=False)
        np.testing.assert_allclose(gram_values(w).numpy(), truth, rtol=1e-9, atol=1e-7 * truth[0])
        m = moments(w)
        s = spectrum(w, m.std, m.square, exact=True)
        p = truth / truth.sum()
        assert s.stable_rank == pytest.approx((truth**2).sum() / truth[0] ** 2, rel=1e-9)
        assert s.effective_rank == pytest.approx(math.exp(-(p * np.log(p)).sum()), rel=1e-9)

    def test_the_noise_band_is_marchenko_pasturs_and_holds_noise(self) -> None:
        """The band of the seed case is 0.250 to 0.934, and a drawn matrix fills its own band to within 2 %."""
        assert [round(x, 3) for x in noise_band(7168, 21504, 0.004037)[:2]] == [0.25, 0.934]
        values = gram_values(torch.randn(300, 900, generator=seeded(7)))
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
    def test_the_noise_median_halves_the_density(self, ratio: float) -> None:
        """scipy's quadrature of the Marchenko-Pastur density up to the median gives one half."""
        low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
        mass, _ = integrate.quad(lambda x: math.sqrt((high - x) * (x - low)) / (2 * math.pi * ratio * x), low, noise_median(ratio))
        assert mass == pytest.approx(0.5, abs=3e-4)

    def test_the_bulk_keeps_the_starts_std_under_a_signal(self) -> None:
        """A rank-6 signal of 40 % of the energy moves the std by 18 %, the bulk std by less than 2 %."""
        g = seeded(9)
        w = low_rank(torch.randn(200, 600, generator=g), 6, 0.4, g)
        m = moments(w)
        s = spectrum(w, m.std, m.square, exact=True)
        assert m.std == pytest.approx(1.183, abs=0.01) and s.bulk_std == pytest.approx(1.0, abs=0.02)
        assert s.outside == 6 and 0.4 / 1.4 < s.outside_energy < 0.4 / 1.4 + 0.04  # signal, and some noise along it

    def test_the_top_is_a_lower_bound_and_finds_the_same_outliers(self) -> None:
        """The Krylov values never exceed the true ones (float32 rounding apart), and count the same values above the edge."""
        g = seeded(10)
        for matrix in (low_rank(torch.randn(300, 700, generator=g), 5, 0.15, g), torch.randn(700, 300, generator=g)):
            w = matrix.bfloat16()
            m = moments(w)
            full, top = gram_values(w), top_values(w)
            assert bool((top <= full[: top.numel()] * (1 + 1e-5)).all())
            exact, quick = (spectrum(w, m.std, m.square, exact=e) for e in (True, False))
            assert quick.outside == exact.outside and quick.stable_rank == pytest.approx(exact.stable_rank, rel=0.02)
            assert quick.effective_rank is None and not quick.exact and "lower bounds" in quick.method

    def test_long_spectra_are_thinned_but_keep_their_top(self) -> None:
        """Of 2300 values 2000 are kept, the 200 largest among them."""
        values = torch.linspace(3, 1, 2300)
        s = spectrum(torch.diag(values), 0.01, float(values.square().sum()), exact=True)
        assert len(s.singular_values) == 2000 and s.count == 2300
        np.testing.assert_allclose(s.singular_values[:200], values[:200].numpy(), rtol=1e-6)

    def test_auto_decides_by_cost_and_says_what_it_did(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Above the budget a projection gets its top, an embedding nothing; asked for in full both get everything."""
        monkeypatch.setattr(sys.modules["eagle3diag.weights.report"], "EXACT_FLOPS", 1e5)
        w = torch.randn(64, 192, generator=seeded(11))
        head, embedding = measure("lm_head.weight", w), measure("embed_tokens.weight", w)
        assert head.spectrum is not None and not head.spectrum.exact
        assert embedding.spectrum is None and "full" in embedding.note
        full = measure("embed_tokens.weight", w, spectra="full")
        assert full.spectrum is not None and full.spectrum.exact
        assert measure("lm_head.weight", w, spectra="none").spectrum is None


class TestNulls:
    @pytest.mark.parametrize("law", [nulls.UNIFORM, nulls.NORMAL])
    def test_absolute_moments_are_those_of_the_density(self, law: nulls.Law) -> None:
        """Moments of the laws equal scipy's integrals."""
        density = stats.norm() if law is nulls.NORMAL else stats.uniform(-math.sqrt(3), 2 * math.sqrt(3))
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

    def test_rounding_to_bf16_lifts_the_bound_and_hardly_the_std(self) -> None:
        """F = 3072: the bound 0.018042 is stored as 0.018066; the std changes by millionths, as a fine grid shows."""
        null = nulls.nulls_for((1024, 3072))[0]
        assert nulls.edge(null, 1, torch.float32) == pytest.approx(0.018042, abs=1e-6)
        assert nulls.edge(null, 1, torch.bfloat16) == pytest.approx(0.018066, abs=1e-6)
        for null in (nulls.nulls_for((1024, 3072))[0], nulls.nulls_for((64, 64))[0]):
            assert null.bound is not None
            grid = (torch.arange(1 << 22, dtype=torch.float64) + 0.5) / (1 << 22) * null.bound
            for dtype in (torch.bfloat16, torch.float16):
                root = float(grid.to(dtype).double().square().mean().sqrt())
                assert nulls.rounded_std(null, dtype) == pytest.approx(root, rel=2e-7)
                assert nulls.rounded_std(null, dtype) == pytest.approx(null.std, rel=1e-5)
        normal = nulls.Null("normal", 0.02, nulls.NORMAL)
        cells = torch.special.ndtri((torch.arange(1 << 22, dtype=torch.float64) + 0.5) / (1 << 22)) * 0.02
        change = cells.bfloat16().double().square().mean().sqrt() / cells.square().mean().sqrt()
        assert nulls.rounded_std(normal, torch.bfloat16) / 0.02 == pytest.approx(float(change), rel=2e-7)

    def test_glorot_scales_are_torchs(self) -> None:
        """The xavier nulls have the std and bound of ``torch.nn.init``."""
        w = torch.empty(300, 500)
        torch.nn.init.xavier_uniform_(w, generator=seeded(12))
        t = measure("w", w, spectra="none")
        assert t.nearest_null == "xavier_uniform"
        n = t.null("xavier_uniform")
        assert n is not None and n.beyond == 0
        assert n.std_ratio == pytest.approx(1, abs=0.005) and n.max_over_bound == pytest.approx(1, abs=1e-3)

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

    def test_structure_expects_what_shuffling_gives(self) -> None:
        """The expected spreads hold for a shuffled real-looking matrix, whatever its law: all z within 4, before it far out."""
        g = seeded(15)
        w = torch.randn(120, 360, generator=g) * torch.linspace(0.8, 1.2, 120)[:, None]
        shuffled = w.flatten()[torch.randperm(w.numel(), generator=g)].reshape(w.shape)
        before, after = measure("fc.weight", w).structure, measure("fc.weight", shuffled).structure
        assert before is not None and after is not None and after.z_block is not None
        assert before.z_row > 20 and max(abs(after.z_row), abs(after.z_column), abs(after.z_block)) < 4


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
        finding = judge_moments(f)
        assert finding.severity is Severity.NOTE and "singular values" in finding.because

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
            assert float(x.abs().mean() / x.std()) < nulls.UNIMODAL_LIMIT + 0.001

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


class TestReport:
    def test_a_mapping_is_measured_and_whole_numbers_are_skipped(self) -> None:
        """Every floating tensor once, by name; integer tensors are named as skipped; the report is plain JSON."""
        tensors = draft(seeded(29))
        report = weights(tensors)
        assert [t.name for t in report.tensors] == sorted(n for n in tensors if n != "d2t") and report.skipped == ("d2t",)
        assert report.total_parameters == sum(t.numel() for n, t in tensors.items() if n != "d2t")
        json.dumps(plain(report), allow_nan=False)
        fc = report.tensor("fc.weight")
        assert len(fc.blocks) == 3 and fc.blocks[0].frobenius == pytest.approx(float(tensors["fc.weight"][:, :96].float().norm()), rel=1e-5)
        top = float(torch.linalg.matrix_norm(tensors["fc.weight"][:, 96:192].float(), ord=2))
        assert fc.blocks[1].stable_rank == pytest.approx(fc.blocks[1].frobenius ** 2 / top**2, rel=1e-4)

    def test_wrong_arguments_are_told_so(self) -> None:
        """An unknown spectra mode and an unknown tensor name raise our exceptions with the allowed ones."""
        with pytest.raises(BadArgument, match="maybe"):
            weights({}, spectra="maybe")  # type: ignore[arg-type]
        with pytest.raises(MissingPart):
            weights({"norm.weight": torch.ones(3)}).tensor("fc.weight")

    def test_measuring_twice_gives_the_same_report(self) -> None:
        """No hidden randomness, the Krylov start included."""
        tensors = draft(seeded(31))
        assert weights(tensors) == weights(tensors)
        w = tensors["fc.weight"]
        assert torch.equal(top_values(w), top_values(w))

    def test_a_checkpoint_on_disk_is_measured_under_canonical_names(self, tmp_path: Path) -> None:
        """SafeAILab names become canonical, the file's names are kept, the blocks follow the config, and the range is the config's."""
        tensors = {n.replace("layers.0.", "midlayer."): t.contiguous() for n, t in draft(seeded(32)).items()}
        tensors |= {"fc.weight": torch.randn(96, 192, generator=seeded(33)) * 0.006, "t2d": torch.ones(400, dtype=torch.bool)}
        config = {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 96, "target_hidden_size": 96,
            "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 24, "num_hidden_layers": 1,
            "vocab_size": 400, "draft_vocab_size": 400, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": 512,
            "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "initializer_range": 0.006,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2], "use_aux_hidden_state": True},
        }  # fmt: skip
        folder = tmp_path / "a-draft"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "model.safetensors")
        report = weights(folder)
        assert report.draft == "a-draft" and set(report.skipped) == {"d2t", "t2d"}
        assert report.tensor("layers.0.self_attn.q_proj.weight").checkpoint_name == "midlayer.self_attn.q_proj.weight"
        fc = report.tensor("fc.weight")
        assert len(fc.blocks) == 2 and fc.nearest_null == "normal_0.006"
        assert report == weights(open_draft(folder))
