"""Trees against the pseudo-code of SGLang's own, one row at a time; settings in one pass; what to expect from a sampling target."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from replay_reference import LATENT, VD, Plain, V, agreeing_text, dump_of, text, toy_net

from eagle3diag.errors import BadArgument
from eagle3diag.replay import Cost, Loop, Setting, draft_everywhere, run
from eagle3diag.replay.acceptance import following
from eagle3diag.replay.drafting import pack
from eagle3diag.replay.measure import Sampling
from eagle3diag.replay.sampling import Sampled
from eagle3diag.replay.trees import Forest, draft_trees, verify

SHAPES = [(4, 3, 31), (4, 3, 8), (3, 2, 5), (2, 4, 6), (1, 3, 4), (4, 1, 5)]


@pytest.mark.parametrize("branch_keys", ["column", "ancestors"])
@pytest.mark.parametrize("switches", [{}, {"layers": 2, "norm_output": True}, {"latent": LATENT}, {"windows": (3,)}], ids=str)
def test_trees_are_grown_and_cut_as_sglang_does(switches: dict[str, object], branch_keys: str) -> None:
    """Same nodes, same parents, same order, for every shape, from every position; both conventions of whose keys a branch reads."""
    net = toy_net(2, **switches)
    loud = {n: 5 * w if n.endswith("o_proj.weight") else w for n, w in net.weights.items()}  # so that whose keys are read shows
    net = dataclasses.replace(net, weights=loud, head=net.head / 2)  # and several branches live on
    ids, features = text(3, 8)
    packed, loop = pack(net, [(ids, features)]), Loop(branch_keys=branch_keys)  # type: ignore[arg-type]
    different = 0
    for steps, topk, slots in SHAPES:
        for rows, forest in draft_trees(net, packed, torch.arange(7), steps, topk, loop):
            kept = forest.keep(slots, steps, topk)
            for at in rows.tolist():
                nodes = kept[at].tolist()
                found = [(int(forest.tokens[at, n]), nodes.index(p) if (p := int(forest.parents[at, n])) >= 0 else -1) for n in nodes]
                slow = Plain(net).tree(ids.tolist(), features.double().numpy(), steps, topk, slots, at, branch_keys)
                assert found == [(token, parent) for token, parent, _ in slow]
                other = Plain(net).tree(ids.tolist(), features.double().numpy(), steps, topk, slots, at, "ancestors")
                different += other != slow
    assert bool(different) == (branch_keys == "column"), "the two conventions must be told apart here"


def test_a_tree_of_one_branch_is_a_chain() -> None:
    """Tokens and order."""
    net, (ids, features) = toy_net(2), text(3, 20)
    ((_, forest),) = draft_trees(net, pack(net, [(ids, features)]), torch.arange(19), 4, 1)

    assert torch.equal(forest.tokens, draft_everywhere(net, ids, features, 4))
    assert forest.keep(5, 4, 1).tolist() == [[0, 1, 2, 3]] * 19


def test_verification_follows_the_text_from_parent_to_child() -> None:
    """By hand: a right token under a wrong parent counts for nothing; of two equal children the first is followed."""
    forest = Forest(torch.tensor([[5, 6, 7, 7, 8]]), torch.ones(1, 5), torch.tensor([[-1, -1, 0, 0, 3]]))
    kept = torch.arange(5)[None]

    for truth, depth in (([5, 7, 8], 2), ([6, 7, 8], 1), ([5, 8, 7], 1), ([9, 5, 7], 0), ([5, 7, 9], 2)):
        assert verify(forest, kept, torch.tensor([truth])).item() == depth
    without = torch.tensor([[0, 1, 3, 4]])
    assert verify(forest, without, torch.tensor([[5, 7, 8]])).item() == 3


def test_several_settings_in_one_pass_are_what_each_gives_alone() -> None:
    """Shallower and narrower ones are read off the same forest; the best is the one with most tokens per cost."""
    net = toy_net(4)
    dump = dump_of(*(agreeing_text(net, n, seed) for seed, n in enumerate((50, 30))), prompt_length=2)
    asked = [Setting(2, 1, 3), Setting(4, 3, 8), Setting(2, 3, 4), Setting(3, 2, 7)]
    cost = Cost(draft=0.05, slot=0.01)

    together = run(net, dump, steps=4, settings=asked, cost=cost)

    assert [s.setting for s in together.settings] == [Setting(4, 1, 5), *asked]
    for one in together.settings:
        alone = run(net, dump, steps=one.setting.steps, topk=one.setting.topk, num_draft_tokens=one.setting.num_draft_tokens)
        assert (one.rounds, one.p, one.accept_length, one.accept_length_interval) == (
            alone.rounds, alone.p, alone.accept_length, alone.accept_length_interval
        )  # fmt: skip
        assert one.speedup == pytest.approx(one.accept_length / (1 + 0.05 * one.setting.steps + 0.01 * (one.setting.num_draft_tokens - 1)))
    assert together.best == max(together.settings, key=lambda s: s.speedup or 0)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((0, 1, 1), "steps"),
        ((2, 0, 3), "topk"),
        ((3, 1, 9), "fills 4 slots"),
        ((2, 2, 8), "fills 2 to 7"),
        ((2, 3, None), "number of slots"),
    ],
)
def test_settings_that_no_server_could_run_are_refused(numbers: tuple[int, int, int | None], said: str) -> None:
    """By name, before anything is drafted."""
    with pytest.raises(BadArgument, match=said):
        Setting.of(*numbers)


@pytest.mark.parametrize("words", ["", "a", "3:4", "3:4:5:6", "-1", "3::4", "٣:1:4:4"])
def test_settings_that_cannot_be_read_are_refused(words: str) -> None:
    """With the form to write them in."""
    with pytest.raises(BadArgument):
        Setting.parse(words)


def sampled_exactly(net, head, final, ids, features, steps, temperature, first):  # type: ignore[no-untyped-def]
    """Acceptance by enumeration: for one start, all texts that the target could sample, each with its chance. The target is made blind to
    its text (one distribution per position), so that the recorded final states hold for every text."""
    p = [(final[t] @ head.T / temperature).double().softmax(-1) for t in range(len(ids))]
    greedy = torch.zeros(steps, dtype=torch.double)
    both = torch.zeros(steps, dtype=torch.double)
    plain = Plain(net)
    raw, cache = plain.read(ids.tolist(), features.double().numpy(), first)

    def branch(raw, cache, depth, chance_greedy, chance_both):  # type: ignore[no-untyped-def]
        share, hidden = plain.choices(raw)
        q = torch.zeros(V, dtype=torch.double)
        logits = torch.tensor(plain.head @ plain.rms(raw, "norm")) / temperature
        q[net.draft_ids] = logits.softmax(-1)
        top = plain.ids[int(share.argmax())]
        here = p[first + 1 + depth]
        greedy[depth] += chance_greedy * here[top]
        both[depth] += chance_both * torch.minimum(here, q).sum()
        if depth + 1 == steps:
            return
        for token in range(V):
            g = chance_greedy * here[top] if token == top else 0.0
            b = chance_both * torch.minimum(here, q)[token]
            if g > 1e-12 or b > 1e-12:
                grown = [list(layer) for layer in cache]
                branch(plain.row(token, hidden, first + 1 + depth, grown, depth + 1), grown, depth + 1, g, b)

    branch(raw, cache, 0, torch.tensor(1.0), torch.tensor(1.0))
    return greedy, both


def test_expected_acceptance_of_a_sampling_target_is_what_enumeration_gives() -> None:
    """Two depths. The mean over all texts, each with the target's chance of it, is the enumerated expectation: for drafts that are the most
    likely tokens, and for drafts that are sampled."""
    net, g, temperature = toy_net(6), torch.Generator().manual_seed(0), 0.8
    head, final = torch.randn(V, net.embedding.shape[1], generator=g) * 0.3, torch.randn(4, net.embedding.shape[1], generator=g)
    ids, features = text(1, 4)
    greedy, both = sampled_exactly(net, head, final, ids, features, 2, temperature, 0)
    chance = (final[1] @ head.T / temperature).softmax(-1)

    def expected(token: int) -> Sampled:
        said = torch.tensor([*ids[:2].tolist(), token, 0])
        sampled = run(net, dump_of((said, features), prompt_length=1, final=[final]), steps=2, sampling=Sampling(head, temperature)).sampled
        assert sampled is not None and sampled.positions == 1
        return sampled

    of = [expected(token) for token in range(V)]
    for depth in range(2):
        assert sum(c * s.p[depth] for c, s in zip(chance.tolist(), of, strict=True)) == pytest.approx(greedy[depth].item(), rel=1e-3)
        assert sum(c * s.drafted_p[depth] for c, s in zip(chance.tolist(), of, strict=True)) == pytest.approx(both[depth].item(), rel=1e-3)
    assert both[0] > greedy[0] and of[0].accept_length == pytest.approx(1 + sum(of[0].p))


def test_expected_acceptance_of_a_tree_sums_over_children() -> None:
    """At the root the target's shares of the first level together; as wide as the vocabulary it is all that the draft can say."""
    net, g = toy_net(6), torch.Generator().manual_seed(0)
    head, final = torch.randn(V, net.embedding.shape[1], generator=g), torch.randn(9, net.embedding.shape[1], generator=g)
    ids, features = text(1, 9)
    dump = dump_of((ids, features), prompt_length=1, final=[final])
    share = (final @ head.T).softmax(-1)

    wide = run(net, dump, steps=1, topk=VD, num_draft_tokens=VD + 1, sampling=Sampling(head, 1.0)).sampled
    two = run(net, dump, steps=2, topk=2, num_draft_tokens=7, sampling=Sampling(head, 1.0)).sampled

    assert wide is not None and two is not None
    assert wide.p[0] == pytest.approx(share[1:8][:, net.draft_ids].sum(1).mean().item(), rel=1e-5)
    packed = pack(net, [(ids, features)])
    ((_, forest),) = draft_trees(net, packed, torch.arange(6), 2, 2)
    first = torch.stack([share[t + 1, forest.tokens[t, :2]].sum() for t in range(6)])
    assert two.p[0] == pytest.approx(first.mean().item(), rel=1e-5)
    follows = following(ids, 8, 2)[:6]
    second = [
        share[t + 2, [int(k) for k, parent in zip(forest.tokens[t], forest.parents[t], strict=True) if parent == b]].sum()
        for t, b in itertools.product(range(6), range(2))
        if forest.tokens[t, b] == follows[t, 0]
    ]
    assert two.p[1] == pytest.approx(float(sum(second)) / 6, abs=1e-6)
    assert two.drafted_p == () and two.drafted_accept_length is None


def test_a_dump_without_final_states_is_refused() -> None:
    """What is missing, and how to get it."""
    net = toy_net(6)
    with pytest.raises(BadArgument, match="final states"):
        run(net, dump_of(text(1, 9)), sampling=Sampling(torch.randn(V, 32), 1.0))
    assert dataclasses.is_dataclass(net)
