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
from eagle3diag.replay.trees import Forest, draft_trees

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
    """A draft with all that could be ignored, and attention loud enough that it shows."""
    net = toy_net(4, **EVERYTHING, rope=Rope(8, 30000.0, {"rope_type": "linear", "factor": 4.0}))
    return dataclasses.replace(net, weights={n: 4 * w if n.endswith("o_proj.weight") else w for n, w in net.weights.items()})


@pytest.fixture(scope="module")
def dump(scaled: Net) -> HiddenStates:
    return dump_of(*(agreeing_text(scaled, n, seed) for seed, n in enumerate((60, 45))), prompt_length=4)


def test_a_draft_that_has_everything_is_offered_everything(scaled: Net, dump: HiddenStates) -> None:
    """One change per thing that an engine may ignore; each names its own fault and differs in name."""
    offered = changes_of(scaled, dump)

    assert {f.id for f in loop.FAULTS} - {"FM-09"} == {
        c.fault for c in offered
    }  # of an embedding that is not in the file there is no other
    assert len({c.name for c in offered}) == len(offered) == 25
    assert {f.id for f in loop.FAULTS} <= {f.id for f in catalogue()}


@pytest.mark.parametrize("number", range(25))
def test_each_change_alone_drafts_otherwise(number: int, scaled: Net, dump: HiddenStates) -> None:
    """What is drafted changes; the draft itself stays as it was. Keys that depend on earlier rounds show in these."""
    change = changes_of(scaled, dump)[number]
    before = {n: w.clone() for n, w in scaled.weights.items()}

    def drafted(*changes: Change) -> torch.Tensor:
        net, how, fed = scaled, NEWEST, [(r, r.features) for r in dump]
        for c in changes:
            net, how, fed = c.net(net), c.loop(how), [(r, c.features(r, f)) for r, f in fed]
        text = pack(net, [(r.input_ids, f) for r, f in fed], how, [3, 3])
        return draft_chains(net, text, torch.arange(len(text.tokens)), 4, how)

    broken = run(scaled, dump, changes=(change,))

    assert broken.changes == (change.name,)
    if "kept" in change.name:
        assert broken.records != run(scaled, dump).records
    else:
        assert not torch.equal(drafted(change), drafted())
    assert all(torch.equal(w, scaled.weights[n]) for n, w in before.items())


def test_a_draft_that_has_nothing_special_is_offered_only_what_could_change_it() -> None:
    """No norm to ignore, no bias to drop, no scaling, no text longer than a window, the usual base."""
    net = toy_net(4)
    one = dump_of(agreeing_text(net, 16))
    names = [c.name for c in changes_of(net, one)]

    assert not any(
        word in name for name in names for word in ("norms", "norm before fc", "bias", "scaling", "window", "request", "10000 instead")
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


@pytest.mark.parametrize("latent", [None, LATENT])
def test_the_key_bug_of_trees_can_be_undone(latent: object) -> None:
    """SGLang's issue 7523: reading one's ancestors instead of one's column changes trees and no chain."""
    net = toy_net(2, latent=latent)
    loud = {n: 5 * w if n.endswith("o_proj.weight") else w for n, w in net.weights.items()}
    net = dataclasses.replace(net, weights=loud, head=net.head / 2)
    text = pack(net, [agreeing_text(net, 20)])
    rows, ancestors = torch.arange(19), loop.ANCESTORS.loop(NEWEST)

    def tree(how: Loop) -> Forest:
        return next(iter(draft_trees(net, text, rows, 4, 4, how)))[1]

    assert torch.equal(draft_chains(net, text, rows, 4, ancestors), draft_chains(net, text, rows, 4))
    assert not torch.equal(tree(ancestors).tokens, tree(NEWEST).tokens)
    assert torch.equal(tree(ancestors).tokens[:, :20], tree(NEWEST).tokens[:, :20]), "two levels know no difference"


def test_an_engines_loop_is_known_by_version() -> None:
    """The position offset of SGLang up to 0.5.11; vLLM drafts chains only; others are named as unknown."""
    assert loop_of("sglang==0.5.11").position_offset == 1
    assert loop_of("sglang==0.5.12") == loop_of("sglang") == loop_of(None) == loop_of("vllm==0.32.0") == NEWEST
    with pytest.raises(BadArgument, match="chains"):
        loop_of("vllm", topk=4)
    with pytest.raises(BadArgument, match=r"llama\.cpp"):
        loop_of("llama.cpp")


def test_a_window_is_offered_where_a_text_is_longer_than_it() -> None:
    """Of the usual sizes those that some row would feel, each of which drafts as a draft of that window."""
    net = toy_net(4)
    text = agreeing_text(net, 40)

    offered = [c for c in changes_of(net, dump_of(text)) if c.fault == "FM-56"]

    assert [c.name for c in offered] == ["window of 16 served, not trained", "window of 32 served, not trained"]
    for change, window in zip(offered, (16, 32), strict=True):
        assert change.one_of_many
        assert change.net(net).windows == dataclasses.replace(net, windows=(window,)).windows


def test_half_of_the_prompt_is_missing() -> None:
    """A row finds no key of the first half of the prompt, but its own; with none of the prompt's text it is the whole record."""
    net = toy_net(4)
    text = agreeing_text(net, 20)

    half = pack(net, [text], Loop(prefix="half"), [8])

    assert half.first.tolist() == [min(row, 4) for row in range(19)] and half.last.tolist() == list(range(19))
