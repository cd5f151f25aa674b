"""Faults that nothing but a server's rounds can tell, in the real draft: named from the rounds alone, and nothing said of a healthy server."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.injection.engine import Held, held, rounds
from benchmarks.injection.unlisted import CAUSES
from benchmarks.injection.world import World
from eagle3diag import diagnose
from eagle3diag.case import Case, Given
from eagle3diag.checkpoints import Draft, Target
from eagle3diag.dumps import HiddenStates, Record
from eagle3diag.errors import BadArgument
from eagle3diag.findings import Severity
from eagle3diag.report.views.diagnosis import page

SERVE = (
    "python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE3 "
    "--speculative-num-steps 4 --speculative-num-draft-tokens 5"
)
Fed = Callable[[torch.Tensor], torch.Tensor]


def served(
    draft: Draft, target: Target, dump: HiddenStates, fed: Fed = lambda x: x, steps: int = 4, net: Held | None = None, **how: Any
) -> HiddenStates:
    """The live dump of an engine that shares no code with the replay: it records the right states, and drafts from what ``fed`` makes of
    them, as ``how`` says, or as ``net`` does."""
    net = net or held(draft, target).but(**how)

    def record(r: Record) -> dict[str, Any]:
        first, kept = (r.prompt_length or 1) - 1, torch.full((r.tokens,), -1, dtype=torch.int16)
        at = first
        for m in rounds(net, r.input_ids, fed(r.features.float()), first, steps):
            kept[at] = m
            at += m + 1
        return {"name": r.name, "input_ids": r.input_ids, "features": r.features, "prompt_length": r.prompt_length, "accepted": kept}

    return HiddenStates.from_tensors([record(r) for r in dump], side="live", target=dump.target, engine="sglang", engine_version="0.5.23")


@pytest.fixture(scope="module")
def few(train: HiddenStates) -> HiddenStates:
    return train.select(range(6))


@pytest.mark.parametrize(
    ("fault", "fed", "how"),
    [
        ("FM-46", None, {"carry": "normed"}),
        ("FM-48", lambda x: torch.cat([x[:1], x[:-1]]), {}),
        ("FM-51", None, {"forgets": "prompt"}),
        ("FM-53", None, {"neighbours": True}),
    ],
    ids=["the other state carried on", "a state of the row before", "no keys of the prompt", "the other pairs turned"],
)
def test_a_fault_of_the_loop_is_named_from_the_rounds(
    draft: Draft, target: Target, few: HiddenStates, fed: Fed | None, how: dict[str, Any], fault: str
) -> None:
    """Checkpoint, command and both dumps are those of a healthy deployment; what tells is which rounds accepted how much."""
    live = served(draft, target, few, fed or (lambda x: x), **how)

    result = diagnose(draft=draft, target=target, train=few, live=live, launch=SERVE)

    assert result.observed is not None and result.observed.rounds is not None and result.observed.rounds > 60
    first = result.ranked[0]
    assert [f.fault for f in result.findings if f.severity > Severity.NOTE] == [fault] and not result.suspects
    assert (first.certainty > 0.9, first.weight > 0.9, result.ok) == (True, True, False)
    assert first.predicted is not None and first.predicted.served_alike > 0.97 * first.predicted.served_rounds
    assert result.verdict.startswith(f"{fault}: ")
    shares = next(f for section in page(result).sections for f in section.figures if f.id == "rounds-alike").bars
    assert (
        max(shares[1:], key=lambda bar: bar.value) == shares[1] and shares[1].label.startswith(fault) and shares[1].value > shares[0].value
    )
    assert f"{first.predicted.served_alike} of {first.predicted.served_rounds}" in " ".join(str(result).split())


@pytest.mark.parametrize("known", [False, True], ids=["alone", "with the target"])
def test_a_number_that_the_file_cannot_reach_is_of_another_copy(samples: Path, target: Target, known: bool) -> None:
    """A checkpoint of the trainer that holds two tensors of twelve, beside the log of a server that accepts 2.28: it comes first in the page."""
    server = samples / "live" / "eagle3"
    part, log = samples / "epochs" / "epoch_1", server / "server.log"
    result = diagnose(draft=part, live=server / "live", log=log, target=target if known else None)
    assert [f.fault for f in result.findings if f.severity > Severity.NOTE] == ["M9"] and result.ranked[0].finding.fault == "M9"
    assert {"FM-05", "FM-06", "FM-11"} <= {f.fault for f in result.findings}


def test_a_healthy_server_is_known_by_its_rounds(draft: Draft, target: Target, few: HiddenStates) -> None:
    """However unlike a log of other prompts is: nothing is blamed where every round is as it should be."""
    live = served(draft, target, few)

    alone = diagnose(draft=draft, target=target, train=few, live=live, launch=SERVE)
    beside = diagnose(draft=draft, target=target, train=few, live=live, launch=SERVE, acceptance={"accept_length": 1.75, "steps": 4})

    assert alone.ok and alone.verdict.startswith("Nothing is wrong") and alone.replay is not None
    assert alone.replay.served_alike == alone.replay.served_rounds > 60
    assert not beside.suspects and not [f for f in beside.findings if f.severity > Severity.NOTE]
    assert beside.verdict.startswith("What was recorded is right") and "1.75 is not of them" in beside.verdict


def test_next_to_nothing_served_beside_rounds_that_are_right_is_a_finding(draft: Draft, target: Target, few: HiddenStates) -> None:
    """It is no fault of the draft that was recorded: the number is of other requests or of another server."""
    live = served(draft, target, few)
    result = diagnose(draft=draft, target=target, train=few, live=live, launch=SERVE, acceptance={"accept_length": 1.02, "steps": 4})

    serious = [f for f in result.findings if f.severity > Severity.NOTE]
    assert [f.fault for f in serious] == ["M11"] and "not of them" in serious[0].because and not result.suspects


@pytest.mark.parametrize("cause", ["gate and up swapped", "tokens that may not be drafted", "states of later steps lost"])
def test_a_cause_in_no_list_is_not_blamed_on_one_that_is(draft: Draft, target: Target, few: HiddenStates, cause: str) -> None:
    """Whether all is lost or a tenth of the rounds: the rounds are those of no listed fault, and the verdict says so and holds none for sure."""
    world = World("sample", draft, target, few, held(draft, target))
    broken = next(c for c in CAUSES if c.name == cause).make(world, random.Random(0))

    live = served(draft, target, few, net=broken.held)
    result = diagnose(draft=draft, target=target, train=few, live=live, launch=SERVE)

    assert result.replay is not None and result.replay.served_alike < 0.95 * result.replay.served_rounds
    assert result.none_of_these > max([0.5, *(s.weight for s in result.suspects)])
    assert [f.fault for f in result.findings if f.severity > Severity.NOTE] == ["M11"] and not result.ok
    assert result.verdict.startswith("No listed fault explains it") and "prompts" not in result.verdict
    assert f"{result.replay.served_alike} of {result.replay.served_rounds} of its rounds" in result.verdict


def test_rounds_of_fewer_drafts_are_not_taken_for_rounds_cut_short(draft: Draft, target: Target, few: HiddenStates) -> None:
    """Nothing names the steps, and two were drafted: a round that accepted both is not one that failed at the third."""
    result = diagnose(draft=draft, target=target, train=few, live=served(draft, target, few, steps=2))

    assert result.ok and result.verdict.startswith("Nothing is wrong")
    assert result.replay is not None and result.replay.steps == 2 and result.replay.served_alike == result.replay.served_rounds > 60


def test_a_server_that_beats_the_draft_given_has_another(draft: Draft, target: Target, few: HiddenStates) -> None:
    """The blocks of fc reversed in the copy that is given, and the right one served: not a weak draft, but not this one."""
    blocks = draft.tensors["fc.weight"].chunk(3, 1)
    copy = draft.replace(tensors={"fc.weight": torch.cat(blocks[::-1], 1).contiguous()})

    result = diagnose(draft=copy, target=target, train=few, live=served(draft, target, few), launch=SERVE)

    assert result.ranked[0].finding.fault == "M9" and "another copy" in result.ranked[0].finding.because
    assert "FM-25" not in [f.fault for f in result.findings]


def test_the_base_that_a_config_lost_is_the_targets(draft: Draft, target: Target, few: HiddenStates) -> None:
    """Trained and served with the target's rotation, and the copy given says another: the target's is named, not one that is merely common."""
    said = draft.replace(config={"rope_theta": 10000.0})
    result = diagnose(draft=said, target=target, train=few, live=served(draft, target, few), launch=SERVE)

    named = next(f for f in result.findings if f.severity > Severity.NOTE)
    assert named.fault == "FM-53" and "the target's RoPE (base 100000) instead of base 10000" in named.title


def test_a_rotation_that_costs_next_to_nothing_is_named(draft: Draft, target: Target, few: HiddenStates) -> None:
    """No number would tell: another base loses a tenth of an accept length on short texts. But a tenth of the rounds come out otherwise."""
    result = diagnose(draft=draft, target=target, train=few, live=served(draft, target, few, theta=1e4), launch=SERVE)

    assert result.replay is not None and result.replay.served_alike < 0.95 * result.replay.served_rounds
    named = next(f for f in result.findings if f.severity > Severity.NOTE)
    assert named.fault == "FM-53" and "base 10000" in named.title


def test_a_number_that_cannot_be_is_refused(draft: Draft) -> None:
    """Five drafts and the bonus token of four steps."""
    with pytest.raises(BadArgument, match=r"6\.00 is more than 4 drafts"):
        diagnose(draft=draft, launch=SERVE, acceptance=6.0)


def test_texts_that_are_too_short_for_a_round_are_said_to_be(draft: Draft, target: Target, few: HiddenStates) -> None:
    """A recording of prompts alone, as replayed CUDA graphs leave it: no number is made of nothing."""
    prompts = HiddenStates.from_tensors(
        [
            {"name": r.name, "input_ids": r.input_ids[:n], "features": r.features[:n], "prompt_length": n}
            for r in few
            if (n := r.prompt_length)
        ],
        side="live", target=few.target,
    )  # fmt: skip

    result = diagnose(draft=draft, target=target, live=prompts, launch=SERVE, acceptance={"accept_length": 1.6, "steps": 4})

    assert result.replay is None and "nan" not in str(result)
    assert any("long enough for a round" in line for line in result.missing)


def test_without_a_training_dump_the_target_is_run_on_the_live_tokens(draft: Draft, target: Target, few: HiddenStates) -> None:
    """The states that the config declares stand for those that were trained on: a late capture and its cost come out without any dump but
    the live one."""
    hashed = HiddenStates.from_tensors(
        [{"name": r.name, "input_ids": r.input_ids + (1 << 40), "features": r.features} for r in few], side="live", target=few.target
    )
    behind = HiddenStates.from_tensors(
        [{"name": r.name, "input_ids": r.input_ids, "features": r.features, "positions": torch.arange(r.tokens) + 64} for r in few],
        side="live", target=few.target,
    )  # fmt: skip
    assert all(Case(Given(draft=draft, target=target, live=live)).train is None for live in (hashed, behind))

    every = Case(Given(draft=draft, target=target, live=few, launch=SERVE))._every_state
    assert every is not None
    states = {r.name: torch.cat([r.state(b + 1) for b in (2, 15, 27)], -1) for r in every}
    late = replace(few, side="live").map_features(lambda r, _: states[r.name])

    healthy, shifted = (diagnose(draft=draft, target=target, live=live, launch=SERVE) for live in (few, late))

    assert healthy.ok and healthy.replay is not None and healthy.comparison is not None
    assert [o.best.source for o in healthy.comparison.origins] == [2, 15, 27]
    assert shifted.ranked[0].finding.fault == "FM-29" and shifted.ranked[0].cost is not None
    assert any("none given, so the target was run here" in line for line in shifted.trail)
