"""How findings are weighed: the likelihood against scipy, and the posterior over hypotheses against sums done by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from replay_reference import agreeing_text, dump_of
from scipy import stats
from small import H, V, small_draft

from eagle3diag.case import Case, Given
from eagle3diag.checkpoints import Target
from eagle3diag.diagnose import candidates as weighing
from eagle3diag.diagnose import diagnose
from eagle3diag.diagnose.candidates import PRESENT, RULED_OUT, UNSEEN, signs
from eagle3diag.diagnose.explain import NONE_OF_THESE, explain
from eagle3diag.diagnose.likelihood import (
    COLLAPSES,
    CONCENTRATION,
    TOLERANCE,
    Predicted,
    log_likelihood,
    log_of_anything,
    log_of_collapse,
    narrowness,
    overdispersion,
)
from eagle3diag.diagnose.result import Ranked, Suspect
from eagle3diag.diagnose.words import HOW_TO_GET, cheapest, verdict
from eagle3diag.faults import catalogue, in_words
from eagle3diag.faults import tests_in_words as words_of_tests
from eagle3diag.faults.base import Fault
from eagle3diag.findings import Finding, Severity
from eagle3diag.replay import Change, RecordReplay, Replay, build, replay
from eagle3diag.report.saved import load
from eagle3diag.serving import Acceptance

HEALTHY, COLLAPSED, HALF = (0.6, 0.35, 0.2), (0.03, 0.0, 0.0), (0.3, 0.1, 0.03)


def acceptance(p: tuple[float, ...], rounds: int = 400) -> Acceptance:
    return Acceptance(rounds=rounds, accepted=round(sum(p) * rounds), steps=len(p), num_draft_tokens=len(p) + 1, p=p)


def replayed(p: tuple[float, ...], rounds: int = 300) -> Replay:
    length = 1 + sum(p)
    around = (length - 0.05, length + 0.05)
    records = tuple(RecordReplay(f"r{i}", rounds // 100, length) for i in range(100))
    return Replay("draft", "train", len(p), rounds, p, ((0.0, 1.0),) * len(p), p, length, around, p, 0.05, records)


@pytest.mark.parametrize("seen", [HEALTHY, HALF, (0.5, 0.5, 0.5), COLLAPSED])
def test_counts_are_weighed_as_scipy_does(seen: tuple[float, ...]) -> None:
    """A product of beta-binomials over the conditional acceptances."""
    said, rounds = HEALTHY, 250
    expected, before, reached = 0.0, 1.0, 1.0
    for share, p in zip(seen, said, strict=True):
        trials = round(400 * reached)
        if trials < 1:
            break
        weight, c = min(rounds * before, CONCENTRATION), p / before
        expected += float(stats.betabinom.logpmf(round(trials * share / reached), trials, c * weight + 0.5, (1 - c) * weight + 0.5))
        before, reached = p, share

    assert log_likelihood(Predicted(said, rounds), acceptance(seen), 3) == pytest.approx(expected)


def test_counts_that_cannot_be_are_weighed_by_their_length() -> None:
    """Positions that are accepted more often than those before them are another definition (FM-74), and no trials of anything."""
    rising = Acceptance(rounds=100, accepted=80, steps=2, p=(0.3, 0.5))

    near, far = (log_likelihood(Predicted(p, 50, length=(1 + sum(p) - 0.1, 1 + sum(p) + 0.1)), rising, 2) for p in ((0.5, 0.3), (0.1, 0.0)))

    assert math.isfinite(far) and far < near - 10
    assert log_of_anything(rising, 2) == -math.log(2)


def test_one_record_is_not_worth_more_than_two() -> None:
    """What a replay of so many records is trusted with grows with their number."""
    worth = [1 / narrowness(n) ** 2 for n in (1, 2, 3, 6, 10, 100)]

    assert worth == sorted(worth) and worth[0] == worth[1] < 0.02 and worth[-1] > 0.9


def test_a_bare_length_is_weighed_as_a_normal() -> None:
    """Around the prediction, with the tolerance of both."""
    predicted = Predicted(HALF, 300, 1.0, (1.38, 1.48))
    sigma = math.sqrt((0.1 / (2 * 1.959964)) ** 2 + TOLERANCE**2 + (TOLERANCE * 0.43) ** 2)

    assert log_likelihood(predicted, Acceptance(accept_length=1.5), 3) == pytest.approx(
        float(stats.norm.logpdf(1.5, 1.43, sigma)), rel=1e-5
    )


def test_a_range_from_reports_is_uniform_with_soft_ends() -> None:
    """It integrates to one, and is flat inside."""
    predicted = Predicted(length=(1.2, 2.0))
    lengths = [0.5 + 0.001 * i for i in range(2500)]
    density = [math.exp(log_likelihood(predicted, Acceptance(accept_length=x), 3)) for x in lengths]

    assert sum(density) * 0.001 == pytest.approx(1.0, abs=1e-3)
    assert density[900] == pytest.approx(density[1100], rel=1e-3)


def test_a_range_says_nothing_of_the_positions() -> None:
    """With counts at hand it is held against "anything" by the accept length alone: the odds are those of the bare length."""
    for seen in (COLLAPSED, HALF):
        counted, bare = acceptance(seen), Acceptance(accept_length=1 + sum(seen))
        inside, outside = Predicted(length=(1.0, 1.2)), Predicted(length=(1.3, 1.6))
        odds = log_likelihood(inside, counted, 3) - log_likelihood(outside, counted, 3)
        assert odds * (log_likelihood(inside, bare, 3) - log_likelihood(outside, bare, 3)) > 0
        assert (log_likelihood(inside, counted, 3) > log_of_anything(counted, 3)) is (seen is COLLAPSED)


def test_anything_sums_to_one_over_all_counts() -> None:
    """ "None of these" spreads its probability evenly over every outcome that is possible."""
    every = [acceptance((i / 20, j / 20), 20) for i in range(21) for j in range(i + 1)]
    assert sum(math.exp(log_of_collapse(counts, 2)) for counts in every) == pytest.approx(1.0)
    total = sum(math.exp(log_of_anything(counts, 2)) for counts in every)

    assert total == pytest.approx(1.0)


def test_overdispersion_is_the_variance_ratio() -> None:
    """Simulated: records that differ, against rounds drawn alike."""
    draw = random.Random(0)
    for between, low, high in ((0.0, 1.0, 1.6), (0.25, 2.5, 20.0)):
        records = [[int(draw.random() < p) for _ in range(50)] for p in (min(max(draw.gauss(0.5, between), 0), 1) for _ in range(200))]
        n, mean = 200 * 50, sum(map(sum, records)) / (200 * 50)
        half = 1.959964 * math.sqrt(sum((sum(r) / 50 - mean) ** 2 for r in records) / 199 / 200)

        assert low <= overdispersion((mean,), n, (mean - half, mean + half)) < high


def test_an_interval_over_few_records_is_widened_to_what_it_says() -> None:
    """Six records, resampled: the percentile bootstrap misses the mean more often than one time in twenty; widened, it does not."""
    g, n, trials, resamples = torch.Generator().manual_seed(0), 6, 2000, 400
    x = torch.randn(trials, n, generator=g)
    means = x[:, torch.randint(n, (resamples, n), generator=g)].mean(-1)
    low, high = means.quantile(torch.tensor([0.025, 0.975]), dim=1)
    middle, wide = x.mean(1), narrowness(n)

    assert ((low < 0) & (0 < high)).float().mean() < 0.92
    widened = (middle + wide * (low - middle) < 0) & (0 < middle + wide * (high - middle))
    assert 0.93 < widened.float().mean() < 0.97


@pytest.mark.parametrize(("share", "said"), [(0.3, True), (0.01, False)])
def test_other_prompts_are_named_where_they_may_be_the_reason(share: float, said: bool) -> None:
    """Six prompts that replay better than others serve are no fault; the verdict says so beside the suspects, unless it can hardly be."""
    suspects = (Suspect("FM-52", "other cache pages", 0.3, None, ""),)
    words = verdict((), suspects, replayed(HEALTHY), acceptance(COLLAPSED), share)
    assert "FM-52" in words and ("prompts" in words) is said


def test_causes_in_no_list_lose_all_as_often_as_those_listed() -> None:
    """The prior is a count of what the reports of the catalogue say."""
    known = [f.typical for f in catalogue() if f.typical and f.lowers]
    by_13, by_16 = (sum(high <= end for _, high in known) / len(known) for end in (1.3, 1.6))

    assert by_13 < COLLAPSES < by_16


def test_a_cause_in_no_list_is_said_where_it_is_likeliest() -> None:
    """With the fault that is nearest, if any; beside a finding that explains too little; and not where a fault is as likely."""
    suspects = (Suspect("FM-52", "other cache pages", 0.2, None, ""),)
    alone = verdict((), suspects, replayed(HEALTHY), acceptance(COLLAPSED), 0.0, none_of_these=0.8)
    harmless = Ranked(Finding("FM-29", Severity.WARNING, "one boundary early", "", (), "", ""), 0.05, None, 0.02)
    beside = verdict((harmless,), (), replayed(HEALTHY), acceptance(COLLAPSED), 0.0, none_of_these=0.9)

    assert alone.startswith("No listed fault explains it") and "80%" in alone and "FM-52 (other cache pages) is nearest (20%)" in alone
    assert beside.startswith("FM-29: one boundary early. But most of what is lost has a cause in no list (90%)")
    assert "in no list" not in verdict((), suspects, replayed(HEALTHY), acceptance(COLLAPSED), 0.0, none_of_these=0.4)


@dataclass
class FakeCase:
    """A case whose replays are given: change name -> what its replay gives; combinations take the lowest of each position."""

    plays: Mapping[str, tuple[float, ...]]
    observed: Acceptance | None
    recorded: Acceptance | None = None
    shows: bool = False
    healthy: Replay | None = None
    steps: int = 3
    assume_fixed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.healthy = replayed(HEALTHY)

    def play(self, *changes: Change) -> Replay:
        return replayed(tuple(min(p) for p in zip(HEALTHY, *(self.plays[c.name] for c in changes), strict=True)))

    def would_show(self, sets: tuple[tuple[str, ...], ...]) -> bool:
        return self.shows and bool(sets)


def weigh(monkeypatch: pytest.MonkeyPatch, plays: Mapping[str, tuple[float, ...]], seen: Mapping[str, Severity], **case: Any) -> Any:
    """``plays`` maps fault ids to what their counterfactual gives; ``seen`` those with direct evidence."""
    listed = tuple(
        Fault(name, lambda _: None, lambda _, name=name: iter([Change(name, name)]), (("live",),))  # type: ignore[misc]
        for name in plays
    )
    monkeypatch.setattr(weighing, "catalogue", lambda: listed)
    found = tuple(Finding(name, severity, name) for name, severity in seen.items())
    return explain(FakeCase(plays, **case), found, lambda _: None)  # type: ignore[arg-type]


def test_weights_share_out_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults, "none of these" and "as trained" together, whatever the evidence."""
    for observed in (None, Acceptance(accept_length=1.02), acceptance(COLLAPSED), acceptance(HEALTHY)):
        for seen in ({}, {"A": Severity.ERROR}, {"A": Severity.ERROR, "B": Severity.WARNING}):
            out = weigh(monkeypatch, {"A": COLLAPSED, "B": HALF, "C": COLLAPSED}, seen, observed=observed)
            assert sum(out.weight.values()) + out.none_of_these + out.as_trained == pytest.approx(1.0)


def test_a_seen_fault_that_fits_is_the_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its posterior is what Bayes gives by hand for the three hypotheses there are."""
    out = weigh(monkeypatch, {"A": COLLAPSED}, {"A": Severity.ERROR}, observed=acceptance(COLLAPSED))
    observed, spread = acceptance(COLLAPSED), {p: overdispersion(p, 300, (sum(p) + 0.95, sum(p) + 1.05)) for p in (COLLAPSED, HEALTHY)}
    present = PRESENT[Severity.ERROR]
    worth = 300 / narrowness(100) ** 2
    with_it = present * math.exp(log_likelihood(Predicted(COLLAPSED, worth, spread[COLLAPSED]), observed, 3))
    without = (1 - present) * math.exp(log_likelihood(Predicted(HEALTHY, worth, spread[HEALTHY]), observed, 3))
    anything, collapse = (math.exp(like(observed, 3, spread[HEALTHY])) for like in (log_of_anything, log_of_collapse))
    none = NONE_OF_THESE * ((1 - COLLAPSES) * anything + COLLAPSES * collapse)

    total = with_it + without + none
    assert out.none_of_these == pytest.approx((1 - present) * none / total)  # beside A it has taken nothing away
    assert out.weight["A"] == pytest.approx((with_it + present * none) / total)
    assert out.certainty["A"] == out.weight["A"] > 0.9


def test_a_seen_fault_that_costs_nothing_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Present with certainty, a share of nothing; the collapse stays open."""
    out = weigh(monkeypatch, {"A": HEALTHY}, {"A": Severity.ERROR}, observed=acceptance(COLLAPSED))

    assert out.weight.get("A", 0.0) == 0.0
    assert out.none_of_these > 0.9


def test_two_seen_faults_are_replayed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both share the explanation, since the number does not tell which of them would do."""
    both = {"A": Severity.ERROR, "B": Severity.ERROR}
    out = weigh(monkeypatch, {"A": COLLAPSED, "B": COLLAPSED}, both, observed=acceptance(COLLAPSED))

    assert [c.fault for c in out.series] == ["A+B"]
    assert out.weight["A"] == pytest.approx(out.weight["B"])
    assert min(out.certainty.values()) > 0.8


def test_unseen_faults_are_suspected_only_where_the_evidence_could_not_show_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing seen, nothing accepted: what would explain it is suspected; with the evidence at hand that would show it, hardly."""
    plays = {"A": COLLAPSED, "B": HEALTHY}
    blind = weigh(monkeypatch, plays, {}, observed=acceptance(COLLAPSED))
    looked = weigh(monkeypatch, plays, {}, observed=acceptance(COLLAPSED), shows=True)

    assert blind.weight["A"] > 0.7
    assert blind.weight.get("B", 0.0) == 0.0
    assert looked.weight.get("A", 0.0) < blind.weight["A"]
    assert RULED_OUT < UNSEEN


def test_a_series_is_looked_for_while_one_does_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seen fault that explains half of the loss, and a hidden one that explains the rest: both are named."""
    out = weigh(
        monkeypatch,
        {"A": HALF, "B": (0.5, 0.02, 0.0), "C": HEALTHY},
        {"A": Severity.ERROR},
        observed=acceptance((0.3, 0.02, 0.0)),
    )

    assert "A+B" in [c.fault for c in out.series]
    assert out.weight["A"] > 0.1
    assert out.weight["B"] > 0.1
    assert out.none_of_these < 0.3


def test_a_symptom_explains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """That nothing is accepted (M1) is the number again; the suspects keep their shares."""
    plain = weigh(monkeypatch, {"A": COLLAPSED}, {}, observed=acceptance(COLLAPSED))
    said = weigh(monkeypatch, {"A": COLLAPSED}, {"M1": Severity.WARNING}, observed=acceptance(COLLAPSED))

    assert said.weight == plain.weight
    assert "M1" not in said.weight


def test_what_was_mended_is_not_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """assume_fixed takes a fault out of the catalogue of this case."""
    out = weigh(monkeypatch, {"A": COLLAPSED}, {}, observed=acceptance(COLLAPSED), assume_fixed=frozenset({"A"}))

    assert "A" not in out.weight


def test_served_as_replayed_is_as_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost: nothing is explained, and nothing beyond the healthy replay is played."""
    out = weigh(monkeypatch, {"A": COLLAPSED}, {}, observed=acceptance(HEALTHY))

    assert out.as_trained > 0.95
    assert out.counterfactuals == ()


def test_the_cheapest_evidence_is_named() -> None:
    """Of several ways to see a fault the one that lacks least, and only what is lacking."""

    case = Case(Given(draft="d"))

    def fault(*sets: tuple[str, ...], changes: bool = False) -> Fault:
        return Fault("FM-48", lambda _: None, shown_by=sets, **({"changes": lambda _: ()} if changes else {}))

    assert cheapest(case, fault(("draft", "launch"), ("train", "live"))).startswith("--launch")
    assert cheapest(case, fault()) == ""
    # what nothing but a replay shows, the server's own rounds tell from others
    lacking = cheapest(case, fault(changes=True)).split("; ")
    assert [word.split()[0] for word in lacking] == ["--target", "--train", "--live"]


def test_what_is_asked_for_next_is_cheap_and_tells_something() -> None:
    """Not what the likeliest suspect needs, where a file at hand tells of a third of them; and not a file that tells of hardly any."""
    dump, draft, log = (HOW_TO_GET[kind] for kind in ("live", "draft", "log"))
    suspects = tuple(
        Suspect(f"FM-{i}", "a fault", w, None, tell) for i, (w, tell) in enumerate([(0.4, dump), (0.2, draft), (0.15, draft), (0.02, log)])
    )

    assert verdict((), suspects, None, None, 0.0).endswith(f"what would tell next: {draft}.")
    assert verdict((), suspects[:1], None, None, 0.0).endswith(f"what would tell: {dump}.")
    assert HOW_TO_GET["log"] in verdict((), suspects[3:], None, None, 0.0)


@pytest.mark.parametrize(
    ("given", "engine"),
    [
        ({"launch": 'vllm serve T --speculative-config \'{"method": "eagle3", "model": "D"}\''}, "vllm"),
        ({"launch": "python -m sglang.launch_server --model-path T"}, "sglang"),
        ({"acceptance": Acceptance(rounds=9, accepted=1, steps=2, engine="vllm", engine_version="0.32.0")}, "vllm==0.32.0"),
        ({"acceptance": Acceptance(rounds=9, accepted=1, steps=2, engine="a fork")}, "sglang"),
        ({"launch": "vllm serve T", "engine": "sglang==0.5.8"}, "sglang==0.5.8"),
        ({}, "sglang"),
    ],
)
def test_the_engine_is_the_one_that_the_evidence_names(given: dict[str, Any], engine: str) -> None:
    """Rules of another engine would name faults that this one does not have."""
    assert Case(Given(**given)).engine == engine


@pytest.mark.parametrize(
    ("options", "topk"),
    [
        ("--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16", 4),
        ("--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 60", 1),  # no tree has so many slots
        ("--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 24", 1),
        ("", 1),
    ],
)
def test_the_tree_is_the_one_that_is_launched(options: str, topk: int) -> None:
    """Replays draft as the server does, where that is possible at all."""
    launch = f"python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE3 --speculative-draft-model-path D {options}"

    assert Case(Given(launch=launch)).topk == topk


TARGET = Target(
    "small",
    {"hidden_size": H, "num_hidden_layers": 4, "vocab_size": V, "num_attention_heads": 4, "tie_word_embeddings": True},
    {"model.embed_tokens.weight": torch.randn(V, H, generator=torch.Generator().manual_seed(1)), "model.norm.weight": torch.ones(H)},
)


def agreeing(tokens: int = 120) -> Any:
    """A small draft and a dump of text that follows it."""
    net = build(small_draft(), TARGET)
    return dump_of(agreeing_text(net, tokens))


def test_a_replay_follows_the_launch() -> None:
    """Steps, top-k, slots, and the positions of the engine's version, as replay() has them."""
    train, options = agreeing(), "--speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 6"
    launch = f"python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE3 --speculative-draft-model-path D {options}"
    played = Case(Given(draft=small_draft(), target=TARGET, train=train, launch=launch, engine="sglang==0.5.8")).healthy
    expected = replay(small_draft(), train, target=TARGET, steps=3, topk=2, num_draft_tokens=6, engine="sglang==0.5.8")

    assert played is not None
    assert (played.p, played.topk, played.num_draft_tokens, played.engine) == (expected.p, 2, 6, "sglang==0.5.8")


def test_a_weak_draft_is_tried_with_each_thing_undone() -> None:
    """The replay of the file is poor, as served; with one change it is not: file and weights do not belong together."""
    broken, train = small_draft().replace(config={"norm_before_residual": True}), agreeing()
    poor = replay(broken, train, target=TARGET, steps=4)
    good = replay(small_draft(), train, target=TARGET, steps=4)
    assert poor.accept_length < 1.5 < good.accept_length

    found = diagnose(draft=broken, target=TARGET, train=train, acceptance=poor.accept_length)
    first = found.ranked[0]

    assert (first.finding.fault, first.finding.severity) == ("FM-47", Severity.ERROR)
    assert first.predicted is not None and first.predicted.accept_length == pytest.approx(good.accept_length)
    assert found.as_trained == 0.0
    assert first.weight > 0.4
    assert sum(r.weight for r in found.ranked) + found.none_of_these <= 1.0 + 1e-9


@pytest.mark.parametrize(("observed", "undone"), [(1.4, True), (2.3, False)])
def test_nothing_holds_a_share_twice(observed: float, undone: bool, tmp_path: Path) -> None:
    """A note whose fault is suspected, and what a change that is undone takes over: all shares are one together, so that a saved result opens."""
    draft, train = small_draft(), None
    if undone:
        draft, train = draft.replace(config={"norm_before_residual": True}), agreeing()
    others = ["FM-28", "FM-30", "K4", "C4"]  # of untrained weights and no config of a target
    found = diagnose(draft=draft, target=TARGET, train=train, acceptance=observed, engine="sglang==0.5.8", assume_fixed=others)
    shares = [*(r.weight for r in found.ranked), *(s.weight for s in found.suspects), found.none_of_these, found.as_trained]

    assert 0.95 <= sum(shares) <= 1.0 + 1e-9
    assert "FM-49" in [r.finding.fault for r in found.ranked]
    assert load(found.save(tmp_path / "found.json")) == found


def test_a_sound_draft_is_not_undone() -> None:
    """Nothing is played beyond the healthy replay where it is as good as drafts are."""
    train = agreeing()
    good = replay(small_draft(), train, target=TARGET, steps=4).accept_length

    found = diagnose(draft=small_draft(), target=TARGET, train=train, acceptance=good)

    assert not [f for f in found.findings if "undone" in f.title]


def test_what_the_live_dump_shows_is_replayed_with_its_own_rows() -> None:
    """The counterfactual of a fault in the dumps is the training dump with the rows that were fed, so what it costs is known."""
    train = agreeing()
    live = replace(train.map_features(lambda _, fed: fed * 0.1), side="live")
    fed = replay(small_draft(), live, target=TARGET, steps=4).accept_length
    found = diagnose(draft=small_draft(), target=TARGET, train=train, live=live, acceptance=fed)
    scaled = next(r for r in found.ranked if r.finding.fault == "H3")

    assert scaled.predicted is not None
    assert scaled.predicted.accept_length == pytest.approx(fed)
    assert scaled.cost == pytest.approx(replay(small_draft(), train, target=TARGET, steps=4).accept_length - fed)


def test_suspects_are_a_credible_set() -> None:
    """Without a replay every fault that could be at work is weighed; likeliest first, up to most of what they hold together."""
    found = diagnose(draft=small_draft(), acceptance=acceptance((0.02, 0.0, 0.0)), assume_fixed=["K4"])  # its weights are random
    weights = [s.weight for s in found.suspects]

    assert weights == sorted(weights, reverse=True)
    assert {"FM-33", "FM-38", "FM-47"} <= {s.fault for s in found.suspects}
    assert not {"FM-05", "FM-12", "FM-73"} & {s.fault for s in found.suspects}  # the checkpoint rules out two, and one lowers nothing


def test_of_equals_the_fault_goes_before_the_test() -> None:
    """A shape that is wrong (K2) and the fault that explains it (FM-22) say one thing: the fault's name comes first."""
    draft = small_draft()
    cut = {f"midlayer.mlp.{n}_proj.weight": draft.tensors[f"midlayer.mlp.{n}_proj.weight"][:24] for n in ("gate", "up")}
    found = diagnose(draft=draft.replace(tensors={**cut, "norm.weight": torch.ones(H + 1)}), target=TARGET)
    named = [r.finding.fault for r in found.ranked if r.finding.fault in ("FM-22", "K2")]

    assert named == ["FM-22", "K2"]


def test_a_test_that_says_the_same_as_a_fault_is_no_cause_of_its_own() -> None:
    """Rows of zeros (H2) beside padding that is taken for tokens (FM-39): one fact. A test that is surer than the fault stays one."""

    def told(fault: str, severity: Severity) -> Finding:
        return Finding(fault, severity, "", "", (), "", "")

    beside = (told("H2", Severity.ERROR), told("FM-39", Severity.ERROR), told("K2", Severity.WARNING))
    assert signs(beside) == {"H2": "FM-39"}
    assert signs((told("H2", Severity.ERROR), told("FM-39", Severity.WARNING))) == {}
    known = {f.id for f in catalogue()} | set(in_words())
    assert all(fault in known for words in words_of_tests().values() for fault in words.get("sign_of", ()))


def test_a_sign_takes_no_share_and_is_as_certain_as_its_fault() -> None:
    """A shape that is wrong says FM-22 less precisely: the whole share is the fault's, and both are there or neither."""
    draft = small_draft()
    cut = {f"midlayer.mlp.{n}_proj.weight": draft.tensors[f"midlayer.mlp.{n}_proj.weight"][:24] for n in ("gate", "up")}
    found = diagnose(draft=draft.replace(tensors={**cut, "norm.weight": torch.ones(H + 1)}), target=TARGET, assume_fixed=["K4"])
    fault, sign = (next(r for r in found.ranked if r.finding.fault == f) for f in ("FM-22", "K2"))

    assert sign.weight == 0 < fault.weight and sign.certainty == fault.certainty > 0.9


def test_variants_of_a_fault_are_weighed_by_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault is no likelier for having many ways to be played: of two that fit alike the one without misses goes first."""
    listed = (
        Fault("A", lambda _: None, lambda _: iter([Change("A", "hit"), Change("A", "miss")])),
        Fault("B", lambda _: None, lambda _: iter([Change("B", "hit")])),
        Fault("C", lambda _: None, lambda _: iter([]), typical=None),
    )
    monkeypatch.setattr(weighing, "catalogue", lambda: listed)
    out = explain(FakeCase({"hit": COLLAPSED, "miss": HEALTHY}, acceptance(COLLAPSED)), (), lambda _: None)  # type: ignore[arg-type]

    assert out.weight["B"] == pytest.approx(2 * out.weight["A"], rel=0.02)


def test_what_would_change_nothing_here_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that only a replay shows, and whose replay this draft does not have, takes no share by what was reported of it elsewhere."""
    listed = (
        Fault("A", lambda _: None, lambda _: iter([Change("A", "hit")])),
        Fault("B", lambda _: None, lambda _: iter([]), typical=(1.0, 1.2)),
        Fault("D", lambda _: None, lambda _: iter([]), (("train", "live"),), (1.0, 1.2)),
    )
    monkeypatch.setattr(weighing, "catalogue", lambda: listed)
    out = explain(FakeCase({"hit": COLLAPSED}, acceptance(COLLAPSED)), (), lambda _: None)  # type: ignore[arg-type]

    assert "B" not in out.weight
    assert out.weight["D"] > 0.0
