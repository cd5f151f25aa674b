"""Faults of groups A, B and F that need no hidden states, injected into the sample draft: named first; their legal twins silent; some
replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_faults import serious

from eagle3diag.audit import audit
from eagle3diag.checkpoints import Draft, Target
from eagle3diag.diagnose import diagnose
from eagle3diag.dumps import HiddenStates
from eagle3diag.faults import in_words
from eagle3diag.findings import Severity
from eagle3diag.repair import with_raw
from eagle3diag.serving import Acceptance

LAUNCH = (
    "python -m sglang.launch_server --model-path T --speculative-algorithm {} --speculative-draft-model-path D --speculative-num-steps 4 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens {}"
)


def _others(draft: Draft) -> torch.Tensor:
    """Offsets of a map of the same size over other tokens, ascending."""
    count, size = draft.config.draft_vocab_size, draft.config.vocab_size
    ids = torch.randperm(size, generator=torch.Generator().manual_seed(1))[:count].sort().values
    return ids - torch.arange(count)


def _first(draft: Draft, target: Target) -> Draft:
    """A head for the first tokens of the target, and maps that say so."""
    count, size = draft.config.draft_vocab_size, draft.config.vocab_size
    maps = {"d2t": torch.zeros(count, dtype=torch.int64), "t2d": torch.arange(size) < count}
    return draft.replace(tensors={**maps, "lm_head.weight": target.head()[:count].clone()})


def _halved(draft: Draft) -> Draft:
    names = ("midlayer.mlp.up_proj.weight", "midlayer.mlp.gate_proj.weight")
    return draft.replace(tensors={n: draft.tensors[n].chunk(2)[0].clone() for n in names})


def _without_map(draft: Draft) -> Draft:
    return draft.replace(tensors={"d2t": torch.zeros(draft.config.draft_vocab_size, dtype=torch.int64)})


def _other_pair(draft: Draft) -> Draft:
    """Both maps of another run, in agreement with each other."""
    ids = _others(draft) + torch.arange(draft.config.draft_vocab_size)
    return draft.replace(tensors={"d2t": _others(draft), "t2d": torch.isin(torch.arange(draft.config.vocab_size), ids)})


def _headless(draft: Draft) -> Draft:
    """The whole vocabulary, no head, and a map that nobody needs."""
    size = draft.config.vocab_size
    tensors = {"lm_head.weight": None, "d2t": torch.zeros(size, dtype=torch.int64), "t2d": None}
    return draft.replace(tensors=tensors, config={"draft_vocab_size": size})


def _quantised(draft: Draft, *scaled: str) -> Draft:
    """The MLP in float8, its scheme in the config, and scales for these of its weights."""
    names = {part: f"midlayer.mlp.{part}_proj.weight" for part in ("up", "gate", "down")}
    codes = {name: draft.tensors[name].to(torch.float8_e4m3fn) for name in names.values()}
    return draft.replace(
        tensors=codes | {f"{names[part]}_scale": torch.ones(1) for part in scaled}, config={"quantization_config": {"quant_method": "fp8"}}
    )


def _embedding(target: Target, noise: float, own: float = 1.0) -> torch.Tensor:
    """The target's embedding times ``own``, and noise of so much of its std."""
    table = target.embedding().float()
    return (own * table + noise * table.std() * torch.randn(table.shape, generator=torch.Generator().manual_seed(3))).bfloat16()


INJECTED: dict[str, Callable[[Draft], Draft]] = {
    "FM-05": lambda d: d.replace(rename=lambda n: n.replace("midlayer.", "draft_layers.0.")),
    "FM-06": lambda d: d.replace(tensors={"lm_head.weight": None}),
    "FM-07": lambda d: with_raw(d, {**d.config.raw, "draft_vocab_size": None}),
    "FM-08": _headless,
    "FM-10": lambda d: d.replace(config={"tie_word_embeddings": True}),
    "FM-11": _without_map,
    "FM-12": lambda d: d.replace(tensors={"d2t": d.vocabulary.draft_ids}),  # type: ignore[union-attr]
    "FM-13": lambda d: d.replace(tensors={"d2t": _others(d)}),
    "FM-16": lambda d: _headless(d).replace(
        tensors={"d2t": None, "lm_head.weight": torch.ones(d.config.vocab_size + 64, d.config.hidden_size).bfloat16()}
    ),
    "FM-17": lambda d: d.replace(config={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 8, 14, 26]}}),
    "FM-18": lambda d: d.replace(config={"head_dim": 32}),
    "FM-20": lambda d: d.replace(tensors={"input_norm.weight": torch.ones(3 * d.config.hidden_size).bfloat16()}),
    "FM-22": _halved,
    "FM-23": lambda d: d.replace(config={"quantization_config": {"quant_method": "compressed-tensors"}}),
    "FM-26": lambda d: d.replace(tensors={"midlayer.self_attn.q_proj.bias": torch.ones(576)}),
    "FM-27": lambda d: d.replace(config={"architectures": ["Eagle3DeepseekV2ForCausalLM"]}),
    "FM-78": lambda d: _quantised(d, "up", "down"),
}

#: Faults that show only beside the target, or under another engine: the draft and the engine.
BESIDE: dict[str, tuple[str, Callable[[Draft, Target], Draft], str]] = {
    "an embedding that was trained, replaced": (
        "FM-07",
        lambda d, t: d.replace(tensors={"embed_tokens.weight": _embedding(t, 0.3)}),
        "sglang",
    ),
    "a random embedding, used": ("FM-09", lambda d, t: d.replace(tensors={"embed_tokens.weight": _embedding(t, 1, 0)}), "vllm"),
    "the first tokens as vocabulary": ("FM-15", _first, "sglang"),
    "both maps of another run": ("FM-13", lambda d, t: _other_pair(d), "sglang"),
    "a map that the version throws away": (
        "FM-14",
        lambda d, t: d.replace(config={"architectures": ["Eagle3LlamaForCausalLM"]}),
        "vllm==0.9.0",
    ),
    "a bias that an old class makes up": ("FM-26", lambda d, t: d, "sglang==0.4.8"),
    "layers.0 before 0.5.12": ("FM-05", lambda d, t: d.replace(rename=lambda n: n.replace("midlayer.", "layers.0.")), "sglang==0.5.8"),
}

#: Faults that need neither draft nor hidden states: the evidence that shows each, and the legal twin beside it.
SERVED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "FM-01": ({"launch": LAUNCH.format("EAGLE", 5).replace(" D ", " x/eagle3-head ")}, {"launch": LAUNCH.format("EAGLE", 5)}),
    "FM-03": (
        {"acceptance": Acceptance(rounds=0, accepted=0)},
        {"acceptance": Acceptance(rounds=300, accepted=400, steps=4, num_draft_tokens=5)},
    ),
    "FM-04": ({"launch": LAUNCH.format("EAGLE3", 24)}, {"launch": LAUNCH.format("EAGLE3", 5)}),
    "FM-73": (
        {"acceptance": Acceptance(rounds=200, accepted=0, steps=4, num_draft_tokens=5), "engine": "sglang==0.5.8"},
        {"acceptance": Acceptance(rounds=200, accepted=300, steps=4, num_draft_tokens=5), "engine": "sglang==0.5.23"},
    ),
    "FM-74": (
        {"acceptance": Acceptance(rounds=200, accepted=300, steps=4, p=(0.5, 0.45, 0.4, 0.35))},
        {"acceptance": Acceptance(rounds=200, accepted=300, steps=4, p=(0.6, 0.4, 0.3, 0.2))},
    ),
    "FM-75": (
        {"launch": LAUNCH.format("EAGLE3", 5) + " --speculative-accept-threshold-single 0.5"},
        {"launch": LAUNCH.format("EAGLE3", 5) + " --speculative-accept-threshold-single 1.0"},
    ),
    "FM-76": (
        {"acceptance": Acceptance(rounds=50, accepted=150, tokens=200, steps=4, distinct=0.02)},
        {"acceptance": Acceptance(rounds=50, accepted=150, tokens=200, steps=4, distinct=0.4)},
    ),
}

#: Faults of the same groups that no file, command, log or count shows, and why.
OTHERWISE: dict[str, str] = {
    "FM-02": "of the target's class and not of the draft: test_a_target_that_cannot_capture",
    "FM-19": "names and shapes are right, only the order of the rows is not: test_packed_otherwise in test_faults.py replays each layout",
    "FM-21": "of MTP drafts, which are named as such and not checked (C1): tests/unit/test_trainers.py",
    "FM-24": "every epoch is a sound checkpoint; which is the best only a replay of each tells",
    "FM-25": "weak and right look alike until the replay says how much to expect: test_faults.py",
    "FM-77": "the same",
}


def test_every_fault_that_files_or_counts_show_is_injected() -> None:
    """Groups A, B and F of the catalogue: an injection, or the reason why there is none. A fault that is new must be in one of these."""
    groups = ("Launch", "Checkpoint", "Vocabulary", "Measurement")
    known = {fault for fault, told in in_words().items() if told["group"] in groups}
    injected = {*INJECTED, *SERVED, *(fault for fault, _, _ in BESIDE.values())}
    assert injected | set(OTHERWISE) == known
    assert not injected & set(OTHERWISE)


@pytest.mark.parametrize("fault", INJECTED)
def test_named_first_by_the_checkpoint(fault: str, draft: Draft, target: Target) -> None:
    """The audit alone says it, says it first, and nothing else; beside the target too. One cause is one finding."""
    broken = INJECTED[fault](draft)
    for found in (audit(broken).findings, audit(broken, target=target).findings):
        assert [f.fault for f in found if f.severity > Severity.NOTE] == [fault], [f.title for f in found]


@pytest.mark.parametrize("name", BESIDE)
def test_named_first_beside_target_or_engine(name: str, draft: Draft, target: Target) -> None:
    """The rows of the target, or the version of the engine, make it a fault; nothing else is found."""
    fault, change, engine = BESIDE[name]
    found = audit(change(draft, target), engine=engine, target=target).findings
    assert [f.fault for f in found if f.severity > Severity.NOTE] == [fault], [f.title for f in found]


@pytest.mark.parametrize("fault", SERVED)
def test_named_first_by_command_or_counts(fault: str) -> None:
    """First where it is, absent where its twin is; that the engine's version is not known is said besides."""
    named, silent = (diagnose(**case).findings for case in SERVED[fault])
    assert next(f.fault for f in named if f.fault != "C0") == fault, [f.title for f in named]
    assert fault not in [f.fault for f in silent] and not [f for f in silent if f.severity > Severity.NOTE]


def test_a_target_that_cannot_capture(draft: Draft, target: Target) -> None:
    """FM-02 by the table of target classes: Qwen2 has been there since 0.5.2."""
    other = Target(target.path, {**target.config, "architectures": ["Qwen2ForCausalLM"]}, target.tensors)
    old, new = (audit(draft, engine=f"sglang=={version}", target=other).findings for version in ("0.4.9", "0.5.23"))
    assert old[0].fault == "FM-02" and new == ()


@pytest.mark.parametrize(("fault", "cost"), [("FM-07", 0.3), ("FM-10", 0.3), ("FM-11", 0.3), ("FM-13", 0.3)])
def test_named_first_by_the_whole_case(fault: str, cost: float, draft: Draft, target: Target, train: HiddenStates) -> None:
    """With a dump and nothing accepted: reproduced by its counterfactual, at a cost."""
    result = diagnose(draft=INJECTED[fault](draft), target=target, train=train.select(range(3)), acceptance=1.02)
    assert serious(result)[0] == fault
    assert result.ranked[0].cost is not None and result.ranked[0].cost > cost


@pytest.mark.parametrize("fault", ["FM-17", "FM-18", "FM-22", "FM-27"])
def test_a_draft_that_cannot_be_built_is_diagnosed_all_the_same(fault: str, draft: Draft, target: Target, train: HiddenStates) -> None:
    """No error of torch, no exception: the fault first, and, where nothing could be replayed, that it could not."""
    result = diagnose(draft=INJECTED[fault](draft), target=target, train=train.select([0]), acceptance=1.0)
    assert serious(result)[0] == fault
    assert (result.replay is not None) or any("nothing could be replayed" in line for line in result.missing)


LEGAL: dict[str, Callable[[Draft, Target], Draft]] = {
    "as it is": lambda d, t: d,
    "the target's embedding in the file": lambda d, t: d.replace(tensors={"embed_tokens.weight": t.embedding()}),
    "no t2d": lambda d, t: d.replace(tensors={"t2d": None}),
    "the whole vocabulary and a map of zeros": lambda d, t: d.replace(
        tensors={"lm_head.weight": t.head(), "d2t": torch.zeros(t.vocab_size, dtype=torch.int64), "t2d": torch.ones(t.vocab_size).bool()},
        config={"draft_vocab_size": t.vocab_size},
    ),
    "the head borrowed": lambda d, t: with_raw(
        d.replace(tensors={"lm_head.weight": None, "d2t": None, "t2d": None}), {**d.config.raw, "draft_vocab_size": None}
    ),
    "a bias promised, which SGLang leaves at zero": lambda d, t: d.replace(config={"attention_bias": True}),
    "no head_dim where it is plain": lambda d, t: d.replace(config={"head_dim": None}),
    "a quantised MLP with all its scales": lambda d, t: _quantised(d, "up", "gate", "down"),
    "names of other trainers": lambda d, t: d.replace(rename=lambda n: n.replace("midlayer.", "layers.0.")),
    "four states and their ids": lambda d, t: d.replace(
        tensors={"fc.weight": torch.cat([d.tensors["fc.weight"], d.tensors["fc.weight"][:, :576]], -1)},
        config={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 8, 14, 26]}},
    ),
    "a norm before fc with its flag": lambda d, t: d.replace(
        tensors={"input_norm.weight": torch.ones(3 * 576).bfloat16()}, config={"norm_before_fc": True}
    ),
    "a bias of zeros": lambda d, t: d.replace(tensors={"midlayer.self_attn.q_proj.bias": torch.zeros(576)}),
    "a quantisation that is null": lambda d, t: with_raw(d, {**d.config.raw, "quantization_config": None}),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_twins_are_silent(name: str, draft: Draft, target: Target) -> None:
    """Nothing at all, not even a note."""
    assert audit(LEGAL[name](draft, target), target=target).findings == ()
