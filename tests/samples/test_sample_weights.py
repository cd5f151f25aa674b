"""The weights of the real draft: ordered by epoch, told where they came from, and telling what they were fed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from eagle3diag.capture.reference import capture_reference
from eagle3diag.checkpoints import Draft, Target
from eagle3diag.dumps import HiddenStates
from eagle3diag.faults.trained import verdicts
from eagle3diag.findings import Severity
from eagle3diag.weights import WeightReport, weights


@pytest.fixture(scope="module")
def report(draft: Draft, target: Target, train: HiddenStates, samples: Path) -> WeightReport:
    return weights(draft, target=target, dump=train, against=[samples / "epochs" / f"epoch_{n}" for n in (1, 3)])


def test_epochs_are_ordered_by_how_much_was_learned(report: WeightReport, samples: Path) -> None:
    """Update relative to the start, values outside, their energy, and entries beyond the bound all grow from epoch 1 to 3 to 8; the distance
    to the last epoch shrinks and the overlap with it grows."""
    kept = [weights(samples / "epochs" / f"epoch_{n}") for n in (1, 3)]
    for name in ("fc.weight", "layers.0.self_attn.q_proj.weight"):
        tensors = [r.tensor(name) for r in (*kept, report)]
        starts = [t.null("uniform_fan_in") for t in tensors]
        for measure in (
            [n.implied_update for n in starts if n is not None],
            [n.beyond_share for n in starts if n is not None],
            [t.spectrum.bulk_outside for t in tensors if t.spectrum is not None],
            [t.spectrum.bulk_std for t in tensors if t.spectrum is not None],
        ):
            assert len(measure) == 3 and measure == sorted(measure) and len(set(measure)) == 3, (name, measure)
        changes = [a.change(name) for a in report.against]
        assert changes[0] is not None and changes[1] is not None
        assert changes[0].relative_change > 1.5 * changes[1].relative_change
        assert (changes[0].overlap or 1) < (changes[1].overlap or 0)


def test_what_the_draft_started_from_is_named(report: WeightReport) -> None:
    """The head from the target's rows (as the samples' README says), projections from no layer of it; every matrix trained."""
    said = {t.name: v for t, v in verdicts(report)}
    assert re.fullmatch(r"the target's head, moved by 1\d %", said["lm_head.weight"].words)
    assert re.fullmatch(r"trained, moved by [5-9]\d %", said["fc.weight"].words)
    assert all(v.state == "learned" for t, v in verdicts(report) if len(t.shape) == 2)
    assert report.ok and all(f.severity is Severity.NOTE for f in report.findings)


def test_directions_meet_the_targets_vocabulary_beyond_chance(report: WeightReport) -> None:
    """What writes to the residual stream overlaps with the head's directions, what reads tokens with the embedding's: 5 errors and more."""
    assert len(report.overlaps) == 7
    assert all(o.overlap > o.by_chance + 5 * o.chance_error for o in report.overlaps)


def test_the_dump_it_was_trained_on_fits_best(report: WeightReport) -> None:
    """Every order, the norm of each state and the final norm fit worse; only a norm over all states, which the draft's own hides, is open."""
    notes = [f for f in report.findings if f.title == "fc expects the states as this dump holds them"]
    assert len(notes) == 1 and notes[0].because.endswith("Not distinguishable from the dump as it is: all states normed together.")


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0), (2, 0, 1)], ids=str)
def test_a_permuted_dump_is_seen_without_a_server(draft: Draft, train: HiddenStates, order: tuple[int, ...]) -> None:
    """FM-33 from the weights and the states alone."""

    def permuted(_: object, features: torch.Tensor) -> torch.Tensor:
        blocks = features.chunk(3, -1)
        return torch.cat([blocks[i] for i in order], -1)

    report = weights({"fc.weight": draft.weight("fc.weight")}, spectra="none", dump=train.map_features(permuted))
    (finding,) = (f for f in report.findings if f.severity > Severity.NOTE)
    assert finding.fault == "FM-33" and finding.title.endswith(", ".join(str(order.index(b) + 1) for b in range(3)))


def test_the_boundaries_are_read_from_the_weights_alone(draft: Draft, target: Target, train: HiddenStates) -> None:
    """Held against every boundary of the target, the blocks of fc point at 2, 15, and 27 or its neighbour: those it was trained on."""
    every = capture_reference(target, train)
    assert every is not None
    best = []
    for block in range(3):
        gains = {}
        for boundary in range(1, 31):
            one = every.map_features(lambda record, _, b=boundary: record.state(b))  # type: ignore[misc]
            fc = draft.weight("fc.weight")[:, 576 * block : 576 * (block + 1)]
            found = weights({"fc.weight": fc}, spectra="none", dump=one).reading
            assert found is not None
            gains[boundary] = found.as_dumped.gain
        best.append(max(gains, key=lambda b: gains[b]))
    assert best[:2] == [2, 15] and best[2] in (27, 28)
