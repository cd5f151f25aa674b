"""Every fault that two dumps can show, injected into what the real engine fed: named first and alone; healthy and legal twins are silent.

Thresholds were set while looking at these same records: what passes here shows that they fit, not that they hold on unseen ones.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.injection.states import DOUBTFUL, INJECTED, LEGAL, PLACES, Change, Sequence, at, dump
from benchmarks.injection.states import sequences as made_from
from eagle3diag.checkpoints import Target
from eagle3diag.compare import Comparison, compare
from eagle3diag.compare.gain import final_norm_gain
from eagle3diag.dumps import HiddenStates, Record, open_dump
from eagle3diag.findings import Severity

HALF = range(5, 10)


def cut(record: Record, n: int) -> Record:
    """The first rows of a record."""
    return replace(record, tokens=n, part=lambda name: None if (rows := record.part(name)) is None else rows[:n])


@pytest.fixture(scope="module")
def sequences(target_folder: Path, samples: Path, train: HiddenStates) -> list[Sequence]:
    """What SGLang fed of five records, cut to the tokens that it shares with train."""
    live = {r.name: r for r in open_dump(samples / "live" / "eagle3" / "live")}
    fed = []
    for record in (train[i] for i in HALF):
        r = live[record.name]
        n = min(record.tokens, r.tokens)
        same = record.input_ids[:n] == r.input_ids[:n]
        fed.append(cut(r, n if bool(same.all()) else int(same.int().argmin())))
    return made_from(target_folder, fed)


@pytest.fixture(scope="module")
def reference(train: HiddenStates, sequences: list[Sequence]) -> HiddenStates:
    rows = [{"name": s.name, "input_ids": s.ids, "states": s.states, "final": s.final} for s in sequences]
    return dump(train.target, rows, "reference", ())


def compared(
    train: HiddenStates, sequences: list[Sequence], change: Change, gain: Tensor, reference: HiddenStates | None, target: Target | None
) -> Comparison:
    live = dump(train.target, [{"name": s.name, "input_ids": s.ids, "features": change(s, gain)} for s in sequences], "live", ())
    return compare(train, live, reference=reference, target=target)


def serious(result: Comparison) -> list[str]:
    return [f.fault for f in result.findings if f.severity > Severity.NOTE]


@pytest.fixture(scope="module")
def gain(target: Target) -> Tensor:
    return final_norm_gain(target)


@pytest.mark.parametrize("name", INJECTED)
def test_with_a_reference_each_fault_is_named(
    name: str, train: HiddenStates, sequences: list[Sequence], reference: HiddenStates, target: Target, gain: Tensor
) -> None:
    """First and alone."""
    change, fault = INJECTED[name]
    assert serious(compared(train, sequences, change, gain, reference, target)) == [fault]


@pytest.mark.parametrize("name", INJECTED)
def test_from_two_dumps_alone(name: str, train: HiddenStates, sequences: list[Sequence], gain: Tensor) -> None:
    """No target, no reference: named as well, or the doubt is."""
    change, fault = INJECTED[name]
    found = serious(compared(train, sequences, change, gain, None, None))
    assert found == (["FM-28"] if name in DOUBTFUL else [fault])


@pytest.mark.parametrize("name", LEGAL)
@pytest.mark.parametrize("known", [True, False])
def test_legal_twins_are_silent(
    name: str, known: bool, train: HiddenStates, sequences: list[Sequence], reference: HiddenStates, target: Target, gain: Tensor
) -> None:
    """Nothing above a note."""
    result = compared(train, sequences, LEGAL[name], gain, reference if known else None, target if known else None)
    assert serious(result) == []
    notes = [f.fault for f in result.findings]
    assert notes == (["H4"] if name in ("as the engine fed it", "in float32", "in float16") else notes)


def test_rows_swapped_between_requests(train: HiddenStates, sequences: list[Sequence], gain: Tensor) -> None:
    """Twenty rows of two sequences changed places: said as that, with both names."""
    fed = [s.fed.clone() for s in sequences]
    fed[0][20:40], fed[1][20:40] = sequences[1].fed[20:40], sequences[0].fed[20:40]
    live = dump(
        train.target, [{"name": s.name, "input_ids": s.ids, "features": f} for s, f in zip(sequences, fed, strict=True)], "live", ()
    )
    finding = compare(train, live).findings[0]
    assert finding.fault == "FM-39" and "different requests" in finding.title
    assert sequences[0].name in str(finding.evidence) and sequences[1].name in str(finding.evidence)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", PLACES)
def test_boundaries_that_engines_cannot_reach(
    name: str, known: bool, train: HiddenStates, sequences: list[Sequence], reference: HiddenStates
) -> None:
    """The state behind the last block, and layers of other stages: named first and alone."""
    trained, fed, with_reference, without = PLACES[name]
    sides = [
        dump(train.target, [{"name": s.name, "input_ids": s.ids, "features": made(s)} for s in sequences], side, boundaries)
        for side, boundaries, made in (
            ("train", trained, lambda s: torch.cat([s.states[b] for b in trained], -1)),
            ("live", (), lambda s: at(fed)(s, s.final)),
        )
    ]
    assert serious(compare(*sides, reference=reference if known else None)) == (with_reference if known else without)
