"""Engine facts: tables that are whole and sourced, layer ids as each engine resolves them, and the judgements that rest on them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builders import LIGHT, speculators_config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small import VD, H, V, small_draft

from eagle3diag.audit import Audit, audit
from eagle3diag.case import Case, Given
from eagle3diag.checkpoints import Draft, Target
from eagle3diag.engines import ENGINES, Version, known_version, rules_of
from eagle3diag.engines.draftclass import HOLDS, Row
from eagle3diag.engines.layers import NESTED, OFFSETS, TOP
from eagle3diag.engines.rules import Bug, Since, Span, at
from eagle3diag.engines.sglang_targets import FAMILIES
from eagle3diag.engines.vllm import TARGET_TYPES, V1_KEYS
from eagle3diag.errors import BadArgument, InputError
from eagle3diag.faults import engine
from eagle3diag.findings import Severity
from eagle3diag.serving import Launch, parse_launch


def target(name: str = "LlamaForCausalLM", blocks: int = 32, **config: Any) -> Target:
    """A target of ``small_draft``'s sizes with as many blocks as a real one."""
    raw = {"architectures": [name], "num_hidden_layers": blocks, "hidden_size": H, "vocab_size": V, "model_type": "llama"}
    return Target("target", raw | config, {})


def with_ids(ids: list[int] | None, **config: Any) -> Draft:
    """``small_draft`` with nested ids."""
    eagle = None if ids is None else {"eagle_aux_hidden_state_layer_ids": ids}
    return small_draft().replace(config={"eagle_config": eagle, **config})


def faults(result: Audit, least: Severity = Severity.WARNING) -> list[str]:
    return [f.fault for f in result.findings if f.severity >= least]


TABLES: list[tuple[str, tuple[Since[Any], ...]]] = [
    *((f"{e.name} {c.name} {what}", table) for e in ENGINES.values() for c in e.classes
      for what, table in (("names", c.names), ("architectures", c.architectures), ("embedding", c.embedding), ("head", c.head))),
    ("vllm V1 keys", V1_KEYS), ("vllm targets", TARGET_TYPES),
    *((family.module, family.offsets) for family in FAMILIES),
]  # fmt: skip


@pytest.mark.parametrize(("name", "table"), TABLES, ids=[name for name, _ in TABLES])
def test_tables_rise_and_name_their_source(name: str, table: tuple[Since[Any], ...]) -> None:
    """Rows in the order of versions, each with the place where it was read."""
    assert [row.version for row in table] == sorted(row.version for row in table)
    assert all(row.source for row in table)


ROWS = [(f"{e.name} {c.name} {row.name} {row.versions}", row) for e in ENGINES.values() for c in e.classes for row in c.rows]


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[name for name, _ in ROWS])
def test_parameters_hold_something_known(name: str, row: Row) -> None:
    """Every row says what the parameter holds when nothing fills it, and stacked ones name their parts in the canonical spelling."""
    assert row.holds in HOLDS
    assert bool(row.parts) == ("{part}" in row.canonical)


def test_every_offset_and_condition_is_known() -> None:
    """Words in tables that lead to code do lead there."""
    assert {row.value for family in FAMILIES for row in family.offsets} <= set(OFFSETS)
    assert {bug.shows for e in ENGINES.values() for bug in e.bugs} <= set(engine.SHOWS)


def test_spans_and_versions() -> None:
    """A span ends before its end; a release candidate comes before its release."""
    assert Version.parse("0.5.11") not in Span.of("0.4.9", "0.5.11") and Version.parse("0.5.10.post1") in Span.of("0.4.9", "0.5.11")
    assert str(Span.of("0.4.9", "0.5.11")) == "since 0.4.9 and before 0.5.11" and str(Span()) == "every version"
    assert Version.parse("0.5.12rc1") < Version.parse("0.5.12")
    both = Span.of("0.4.9") & Span.of("0.4.5", "0.5.2")
    assert both == Span.of("0.4.9", "0.5.2") and Span() & Span() == Span()
    assert Version.parse("0.5.12") not in Span.of("0.5.12") & Span.of(before="0.5.9")
    assert at(V1_KEYS, Version.parse("0.32")).value == (TOP, NESTED)
    with pytest.raises(BadArgument):
        Version.parse("9" * 400)


@pytest.mark.parametrize(
    ("name", "version", "blocks", "ids", "boundaries"),
    [  # sglang.md 2.4; run against the classes themselves in tests/engines
        ("LlamaForCausalLM", "0.5.23", 32, [2, 16, 29], (3, 17, 30)),
        ("LlamaForCausalLM", "0.5.23", 32, None, (2, 16, 29)),
        ("LlamaForCausalLM", "0.4.8", 32, [5, 6, 7], (2, 16, 29)),
        ("KimiK25ForConditionalGeneration", "0.5.12", 61, [2, 30, 58], (3, 31, 59)),
        ("KimiK25ForConditionalGeneration", "0.5.13", 61, [2, 30, 58], (2, 30, 58)),
        ("DeepseekV3ForCausalLM", "0.5.13", 61, [1, 29, 57], (2, 30, 58)),
        ("GptOssForCausalLM", "0.5.16", 24, [2, 12, 24], (3, 13)),
        ("GptOssForCausalLM", "0.5.17", 24, [2, 12, 24], (2, 12, 24)),
        ("MiniMaxM3SparseForConditionalGeneration", "0.5.23", 40, None, (3, 21, 38)),
        ("LlamaForCausalLM", "0.5.23", 32, [16, 2, 2], (3, 17)),
        ("LlamaForCausalLM", "0.5.21", 32, [-1, 5, 9], (6, 10)),
        ("LlamaForCausalLM", "0.5.22", 32, [-1, 5, 9], (0, 6, 10)),
    ],
)  # fmt: skip
def test_sglang_layers(name: str, version: str, blocks: int, ids: list[int] | None, boundaries: tuple[int, ...]) -> None:
    """Which boundaries are captured, by version and target; ascending, each once, without what is out of reach."""
    text = {"text_config": {"num_hidden_layers": blocks, "hidden_size": H, "vocab_size": V}} if "Conditional" in name else {}

    result = audit(with_ids(ids), engine=f"sglang=={version}", target=target(name, blocks, **text))

    assert result.captures[0].boundaries == boundaries


@pytest.mark.parametrize(
    ("version", "keys", "boundaries"),
    [
        ("0.9.2", "nested", (2, 16, 29)), ("0.20.0", "nested", (2, 16, 29)), ("0.22.0", "nested", (1, 15, 28)), ("0.33.0", "nested", (2, 16, 29)),
        ("0.11.0", "top", (2, 16, 29)), ("0.11.1", "top", (3, 17, 30)), ("0.33.0", "top", (3, 17, 30)),
    ],
)  # fmt: skip
def test_vllm_layers(version: str, keys: str, boundaries: tuple[int, ...]) -> None:
    """Nested ids: never read, read without adding one, or passed over by the V2 runner; ids at the top are boundaries."""
    nested = with_ids([1, 15, 28])
    top = small_draft().replace(config={"eagle_config": None, TOP: [3, 17, 30]})

    result = audit(nested if keys == "nested" else top, engine=f"vllm=={version}", target=target())

    assert result.captures[0].boundaries == boundaries
    assert len(result.captures) == (2 if Version.parse(version) >= Version.parse("0.22.0") else 1)


def test_ids_one_off_are_named_with_the_ids_to_write() -> None:
    """vLLM reads SGLang's nested ids as they are: one boundary early, and the finding says what to write instead."""
    result = audit(with_ids([5, 17, 29]), engine="vllm==0.25.0", target=target())

    finding = next(f for f in result.findings if f.fault == "FM-29")
    assert "will capture boundaries 5, 17, 29, trained for 6, 18, 30" in finding.title
    assert "[6, 18, 30] at the top level" in finding.fix
    assert faults(audit(with_ids([5, 17, 29]), engine="sglang==0.5.23", target=target())) == []


def test_ids_that_are_not_read_are_named() -> None:
    """The V2 runner takes its default: another set where the ids are others, silent where they are the same."""
    other = audit(with_ids([5, 17, 29]), engine="vllm==0.33.0", target=target())
    same = audit(with_ids([1, 15, 28]), engine="vllm==0.33.0", target=target())

    assert faults(other) == ["FM-28"] and "V1 runner" in " ".join(str(e) for e in other.findings[0].evidence)
    assert faults(same) == []
    assert faults(audit(with_ids([5, 17, 29]), engine="sglang==0.4.8", target=target()), Severity.ERROR) == ["FM-28"]


def test_without_a_target_ids_that_are_not_read_are_a_warning() -> None:
    """The default cannot be told without the number of blocks."""
    result = audit(with_ids([5, 17, 29]), engine="vllm==0.33.0")

    assert faults(result, Severity.ERROR) == [] and "FM-28" in faults(result)
    assert faults(audit(small_draft().replace(config={"eagle_config": None}), engine="vllm==0.33.0")) == []


def test_a_layer_out_of_reach_and_an_order_that_is_not_kept() -> None:
    """FM-30 and FM-33."""
    assert "FM-30" in faults(audit(with_ids([2, 16, 31]), engine="sglang==0.5.23", target=target()))
    assert faults(audit(with_ids([28, 15, 1]), engine="sglang==0.5.23", target=target())) == ["FM-33"]


@pytest.mark.parametrize(
    ("name", "version", "found"),
    [
        ("Qwen3ForCausalLM", "0.4.8", ["FM-02"]), ("Qwen3ForCausalLM", "0.4.9", []), ("FalconForCausalLM", "0.5.23", ["FM-02"]),
        ("GptOssForCausalLM", "0.4.9", ["FM-02"]), ("LlamaForCausalLM", "0.4.9", []),
    ],
)  # fmt: skip
def test_targets_that_cannot_capture(name: str, version: str, found: list[str]) -> None:
    """FM-02, by version of the target's class."""
    result = audit(with_ids(None), engine=f"sglang=={version}", target=target(name))

    assert [fault for fault in faults(result) if fault == "FM-02"] == found


def test_targets_that_vllm_turns_away() -> None:
    """A list of model types up to 0.21."""
    deepseek = target("DeepseekV3ForCausalLM", 61, model_type="deepseek_v3")

    assert "FM-02" in faults(audit(with_ids(None), engine="vllm==0.12.0", target=deepseek))
    assert "FM-02" not in faults(audit(with_ids(None), engine="vllm==0.18.0", target=deepseek))


@pytest.mark.parametrize(
    ("engine_name", "field", "found"),
    [
        ("sglang==0.5.11", "norm_output", ["FM-46"]), ("sglang==0.5.12", "norm_output", []), ("vllm==0.21.0", "norm_output", ["FM-46"]),
        ("sglang==0.5.23", "norm_before_residual", ["FM-47"]), ("vllm==0.33.0", "norm_before_residual", []),
        ("tensorrt-llm", "norm_before_residual", ["FM-47"]), ("vllm==0.10.0", "norm_before_residual", ["FM-47"]),
    ],
)  # fmt: skip
def test_fields_without_a_tensor(engine_name: str, field: str, found: list[str]) -> None:
    """A field that changes the forward pass, in a version that does not know it."""
    result = audit(with_ids(None, **{field: True}), engine=engine_name)

    assert [fault for fault in faults(result) if fault in ("FM-46", "FM-47")] == found


def test_speculators_fields_by_version() -> None:
    """vLLM copies norm_output from speculators' format since 0.25.0, and SGLang does not read the format."""
    tensors = {name.replace("midlayer.", "layers.0."): t for name, t in small_draft().tensors.items()}
    draft = Draft.from_tensors(tensors, speculators_config(norm_before_residual=False))

    assert "FM-46" in faults(audit(draft, engine="vllm==0.24.0"))
    assert faults(audit(draft, engine="vllm==0.25.0")) == []
    assert "FM-27" in faults(audit(draft, engine="sglang==0.5.23"))


def test_a_strict_loader_ends_at_unknown_names() -> None:
    """vLLM raises where SGLang drops; a bias of a module that exists is passed over since 0.25.0."""
    odd = small_draft().replace(tensors={"bogus.weight": torch.zeros(3)})
    bias = small_draft().replace(tensors={"midlayer.self_attn.q_proj.bias": torch.ones(32)})

    assert "K1" in faults(audit(odd, engine="vllm==0.32.0"), Severity.ERROR)
    assert [load.outcome for load in audit(bias, engine="vllm==0.32.0").loads if load.name.endswith(".bias")] == ["dropped"]
    assert [load.outcome for load in audit(bias, engine="vllm==0.24.0").loads if load.name.endswith(".bias")] == ["raises"]


def test_a_head_that_is_borrowed_whole() -> None:
    """vLLM shares the target's head when the file has none: wrong rows for a reduced vocabulary, right for a whole one."""
    reduced = small_draft().replace(tensors={"lm_head.weight": None})
    whole = small_draft().replace(tensors={"lm_head.weight": None, "d2t": None, "t2d": None}, config={"draft_vocab_size": V})

    assert "FM-06" in faults(audit(reduced, engine="vllm==0.32.0"))
    assert "FM-06" not in faults(audit(whole, engine="vllm==0.32.0"))


def test_own_embedding_by_engine() -> None:
    """SGLang always takes the target's when widths agree; vLLM keeps one that the file has."""
    draft = small_draft().replace(tensors={"embed_tokens.weight": torch.randn(V, H)})

    def fate(name: str) -> str:
        return next(load.outcome for load in audit(draft, engine=name).loads if load.name == "embed_tokens.weight")

    assert (fate("sglang==0.5.23"), fate("vllm==0.32.0"), fate("vllm==0.11.0")) == ("overwritten", "loaded", "overwritten")


def test_fields_that_end_the_start() -> None:
    """FM-27: one sentence a reason."""
    assert audit(with_ids(None, num_hidden_layers=2), engine="sglang==0.5.11").refused
    assert audit(with_ids(None, hidden_act="gelu"), engine="sglang==0.5.23").refused
    assert not audit(with_ids(None), engine="sglang==0.5.11").refused
    assert faults(audit(with_ids(None, architectures=["FalconForCausalLM"]), engine="sglang==0.5.23")) == ["FM-27"]


def test_biases_that_are_made_up() -> None:
    """FM-26: fc has a random bias up to 0.4.8; vLLM leaves promised ones as memory; zeros change nothing."""
    assert faults(audit(with_ids(None), engine="sglang==0.4.8")) == ["FM-26"]
    assert faults(audit(with_ids(None, attention_bias=True), engine="vllm==0.32.0")) == ["FM-26"]
    assert faults(audit(with_ids(None, attention_bias=True), engine="sglang==0.5.8")) == ["FM-26"]
    assert faults(audit(with_ids(None, attention_bias=True), engine="sglang==0.5.23")) == []


def test_four_states_that_the_class_does_not_count() -> None:
    """vLLM's Llama class sizes fc from nested ids or a count, not from ids at the top level (issue #54526)."""
    wide = small_draft().replace(tensors={"fc.weight": torch.randn(H, 4 * H)}, config={"eagle_config": None, TOP: [2, 3, 4, 5]})
    counted = wide.replace(config={"num_aux_hidden_states": 4})

    assert "FM-17" in faults(audit(wide, engine="vllm==0.32.0"))
    assert faults(audit(counted, engine="vllm==0.32.0")) == []


def launched(command: str) -> Launch:
    return parse_launch("python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE3 " + command)


def test_known_bugs_show_under_their_conditions() -> None:
    """Graphs of 0.4.9 to 0.5.10 capture the default layers; partial sums need ranks; a tree needs branches."""
    other = audit(with_ids([5, 17, 29]), engine="sglang==0.5.8", target=target())
    default = audit(with_ids([1, 15, 28]), engine="sglang==0.5.8", target=target())
    kimi = audit(with_ids(None), engine="sglang==0.5.12", target=target("KimiK25ForConditionalGeneration", 61))

    def found(result: Audit, launch: Launch | None = None) -> dict[str, Severity]:
        return {f.fault: f.severity for f in engine.known_bugs(result, launch)}

    assert found(other)["FM-28"] is Severity.WARNING and "FM-28" not in found(default)
    assert "FM-28" not in found(other, launched("--disable-cuda-graph"))
    assert found(default) == {"FM-49": Severity.NOTE}
    assert "FM-37" not in found(kimi) and found(kimi, launched("--tp-size 8"))["FM-37"] is Severity.WARNING
    assert found(audit(with_ids(None), engine="sglang==0.5.23")) == {}
    assert found(audit(with_ids(None), engine="sglang==0.5.23"), launched("--speculative-eagle-topk 4")) == {"FM-50": Severity.NOTE}


def test_bugs_carry_what_a_reader_needs() -> None:
    """A title, what happens, the way round and the source."""
    bugs: list[Bug] = [bug for e in ENGINES.values() for bug in e.bugs]

    assert all(bug.title and bug.because and bug.fix and bug.source and bug.fault.startswith("FM-") for bug in bugs)


def test_a_case_hears_of_its_engine() -> None:
    """What the audit says of the engine reaches a diagnosis, with the launch command taken into account."""
    case = Case(Given(draft=with_ids([5, 17, 29]), target=target(), engine="sglang==0.5.8"))

    assert {f.fault for f in engine.detect(case)} == {"FM-28", "FM-49"}
    assert engine.detect(Case(Given(launch="python -m sglang.launch_server --model-path T"))) == []


def test_tensorrt_llm_is_one_reading_of_its_source() -> None:
    """It loads both spellings of the layer, does not read ids from the config, and never counts as known."""
    draft = small_draft().replace(rename=lambda name: name.replace("midlayer.", "layers.0."))
    result = audit(draft, engine="trtllm", target=target())

    assert result.engine == "tensorrt-llm" and not result.engine_known
    assert not result.outcome("missing") and not result.outcome("dropped")
    assert result.captures[0].unread == (NESTED,) and result.captures[0].boundaries == (2, 16, 29)
    assert [f.fault for f in result.findings if f.severity is Severity.NOTE].count("C0") == 1


def test_latent_attention_by_engine() -> None:
    """An MLA draft: its low-rank projections are one parameter, which SGLang fills only when both parts come."""
    latent = {"q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    shapes = {
        "q_a_proj": (12, 2 * H), "q_a_layernorm": (12,), "q_b_proj": (48, 12), "kv_a_proj_with_mqa": (14, 2 * H), "kv_a_layernorm": (10,),
        "kv_b_proj": (64, 10), "o_proj": (H, 32),
    }  # fmt: skip
    plain = {n.replace("midlayer.", "layers.0."): t for n, t in small_draft().tensors.items() if "self_attn" not in n}
    tensors = plain | {f"layers.0.self_attn.{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    config = dict(small_draft().config.raw) | latent | {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"}
    draft = Draft.from_tensors(tensors, config)

    for name in ("sglang==0.5.23", "vllm==0.32.0"):
        result = audit(draft, engine=name)
        assert not result.refused and {load.outcome for load in result.loads} == {"loaded", "borrowed", "ignored"}, name
    lone = draft.replace(tensors={"layers.0.self_attn.kv_a_proj_with_mqa.weight": None})
    lost = {load.canonical for load in audit(lone, engine="sglang==0.5.23").loads if load.outcome in ("dropped", "missing")}
    assert lost == {"layers.0.self_attn.q_a_proj.weight", "layers.0.self_attn.kv_a_proj_with_mqa.weight"}
    assert audit(draft, engine="sglang==0.5.11").refused
    assert audit(draft.replace(config={"model_type": "deepseek_v3"}), engine="vllm==0.32.0").refused


@settings(parent=LIGHT, max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    names=st.lists(st.text(st.sampled_from("abd2t.layers0midfcqk_projnwhg"), min_size=1, max_size=40), max_size=6, unique=True),
    config=st.dictionaries(
        st.sampled_from(
            ["eagle_config", TOP, "fc_norm", "bias", "norm_before_fc", "num_aux_hidden_states", "attention_bias", "architectures"]
        ),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-3, 9),
            st.lists(st.integers(-2, 40), max_size=4),
            st.sampled_from(["", "LlamaForCausalLM", "x"]),
        ),
        max_size=4,
    ),
    name=st.sampled_from(
        ["sglang==0.4.5", "sglang==0.5.8", "sglang==0.5.23", "vllm==0.9.2", "vllm==0.24.0", "vllm==0.33.0", "tensorrt-llm"]
    ),
)
def test_any_names_and_fields_get_an_answer(names: list[str], config: dict[str, Any], name: str) -> None:
    """Whatever a file is called and a config says: one load for every tensor, and findings; or the reader's clear error."""
    whole = {**small_draft().tensors, **{n: torch.zeros(2, 3) for n in names}}
    try:
        draft = Draft.from_tensors(whole, {**small_draft().config.raw, **config})
    except InputError:
        return

    result = audit(draft, engine=name, target=target())

    assert {load.name for load in result.loads if load.shape is not None} == set(whole)
    assert all(f.title for f in result.findings)


def test_known_versions_and_engines() -> None:
    """The newest is taken when none is named; an engine has several spellings."""
    assert str(known_version("vllm", None)[0]) == "0.33.0" and known_version("vllm", "0.33.0")[1]
    assert not known_version("vllm", "0.34.0")[1] and rules_of("trt-llm") is rules_of("tensorrt-llm")
    assert VD < V
