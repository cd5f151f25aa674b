"""Faults of the draft loop as counterfactuals: each does what it says, only where it can, and alongside any other."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from replay_reference import LATENT, Plain, agreeing_text, dump_of, toy_net

from eagle3diag.case import Case, Given
from eagle3diag.dumps import HiddenStates
from eagle3diag.errors import BadArgument
from eagle3diag.faults import catalogue, loop
from eagle3diag.replay import Change, Net, run
from eagle3diag.replay.drafting import draft_chains, draft_everywhere, pack
from eagle3diag.replay.loop import NEWEST, Loop, loop_of
from eagle3diag.replay.rope import Rope

EVERYTHING: dict[str, Any] = {"biases": True, "head_norms": True, "norm_before_fc": True, "fc_norm": True, "windows": (6,)}


def case_of(net: Net | None, dump: HiddenStates | None) -> Case:
    """A case whose net and training dump are at hand."""
    case = Case(Given())
    case.__dict__ |= {"net": net, "train": dump}
    return case


def changes_of(net: Net, dump: HiddenStates) -> list[Change]:
    return [change for fault in loop.FAULTS for change in fault.changes(case_of(net, dump))]


@pytest.fixture(scope="module")
def scaled() -> Net:
    """A draft with all that could be ignored."""
    return toy_net(4, **EVERYTHING, rope=Rope(8, 30000.0, {"rope_type": "linear", "factor": 4.0}))


@pytest.fixture(scope="module")
def dump(scaled: Net) -> HiddenStates:
    return dump_of(*(agreeing_text(scaled, n, seed) for seed, n in enumerate((60, 45))), prompt_length=4)


def test_a_draft_that_has_everything_is_offered_everything(scaled: Net, dump: HiddenStates) -> None:
    """One change per thing that an engine may ignore; each names its own fault and differs in name."""
    offered = changes_of(scaled, dump)

    assert {f.id for f in loop.FAULTS} == {c.fault for c in offered}
    assert len({c.name for c in offered}) == len(offered) == 22
    assert {f.id for f in loop.FAULTS} <= {f.id for f in catalogue()}


def test_changes_draft_otherwise(scaled: Net, dump: HiddenStates) -> None:
    """What is drafted changes, in the replay that diagnosis makes, and the draft itself stays as it was. Five of the small changes of
    position, rotation and keys flip no argmax of this toy, which draws four tokens a round from ninety."""
    before = {n: w.clone() for n, w in scaled.weights.items()}
    healthy, same = run(scaled, dump), []
    for change in changes_of(scaled, dump):
        broken = run(scaled, dump, changes=(change,))
        assert broken.changes == (change.name,)
        if (broken.p, broken.every_position_p) == (healthy.p, healthy.every_position_p):
            same.append(change.fault)

    assert len(same) <= 5
    assert set(same) <= {"FM-49", "FM-50", "FM-51", "FM-53", "FM-56", "FM-59"}
    assert all(torch.equal(w, scaled.weights[n]) for n, w in before.items())


def test_a_draft_that_has_nothing_special_is_offered_only_what_could_change_it() -> None:
    """No norm to ignore, no bias to drop, no scaling, no window, the usual base."""
    net = toy_net(4)
    one = dump_of(agreeing_text(net, 30))
    names = [c.name for c in changes_of(net, one)]

    assert not any(
        word in name
        for name in names
        for word in ("norms", "norm before fc", "bias", "scaling", "window", "another request", "10000 instead")
    )
    assert sum("RoPE base" in name for name in names) == 2


def test_without_a_net_there_is_nothing_to_replay() -> None:
    """No change and no finding, whatever else is missing."""
    for fault in loop.FAULTS:
        assert list(fault.changes(case_of(None, None))) == []
        assert fault.detect(case_of(None, None)) is None


def test_changes_of_the_loop_compose_with_all_others(scaled: Net, dump: HiddenStates) -> None:
    """Any two at once: both are applied, in the order listed, and nothing breaks."""
    short = dump.select([dump[1].name, dump[0].name])
    for a, b in itertools.pairwise([*changes_of(scaled, dump), *changes_of(scaled, dump)[:1]]):
        assert run(scaled, short, steps=3, changes=(a, b)).changes == (a.name, b.name)


def test_the_embedding_as_residual_and_the_deaf_layer_are_what_they_say() -> None:
    """Against the slow draft: attention that brings nothing is the layer without its output projection."""
    net = toy_net(1)
    ids, features = agreeing_text(net, 12)
    deaf = next(c for f in loop.FAULTS if f.id == "FM-52" for c in f.changes(case_of(net, None)))
    quiet = dataclasses.replace(net, weights={**net.weights, "layers.0.self_attn.o_proj.weight": torch.zeros(32, 32)})

    drafted = draft_everywhere(deaf.net(net), ids, features, 3)

    assert drafted.tolist() == [Plain(quiet).chain(ids.tolist(), features.double().numpy(), 3, at) for at in range(11)]


def test_missing_and_foreign_keys_are_what_they_say() -> None:
    """Without the prompt's keys a row drafts as if its text began at the boundary; with another record's it never sees its own."""
    net = toy_net(4)
    (a, fa), (b, fb) = agreeing_text(net, 20, 0), agreeing_text(net, 20, 1)
    cut = pack(net, [(a, fa)], Loop(prefix="answer"), [8])
    rows = torch.arange(8, 19)

    missing = draft_chains(net, cut, rows, 3, Loop(prefix="answer"))
    assert torch.equal(missing, draft_everywhere(net, a[8:], fa[8:], 3))  # rotations are relative, so the text may as well begin there

    both = pack(net, [(a, fa), (b, fb)], Loop(prefix="another"))
    foreign = draft_chains(net, both, rows, 1, Loop(prefix="another"))
    own = pack(net, [(torch.cat([b[:1], b[1:]]), fb)])
    assert not torch.equal(foreign, draft_chains(net, own, rows, 1))
    changed = pack(net, [(torch.cat([a[:5], (a[5:9] + 1) % 90, a[9:]]), fa), (b, fb)], Loop(prefix="another"))
    untouched = rows[3:]
    assert torch.equal(draft_chains(net, changed, untouched, 1, Loop(prefix="another"))[1:], foreign[4:]), (
        "its own earlier tokens are never read"
    )


@pytest.mark.parametrize(("latent", "seed"), [(None, 7), (LATENT, 4)])
def test_the_key_bug_of_trees_can_be_undone(latent: object, seed: int) -> None:
    """SGLang's issue 7523: reading one's ancestors instead of one's column changes trees and no chain."""
    net = toy_net(seed, latent=latent)
    loud = {n: 5 * w if n.endswith("o_proj.weight") else w for n, w in net.weights.items()}
    net = dataclasses.replace(net, weights=loud, head=net.head / 2)
    texts = dump_of(*(agreeing_text(net, 50, seed) for seed in range(4)))

    assert run(net, texts, changes=(loop.ANCESTORS,)).p == run(net, texts).p
    tree = {"steps": 4, "topk": 4, "num_draft_tokens": 30}
    assert run(net, texts, **tree, changes=(loop.ANCESTORS,)).every_position_p != run(net, texts, **tree).every_position_p


def test_an_engines_loop_is_known_by_version() -> None:
    """The position offset of SGLang up to 0.5.11; vLLM drafts chains only; others are named as unknown."""
    assert loop_of("sglang==0.5.11").position_offset == 1
    assert loop_of("sglang==0.5.12") == loop_of("sglang") == loop_of(None) == loop_of("vllm==0.32.0") == NEWEST
    with pytest.raises(BadArgument, match="chains"):
        loop_of("vllm", topk=4)
    with pytest.raises(BadArgument, match=r"llama\.cpp"):
        loop_of("llama.cpp")
