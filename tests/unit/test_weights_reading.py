"""fc tested on the states of the dump: a trained fc remembers the order and form of its inputs, a fresh one does not, and both are said."""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations

import pytest
import torch
from starts import seeded, start
from torch import Tensor

from eagle3diag.dumps import HiddenStates, TargetIdentity
from eagle3diag.errors import MismatchedInputs, MissingPart
from eagle3diag.faults.trained import judge_weights
from eagle3diag.findings import Severity
from eagle3diag.weights import FcReading, WeightReport, weights
from eagle3diag.weights.reading import AS_DUMPED

H, N = 64, 3
SCALES = (0.5, 2.0, 8.0)


def states(seed: int, tokens: int) -> list[Tensor]:
    """Three related streams ``[tokens, H]`` of growing norm, each with its own correlated channels and a few loud tokens."""
    g, fixed = seeded(seed), seeded(1)
    latent = torch.randn(tokens, 24, generator=g)
    loud = torch.exp(0.5 * torch.randn(tokens, 1, generator=g))
    found = []
    for scale in SCALES:
        mix = torch.randn(24, H, generator=fixed) * torch.linspace(2, 0.2, 24)[:, None]
        found.append(scale * loud * (latent @ mix + 0.5 * torch.randn(tokens, H, generator=g)))
    return found


def dump(order: tuple[int, ...] = (0, 1, 2), records: int = 8, normed: bool = False) -> HiddenStates:
    """A dump of these streams in this order, each normed per token or as it is."""
    made = []
    for i in range(records):
        blocks = states(100 + i, 60)
        if normed:
            blocks = [x / x.square().mean(1, keepdim=True).sqrt() for x in blocks]
        made.append({"name": str(i), "input_ids": torch.arange(60), "features": torch.cat([blocks[b] for b in order], 1)})
    return HiddenStates.from_tensors(made, side="train", target=TargetIdentity("t", "", "float32", 30, H))


@lru_cache(maxsize=2)
def trained(normed: bool = False) -> Tensor:
    """fc after 60 AdamW steps from torch's start, on these streams (normed per token or as they are), towards a target that all of them shape."""
    g = seeded(2)
    blocks = states(3, 1500)
    x = torch.cat([b / b.square().mean(1, keepdim=True).sqrt() for b in blocks] if normed else blocks, 1)
    wanted = torch.tanh(torch.cat([b / b.std() for b in blocks], 1) @ torch.randn(N * H, H, generator=g) / 6)
    w = start("uniform_fan_in", (H, N * H), g).requires_grad_()
    optimiser = torch.optim.AdamW([w], lr=3e-3, weight_decay=0.0)
    for step in range(60):
        at = torch.randint(1500, (256,), generator=seeded(10 + step))
        out = x[at] @ w.T
        loss = (out / out.square().mean(1, keepdim=True).sqrt() - wanted[at]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return w.detach()


def measured(fc: Tensor, states: HiddenStates) -> WeightReport:
    return weights({"fc.weight": fc}, spectra="none", dump=states)


def read(report: WeightReport) -> FcReading:
    assert report.reading is not None
    return report.reading


class TestMeasured:
    def test_a_fresh_fc_has_no_memory(self) -> None:
        """Over 30 fresh matrices the gain is 1 with the std that is stated, and no way of feeding is far from it."""
        found = [read(measured(start("uniform_fan_in", (H, N * H), seeded(300 + i)), dump(records=4))) for i in range(30)]
        z = torch.tensor([(r.as_dumped.gain - 1) / r.chance_error for r in found])
        assert abs(float(z.mean())) < 0.7 and 0.6 < float(z.std()) < 1.4
        assert all(abs(h.gain - 1) < 6 * r.chance_error for r in found for h in r.hypotheses)

    def test_the_trained_order_stands_out(self) -> None:
        """Each block's own state passes with the largest gain, and every other order is worse by many standard errors."""
        r = read(measured(trained(), dump()))
        for i, row in enumerate(r.order_gain):
            assert max(range(N), key=lambda j: row[j]) == i
        assert r.as_dumped.name == AS_DUMPED and r.as_dumped.gain > 1.1
        for h in r.hypotheses[1:]:
            if h.name.startswith("order"):
                assert h.gain_drop > 4 * h.gain_drop_error, h

    def test_energies_and_norms_are_those_of_the_products(self) -> None:
        """A block's share of the output energy and the state's rms, against plain products over the same tokens."""
        fc = trained()
        r = read(measured(fc, dump(records=4)))
        x = torch.cat([torch.cat(states(100 + i, 60), 1)[1:] for i in range(4)])
        energy = [float((x[:, b * H : (b + 1) * H] @ fc[:, b * H : (b + 1) * H].T).square().sum()) for b in range(N)]
        for b, e in zip(r.blocks, energy, strict=True):
            assert b.energy == pytest.approx(e / sum(energy), rel=1e-4)
            assert b.rms == pytest.approx(float(x[:, b.block * H : (b.block + 1) * H].square().mean().sqrt()), rel=1e-4)
            assert len(b.directions) == 48 and 0 < b.channel_share < 1

    def test_what_a_change_would_do_is_the_cosine_of_the_outputs(self) -> None:
        """Output cosine 1 for the dump as it is and for a norm over all states, well below for a swapped order."""
        r = read(measured(trained(), dump()))
        by_name = {h.name: h.output_cosine for h in r.hypotheses}
        assert by_name[AS_DUMPED] == pytest.approx(1) and by_name["all states normed together"] == pytest.approx(1, abs=1e-5)
        assert by_name["order 3, 2, 1"] < 0.6

    def test_the_same_dump_gives_the_same_numbers(self) -> None:
        """The resampling is seeded."""
        assert measured(trained(), dump()) == measured(trained(), dump())

    def test_a_dump_of_another_width_or_without_tokens_is_refused(self) -> None:
        """Width 2 x 64 for an fc of 3 x 64; and records of one token each."""
        with pytest.raises(MismatchedInputs, match="192"):
            measured(trained(), dump(order=(0, 1)))
        with pytest.raises(MissingPart, match="fewer than two tokens"):
            tiny = [{"name": "a", "input_ids": [1], "features": torch.ones(1, N * H)}]
            measured(trained(), HiddenStates.from_tensors(tiny, side="train", target=TargetIdentity("t", "", "float32", 30, H)))


class TestJudged:
    @pytest.mark.parametrize("order", [o for o in permutations(range(N)) if o != (0, 1, 2)], ids=str)
    def test_a_permuted_dump_is_named_with_the_order_that_undoes_it(self, order: tuple[int, ...]) -> None:
        """FM-33 for every permutation: which state of the dump each block expects."""
        (finding,) = (f for f in judge_weights(measured(trained(), dump(order))) if f.severity > Severity.NOTE)
        expected = ", ".join(str(order.index(b) + 1) for b in range(N))
        assert finding.fault == "FM-33" and finding.title.endswith(f": {expected}")

    def test_the_trained_form_is_a_note_that_says_what_cannot_be_told(self) -> None:
        """No alarm, and what the numbers leave open is listed."""
        findings = [f for f in judge_weights(measured(trained(), dump())) if "as this dump holds" in f.title]
        assert len(findings) == 1 and findings[0].severity is Severity.NOTE and "fit these weights worse" in findings[0].because

    def test_a_fresh_fc_is_said_to_remember_nothing(self) -> None:
        """Order and norm are not guessed."""
        titles = [f.title for f in judge_weights(measured(start("uniform_fan_in", (H, N * H), seeded(5)), dump()))]
        assert "fc shows no trace of these features" in titles and not any("expects" in t for t in titles)

    def test_weights_trained_on_normed_states_do_not_reject_them(self) -> None:
        """Trained on each state normed and given the raw dump, the weights are not said to expect the dump as it is against normed states."""
        r = read(measured(trained(normed=True), dump()))
        normed = next(h for h in r.hypotheses if h.name == "each state normed")
        assert not normed.gain_drop > 4 * normed.gain_drop_error
