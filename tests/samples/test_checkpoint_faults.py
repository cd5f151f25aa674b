"""Faults of groups A and B that need no hidden states, injected into the sample draft: named first; their legal twins silent; some replayed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_faults import serious

from eagle3diag.audit import audit
from eagle3diag.checkpoints import Draft, Target
from eagle3diag.diagnose import diagnose
from eagle3diag.dumps import HiddenStates
from eagle3diag.findings import Severity
from eagle3diag.repair import with_raw


def _others(draft: Draft) -> torch.Tensor:
    """Offsets of a map of the same size over other tokens, ascending."""
    count, size = draft.config.draft_vocab_size, draft.config.vocab_size
    ids = torch.randperm(size, generator=torch.Generator().manual_seed(1))[:count].sort().values
    return ids - torch.arange(count)


def _first(draft: Draft) -> Draft:
    count, size = draft.config.draft_vocab_size, draft.config.vocab_size
    marked = torch.arange(size) < count
    return draft.replace(tensors={"d2t": torch.zeros(count, dtype=torch.int64), "t2d": marked})


def _halved(draft: Draft) -> Draft:
    names = ("midlayer.mlp.up_proj.weight", "midlayer.mlp.gate_proj.weight")
    return draft.replace(tensors={n: draft.tensors[n].chunk(2)[0].clone() for n in names})


def _without_map(draft: Draft) -> Draft:
    return draft.replace(tensors={"d2t": torch.zeros(draft.config.draft_vocab_size, dtype=torch.int64)})


INJECTED: dict[str, Callable[[Draft], Draft]] = {
    "FM-07": lambda d: with_raw(d, {**d.config.raw, "draft_vocab_size": None}),
    "FM-10": lambda d: d.replace(config={"tie_word_embeddings": True}),
    "FM-11": _without_map,
    "FM-13": lambda d: d.replace(tensors={"d2t": _others(d)}),
    "FM-15": _first,
    "FM-17": lambda d: d.replace(config={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 8, 14, 26]}}),
    "FM-18": lambda d: d.replace(config={"head_dim": 32}),
    "FM-20": lambda d: d.replace(tensors={"input_norm.weight": torch.ones(3 * d.config.hidden_size).bfloat16()}),
    "FM-22": _halved,
    "FM-23": lambda d: d.replace(config={"quantization_config": {"quant_method": "compressed-tensors"}}),
    "FM-26": lambda d: d.replace(tensors={"midlayer.self_attn.q_proj.bias": torch.ones(576)}),
    "FM-27": lambda d: d.replace(config={"architectures": ["Eagle3DeepseekV2ForCausalLM"]}),
}


@pytest.mark.parametrize("fault", INJECTED)
def test_named_first_by_the_checkpoint(fault: str, draft: Draft, target: Target) -> None:
    """The audit alone says it, and says it first; beside the target too."""
    broken = INJECTED[fault](draft)
    for found in (audit(broken).findings, audit(broken, target=target).findings):
        assert found[0].fault == fault, [f.title for f in found]
        assert list(dict.fromkeys(f.fault for f in found if f.severity > Severity.NOTE)) in ([fault], [fault, "K2"])


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
    "a quantisation that is null": lambda d, t: with_raw(d, {**d.config.raw, "quantization_config": None}),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_twins_are_silent(name: str, draft: Draft, target: Target) -> None:
    """Nothing at all, not even a note."""
    assert audit(LEGAL[name](draft, target), target=target).findings == ()
