"""Acceptance in every definition: conversions against counting, intervals against scipy, identities as findings."""

from __future__ import annotations

import doctest
import json
import math
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from builders import LIGHT
from fake_server import vllm_page
from hypothesis import given
from hypothesis import strategies as st

from eagle3diag.case import Case, Given
from eagle3diag.errors import BadArgument, InputError, UnreadableFile
from eagle3diag.faults import detect
from eagle3diag.faults.serving import judge_acceptance
from eagle3diag.intervals import exact
from eagle3diag.serving import RATES, Acceptance, length_of, rate_of, read_acceptance
from eagle3diag.serving.metrics import read_metrics


@pytest.mark.parametrize("kind", RATES)
@given(histogram=st.lists(st.integers(0, 30), min_size=2, max_size=7).filter(any), spare=st.integers(0, 9))
def test_each_definition_is_what_counting_gives(kind: str, histogram: list[int], spare: int) -> None:
    """Numerator and denominator summed round by round, in a chain and in a tree of more slots; and back again."""
    steps = len(histogram) - 1
    slots = steps + 1 + spare
    rounds = [m for m, n in enumerate(histogram) for _ in range(n)]
    top, bottom = {
        "strict": (sum(rounds), (slots - 1) * len(rounds)),
        "biased": (sum(m + 1 for m in rounds), slots * len(rounds)),
        "biased by steps": (sum(m + 1 for m in rounds), (steps + 1) * len(rounds)),
        "by depth": (sum(rounds), steps * len(rounds)),
    }[kind]
    seen = Acceptance.from_histogram(histogram, steps=steps, num_draft_tokens=slots)
    assert seen.printed_as(kind) == pytest.approx(top / bottom)
    assert seen.length is not None
    assert length_of(
        rate_of(seen.length, kind, steps=steps, num_draft_tokens=slots), kind, steps=steps, num_draft_tokens=slots
    ) == pytest.approx(seen.length)
    assert sum(seen.histogram) == pytest.approx(1) and seen.histogram[0] == pytest.approx(histogram[0] / len(rounds))


def test_a_fifth_at_five_slots_is_nothing_before_0_5_11_and_much_after() -> None:
    """The seed case: 0.20 biased is accept length 1.00, 0.20 strict is 1.80."""
    assert Acceptance.from_rate(0.20, "biased", num_draft_tokens=5).length == 1.0
    assert Acceptance.from_rate(0.21, "biased", num_draft_tokens=5).length == pytest.approx(1.05)
    assert Acceptance.from_rate(0.20, "strict", num_draft_tokens=5).length == pytest.approx(1.8)
    for kind, rate in (("biased", 0.1), ("strict", 1.2), ("strict", math.nan), ("no such", 0.5)):
        with pytest.raises(BadArgument):
            Acceptance.from_rate(rate, kind, num_draft_tokens=5)
    with pytest.raises(BadArgument, match="drafts a round"):
        rate_of(2.0, "strict")


@pytest.mark.parametrize(("hits", "n"), [(0, 24), (2, 24), (24, 24), (1, 1), (300, 1000)])
def test_exact_intervals_are_scipys(hits: int, n: int) -> None:
    """2 of 24 is 1 to 27 %."""
    expected = scipy.stats.binomtest(hits, n).proportion_ci(0.95, "exact")
    assert exact(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert [round(100 * x) for x in exact(2, 24)] == [1, 27] and exact(0, 0) == (0.0, 1.0)


def test_per_position_intervals_come_from_counts() -> None:
    """And there are none without."""
    seen = Acceptance.from_histogram([22, 2], steps=1)
    assert seen.p_intervals == (exact(2, 24),) and Acceptance(p=(0.5,)).p_intervals == ()


# --- identities and signatures --------------------------------------------------------------------------------------------------------


def faults(seen: Acceptance) -> list[str]:
    return [f.fault for f in judge_acceptance(seen)]


@pytest.mark.parametrize(
    "seen",
    [
        Acceptance.from_histogram([173, 48, 30, 18, 9], steps=4), Acceptance.from_histogram([1000, 0, 0, 0], steps=3), Acceptance(accept_length=2.5),
        Acceptance(rounds=4816, accepted=12208, drafted=33712, steps=7, num_draft_tokens=8),  # Llama-3.1-8B as reported
        Acceptance(p=(0.77, 0.55, 0.38, 0.29), accept_length=2.99, steps=4, rounds=500), Acceptance.from_histogram([10, 10, 10], steps=2, engine="vllm"),
        Acceptance.from_histogram([2, 1, 0, 0, 0], steps=4), Acceptance(rounds=87, accepted=167, drafted=259, steps=3),  # llama.cpp, cut short
    ],
)  # fmt: skip
def test_sound_counts_are_silent(seen: Acceptance) -> None:
    """Healthy, dead, few, or cut short: none of them contradicts itself."""
    assert faults(seen) == []


@pytest.mark.parametrize(
    ("seen", "fault"),
    [
        (Acceptance(p=(0.7, 0.48, 0.31), accept_length=2.9), "FM-74"),  # M3: 1 + 1.49 is 2.49
        (Acceptance(p=(0.5, 0.7), accept_length=2.2), "FM-74"),  # conditional rates taken for unconditional ones
        (Acceptance(rounds=10, accepted=50, drafted=40, steps=4), "FM-74"),
        (Acceptance(accept_length=6.0, steps=4), "FM-74"),
        (Acceptance.from_histogram([40, 55, 3, 1, 1], steps=4), "FM-46"),  # M4
        (Acceptance(accept_length=5.0, steps=4, windows=30), "FM-43"),  # M5
        (Acceptance(rounds=200, accepted=300, steps=4, tokens=500, distinct=0.02), "FM-76"),  # M9
        (Acceptance(rounds=0, accepted=0, drafted=0), "FM-03"),
    ],
)  # fmt: skip
def test_each_signature_is_named(seen: Acceptance, fault: str) -> None:
    """With its numbers."""
    said = list(judge_acceptance(seen))
    assert [f.fault for f in said] == [fault] and said[0].evidence and said[0].fix


def test_full_acceptance_is_success_only_with_text_that_differs() -> None:
    """The same counts, by the tokens that were written."""
    full = {"rounds": 100, "accepted": 400, "steps": 4, "tokens": 500}
    assert faults(Acceptance(**full, distinct=0.5)) == []
    assert [f.severity for f in judge_acceptance(Acceptance(**full, distinct=0.01))] == [30]
    assert [f.severity for f in judge_acceptance(Acceptance(**full))] == [20]


def test_a_cliff_needs_counts_that_exclude_chance() -> None:
    """Eight rounds prove nothing."""
    assert faults(Acceptance.from_histogram([4, 4, 0], steps=2)) == []
    assert faults(Acceptance.from_histogram([40, 40, 0], steps=2)) == ["FM-46"]


def test_nothing_accepted_without_a_cause_is_said() -> None:
    """As a symptom: where a cause is found, the cause is enough; few rounds are a note."""
    assert [(f.fault, int(f.severity)) for f in detect(Case(Given(acceptance=1.0)))] == [("M1", 20)]
    few = {"histogram": [40, 0], "steps": 1}
    assert [(f.fault, int(f.severity)) for f in detect(Case(Given(acceptance=few)))] == [("M1", 10)]
    named = "python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE --speculative-draft-model-path x-eagle3"
    assert "M1" not in [f.fault for f in detect(Case(Given(acceptance=1.0, launch=named)))]
    assert detect(Case(Given(acceptance=2.2))) == ()


# --- reading --------------------------------------------------------------------------------------------------------------------------


def test_a_page_of_metrics_is_an_acceptance(tmp_path: Path) -> None:
    """vLLM's counters since boot, SGLang's gauges; a page of something else is refused."""
    file = tmp_path / "metrics.txt"
    file.write_text(vllm_page(100, [60, 30, 10], 5, 300))
    seen = read_acceptance(file)
    assert (seen.rounds, seen.accepted, seen.drafted, seen.steps, seen.length, seen.p) == (100, 100, 300, 3, 2.0, (0.6, 0.3, 0.1))
    page = 'sglang:spec_accept_length{tp_rank="0"} 1.2\nsglang:spec_num_steps{tp_rank="0"} 4.0\nsglang:spec_num_steps{tp_rank="1"} 4.0\n'
    file.write_text(page + 'sglang:spec_num_draft_tokens{tp_rank="0"} 5.0\nsglang:spec_verify_calls_total{} 50.0\n')
    seen = read_acceptance(file)
    assert (seen.length, seen.steps, seen.num_draft_tokens, seen.rounds) == (1.2, 4, 5, 50)
    for text in ("", "python_gc 3\n", "<html>", 'vllm:generation_tokens_total{a="b"} 3\n'):
        file.write_text(text)
        with pytest.raises(UnreadableFile):
            read_acceptance(file)


def test_counters_that_went_back_are_not_a_difference() -> None:
    """A restart between two pages."""
    before, after = read_metrics(vllm_page(100, [60, 30], 5, 300)), read_metrics(vllm_page(10, [6, 3], 1, 30))
    assert before is not None and after is not None
    assert (after.since(before).rounds, after.since(before).positions) == (None, ())


def test_sglangs_server_info_is_an_acceptance(tmp_path: Path) -> None:
    """The mean of its ranks; none before the first forty rounds."""
    states = [{"avg_spec_accept_length": 2.0}, {"avg_spec_accept_length": 3.0}]
    info: dict[str, Any] = {"internal_states": states, "speculative_num_steps": 4, "version": "0.5.9"}
    (tmp_path / "i.json").write_text(json.dumps(info))
    seen = read_acceptance(tmp_path / "i.json")
    assert (seen.length, seen.steps, seen.engine, seen.engine_version) == (2.5, 4, "sglang", "0.5.9")
    with pytest.raises(BadArgument, match="no accept length yet"):
        read_acceptance({"internal_states": [{}]})


NAMES = st.sampled_from([*Acceptance.__dataclass_fields__, "histogram", "acceptance", "internal_states"])


def test_the_examples_of_the_docs_run() -> None:
    """docs/serving.md."""
    assert doctest.testfile("../../docs/serving.md", optionflags=doctest.ELLIPSIS).failed == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=10,
)


@LIGHT
@given(JSON)
def test_no_value_breaks_the_reader_or_the_judges(value: Any) -> None:
    """An acceptance with findings, or a clear error."""
    try:
        seen = read_acceptance(value)
    except InputError:
        return
    json.dumps([f.title for f in judge_acceptance(seen)])
    assert seen.length is None or seen.length >= 1


@LIGHT
@given(st.text(max_size=60), st.floats(), st.text(max_size=10))
def test_no_page_breaks_the_reader(noise: str, value: float, label: str) -> None:
    """Whatever stands in a metric's labels or value."""
    read_metrics(f'{noise}\nvllm:spec_decode_num_drafts_total{{a="{label}"}} {value}\nvllm:{noise} 1\nsglang:spec_num_steps{{}} {value}\n')


def test_an_answer_of_prometheus_is_named_for_what_it_is(tmp_path: Path) -> None:
    """Its query interface answers with JSON; the server's own page is what is read."""
    (tmp_path / "prom.json").write_text(
        json.dumps({"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "1.03"]}]}})
    )
    with pytest.raises(BadArgument, match=r"Prometheus(.|\n)*/metrics"):
        read_acceptance(tmp_path / "prom.json")


@pytest.mark.parametrize("name", ["draft", "target", "log", "acceptance", "launch"])
@pytest.mark.parametrize("address", ["s3://bucket/a", "gs://bucket/a/b.log", "https://host/a"])
def test_a_remote_address_is_named_and_not_mistaken_for_a_path(name: str, address: str) -> None:
    """As it was written, with both slashes; only dumps are read from one."""
    for source in (address, Path(address)):
        with pytest.raises(UnreadableFile, match=f"{address}: is a remote address(.|\n)*download"):
            getattr(Case(Given(**{name: source})), "observed" if name == "acceptance" else name)
