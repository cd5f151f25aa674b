"""The replay against a plain slow reference: chains of every architecture, packing, early ends, the server's own order, and the counts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_reference import AUX, HEADS, LATENT, H, Plain, agreeing_text, dump_of, text, toy_net

from eagle3diag.dumps import HiddenStates
from eagle3diag.errors import BadArgument, MismatchedInputs
from eagle3diag.replay import Change, Loop, Net, draft_everywhere, run
from eagle3diag.replay.acceptance import accepted, following, tally, walk
from eagle3diag.replay.batch import Batch, Item, answers_of
from eagle3diag.replay.drafting import draft_chains, pack
from eagle3diag.replay.loop import NEWEST
from eagle3diag.replay.rope import Rope
from eagle3diag.replay.rounds import serve

NETS = {
    "plain": {},
    "norm before residual": {"residual": "normed"},
    "residual from the embedding": {"residual": "embedding"},
    "norm before fc": {"norm_before_fc": True},
    "a norm per aux state": {"fc_norm": True},
    "both norms before fc": {"norm_before_fc": True, "fc_norm": True},
    "normed state carried on": {"norm_output": True},
    "biases": {"biases": True},
    "q and k norms": {"head_norms": True},
    "partial rotation": {"rope": Rope(4, 1e4)},
    "window": {"windows": (3,)},
    "two layers": {"layers": 2},
    "three layers, vLLM's norm, a window in the second": {"layers": 3, "deep_norm": "input_layernorm", "windows": (None, 4, None)},
    "latent": {"latent": LATENT},
    "latent without query rank, two layers": {"latent": dataclasses.replace(LATENT, q_rank=None), "layers": 2},
}


@pytest.mark.parametrize("switches", NETS.values(), ids=NETS)
@pytest.mark.parametrize("width", [AUX * H, H], ids=["through fc", "past fc"])
def test_chains_are_what_the_formulas_say(switches: dict[str, object], width: int) -> None:
    """Every architecture, with wide features through fc and with narrow ones past it, from every position."""
    net = toy_net(1, **switches)
    ids, features = text(2, 12, width)

    everywhere = draft_everywhere(net, ids, features, 4)

    assert everywhere.shape == (11, 4)
    for at in range(11):
        assert everywhere[at].tolist() == Plain(net).chain(ids.tolist(), features.double().numpy(), 4, at)


@pytest.mark.parametrize("offset", [-1, 1])
def test_positions_of_later_steps_can_be_off(offset: int) -> None:
    """SGLang before 0.5.12 rotated every draft step after the first one position too far."""
    net, (ids, features) = toy_net(1), text(2, 12)

    drafted = draft_everywhere(net, ids, features, 4, Loop(position_offset=offset))

    assert drafted.tolist() == [Plain(net, offset).chain(ids.tolist(), features.double().numpy(), 4, at) for at in range(11)]
    assert not torch.equal(drafted[:, 1:], draft_everywhere(net, ids, features, 4)[:, 1:])
    assert torch.equal(drafted[:, 0], draft_everywhere(net, ids, features, 4)[:, 0])


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 14), min_size=1, max_size=4), st.integers(1, 5), st.integers(4, 14), st.booleans())
def test_packing_and_budget_change_nothing(seed: int, lengths: list[int], steps: int, budget: int, latent: bool) -> None:
    """Records drafted side by side, a few rows at a time, give what each gives alone; empty ones too."""
    net = toy_net(seed % 7, latent=LATENT if latent else None)
    records = [text(seed + i, n) for i, n in enumerate(lengths)]
    packed = pack(net, records)
    small = dataclasses.replace(net, budget=1 << (budget + 6))

    together = draft_chains(small, packed, torch.arange(len(packed.tokens)), steps)

    assert torch.equal(together, torch.cat([draft_everywhere(net, *record, steps) for record in records]))


def test_a_chain_told_the_text_stops_where_it_leaves_it() -> None:
    """Up to and including its first wrong token it is the whole chain; after that it is -1. So counts do not change."""
    net = toy_net(4)
    ids, features = agreeing_text(net, 70)
    whole, truth = draft_everywhere(net, ids, features, 5), following(ids, 69, 5)

    told = draft_chains(net, pack(net, [(ids, features)]), torch.arange(69), 5, truth=truth)

    right = accepted(whole, truth)
    assert set(right.tolist()) >= {0, 1, 2, 3}
    assert torch.equal(accepted(told, truth), right)
    for row, m in enumerate(right.tolist()):
        assert told[row].tolist() == whole[row, : m + 1].tolist() + [-1] * (4 - m)


ORDERS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 0),
    "two layers": ({"layers": 2}, 0),
    "latent": ({"latent": LATENT}, 0),
    "window": ({"windows": (4,)}, 0),
    "two layers, a window in the second": ({"layers": 2, "windows": (None, 3)}, 0),
    "positions off": ({}, 1),
}


@pytest.mark.parametrize(("switches", "offset"), ORDERS.values(), ids=ORDERS)
def test_keys_that_the_draft_keeps_stay_in_the_place_of_true_ones(switches: dict[str, Any], offset: int) -> None:
    """FM-50: a server that does not make the keys of accepted tokens anew; slot for slot as the slow server, records of any length at once."""
    net, loop = toy_net(4, **switches), Loop(position_offset=offset)
    records = [agreeing_text(net, n, seed) for seed, n in enumerate((40, 5, 25, 1, 9, 1))]
    plain, kept = Plain(net, offset), Change("FM-50", "kept", loop=lambda loop: dataclasses.replace(loop, keep_draft_keys=True))

    replayed = run(net, dump_of(*records, prompt_length=2), changes=(kept,), loop=loop)
    healthy = run(net, dump_of(*records, prompt_length=2), loop=loop)

    for keep, result in ((True, replayed), (False, healthy)):
        slow = [plain.serve(ids.tolist(), fed.double().numpy(), 4, [(1, len(ids))], keep) for ids, fed in records]
        assert [r.rounds for r in result.records] == [len(r) for r in slow]
        assert [r.accept_length for r in result.records if r.rounds] == [1 + sum(r) / len(r) for r in slow if r]
    assert replayed.accept_length != healthy.accept_length
    assert replayed.every_position_p == ()


def test_keys_that_are_kept_go_from_answer_to_answer() -> None:
    """A conversation: what earlier answers left is found by later ones, and the user's turns are read as they are."""
    net = toy_net(4)
    ids, features = agreeing_text(net, 90)
    mask = torch.zeros(90, dtype=torch.long)
    answers = [(10, 40), (44, 47), (50, 88)]
    for begin, end in answers:
        mask[begin:end] = 1
    dump = HiddenStates.from_tensors(
        [{"name": "a", "input_ids": ids, "features": features, "loss_mask": mask}], side="train", target=dump_of((ids, features)).target
    )

    by_row = serve_of(net, dump)

    slow = Plain(net).serve(ids.tolist(), features.double().numpy(), 4, [(begin - 1, end) for begin, end in answers], True)
    assert by_row[by_row >= 0].tolist() == slow
    assert {(begin - 1) for begin, end in answers if end - begin > 4} <= set((by_row >= 0).nonzero()[:, 0].tolist())


def serve_of(net: Net, dump: HiddenStates) -> torch.Tensor:
    """Accepted drafts of the rounds of the first record, by row."""
    items = [Item(r, r.input_ids, r.features, answers_of(r)) for r in dump]
    batch = Batch.of(net, items, NEWEST, 4, None)
    return serve(net, batch.text, batch.truth, batch.begins(4))


def test_acceptance_is_the_leading_run_of_right_tokens() -> None:
    """A right token after a wrong one counts for nothing; what follows the text's end is never right."""
    ids = torch.tensor([0, 1, 2, 3, 4, 5])
    chains = torch.tensor([[2, 3], [9, 4], [4, 9], [5, 6], [6, 7]])  # from positions 0 to 4

    assert following(ids, 5, 2).tolist() == [[2, 3], [3, 4], [4, 5], [5, -1], [-1, -1]]
    assert accepted(chains, following(ids, 5, 2)).tolist() == [2, 0, 1, 1, 0]


def test_a_server_moves_on_by_what_it_accepted_plus_one() -> None:
    """Positions inside an accepted run are never drafted from."""
    assert walk([2, 7, 7, 0, 1, 7, 3, -1], 0) == [2, 0, 1, 3]
    assert walk([0, 0, -1], 1) == [0]
    assert walk([-1], 5) == []


def test_tally_keeps_the_identities() -> None:
    """AL = 1 + sum(p); p does not rise; intervals hold the estimate."""
    counts = tally([[0, 1, 4, 2], [3, 0, 0], [1]], 4)

    assert counts.rounds == 8
    assert counts.accept_length == pytest.approx(1 + 11 / 8) == pytest.approx(1 + sum(counts.p))
    assert list(counts.p) == sorted(counts.p, reverse=True) == [5 / 8, 3 / 8, 2 / 8, 1 / 8]
    assert all(low <= p <= high for p, (low, high) in zip(counts.p, counts.p_interval, strict=True))
    assert counts.interval[0] <= counts.accept_length <= counts.interval[1]
    assert math.isnan(tally([[]], 4).accept_length)


def greedy_text(net: Net, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A text that the draft predicts exactly: each token is what the draft says from the row before."""
    features = torch.randn(tokens, AUX * H, generator=torch.Generator().manual_seed(3))
    ids = [int(net.draft_ids[0]), int(net.draft_ids[1])]
    while len(ids) < tokens:
        ids.append(int(draft_everywhere(net, torch.tensor(ids), features, 1)[-1, 0]))
    return torch.tensor(ids), features


def test_a_draft_that_is_right_at_depth_one_is_accepted_once_a_round() -> None:
    """By construction p_1 = 1, so the accept length is at least 2; a head of noise brings it to the floor."""
    net = toy_net(4)
    dump = dump_of(greedy_text(net, 60), prompt_length=1)

    healthy = run(net, dump, steps=2)
    broken = run(net, dump, steps=2, changes=(Change("FM-06", "noise", net=lambda n: dataclasses.replace(n, head=-n.head)),))

    assert healthy.p[0] == 1.0
    assert healthy.accept_length >= 2.0
    assert healthy.every_position_p[0] == 1.0
    assert broken.accept_length < 1.2
    assert broken.changes == ("noise",)


def test_changes_compose() -> None:
    """Changes in one replay act one after the other, the features' and the loop's as well as the net's."""
    net = toy_net(4)
    dump = dump_of(greedy_text(net, 40))
    back = Change("X", "rolled back", features=lambda record, fed: fed.roll(-H, 1))
    forth = Change("X", "rolled", features=lambda record, fed: fed.roll(H, 1))
    late, early = (
        Change("X", n, loop=lambda p, s=s: dataclasses.replace(p, position_offset=p.position_offset + s))
        for n, s in (("late", 1), ("early", -1))
    )
    healthy = run(net, dump, steps=3)

    assert run(net, dump, steps=3, changes=(forth, late, back, early)).p == healthy.p
    assert run(net, dump, steps=3, changes=(forth,)).p != healthy.p
    assert run(net, dump, steps=3, changes=(late,)).every_position_p[1:] != healthy.every_position_p[1:]


def test_weights_in_another_dtype_are_converted_as_they_are_used() -> None:
    """A net that keeps bf16 weights and computes in float32 drafts as one whose weights were converted before; so does one on a tiny budget."""
    net = toy_net(5, biases=True, fc_norm=True)
    stored = dataclasses.replace(
        net,
        weights={n: w.bfloat16() for n, w in net.weights.items()},
        head=net.head.bfloat16(),
        embedding=net.embedding.bfloat16(),
        budget=4096,
    )
    converted = dataclasses.replace(
        net,
        weights={n: w.float() for n, w in stored.weights.items()},
        head=stored.head.float(),
        embedding=stored.embedding.float(),
    )
    ids, features = text(6, 20)

    assert torch.equal(draft_everywhere(stored, ids, features, 4), draft_everywhere(converted, ids, features, 4))


def test_bfloat16_rounds_and_still_drafts_much_the_same() -> None:
    """Most first tokens agree with float32; each layer's activations are bf16."""
    net = toy_net(5)
    low = dataclasses.replace(
        net, weights={n: w.bfloat16() for n, w in net.weights.items()}, head=net.head.bfloat16(), dtype=torch.bfloat16
    )
    ids, features = text(6, 40)

    assert low.fuse(features).dtype == torch.bfloat16
    agree = draft_everywhere(low, ids, features, 3) == draft_everywhere(net, ids, features, 3)
    assert agree[:, 0].float().mean() > 0.8


def test_head_blocks_choose_as_the_whole_head() -> None:
    """Best tokens and shares do not depend on how the head is cut; of equal logits the lowest id is first."""
    net, rows = toy_net(3), torch.randn(5, H, generator=torch.Generator().manual_seed(0))
    head = torch.cat([net.head] * 60)  # 2400 rows, each 60 times: ties everywhere
    net = dataclasses.replace(net, head=head, draft_ids=torch.arange(len(head)), budget=1)
    logits = rows @ head.T

    value, first = net.best(rows, 1)
    assert torch.equal(first[:, 0], logits.argmax(-1))
    torch.testing.assert_close(value[:, 0], logits.max(-1).values)
    share, ids = net.best(rows, 3, shares=True)
    torch.testing.assert_close(share.exp(), logits.softmax(-1).gather(1, ids))
    wanted = torch.tensor([[5, 2399, 1024]]).expand(5, -1)
    torch.testing.assert_close(net.shares_of(rows, wanted, 0.7), (logits / 0.7).softmax(-1).gather(1, wanted))


def test_bad_arguments_are_named() -> None:
    """Steps below one, features that fc cannot take, ids outside the vocabulary, keys kept in a tree."""
    net = toy_net()
    dump = dump_of(greedy_text(net, 10))
    with pytest.raises(BadArgument, match="steps"):
        run(net, dump, steps=0)
    with pytest.raises(MismatchedInputs, match="fc takes 96"):
        run(net, dump.map_features(lambda record, fed: fed[:, : 2 * H]))
    with pytest.raises(MismatchedInputs, match="outside the target's vocabulary"):
        run(dataclasses.replace(net, embedding=net.embedding[:5]), dump)
    with pytest.raises(BadArgument, match="chains only"):
        run(net, dump, topk=2, num_draft_tokens=4, loop=Loop(keep_draft_keys=True))
    assert net.attention.heads == HEADS


def test_every_turn_of_a_conversation_is_an_answer() -> None:
    """A training sample with several turns: rounds begin anew behind each, and what the user said is neither drafted nor counted. As if each
    answer were its own record, were it not for the keys of what came before."""
    net = toy_net(4)
    ids, features = agreeing_text(net, 60)
    mask = torch.zeros(60, dtype=torch.int64)
    for begin, end in ((8, 25), (33, 52)):
        mask[begin:end] = 1
    dump = HiddenStates.from_tensors(
        [{"name": "a", "input_ids": ids, "features": features, "loss_mask": mask}], side="train", target=dump_of((ids, features)).target
    )
    hits = accepted(draft_everywhere(net, ids, features, 4), following(ids, 59, 4)).tolist()
    expected = []
    for begin, end in ((8, 25), (33, 52)):
        inside = [h if begin - 1 <= at < end - 1 - 4 else -1 for at, h in enumerate(hits)]
        expected += walk(inside, begin - 1)

    replayed = run(net, dump, steps=4)

    assert replayed.rounds == len(expected) and replayed.accept_length == 1 + sum(expected) / len(expected)
    said = torch.cat([ids[8 - 1 + 2 : 25], ids[33 - 1 + 2 : 52]])
    assert replayed.out_of_vocabulary == pytest.approx(1 - float(torch.isin(said, net.draft_ids).float().mean()))
    kept = Change("", "kept", loop=lambda loop: dataclasses.replace(loop, keep_draft_keys=True))
    assert run(net, dump, steps=4, changes=(kept,)).rounds > 4


def test_a_record_behind_a_cached_prefix_is_drafted_from_its_answer() -> None:
    """``prompt_length`` counts from the beginning of the sequence, of which the first sixteen tokens are not in the record."""
    net = toy_net(4)
    ids, features = agreeing_text(net, 40)
    target = dump_of((ids, features)).target
    plain, tail = (
        HiddenStates.from_tensors(
            [{"name": "a", "input_ids": ids, "features": features, "prompt_length": prompt, "positions": positions}],
            side="live",
            target=target,
        )
        for prompt, positions in ((8, None), (24, torch.arange(40) + 16))
    )

    assert run(net, tail, steps=4).records == run(net, plain, steps=4).records
