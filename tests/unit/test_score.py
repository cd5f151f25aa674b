"""The benchmark of the diagnosis: its engine against the replay, its table of injections, and how cases are scored."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from replay_reference import HEADS, KV, LATENT, agreeing_text, dump_of, text, toy_net

from benchmarks.diagnosis import EVIDENCE, singles, unlisted
from benchmarks.injection.engine import Held, Latent, rounds
from benchmarks.injection.faults import HEALTHY, INJECTIONS
from benchmarks.injection.kinds import Injection
from benchmarks.injection.unlisted import CAUSES, UNLISTED
from benchmarks.injection.world import World
from benchmarks.scoring import GROUPS, TESTS, Outcome, bars, calibration, page
from eagle3diag.diagnose.explain import NONE_OF_THESE
from eagle3diag.faults import catalogue, in_words
from eagle3diag.replay import Change, Loop, Net, run

STEPS = 4


def held(net: Net, **changes: Any) -> Held:
    """The toy draft in the engine of the benchmark."""
    m = net.attention
    latent = Latent(m.kv_rank, m.plain, m.turned, m.value) if net.attention is LATENT else None  # type: ignore[union-attr]
    made = Held(
        net.weights, net.embedding, net.head, net.draft_ids, HEADS, KV, latent, net.layers, net.eps, net.rope.theta,
        net.rope.interleaved, net.norm_before_fc, carry="normed" if net.norm_output else "raw",
    )  # fmt: skip
    return replace(made, **changes)


def replayed(net: Net, ids: torch.Tensor, features: torch.Tensor, loop: Loop) -> tuple[float, ...]:
    return run(net, dump_of((ids, features)), steps=STEPS, changes=(Change("", "as told", loop=lambda _: loop),)).p


@pytest.mark.parametrize(
    ("net", "loop", "changes"),
    [
        (toy_net(1), Loop(), {}),
        (toy_net(2, layers=2), Loop(), {}),
        (toy_net(3, latent=LATENT), Loop(), {}),
        (toy_net(4, norm_before_fc=True, norm_output=True), Loop(), {}),
        (toy_net(5), Loop(position_offset=1), {"offset": 1}),
        (toy_net(6), Loop(keep_draft_keys=True), {"stale": True}),
        (toy_net(7), Loop(prefix="answer"), {"forgets": "prompt"}),
    ],
    ids=["grouped", "two layers", "latent", "norms", "positions", "stale keys", "prompt lost"],
)
def test_the_two_engines_accept_the_same(net: Net, loop: Loop, changes: dict[str, Any]) -> None:
    """The benchmark's engine and the replay share no code, and walk one text with the same rounds."""
    ids, features = agreeing_text(net, 40)

    made = rounds(held(net, **changes), ids, features, 2, STEPS)

    assert len(made) > 5
    assert replayed(net, ids, features, loop) == pytest.approx([sum(m >= i for m in made) / len(made) for i in range(1, STEPS + 1)])


@pytest.mark.parametrize("change", [{"deaf": True}, {"window": 2}, {"residual": "normed"}, {"theta": 10.0}, {"neighbours": True}])
def test_what_is_broken_in_the_engine_changes_its_rounds(change: dict[str, Any]) -> None:
    """On a text that the healthy draft agrees with, so that no injection is one in name only."""
    net = toy_net(8)
    ids, features = agreeing_text(net, 60)

    assert rounds(held(net, **change), ids, features, 2, STEPS) != rounds(held(net), ids, features, 2, STEPS)


def test_a_window_sees_what_the_replay_sees() -> None:
    net = replace(toy_net(9), windows=(5,))
    ids, features = agreeing_text(net, 40)
    made = rounds(held(net, window=5), ids, features, 2, STEPS)

    assert 1 + sum(made) / len(made) == pytest.approx(run(net, dump_of((ids, features)), steps=STEPS).accept_length)


def test_keys_of_another_request() -> None:
    """Rows that find another text's keys in place of their own agree less with a text that follows the draft."""
    net = toy_net(10)
    one, other = agreeing_text(net, 40), text(3, 40)
    cache, _ = held(net).read(*other)

    assert sum(rounds(held(net), *one, 2, STEPS, cache)) < sum(rounds(held(net), *one, 2, STEPS)) / 2


def test_every_injection_is_a_fault_of_the_catalogue_once() -> None:
    words = in_words()
    assert all(i.fault in words or i.fault in {f.id for f in catalogue()} for i in INJECTIONS)
    names = [(i.fault, i.name) for i in INJECTIONS + HEALTHY]
    assert len(set(names)) == len(names)
    assert len({i.fault for i in INJECTIONS}) >= 45
    assert not any(i.fault for i in HEALTHY)


def test_titles_of_faults_are_those_of_the_catalogue_in_words() -> None:
    """One source: the code names a fault as its page does."""
    words = in_words()
    for fault in catalogue():
        assert fault.title
        if fault.id in words:
            assert fault.title == words[fault.id]["title"]


def case(fault: str, said: list[tuple[str, float]], **fields: Any) -> dict[str, Any]:
    known = {
        "open": [],
        "observed": 1.0,
        "expected": 2.0,
        "found": [f for f, _ in said],
        "as_trained": 0.0,
        "none": 0.0,
        "cost": 1.0,
        "seen": "files",
        "evidence": "everything",
    }
    return {"fault": fault, "name": fault, "draft": "sample", "seed": 2, "said": said, "seconds": [0.1, 0.2], **known, **fields}


@pytest.mark.parametrize(
    ("row", "first", "third", "left_open"),
    [
        (case("FM-05", [("FM-05", 1.0)]), True, True, True),
        (case("FM-05", [("FM-06", 0.6), ("FM-05", 0.3)]), False, True, False),
        (case("FM-05", [("M1", 0.0), ("FM-05", 0.3)], found=["M1"]), True, True, True),
        (case("FM-28", [("FM-33", 0.3), ("FM-28", 0.1)], found=[], open=[("FM-33", 0.3), ("FM-28", 0.1)]), False, True, True),
        (case("FM-28", [], found=[], as_trained=0.9), False, False, False),
        (case("FM-49", [], found=[], as_trained=0.9, cost=0.02), True, True, True),
        (case("FM-49", [("FM-05", 0.9)], cost=0.02), False, False, False),
        (case("FM-29", [("FM-29", 0.0)], as_trained=1.0, cost=0.02), True, True, True),
        (case("FM-43", [("H2", 1.0)]), True, True, True),
    ],
)
def test_what_counts_as_right(row: dict[str, Any], first: bool, third: bool, left_open: bool) -> None:
    """A symptom is no name; a harmless fault may stay unnamed, and nothing else may be blamed for it."""
    outcome = Outcome(row)

    assert (outcome.first, outcome.within(3), outcome.open) == (first, third, left_open)


@pytest.mark.parametrize(
    ("row", "alarm", "quiet"),
    [
        (case("", [], found=[], as_trained=0.9), False, True),
        (case("", [("FM-56", 0.3)], found=[], as_trained=0.3), False, False),
        (case("", [("FM-56", 0.6)], found=[], as_trained=0.05), True, False),
        (case("", [("FM-05", 0.0)], as_trained=0.9), True, False),
        (case("", [("M1", 0.0)], found=["M1"], as_trained=0.9), False, True),
    ],
    ids=["nothing", "cannot be told", "something is lost", "a finding", "a symptom"],
)
def test_what_counts_as_an_alarm(row: dict[str, Any], alarm: bool, quiet: bool) -> None:
    """What is said in the verdict: that something is lost, or which fault is there. That it cannot be told is neither an alarm nor quiet."""
    assert (Outcome(row).alarm, Outcome(row).quiet) == (alarm, quiet)


def test_calibration_counts_alarms_as_wrong() -> None:
    """Of two diagnoses said with 95 %, one of a healthy draft, half are right."""
    table = calibration([Outcome(case("FM-05", [("FM-05", 0.95)])), Outcome(case("", [("FM-05", 0.95)])), Outcome(case("FM-06", []))])

    assert "| 95% to 99% | 95.0% | 1 of 2, 50%" in table and "| 70%" not in table


def toy_world(net: Net) -> World:
    return World("sample", None, None, None, held(net))  # type: ignore[arg-type]


@pytest.mark.parametrize("net", [toy_net(11), toy_net(12, layers=2), toy_net(13, latent=LATENT)], ids=["one layer", "two layers", "latent"])
@pytest.mark.parametrize("cause", CAUSES, ids=lambda c: c.name)
def test_a_cause_in_no_list_changes_what_the_draft_says(net: Net, cause: Injection) -> None:
    """In what it says of the rows of a text, or of its own steps: none is a cause in name only."""
    ids, features = agreeing_text(net, 60)
    broken = cause.make(toy_world(net), random.Random(0)).held
    assert broken is not None

    said = []
    for engine in (held(net), broken):
        cache, raw = engine.read(ids, features)
        state, own = raw[3:4], engine.no_keys()
        for number in (1, 2, 3):
            state = engine.step(number, ids[number : number + 1], state, torch.tensor([3]), cache, own)
        said.append((engine.logits(raw), engine.logits(state)))
    assert not all(one.allclose(other) for one, other in zip(*said, strict=True))


def test_one_case_in_twenty_has_a_cause_in_no_list() -> None:
    """As many as the diagnosis keeps for them, by other names than those of faults, and of one draw the same again."""
    world = toy_world(toy_net(14))
    drawn = [keys["name"] for keys, _ in unlisted(world, 4)]

    assert drawn == [keys["name"] for keys, _ in unlisted(world, 4)] and len(set(drawn)) * len(EVIDENCE) == len(drawn)
    assert 0.75 * NONE_OF_THESE < len(drawn) / (len(drawn) + sum(1 for _ in singles(world, 4))) < 1.25 * NONE_OF_THESE
    assert not {c.name for c in CAUSES} & {i.name for i in INJECTIONS} and UNLISTED not in in_words()


def test_what_is_blamed_for_a_cause_in_no_list_is_wrong() -> None:
    """It counts in the calibration, and in a table of its own; not in the bars of faults."""
    rows = [
        case(UNLISTED, [("FM-14", 0.9)], none=0.1),
        case(UNLISTED, [("FM-56", 0.1)], none=0.9),
        case(UNLISTED, [("FM-05", 0.9)], none=0.1, cost=0.05),
        case("FM-14", [("FM-14", 0.9)]),
    ]
    outcomes = [Outcome(row) for row in rows]

    assert [o.likeliest for o in outcomes] == ["FM-14", "none of these", "FM-05", "FM-14"]
    assert "| 85% to 95% | 90.0% | 1 of 3, 33%" in calibration(outcomes)
    told = bars(outcomes)
    assert "everything given: first | 90 % | 1 of 1" in told
    assert '"none of these" first |  | 1 of 2' in told and "85 % or more |  | 1 of 2" in told


def test_the_page_is_made_of_even_seeds(tmp_path: Path) -> None:
    cases = tmp_path / "cases.jsonl"
    rows = [
        case("FM-05", [("FM-05", 1.0)]),
        case("FM-06", [], seed=1),
        case("", [("FM-05", 0.9)]),
        case("FM-05+FM-28", [("FM-05", 0.5), ("FM-28", 0.5)]),
    ]
    cases.write_text("\n".join(map(json.dumps, rows)))

    page([cases], None, None, tmp_path / "score.md", "even")
    made = (tmp_path / "score.md").read_text()

    assert "| [FM-05](faults/FM-05.md)" in made and "FM-06.md" not in made
    assert "everything given: first | 90 % | 1 of 1" in made
    assert "pairs: both named | 80 % | 1 of 1" in made
    assert "sample, , everything, seed 2: FM-05" in made


def test_groups_and_tests_name_what_there_is() -> None:
    known = {f.id for f in catalogue()} | set(in_words())
    assert all(set(g.faults) <= known for g in GROUPS)
    assert set(TESTS) <= known
