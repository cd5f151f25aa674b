"""The replay against plain slow references: a numpy draft written from the formulas, and a walk counted by hand."""

from __future__ import annotations

import dataclasses
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3diag.dumps import HiddenStates, TargetIdentity
from eagle3diag.errors import BadArgument, MismatchedInputs
from eagle3diag.replay import Change, Net, draft_everywhere, draft_one, run
from eagle3diag.replay.acceptance import accepted, tally, walk

H, HEADS, KV, DIM, INNER, V, VD, AUX = 32, 4, 2, 8, 48, 96, 40, 3


def toy_net(seed: int = 0, **switches: object) -> Net:
    """A random draft whose choices are far from ties."""
    g = torch.Generator().manual_seed(seed)

    def w(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g) * 2 / math.sqrt(shape[-1])

    layer = {
        "self_attn.q_proj": w(HEADS * DIM, 2 * H), "self_attn.k_proj": w(KV * DIM, 2 * H), "self_attn.v_proj": w(KV * DIM, 2 * H),
        "self_attn.o_proj": w(H, HEADS * DIM), "mlp.gate_proj": w(INNER, H), "mlp.up_proj": w(INNER, H), "mlp.down_proj": w(H, INNER),
        "input_layernorm": torch.rand(H, generator=g) + 0.5, "hidden_norm": torch.rand(H, generator=g) + 0.5,
        "post_attention_layernorm": torch.rand(H, generator=g) + 0.5,
    }  # fmt: skip
    weights = {f"layers.0.{name}.weight": value for name, value in layer.items()}
    weights |= {
        "fc.weight": w(H, AUX * H),
        "norm.weight": torch.rand(H, generator=g) + 0.5,
        "input_norm.weight": torch.rand(AUX * H, generator=g) + 0.5,
    }
    ids = torch.randperm(V, generator=g)[:VD].sort().values
    net = Net(weights, w(V, H), w(VD, H), ids, HEADS, KV, DIM, 1e-5, 1e4)
    return dataclasses.replace(net, **switches)


def numpy_chain(net: Net, ids: list[int], features: np.ndarray, steps: int, at: int) -> list[int]:
    """The serving chain from position ``at``, float64, one query row at a time, from the formulas of trainers.md section 1."""
    p = {name: w.double().numpy() for name, w in net.weights.items()}
    table, head = net.embedding.double().numpy(), net.head.double().numpy()

    def rms(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean() + net.eps) * p[name]

    def rotate(x: np.ndarray, position: int) -> np.ndarray:
        out = np.empty_like(x)
        for i in range(DIM // 2):
            angle = position * net.rope_theta ** (-2 * i / DIM)
            a, b = x[:, i], x[:, i + DIM // 2]
            out[:, i], out[:, i + DIM // 2] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
        return out

    def mixed(token: int, hidden: np.ndarray) -> np.ndarray:
        return np.concatenate([rms(table[token], "layers.0.input_layernorm.weight"), rms(hidden, "layers.0.hidden_norm.weight")])

    def key_value(x: np.ndarray, position: int) -> tuple[np.ndarray, np.ndarray]:
        k = (p["layers.0.self_attn.k_proj.weight"] @ x).reshape(KV, DIM)
        return rotate(k, position), (p["layers.0.self_attn.v_proj.weight"] @ x).reshape(KV, DIM)

    def fuse(row: np.ndarray) -> np.ndarray:
        if len(row) == H:
            return row
        return p["fc.weight"] @ (rms(row, "input_norm.weight") if net.norm_before_fc else row)

    cache = [key_value(mixed(ids[t + 1], fuse(features[t])), t) for t in range(at + 1)]
    hidden, token, chain = fuse(features[at]), ids[at + 1], []
    for step in range(steps):
        position = at + step + (net.position_offset if step else 0)
        x = mixed(token, hidden)
        if step:
            cache.append(key_value(x, position))
        q = rotate((p["layers.0.self_attn.q_proj.weight"] @ x).reshape(HEADS, DIM), position)
        out = []
        for h in range(HEADS):
            score = np.array([k[h // (HEADS // KV)] @ q[h] / math.sqrt(DIM) for k, _ in cache])
            share = np.exp(score - score.max())
            out.append(sum(s * v[h // (HEADS // KV)] for s, (_, v) in zip(share / share.sum(), cache, strict=True)))
        residual = rms(hidden, "layers.0.hidden_norm.weight") if net.norm_before_residual else hidden
        hidden = residual + p["layers.0.self_attn.o_proj.weight"] @ np.concatenate(out)
        y = rms(hidden, "layers.0.post_attention_layernorm.weight")
        gate = p["layers.0.mlp.gate_proj.weight"] @ y
        hidden = hidden + p["layers.0.mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * (p["layers.0.mlp.up_proj.weight"] @ y))
        normed = rms(hidden, "norm.weight")
        token = int(net.draft_ids[int((head @ normed).argmax())])
        hidden = normed if net.norm_output else hidden
        chain.append(token)
    return chain


def text(seed: int, tokens: int, width: int = AUX * H) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, V, (tokens,), generator=g), torch.randn(tokens, width, generator=g)


@pytest.mark.parametrize(
    "switches",
    [{}, {"norm_before_residual": True}, {"norm_before_fc": True}, {"norm_output": True}, {"position_offset": 1}],
    ids=lambda s: next(iter(s), "plain"),
)
@pytest.mark.parametrize("width", [AUX * H, H], ids=["through fc", "past fc"])
def test_both_implementations_draft_what_the_formulas_say(switches: dict[str, object], width: int) -> None:
    """Every switch, with wide features through fc and with narrow ones past it."""
    net = toy_net(1, **switches)
    ids, features = text(2, 14, width)

    everywhere = draft_everywhere(net, ids, features, 4)

    assert everywhere.shape == (13, 4)
    for at in range(13):
        expected = numpy_chain(net, ids.tolist(), features.double().numpy(), 4, at)
        assert everywhere[at].tolist() == expected
        assert draft_one(net, ids, features, 4, at).tolist() == expected


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), tokens=st.integers(2, 40), steps=st.integers(1, 6))
def test_everywhere_equals_one_by_one(seed: int, tokens: int, steps: int) -> None:
    """Token for token, for any length and depth."""
    net = toy_net(seed % 7)
    ids, features = text(seed, tokens)

    assert torch.equal(
        draft_everywhere(net, ids, features, steps), torch.stack([draft_one(net, ids, features, steps, at) for at in range(tokens - 1)])
    )


def test_memory_budget_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains are drafted in chunks of queries when the scores would not fit."""
    net = toy_net()
    ids, features = text(5, 30)
    whole = draft_everywhere(net, ids, features, 3)
    monkeypatch.setattr(sys.modules["eagle3diag.replay.drafting"], "SCORE_BUDGET", 4 * HEADS * 29 * 2)

    assert torch.equal(draft_everywhere(net, ids, features, 3), whole)


def test_acceptance_is_the_leading_run_of_right_tokens() -> None:
    """A right token after a wrong one counts for nothing; positions whose chain leaves the text are not counted."""
    ids = torch.tensor([0, 1, 2, 3, 4, 5])
    chains = torch.tensor([[2, 3], [9, 4], [4, 9], [5, 6], [6, 7]])  # from positions 0 to 4

    assert accepted(chains, ids).tolist() == [2, 0, 1, -1, -1]


def test_a_server_moves_on_by_what_it_accepted_plus_one() -> None:
    """Positions inside an accepted run are never drafted from."""
    assert walk(torch.tensor([2, 7, 7, 0, 1, 7, 3, -1]), 0) == [2, 0, 1, 3]
    assert walk(torch.tensor([0, 0, -1]), 1) == [0]
    assert walk(torch.tensor([-1]), 5) == []


def test_tally_keeps_the_identities() -> None:
    """AL = 1 + sum(p); p does not rise; intervals hold the estimate."""
    counts = tally([[0, 1, 4, 2], [3, 0, 0], [1]], 4)

    assert counts.rounds == 8
    assert counts.accept_length == pytest.approx(1 + 11 / 8) == pytest.approx(1 + sum(counts.p))
    assert list(counts.p) == sorted(counts.p, reverse=True) == [5 / 8, 3 / 8, 2 / 8, 1 / 8]
    assert all(low <= p <= high for p, (low, high) in zip(counts.p, counts.p_interval, strict=True))
    assert counts.interval[0] <= counts.accept_length <= counts.interval[1]
    assert math.isnan(tally([[]], 4).accept_length)


def greedy_text(net: Net, tokens: int) -> HiddenStates:
    """A dump whose text the draft predicts exactly: each token is what the draft says from the row before."""
    g = torch.Generator().manual_seed(3)
    features = torch.randn(tokens, AUX * H, generator=g)
    ids = [int(net.draft_ids[0]), int(net.draft_ids[1])]
    for at in range(tokens - 2):
        ids.append(int(draft_one(net, torch.tensor(ids), features, 1, at)[0]))
    identity = TargetIdentity("toy", "0", "float32", 4, H)
    row = {"name": "0", "input_ids": torch.tensor(ids), "features": features, "prompt_length": 1}
    return HiddenStates.from_tensors([row], side="train", target=identity, boundaries=(1, 2, 3))


def test_a_draft_that_is_right_at_depth_one_is_accepted_once_a_round() -> None:
    """By construction p_1 = 1, so the accept length is at least 2; a head of noise brings it to the floor."""
    net = toy_net(4)
    dump = greedy_text(net, 60)

    healthy = run(net, dump, steps=2)
    broken = run(net, dump, steps=2, changes=(Change("FM-06", "noise", net=lambda n: dataclasses.replace(n, head=-n.head)),))

    assert healthy.p[0] == 1.0
    assert healthy.accept_length >= 2.0
    assert healthy.every_position_p[0] == 1.0
    assert broken.accept_length < 1.2
    assert broken.changes == ("noise",)


def test_changes_compose() -> None:
    """Two changes in one replay act one after the other, the features' as well as the net's."""
    net = toy_net(4)
    dump = greedy_text(net, 40)
    back = Change("X", "rolled back", features=lambda record, fed: fed.roll(-H, 1))
    forth = Change("X", "rolled", features=lambda record, fed: fed.roll(H, 1))

    assert run(net, dump, steps=2, changes=(forth, back)).p == run(net, dump, steps=2).p
    assert run(net, dump, steps=2, changes=(forth,)).p != run(net, dump, steps=2).p


def test_bad_arguments_are_named() -> None:
    """Steps below one, features that fc cannot take, ids outside the vocabulary."""
    net = toy_net()
    dump = greedy_text(net, 10)
    with pytest.raises(BadArgument, match="steps"):
        run(net, dump, steps=0)
    with pytest.raises(MismatchedInputs, match="fc takes 96"):
        run(net, dump.map_features(lambda record, fed: fed[:, : 2 * H]))
    with pytest.raises(MismatchedInputs, match="outside the target's vocabulary"):
        run(dataclasses.replace(net, embedding=net.embedding[:5]), dump)
