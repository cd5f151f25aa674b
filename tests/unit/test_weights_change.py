"""Two checkpoints held against each other: numbers against numpy, and every kind of difference by its name."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from starts import draft, low_rank, seeded
from torch import Tensor

from eagle3diag.faults.trained import judge_weights
from eagle3diag.findings import Severity
from eagle3diag.weights import weights
from eagle3diag.weights.change import change


def judged(here: Mapping[str, Tensor], there: Mapping[str, Tensor], least: Severity = Severity.WARNING) -> list[tuple[str, Severity, str]]:
    """Findings of ``here`` against ``there``, other than those of ``here`` alone."""
    alone = {f.title for f in judge_weights(weights(here, spectra="none"))}
    found = judge_weights(weights(here, spectra="none", against=there))
    return [(f.fault, f.severity, f.title) for f in found if f.severity >= least and f.title not in alone]


def trained_on(tensors: Mapping[str, Tensor], seed: int, share: float = 0.05) -> dict[str, Tensor]:
    """The same draft some steps later: every floating tensor moved along a few directions."""
    g = seeded(seed)
    moved = {}
    for name, t in tensors.items():
        if not t.is_floating_point():
            moved[name] = t
        elif t.dim() == 2:
            moved[name] = low_rank(t.float(), 4, share, g).to(t.dtype)
        else:
            moved[name] = t + 0.01 * torch.randn(t.shape, generator=g)
    return moved


class TestMeasured:
    @pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32)])
    def test_the_numbers_are_numpys(self, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
        """Relative change, scale, what is left after it, and the largest difference."""
        g = seeded(60)
        b = torch.randn(40, 90, generator=g)
        a = (1.1 * b + 0.2 * torch.randn(40, 90, generator=g)).to(dtypes[0])
        b = b.to(dtypes[1])
        x, y = a.double().numpy(), b.double().numpy()
        c = change("w", a, b)
        assert c.relative_change == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(y))
        assert c.scale == pytest.approx((x * y).sum() / (y * y).sum())
        assert c.off_scale == pytest.approx(np.linalg.norm(x - c.scale * y) / np.linalg.norm(y))
        assert c.max_change == pytest.approx(np.abs(x - y).max()) and c.equal == (x == y).mean()

    def test_the_rank_of_a_change_is_that_of_the_update(self) -> None:
        """A rank-1 update shows as one direction of all the energy; noise spreads over all, and the leading directions are kept."""
        g = seeded(61)
        b = low_rank(torch.randn(80, 200, generator=g), 16, 2.0, g)
        one = change("w", b + torch.outer(torch.randn(80, generator=g), torch.randn(200, generator=g)), b)
        noise = change("w", b + 0.1 * torch.randn(80, 200, generator=g), b)
        assert one.change_rank == pytest.approx(1, abs=1e-3)
        assert noise.change_rank is not None and noise.change_rank > 25 and noise.overlap is not None and noise.overlap > 0.9
        apart = change("w", torch.randn(80, 200, generator=g), b)
        assert apart.overlap == pytest.approx(apart.overlap_by_chance, abs=0.1)

    @pytest.mark.parametrize("shape", [(7,), (1, 5), (5, 1), (2, 3, 4)])
    def test_any_shape_is_compared(self, shape: tuple[int, ...]) -> None:
        """Vectors, single rows and more dimensions; NaN entries are left out and do not spread."""
        a, b = torch.randn(shape, generator=seeded(62)), torch.randn(shape, generator=seeded(63))
        a.view(-1)[0] = math.nan
        c = change("w", a, b)
        assert math.isfinite(c.relative_change) and c.equal == 0
        assert c.change_rank is None and c.overlap is None  # no direction of a matrix with holes
        a.view(-1)[0] = math.inf
        assert change("w", a, b) == c
        assert change("w", b, b).relative_change == 0 and change("w", b, torch.zeros(shape)).relative_change == math.inf

    def test_tensors_that_have_no_partner_are_named(self) -> None:
        """Missing here, missing there, another shape, another map: each in its place."""
        here = {"fc.weight": torch.ones(2, 4), "norm.weight": torch.ones(2), "d2t": torch.tensor([0, 1, 1])}
        there = {"fc.weight": torch.ones(2, 6), "lm_head.weight": torch.ones(3, 2), "d2t": torch.tensor([0, 1, 5])}
        (a,) = weights(here, against=[there]).against
        assert (a.only_here, a.only_there, a.reshaped) == (("norm.weight",), ("lm_head.weight",), (("fc.weight", (2, 4), (2, 6)),))
        assert (a.map_changed, a.map_size, a.changes) == (1, 3, ())


class TestJudged:
    def test_a_step_of_training_is_a_note(self) -> None:
        """Every tensor moved a little: nothing above a note, and the note says by how much."""
        there = draft(seeded(64))
        assert judged(trained_on(there, 65), there) == []
        ((fault, _, title),) = judged(trained_on(there, 65), there, Severity.NOTE)
        assert fault == "K9" and title.startswith("Moved since") and "%" in title

    def test_a_frozen_matrix_among_moved_ones_is_named(self) -> None:
        """One projection that stayed: a warning; the head or norms that stayed: a note."""
        there = draft(seeded(66))
        here = trained_on(there, 67) | {n: there[n] for n in ("layers.0.self_attn.q_proj.weight", "lm_head.weight", "norm.weight")}
        ((fault, severity, title),) = judged(here, there)
        assert (fault, severity) == ("K9", Severity.WARNING) and title.endswith("layers.0.self_attn.q_proj.weight")
        assert {t.split(" did")[0] for _, s, t in judged(here, there, Severity.NOTE) if s is Severity.NOTE and "did not" in t} == {
            "lm_head",
            "Norm weights",
        }

    def test_the_same_file_twice_is_a_warning_and_a_conversion_a_note(self) -> None:
        """Nothing moved: suspicious between epochs; the same but for the dtype: what a conversion should do."""
        there = {n: t.float() if t.is_floating_point() else t for n, t in draft(seeded(68)).items()}
        ((_, severity, title),) = judged(there, there)
        assert severity is Severity.WARNING and "same, entry by entry" in title
        here = {n: t.bfloat16() if t.is_floating_point() else t for n, t in there.items()}
        assert judged(here, there) == []
        ((_, _, title),) = [f for f in judged(here, there, Severity.NOTE) if f[0] == "K9"]
        assert "float32 to bfloat16" in title

    def test_another_map_is_an_error(self) -> None:
        """FM-13: d2t differs from the parent's, whatever else happened."""
        there = draft(seeded(69)) | {"d2t": torch.arange(400)}
        here = trained_on(there, 70) | {"d2t": torch.arange(400) + (torch.arange(400) > 100)}
        assert [(f, s) for f, s, _ in judged(here, there)] == [("FM-13", Severity.ERROR)]

    def test_a_moved_embedding_is_a_warning_and_a_frozen_one_is_not(self) -> None:
        """Trainers freeze it; engines overwrite it."""
        embedding = low_rank(torch.randn(500, 96, generator=seeded(71)), 4, 0.5, seeded(71))
        there = draft(seeded(72)) | {"embed_tokens.weight": embedding}
        moved = trained_on(there, 73)
        assert [f for f, _, _ in judged(moved | {"embed_tokens.weight": embedding}, there)] == []
        assert [f for f, _, _ in judged(moved, there)] == ["FM-08"]

    def test_a_folded_scale_and_a_quantised_copy_are_told(self) -> None:
        """Multiplied by 1.5 and otherwise the same: a warning with the factor; rounded to int8: a note with the format."""
        there = {n: t for n, t in draft(seeded(74)).items()}
        folded = trained_on(there, 75) | {"fc.weight": (there["fc.weight"].float() * 1.5).bfloat16()}
        ((_, severity, title),) = judged(folded, there)
        assert severity is Severity.WARNING and title.startswith("Multiplied by a number") and "fc.weight" in title
        w = there["fc.weight"].float()
        step = w.abs().amax(1, keepdim=True) / 127
        quantised = {**there, "fc.weight": ((w / step).round() * step).bfloat16()}
        titles = [t for _, s, t in judged(quantised, there, Severity.NOTE) if s is Severity.NOTE]
        assert any(t.startswith("Quantised since") and "int8" in t for t in titles)
