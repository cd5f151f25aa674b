"""Every check of names, shapes, config and vocabulary on a small draft: the fault is named with its numbers, its legal twin is silent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import trainers
from builders import TARGET_CONFIG, speculators_config, target_tensors, tensors_read, write_model
from small import INNER, VD, H, V, small_draft
from torch import Tensor

from eagle3diag.audit import audit
from eagle3diag.checkpoints import Draft, Target, open_draft, open_target
from eagle3diag.diagnose import diagnose
from eagle3diag.errors import MismatchedInputs
from eagle3diag.findings import Finding, Severity
from eagle3diag.repair import repairs, with_raw

SGLANG = "sglang==0.5.23"
LAYER = "midlayer."


def base(**config: Any) -> Draft:
    """The small draft with a dtype and its own embedding left out; None removes a field."""
    return small_draft().replace(config={"torch_dtype": "bfloat16", **config})


def null(draft: Draft, field: str) -> Draft:
    """A field that is there and null, which is not the same as absent."""
    return with_raw(draft, {**draft.config.raw, field: None})


def tensors(draft: Draft | None = None, **changes: Tensor | None) -> Draft:
    """Tensors set or removed, by name with ``__`` for a dot."""
    return (draft or base()).replace(tensors={n.replace("__", "."): t for n, t in changes.items()})


def offsets(ids: list[int]) -> Tensor:
    return torch.tensor(ids) - torch.arange(len(ids))


def marks(ids: list[int], size: int = V) -> Tensor:
    return torch.zeros(size, dtype=torch.bool).index_fill_(0, torch.tensor(ids), True)


def full(**more: Tensor | None) -> Draft:
    """The same draft with the whole vocabulary and no map."""
    draft = tensors(base(draft_vocab_size=V), d2t=None, t2d=None, lm_head__weight=torch.randn(V, H))
    return tensors(draft, **more) if more else draft


IDS: list[int] = small_draft().vocabulary.draft_ids.tolist()  # type: ignore[union-attr]
OTHER = [i for i in range(V) if i not in IDS][: VD // 2] + IDS[: VD // 2]
NORM = torch.rand(H) + 0.5


def reheaded(dim: int, **config: Any) -> Draft:
    """Heads of another width than 8, with a config that may not say so."""
    shapes = {"q_proj": (4 * dim, 2 * H), "k_proj": (2 * dim, 2 * H), "v_proj": (2 * dim, 2 * H), "o_proj": (H, 4 * dim)}
    return base(**config).replace(tensors={f"{LAYER}self_attn.{n}.weight": torch.randn(*s) for n, s in shapes.items()})


def second_layer(draft: Draft) -> Draft:
    first = {n: t for n, t in draft.tensors.items() if n.startswith(LAYER)}
    more = {n.replace(LAYER, "layers.1."): t[:, :H].contiguous() if t.dim() == 2 and t.shape[1] == 2 * H else t for n, t in first.items()}
    return draft.replace(tensors=more)


def sharded(draft: Draft) -> Draft:
    """What one of two ranks holds of the MLP."""
    up, gate = draft.weight("layers.0.mlp.up_proj.weight"), draft.weight("layers.0.mlp.gate_proj.weight")
    halves = {"mlp.up_proj.weight": up[: INNER // 2], "mlp.gate_proj.weight": gate[: INNER // 2]}
    return draft.replace(tensors={LAYER + n: t.contiguous() for n, t in halves.items()})


#: Name -> (the draft, the fault that comes first, its severity, whether a target is given).
WARNING, ERROR, NOTE = Severity.WARNING, Severity.ERROR, Severity.NOTE
BROKEN: dict[str, tuple[Callable[[], Draft], str, Severity]] = {
    # names and head
    "layer under an unknown prefix": (lambda: base().replace(rename=lambda n: n.replace(LAYER, "draft_layers.0.")), "FM-05", ERROR),
    "head missing": (lambda: tensors(lm_head__weight=None), "FM-06", ERROR),
    "model. before the head": (lambda: base().replace(rename=lambda n: "model." + n if n == "lm_head.weight" else n), "FM-06", ERROR),
    "own head given away": (lambda: null(base(), "draft_vocab_size"), "FM-07", ERROR),
    "own full head given away": (lambda: null(full(), "draft_vocab_size"), "FM-07", WARNING),
    "head to be shared, map in the file": (
        lambda: full(lm_head__weight=None, d2t=torch.zeros(V, dtype=torch.int64), t2d=torch.ones(V, dtype=torch.bool)), "FM-08", ERROR),
    "tied with a reduced head": (lambda: base(tie_word_embeddings=True), "FM-10", ERROR),
    "tied with a full head": (lambda: full().replace(config={"tie_word_embeddings": True}), "FM-10", WARNING),
    "tied, reduced, no head": (lambda: tensors(base(tie_word_embeddings=True), lm_head__weight=None), "FM-10", ERROR),
    "more layers promised": (lambda: base(num_hidden_layers=6), "K1", ERROR),
    "more layers in the file": (lambda: second_layer(base()), "K1", ERROR),
    "fc missing": (lambda: tensors(fc__weight=None), "K1", ERROR),
    "a tensor nobody knows": (lambda: tensors(extra__weight=torch.ones(3)), "K1", WARNING),
    # vocabulary
    "map missing": (lambda: tensors(d2t=None), "FM-11", ERROR),
    "map never filled": (lambda: tensors(d2t=torch.zeros(VD, dtype=torch.int64), t2d=torch.ones(V, dtype=torch.bool)), "FM-11", ERROR),
    "map never filled, t2d right": (lambda: tensors(d2t=torch.zeros(VD, dtype=torch.int64)), "FM-11", ERROR),
    "map never filled, no t2d": (lambda: tensors(d2t=torch.zeros(VD, dtype=torch.int64), t2d=None), "FM-11", ERROR),
    "absolute ids": (lambda: tensors(d2t=torch.tensor(IDS)), "FM-12", ERROR),
    "absolute ids, int32": (lambda: tensors(d2t=torch.tensor(IDS, dtype=torch.int32)), "FM-12", ERROR),
    "absolute ids, no t2d": (lambda: tensors(d2t=torch.tensor(IDS), t2d=None), "FM-12", ERROR),
    "arange": (lambda: tensors(d2t=torch.arange(VD)), "FM-12", ERROR),
    "map of another run": (lambda: tensors(d2t=offsets(sorted(OTHER))), "FM-13", ERROR),
    "first ids": (lambda: tensors(d2t=torch.zeros(VD, dtype=torch.int64), t2d=marks(list(range(VD)))), "FM-15", WARNING),
    "ids outside the vocabulary": (lambda: tensors(d2t=offsets([*IDS[:-1], V + 3]), t2d=None), "K5", ERROR),
    "negative ids": (lambda: tensors(d2t=offsets([-2, *IDS[1:]]), t2d=None), "K5", ERROR),
    "an id twice": (lambda: tensors(d2t=offsets([IDS[1], *IDS[1:]])), "K5", ERROR),
    "map in bfloat16": (lambda: tensors(d2t=offsets(IDS).bfloat16(), t2d=None), "K5", ERROR),
    "t2d marks more": (lambda: tensors(t2d=torch.ones(V, dtype=torch.bool)), "K5", WARNING),
    "map of another length": (lambda: tensors(d2t=offsets(IDS[:-4]), t2d=None), "K2", ERROR),
    "draft vocabulary above the target's": (lambda: tensors(base(draft_vocab_size=200), lm_head__weight=torch.randn(200, H), d2t=None), "C8", ERROR),
    # shapes
    "fc for four states": (lambda: tensors(fc__weight=torch.randn(H, 4 * H)), "FM-17", ERROR),
    "fc for an odd width": (lambda: tensors(fc__weight=torch.randn(H, 3 * H + 8)), "FM-17", ERROR),
    "four ids, three states": (lambda: base(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2, 3]}), "FM-17", ERROR),
    "no ids, four states": (lambda: tensors(base(eagle_config=None), fc__weight=torch.randn(H, 4 * H)), "FM-17", ERROR),
    "the target's width not stated": (lambda: tensors(base(target_hidden_size=20), fc__weight=torch.randn(H, 3 * H)), "FM-17", ERROR),
    "heads of another width": (lambda: reheaded(16, head_dim=None), "FM-18", ERROR),
    "another number of key heads": (lambda: base(num_key_value_heads=4), "FM-18", ERROR),
    "one rank's part": (lambda: sharded(base()), "FM-22", ERROR),
    "a flattened matrix": (lambda: tensors(fc__weight=torch.randn(H, 3 * H), midlayer__mlp__up_proj__weight=torch.randn(INNER * H)), "FM-22", ERROR),
    "an empty tensor": (lambda: tensors(midlayer__mlp__up_proj__weight=torch.empty(0, H)), "FM-22", ERROR),
    "head of another size": (lambda: tensors(lm_head__weight=torch.randn(60, H)), "K2", ERROR),
    "a layer that reads one state": (lambda: tensors(midlayer__self_attn__q_proj__weight=torch.randn(32, H)), "K2", ERROR),
    "a norm of another width": (lambda: tensors(norm__weight=torch.ones(2 * H)), "K2", ERROR),
    "dense weights, MLA class": (lambda: base(architectures=["Eagle3DeepseekV2ForCausalLM"]), "FM-27", ERROR),
    # norms, biases, quantisation
    "norm before fc without its flag": (lambda: tensors(input_norm__weight=torch.rand(3 * H)), "FM-20", ERROR),
    "aux norms without their flag": (lambda: tensors(**{f"fc_norm__{i}__weight": NORM for i in range(3)}), "FM-20", ERROR),
    "aux norms' flag in the wrong place": (
        lambda: tensors(base(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "fc_norm": True}),
                        **{f"fc_norm__{i}__weight": NORM for i in range(3)}), "FM-20", ERROR),
    "norms of queries and keys": (lambda: tensors(midlayer__self_attn__q_norm__weight=torch.rand(8)), "FM-20", ERROR),
    "a flag without its norm": (lambda: base(norm_before_fc=True), "K10", ERROR),
    "flags without aux norms": (lambda: base(fc_norm=True), "K10", ERROR),
    "a bias that is dropped": (lambda: tensors(midlayer__self_attn__q_proj__bias=torch.randn(32)), "FM-26", WARNING),
    "the target's quantisation": (lambda: base(quantization_config={"quant_method": "fp8"}), "FM-23", ERROR),
    "codes without a scale": (
        lambda: tensors(**{f"midlayer__mlp__{n}__weight": torch.zeros(*s).to(torch.float8_e4m3fn)
                           for n, s in (("up_proj", (INNER, H)), ("gate_proj", (INNER, H)))}), "FM-78", ERROR),
    "one scale of two lost": (
        lambda: tensors(base(quantization_config={"quant_method": "fp8"}), midlayer__mlp__up_proj__weight_scale=torch.ones(1), **{
            f"midlayer__mlp__{n}__weight": torch.zeros(INNER, H).to(torch.float8_e4m3fn) for n in ("up_proj", "gate_proj")}), "FM-78", ERROR),
    "a norm that is not finite": (lambda: tensors(norm__weight=torch.full((H,), float("nan"))), "K3", ERROR),
    "a norm of zeros": (lambda: tensors(norm__weight=torch.zeros(H)), "K3", WARNING),
    # config
    "a negative boundary": (lambda: base(eagle_config={"eagle_aux_hidden_state_layer_ids": [-3, 1, 2]}), "C2", ERROR),
    "a boundary twice": (lambda: base(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 1, 2]}), "C2", ERROR),
    "boundaries not ascending": (lambda: base(eagle_config={"eagle_aux_hidden_state_layer_ids": [3, 1, 2]}), "FM-33", WARNING),
    "the embedding as aux state": (lambda: base(eagle_config={"eagle_aux_hidden_state_layer_ids": [-1, 1, 2]}), "C2", WARNING),
    "another activation": (lambda: base(hidden_act="gelu"), "FM-27", ERROR),
    "no draft vocabulary in the config": (lambda: base(draft_vocab_size=None), "FM-27", ERROR),
    "two RoPE bases": (lambda: base(rope_parameters={"rope_theta": 500000.0}), "C5", WARNING),
    "half a scaling": (lambda: base(rope_scaling={"rope_type": "llama3", "factor": 8.0}), "C5", WARNING),
    "a sliding window": (lambda: base(layer_types=["sliding_attention"], sliding_window=2048), "C6", WARNING),
}  # fmt: skip

LEGAL: dict[str, Callable[[], Draft]] = {
    "as it is": base,
    "embedding shipped": lambda: tensors(embed_tokens__weight=torch.randn(V, H)),
    "layers.0 names": lambda: base().replace(rename=lambda n: n.replace(LAYER, "layers.0.")),
    "model. before every name but the head's": lambda: base().replace(
        rename=lambda n: n if n == "lm_head.weight" else "model." + n.replace(LAYER, "layers.0.")
    ),
    "biases promised, which this engine does not build": lambda: base(attention_bias=True),
    "no t2d": lambda: tensors(t2d=None),
    "t2d as bytes": lambda: tensors(t2d=marks(IDS).to(torch.uint8)),
    "map in int32": lambda: tensors(d2t=offsets(IDS).to(torch.int32)),
    "every second token, which arange says": lambda: tensors(d2t=torch.arange(VD), t2d=marks(list(range(0, V, 2)))),
    "map by frequency": lambda: tensors(d2t=offsets(IDS[::-1])),
    "whole vocabulary without a map": full,
    "whole vocabulary, zero map": lambda: full(d2t=torch.zeros(V, dtype=torch.int64), t2d=torch.ones(V, dtype=torch.bool)),
    "head borrowed": lambda: null(full(lm_head__weight=None), "draft_vocab_size"),
    "tied and borrowed": lambda: full(lm_head__weight=None).replace(config={"tie_word_embeddings": True}),
    "head_dim unlike hidden / heads": lambda: reheaded(16, head_dim=16),
    "head_dim left out and plain": lambda: base(head_dim=None),
    "four states and their ids": lambda: tensors(
        base(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2, 3]}), fc__weight=torch.randn(H, 4 * H)),
    "four states by number": lambda: tensors(base(eagle_config=None, num_aux_hidden_states=4), fc__weight=torch.randn(H, 4 * H)),
    "no ids": lambda: base(eagle_config=None),
    "another target width": lambda: tensors(
        base(target_hidden_size=64), fc__weight=torch.randn(H, 3 * 64), embed_tokens__weight=torch.randn(V, H)),
    "norm before fc with its flag": lambda: tensors(base(norm_before_fc=True), input_norm__weight=torch.rand(3 * H)),
    "norm before fc flagged inside": lambda: tensors(
        base(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "norm_before_fc": True}), input_norm__weight=torch.rand(3 * H)),
    "aux norms with their flag": lambda: tensors(base(fc_norm=True), **{f"fc_norm__{i}__weight": NORM for i in range(3)}),
    "aux norms under their old names": lambda: tensors(
        base(use_aux_norm=True), aux_norm_low__weight=NORM, aux_norm_mid__weight=NORM, aux_norm_high__weight=NORM),
    "two layers": lambda: second_layer(base(num_hidden_layers=2)).replace(rename=lambda n: n.replace(LAYER, "layers.0.")),
    "biases of zero": lambda: tensors(midlayer__self_attn__q_proj__bias=torch.zeros(32)),
    "computed tables in the file": lambda: tensors(midlayer__self_attn__rotary_emb__inv_freq=torch.rand(4)),
    "the same base in both places": lambda: base(rope_parameters={"rope_theta": 10000.0}),
    "a whole scaling": lambda: base(rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "the target's window, not used": lambda: base(sliding_window=32768, use_sliding_window=False),
    "the target's list of layers": lambda: base(layer_types=["sliding_attention", "full_attention"] * 3, sliding_window=128),
    "norms of ones": lambda: tensors(norm__weight=torch.ones(H)),
    "a quantised draft with its scales": lambda: tensors(
        base(quantization_config={"quant_method": "fp8"}), midlayer__mlp__up_proj__weight=torch.zeros(INNER, H).to(torch.float8_e4m3fn),
        midlayer__mlp__up_proj__weight_scale=torch.ones(1)),
}  # fmt: skip


def serious(findings: tuple[Finding, ...]) -> list[tuple[str, Severity]]:
    return [(f.fault, f.severity) for f in findings if f.severity > Severity.NOTE]


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_named_first(name: str) -> None:
    """By the checkpoint alone: the id, with evidence that names an expected value, a fix and a check."""
    make, fault, severity = BROKEN[name]
    draft = make()
    found = audit(draft, engine=SGLANG).findings
    assert (found[0].fault, found[0].severity) == (fault, severity), [f.title for f in found]
    assert found[0].evidence and any(e.expected for e in found[0].evidence)
    assert found[0].because and found[0].fix and found[0].check
    assert len([f for f in found if f.severity > Severity.NOTE]) <= 2, [f.title for f in found]  # one cause is not told thrice


def test_layers_are_counted_as_the_title_counts_them() -> None:
    """A number of layers and the number that a layer has are two things: one layer in the file is numbered 0."""
    for name, held, promised in (("more layers promised", "1, numbered 0", "6"), ("more layers in the file", "2, numbered 0, 1", "1")):
        found = next(f for f in audit(BROKEN[name][0]()).findings if f.title.startswith("the config promises"))
        (line,) = (e for e in found.evidence if e.name == "layers in the file")
        assert (line.value, line.expected) == (held, f"{promised}, numbered from 0") and f"holds {held[0]}" in found.title


@pytest.mark.parametrize("engine", [SGLANG, "sglang==0.5.8", "vllm==0.32.0", "vllm==0.18.0"])
def test_one_cause_is_one_finding(engine: str) -> None:
    """Dropped, raising or of another shape, in an engine that is silent and in one that is strict: what one fault does is said once."""
    plain = {f.title for f in audit(base(), engine=engine).findings}  # ids that this engine does not read
    for name, (make, _, _) in BROKEN.items():
        found = [f.title for f in audit(make(), engine=engine).findings if f.severity > NOTE and f.title not in plain]
        assert len(found) <= 1, (name, found)


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_oddity_is_silent(name: str) -> None:
    """The trap beside each fault: nothing above a note, and no certain repair."""
    draft = LEGAL[name]()
    assert serious(audit(draft, engine=SGLANG).findings) == []
    assert repairs(draft, only_certain=True)[1] == ()


@pytest.mark.parametrize("name", [n for n in BROKEN if BROKEN[n][1].startswith("FM") and "layers" not in n])
def test_a_diagnosis_names_it_too(name: str) -> None:
    """The same verdict through diagnose, where the weight report is there as well; a draft that cannot be built ends in no error."""
    make, fault, _ = BROKEN[name]
    result = diagnose(draft=make(), target=None if "width not stated" in name else small())
    assert fault in [f.fault for f in result.findings if f.severity > Severity.NOTE]


# ---- against the target ----


def small(**changes: Any) -> Target:
    return Target("small", TARGET_CONFIG | changes, target_tensors())


@pytest.mark.parametrize(
    ("draft", "target", "fault", "severity"),
    [
        ({}, {"rope_theta": 500000.0}, "C5", NOTE), ({"rope_theta": None}, {"rope_theta": 500000.0}, "C5", NOTE),
        ({}, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "C5", NOTE),
        ({}, {"max_position_embeddings": 131072}, "C6", NOTE),
        ({"torch_dtype": None}, {}, "C7", WARNING), ({"torch_dtype": "float32"}, {}, "C7", WARNING),
        ({"torch_dtype": "float16"}, {}, "C7", NOTE),
        ({}, {"rms_norm_eps": 1e-6}, "C4", NOTE),
        ({}, {"quantization_config": {"quant_method": "ascend", "rotation": "QuaRot"}}, "C7", WARNING),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 6]}}, {}, "C2", ERROR),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 5]}}, {}, "FM-30", ERROR),
    ],
)  # fmt: skip
def test_the_target_is_compared(draft: dict[str, Any], target: dict[str, Any], fault: str, severity: Severity) -> None:
    """A difference that training may have had is a note; what an engine cannot serve is more."""
    found = [f for f in audit(base(**draft), engine=SGLANG, target=small(**target)).findings]
    assert [(f.fault, f.severity) for f in found] == [(fault, severity)]


def test_a_target_that_agrees_gives_nothing() -> None:
    """Same base, positions, dtype, epsilon, vocabulary; a quantisation that turns nothing."""
    target = small(max_position_embeddings=512, quantization_config={"quant_method": "fp8"})
    assert audit(base(), engine=SGLANG, target=target).findings == ()


def test_vocabularies_apart_by_padding_are_a_finding_and_others_an_error() -> None:
    """Rows padded on one side: fatal where nothing was reduced, harmless beside a real map; another size is another target."""
    v = 4096

    def make(draft_vocab: int, vocab: int, rows: int) -> Draft:
        ids = torch.arange(draft_vocab) * (1 if draft_vocab == vocab else 3)
        table = (
            {"d2t": ids - torch.arange(draft_vocab), "t2d": marks(ids.tolist(), vocab)}
            if draft_vocab < v - 1024
            else {"d2t": None, "t2d": None}
        )
        return base(vocab_size=vocab, draft_vocab_size=draft_vocab).replace(tensors={"lm_head.weight": torch.zeros(rows, H), **table})

    target = small(vocab_size=v)
    assert serious(audit(make(v, v, v), target=target).findings) == []
    assert serious(audit(make(v - 512, v - 512, v - 512), target=target).findings) == [("FM-16", ERROR)]
    assert serious(audit(make(v - 512, v, v - 512), target=target).findings) == [("FM-16", ERROR)]
    assert serious(audit(make(v, v, v - 64), target=target).findings) == [("FM-16", ERROR)]
    reduced = audit(make(1024, v - 512, 1024), target=target).findings
    assert [(f.fault, f.severity) for f in reduced] == [("FM-16", NOTE)]
    with pytest.raises(MismatchedInputs, match="vocabulary"):
        audit(make(512, 2048, 512), target=target)


def test_tokens_that_end_an_answer_are_looked_for(tmp_path: Path) -> None:
    """generation_config.json before config.json; one of several missing is a note, all of them a warning; chat marks are listed."""
    said, unsaid = IDS[3], next(i for i in range(V) if i not in IDS)
    folder = write_model(tmp_path / "t", TARGET_CONFIG | {"eos_token_id": unsaid}, target_tensors())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": {str(unsaid): {"content": "<|end|>", "special": True}, "x": {"special": True}, "3": 5}})
    )

    def found(ends: object) -> list[tuple[str, Severity]]:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        result = audit(base(), target=open_target(folder))
        assert result.facts.target is not None
        assert result.facts.target.unsaid in ((), (f"{unsaid} <|end|>",))
        return [(f.fault, f.severity) for f in result.findings]

    assert found(said) == []
    assert found([said, unsaid]) == [("K8", NOTE)]
    assert found(unsaid) == found(None) == found("2") == [("K8", WARNING)]  # null or nonsense: the config's own id
    assert audit(full(), target=open_target(folder)).findings == ()


def test_rows_of_the_target_tell_what_head_and_embedding_are() -> None:
    """Copied, trained from the target's, random; a head whose map is another's. Without the target nothing is said of either."""
    target, g = small(), torch.Generator().manual_seed(0)
    table, head = target.embedding().float(), target.head().float()
    noise = torch.randn(table.shape, generator=g) * table.std()
    sound = tensors(lm_head__weight=head[IDS])
    for engine, embedding, expected in (
        (SGLANG, table, []), (SGLANG, table + 0.3 * noise, ["FM-07"]), (SGLANG, noise, []),
        ("vllm==0.32.0", table + 0.3 * noise, []), ("vllm==0.32.0", noise, ["FM-09"]),
    ):  # fmt: skip
        found = audit(sound.replace(tensors={"embed_tokens.weight": embedding}), engine=engine, target=target).findings
        assert [f.fault for f in found if f.severity > NOTE and f.fault != "FM-28"] == expected  # vLLM does not read these ids
    strangers = sound.replace(tensors={"d2t": offsets(sorted(OTHER)), "t2d": marks(OTHER)})
    assert [f.fault for f in audit(strangers, engine=SGLANG, target=target).findings if f.severity > NOTE] == ["FM-13"]
    assert audit(strangers, engine=SGLANG).ok
    fresh = sound.replace(tensors={"lm_head.weight": torch.randn(VD, H, generator=g)})  # random rows are nearest to no one's
    assert audit(fresh, engine=SGLANG, target=target).ok


def test_old_speculators_may_be_one_layer_off() -> None:
    """Trained by 0.3 or 0.4, which wrote no ids: a note, since nothing is known of its effect; a converted EAGLE draft is not meant."""
    old = {k: v for k, v in speculators_config().items() if k not in ("fc_norm", "norm_output", "norm_before_fc")}
    old["eagle_aux_hidden_state_layer_ids"] = None
    held = dict(base().replace(rename=lambda n: n.replace(LAYER, "layers.0.")).tensors)
    notes = [f.fault for f in audit(Draft.from_tensors(held, old)).findings if f.severity is Severity.NOTE]
    assert "C3" in notes
    assert "C3" not in [f.fault for f in audit(Draft.from_tensors(held, old | {"norm_before_residual": False})).findings]
    assert "C3" not in [f.fault for f in audit(Draft.from_tensors(held, speculators_config())).findings]


def test_mla_weights_under_a_dense_class(tmp_path: Path) -> None:
    """FM-27 the other way round; and every MLA shape is checked."""
    draft = open_draft(trainers.mla(tmp_path / "d", architectures=["LlamaForCausalLMEagle3"]))
    assert "FM-27" in [f.fault for f in audit(draft).findings]
    right = open_draft(trainers.mla(tmp_path / "e"))
    assert audit(right).shapes == () and "FM-27" not in [f.fault for f in audit(right).findings]
    cut = right.replace(tensors={"midlayer.self_attn.kv_b_proj.weight": torch.zeros(4 * 14, 15)})
    assert [s.name for s in audit(cut).shapes] == ["layers.0.self_attn.kv_b_proj.weight"]


def test_the_audit_reads_no_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the map, norms and biases are read, and beside a target rows of head and embedding: a draft of gigabytes is checked at once."""
    opened = open_draft(trainers.TRAINERS["SpecForge"][1](tmp_path / "d"))
    read = tensors_read(monkeypatch)
    audit(opened)
    assert all(name in ("d2t", "t2d") or "norm" in name for name in read)
    read.clear()
    audit(opened, target=small())
    assert {name for name in read if name not in ("d2t", "t2d") and "norm" not in name} == {"lm_head.weight"}


@pytest.mark.parametrize(
    ("name", "certain"),
    [("layer under an unknown prefix", True), ("more layers promised", True), ("heads of another width", True), ("absolute ids", True),
     ("tied with a reduced head", True), ("own head given away", True), ("the target's quantisation", True), ("arange", True),
     ("norm before fc without its flag", True), ("aux norms without their flag", True), ("head to be shared, map in the file", True),
     ("map never filled, t2d right", True), ("map of another run", False)],
)  # fmt: skip
def test_what_is_certain_is_repaired(name: str, certain: bool) -> None:
    """The repaired draft is what was meant: the audit has nothing more to say; what is not certain is left, and said."""
    draft = BROKEN[name][0]()
    mended, done, left = repairs(draft, only_certain=True)
    assert (len(done), len(left)) == ((1, 0) if certain else (0, 1))
    assert (done or left)[0].fault == BROKEN[name][1]
    if certain:
        assert serious(audit(mended, engine=SGLANG).findings) == []
        assert repairs(mended)[1] == ()
