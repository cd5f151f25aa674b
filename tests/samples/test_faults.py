"""Every fault of this release, injected into the real draft or a real capture: named first; and the healthy pair stays silent."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eagle3diag.audit import audit
from eagle3diag.capture.reference import capture_reference
from eagle3diag.checkpoints import Draft, Target, open_draft
from eagle3diag.diagnose import Diagnosis, diagnose
from eagle3diag.dumps import HiddenStates
from eagle3diag.findings import Severity
from eagle3diag.replay import replay
from eagle3diag.serving import Acceptance, read_acceptance

SERVE = (
    "python -m sglang.launch_server --model-path T --speculative-algorithm {} --speculative-num-steps 4 --speculative-num-draft-tokens 5"
)


@pytest.fixture(scope="module")
def few(train: HiddenStates) -> HiddenStates:
    """Six of the ten sequences: enough to tell every fault apart, in less time."""
    return train.select(range(6))


@pytest.fixture(scope="module")
def reference(target: Target, few: HiddenStates) -> HiddenStates:
    captured = capture_reference(target, few)
    assert captured is not None
    return captured


def serious(result: Diagnosis) -> list[str]:
    return [f.fault for f in result.findings if f.severity > Severity.NOTE]


def fed(few: HiddenStates, reference: HiddenStates, boundaries: tuple[int, ...]) -> HiddenStates:
    """A live dump whose blocks are these boundaries (-1: the final normed state), as bf16 as the capture."""
    by_name = {r.name: r for r in reference}

    def features(record, _):  # type: ignore[no-untyped-def]
        known = by_name[record.name]
        return torch.cat([known.final if b == -1 else known.state(b) for b in boundaries], -1)

    return dataclasses.replace(few.map_features(features), side="live")


def test_the_healthy_pair_is_silent(draft: Draft, target: Target, few: HiddenStates, reference: HiddenStates) -> None:
    """Right names, right flag, right features, served as replayed: nothing above a note, though fc is near its initialisation."""
    expected = replay(draft, few, target=target).accept_length

    result = diagnose(
        draft=draft, target=target, train=few, live=fed(few, reference, (2, 15, 27)), launch=SERVE.format("EAGLE3"), acceptance=expected
    )

    assert serious(result) == []
    assert result.ok
    assert result.verdict.startswith("Nothing is wrong")


@pytest.mark.parametrize("name", ["eagle3"])
def test_the_recorded_healthy_server_is_silent(samples: Path, draft: Draft, target: Target, train: HiddenStates, name: str) -> None:
    """What the real engine fed and logged under the right flag raises nothing."""
    server = samples / "live" / name

    result = diagnose(
        draft=draft,
        target=target,
        train=train,
        live=server / "live",
        launch=server / "launch.txt",
        log=server / "server.log",
        acceptance=server / "acceptance.json",
    )

    assert serious(result) == []


def test_fm01_recorded(samples: Path, draft: Draft, target: Target, train: HiddenStates) -> None:
    """The real engine under EAGLE: named first, reproduced by its counterfactual, from the live dump alone too."""
    server = samples / "live" / "eagle_flag"
    parts = {"draft": draft, "target": target, "train": train, "acceptance": server / "acceptance.json"}

    whole = diagnose(**parts, live=server / "live", launch=server / "launch.txt", log=server / "server.log")
    dumps_only = diagnose(**parts, live=server / "live")

    assert serious(whole) == serious(dumps_only) == ["FM-01"]
    assert whole.ranked[0].predicted is not None
    assert whole.ranked[0].predicted.distance is not None
    assert whole.ranked[0].predicted.distance < 0.05
    assert whole.ranked[0].weight > 0.8


def test_one_state_is_not_said_to_be_the_flag_where_the_command_names_eagle3(
    samples: Path, draft: Draft, target: Target, train: HiddenStates, reference: HiddenStates
) -> None:
    """The final state alone may be of another server, or of a class without aux states; the last of the trained ones, of a pipeline stage."""
    command = SERVE.format("EAGLE3")
    alone = diagnose(draft=draft, target=target, train=train, live=samples / "live" / "eagle_flag" / "live", launch=command)
    few = train.select(range(6))
    staged = diagnose(draft=draft, target=target, train=few, live=fed(few, reference, (27,)), launch=command + " --pp-size 2")

    assert serious(alone) == ["FM-01"] and "was named" not in alone.verdict
    assert "FM-02" in alone.findings[0].because and "EAGLE3" in alone.findings[0].because
    assert set(serious(staged)) == {"FM-40"} and staged.ranked[0].weight > 0.9


def test_fm01_from_the_command_alone(draft: Draft) -> None:
    """Checkpoint and launch command are enough; with EAGLE3 they are silent, and an EAGLE-1 sized fc may be served with EAGLE."""
    assert serious(diagnose(draft=draft, launch=SERVE.format("EAGLE"))) == ["FM-01"]
    assert serious(diagnose(draft=draft, launch=SERVE.format("EAGLE3"))) == []


def _lose(draft: Draft, *names: str) -> Draft:
    return draft.replace(tensors=dict.fromkeys(names))


INJECTED: dict[str, Callable[[Draft], Draft]] = {
    "FM-05": lambda d: d.replace(rename=lambda n: n.replace("midlayer.", "draft_layers.0.")),
    "FM-06": lambda d: _lose(d, "lm_head.weight"),
    "FM-11": lambda d: _lose(d, "d2t"),
    "FM-11 ": lambda d: _lose(d, "d2t", "t2d"),
    "FM-12": lambda d: d.replace(tensors={"d2t": d.vocabulary.draft_ids}),  # type: ignore[union-attr]
    "FM-12 ": lambda d: d.replace(tensors={"d2t": torch.arange(d.config.draft_vocab_size)}),
}


@pytest.mark.parametrize("fault", INJECTED)
def test_faults_of_the_checkpoint(fault: str, draft: Draft, target: Target, few: HiddenStates) -> None:
    """Named first by the checkpoint alone, and by the whole case when nothing is accepted."""
    broken = INJECTED[fault](draft)

    assert serious(diagnose(draft=broken)) == [fault.strip()]
    result = diagnose(draft=broken, target=target, train=few, acceptance=1.02)
    assert serious(result)[0] == fault.strip()
    if fault == "FM-11 ":  # without t2d nothing says what the head's rows stand for
        assert result.replay is None
        assert any("no vocabulary map" in line for line in result.missing)
    elif fault == "FM-06":  # the target's rows stand in for the lost head
        assert result.replay is not None
    else:
        assert result.ranked[0].cost is not None
        assert result.ranked[0].cost > 0.3


@pytest.mark.parametrize("undo", [False, True])
def test_packed_otherwise(undo: bool, draft: Draft, target: Target, few: HiddenStates) -> None:
    """FM-19: heads of q, k and v taken apart in another order, either way round: only a replay tells, and it does."""
    names = [f"midlayer.self_attn.{part}_proj.weight" for part in "qkv"]
    heads = torch.cat([draft.tensors[n] for n in names]).view(9 + 2 * 3, 64, -1)
    order = torch.tensor([h for g in range(3) for h in (3 * g, 3 * g + 1, 3 * g + 2, 9 + g, 12 + g)])
    mixed = heads[order.argsort() if undo else order].view(15 * 64, -1).split([576, 192, 192])
    broken = draft.replace(tensors={n: t.clone() for n, t in zip(names, mixed, strict=True)})

    result = diagnose(draft=broken, target=target, train=few)

    assert audit(broken, target=target).findings == ()
    assert serious(result) == ["FM-19"]
    assert ("read one kind" if not undo else "read group by group") in result.findings[0].title


def test_fm05_as_older_engines_have_it(draft: Draft) -> None:
    """layers.0.* is dropped by 0.5.8 and loads in 0.5.23: a legal name there."""
    renamed = draft.replace(rename=lambda n: n.replace("midlayer.", "layers.0."))

    assert serious(diagnose(draft=renamed, engine="sglang==0.5.8")) == ["FM-05"]
    assert serious(diagnose(draft=renamed, engine="sglang==0.5.23")) == []


def test_fm05_recorded(samples: Path, draft: Draft, target: Target, train: HiddenStates) -> None:
    """The real engine with a layer that it dropped: the counterfactual gives what was served."""
    server = samples / "live" / "dropped_names"
    lost = INJECTED["FM-05"](draft)

    result = diagnose(draft=lost, target=target, train=train, log=server / "server.log", acceptance=server / "acceptance.json")

    assert serious(result) == ["FM-05"]
    assert result.ranked[0].predicted is not None
    assert result.ranked[0].predicted.distance is not None
    assert result.ranked[0].predicted.distance < 0.15  # what memory held is not known; zeros are the nearest guess


@pytest.mark.parametrize(
    ("boundaries", "fault"),
    [
        ((5, 10, 20), "FM-28"), ((2, 15, 28), "FM-28"), ((15, 27, 29), "FM-28"),
        ((1, 14, 26), "FM-29"), ((3, 16, 28), "FM-29"),
        ((15, 2, 27), "FM-33"), ((27, 15, 2), "FM-33"), ((15, 27, 2), "FM-33"),
    ],
)  # fmt: skip
def test_faults_of_the_capture(
    boundaries: tuple[int, ...], fault: str, draft: Draft, target: Target, few: HiddenStates, reference: HiddenStates
) -> None:
    """Real states of other boundaries, or in another order, are named for what they are, first, and nothing else is."""
    live = fed(few, reference, boundaries)
    observed = replay(draft, live, target=target).accept_length

    result = diagnose(draft=draft, target=target, train=few, live=live, reference=reference, acceptance=observed)

    assert serious(result) == [fault]
    shown = " ".join([result.findings[0].title, *map(str, result.findings[0].evidence)])
    if fault == "FM-28":
        assert all(str(b) in shown for b in boundaries)


def test_the_reference_is_captured_when_it_is_needed(draft: Draft, target: Target, few: HiddenStates, reference: HiddenStates) -> None:
    """Two dumps that disagree, and a small target at hand: the boundaries are named without being asked to."""
    result = diagnose(draft=draft, target=target, train=few.select([0, 1]), live=fed(few, reference, (3, 16, 28)).select([0, 1]))

    assert serious(result) == ["FM-29"]
    assert any("captured here" in line for line in result.trail)


def test_without_a_reference_the_doubt_is_said(draft: Draft, few: HiddenStates, reference: HiddenStates) -> None:
    """No target: which boundary it is cannot be told, and the command that would tell is named."""
    result = diagnose(draft=draft, train=few, live=fed(few, reference, (3, 16, 28)))

    assert [(f.fault, f.severity) for f in result.findings if f.severity > Severity.NOTE] == [("FM-28", Severity.WARNING)]
    assert any("cannot tell FM-28 from FM-29" in line for line in result.missing)


def test_wrong_layers_recorded(samples: Path, draft: Draft, target: Target, train: HiddenStates) -> None:
    """The real engine with state ids written where it reads output ids: one boundary late, every one of them."""
    server = samples / "live" / "wrong_layers"

    evidence = {
        "target": target,
        "train": train,
        "live": server / "live",
        "acceptance": server / "acceptance.json",
        "launch": server / "launch.txt",
    }
    result = diagnose(draft=draft, **evidence)

    assert serious(result) == ["FM-29"]
    first = result.ranked[0].finding
    assert "[1, 14, 26]" not in first.fix and "draft-wrong-layers" in first.fix, "the config given says so already: another one is served"
    served = draft.replace(config={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 15, 27], "use_aux_hidden_state": True}})
    own = next(f for f in diagnose(draft=served, **evidence).findings if f.fault == "FM-29" and f.severity is Severity.ERROR)
    assert "[1, 14, 26]" in own.fix, "and of the config that is served it is what to write"


def test_fm73(draft: Draft) -> None:
    """0.20 with five slots is nothing accepted, where the version prints the biased rate; a strict 0.00 needs no translation, so that only the
    symptom is left to say (M1)."""
    seen = Acceptance(rounds=200, accepted=0, steps=4, num_draft_tokens=5)

    old = diagnose(acceptance=seen, engine="sglang==0.5.8")
    new = diagnose(acceptance=seen, engine="sglang==0.5.23")

    assert serious(old) == ["FM-73"]
    assert "0.20 is 0.00" in old.findings[0].title
    assert serious(new) == ["M1"]


def test_several_at_once_are_reported_as_several(samples: Path, draft: Draft, target: Target, train: HiddenStates) -> None:
    """The seed case's first server: names dropped and the flag wrong."""
    server = samples / "live" / "eagle_flag"

    result = diagnose(
        draft=INJECTED["FM-05"](draft),
        target=target,
        train=train,
        live=server / "live",
        launch=server / "launch.txt",
        acceptance=server / "acceptance.json",
    )

    assert set(serious(result)) == {"FM-01", "FM-05"}
    assert "1 more" in result.verdict


def test_near_initialisation_does_not_alarm(draft: Draft) -> None:
    """Statistics near a fresh matrix, in a draft that works, give a note at most."""
    assert diagnose(draft=draft).ok


@pytest.mark.parametrize(
    ("loud", "verdict", "found"), [(0.9, "Not accepted by itself: without any engine", ["FM-25"]), (0.5, "Weak but right: ", [])]
)
def test_a_weak_but_right_draft_is_called_that(
    loud: float, verdict: str, found: list[str], draft: Draft, target: Target, few: HiddenStates
) -> None:
    """Served as replayed, and little: no fault is blamed, but a file that is next to never accepted is not clean. The
    draft is weakened as few epochs would leave it: by noise on its head."""
    head = draft.weight("lm_head.weight").float()
    noise = torch.randn(head.shape, generator=torch.Generator().manual_seed(0)) * head.std() * loud
    weak = draft.replace(tensors={"lm_head.weight": (head + noise).to(torch.bfloat16)})
    expected = replay(weak, few, target=target).accept_length
    assert 1.0 < expected < 1.5

    result = diagnose(draft=weak, target=target, train=few, launch=SERVE.format("EAGLE3"), acceptance=expected)

    assert serious(result) == found
    assert result.findings[-1].fault == "FM-25"
    assert result.verdict.startswith(verdict)


@pytest.mark.parametrize(("ids", "fault"), [([2, 15, 27], "FM-29"), ([5, 10, 20], "FM-28"), ([1, 14, 26], None)])
def test_a_config_of_other_boundaries_than_the_training_dump(
    ids: list[int], fault: str | None, draft: Draft, target: Target, few: HiddenStates
) -> None:
    """Two files are enough: what will be captured against what the dump says of itself."""
    configured = draft.replace(config={"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}})

    result = diagnose(draft=configured, target=target, train=few, engine="sglang==0.5.23", acceptance=1.3)

    assert serious(result) == ([fault] if fault else [])
    if fault:
        assert result.verdict.startswith(fault) and "the training dump holds 2, 15, 27" in result.verdict
        assert "[1, 14, 26]" in result.findings[0].fix


def test_what_only_takes_the_edge_off_is_no_cause(draft: Draft, target: Target, few: HiddenStates) -> None:
    """A matrix that is spoilt in a way of no list: some change makes it a little better, which is no reason to believe in it."""
    name = next(n for n in draft.tensors if n.endswith("o_proj.weight"))
    spoilt = draft.replace(tensors={name: draft.tensors[name].T.contiguous()})

    result = diagnose(draft=spoilt, target=target, train=few, engine="sglang==0.5.23", acceptance=1.05)

    assert serious(result) == ["FM-25"]
    assert result.verdict.startswith("Not accepted by itself") and "--against" in result.findings[-1].fix


def test_a_fault_in_the_file_is_not_harmless_because_the_replay_has_it_too(draft: Draft, target: Target, few: HiddenStates) -> None:
    """The head's rows one further: the replay of the file collapses, so that undoing nothing costs nothing."""
    rolled = draft.replace(tensors={"lm_head.weight": draft.tensors["lm_head.weight"].roll(1, 0)})

    result = diagnose(draft=rolled, target=target, train=few, engine="sglang==0.5.23", acceptance=1.05)

    assert serious(result) == ["FM-13"] and result.findings[0].severity is Severity.ERROR
    assert "costs" not in result.findings[0].because and result.ranked[0].predicted is None


def test_what_is_undone_is_said_to_be_undone(draft: Draft, target: Target, few: HiddenStates) -> None:
    """fc's column blocks in another order: the replay that is shown is the mended one, and the fix is the one for such a file."""
    one, two, three = draft.tensors["fc.weight"].chunk(3, 1)
    swapped = draft.replace(tensors={"fc.weight": torch.cat([three, two, one], 1).contiguous()})

    result = diagnose(draft=swapped, target=target, train=few, engine="sglang==0.5.23", acceptance=1.05)

    assert result.verdict.startswith("FM-33") and "column blocks" in result.findings[0].fix
    assert "With this undone the replay gives" in " ".join(str(result).split())


def test_a_number_that_nothing_explains_is_left_open(draft: Draft, target: Target, few: HiddenStates) -> None:
    """A healthy checkpoint and command, yet nothing accepted: no fault is made up, and the evidence that would tell is named."""
    result = diagnose(draft=draft, target=target, train=few, launch=SERVE.format("EAGLE3"), acceptance=1.0)

    assert serious(result) == ["M11"]
    assert "No fault is in the evidence given" in result.verdict
    assert any(line.startswith("no live dump") for line in result.missing)


def test_a_harmless_fault_is_found_and_not_blamed(draft: Draft, target: Target, few: HiddenStates, reference: HiddenStates) -> None:
    """One early at the first block only costs little here: found, and said to be no explanation of a collapse."""
    live = fed(few, reference, (1, 15, 27))

    result = diagnose(draft=draft, target=target, train=few, live=live, reference=reference, acceptance=1.0)

    assert serious(result) == ["FM-28"]
    assert result.findings[0].severity is Severity.WARNING
    assert "not the explanation" in result.findings[0].because
    assert result.none_of_these > 0.3


def test_the_direction_seen_is_the_one_replayed(draft: Draft, target: Target, few: HiddenStates, reference: HiddenStates) -> None:
    """The live dump shows early or late, or an order: only that is replayed, since only that can be the explanation."""
    for boundaries, name in (((1, 14, 26), "early"), ((3, 16, 28), "late"), ((15, 2, 27), "order 15, 2, 27")):
        result = diagnose(draft=draft, target=target, train=few, live=fed(few, reference, boundaries), reference=reference)

        assert result.ranked[0].predicted is not None
        assert name in result.ranked[0].predicted.name
        assert [c.name for c in result.counterfactuals if c.fault == result.findings[0].fault] == [result.ranked[0].predicted.name]


@pytest.mark.parametrize("name", ["eagle3", "eagle_flag", "dropped_names", "wrong_layers"])
def test_recordings_keep_the_identities(samples: Path, name: str) -> None:
    """AL = 1 + sum(p); counts and histogram agree; outputs are those of the same prompts."""
    seen = read_acceptance(samples / "live" / name / "acceptance.json")

    assert seen.rounds
    assert seen.length == pytest.approx(1 + sum(seen.p))
    prompts = [json.loads(line)["prompt_ids"] for line in (samples / "prompts.jsonl").read_text().splitlines()]
    outputs = [json.loads(line)["prompt_ids"] for line in (samples / "live" / name / "outputs.jsonl").read_text().splitlines()]
    assert len(outputs) == len(prompts) == 10
    assert outputs == prompts


def test_the_sample_draft_is_what_its_card_says(samples: Path) -> None:
    """Opened anew from disk: names, sizes and boundaries."""
    opened = open_draft(samples / "draft")

    assert opened.config.aux_boundaries == (2, 15, 27)
    assert tuple(opened.weight("fc.weight").shape) == (576, 1728)
    assert opened.config.draft_vocab_size == 8192
