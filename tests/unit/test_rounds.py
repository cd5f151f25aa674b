"""The rounds of a server: laid on a dump of the same tokens, held against a replay one by one, and what they make of a hypothesis."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from replay_reference import agreeing_text, dump_of, toy_net
from scipy.integrate import quad
from scipy.stats import beta, betabinom, binom, dirichlet_multinomial, multinomial
from test_score import held

from benchmarks.injection.engine import rounds
from eagle3diag.compare.served import with_rounds_of
from eagle3diag.diagnose.likelihood import ANY_SHARE, BY_ACCIDENT, ROUNDING, of_as_often, of_lost_rounds, of_near_rounds, of_rounds
from eagle3diag.dumps import HiddenStates, TargetIdentity
from eagle3diag.errors import BadArgument
from eagle3diag.replay import Change, run
from eagle3diag.replay.acceptance import accepted, following, walk
from eagle3diag.replay.drafting import draft_chains, pack

STEPS = 4
TARGET = TargetIdentity("toy", "", "float32", 4, 2)


def with_rounds(dump: HiddenStates, rounds: list[list[int]], first: int) -> HiddenStates:
    """The dump of a server that made these rounds, record by record, the first of each from row ``first``."""
    made = []
    for record, own in zip(dump, rounds, strict=True):
        kept, at = torch.full((record.tokens,), -1, dtype=torch.int16), first
        for m in own:
            kept[at] = m
            at += m + 1
        made.append(
            {"name": record.name, "input_ids": record.input_ids, "features": record.features, "prompt_length": first + 1, "accepted": kept}
        )
    return HiddenStates.from_tensors(made, side="live", target=dump.target)


# -- beside a replay --------------------------------------------------------------------------------------------------------------


def test_a_server_that_does_as_the_replay_is_alike_in_every_round() -> None:
    """Rounds of the plain walk; then some of them lied about, each of which is counted where it belongs."""
    net = toy_net(4)
    texts = [agreeing_text(net, n, seed) for seed, n in enumerate((40, 25))]
    dump = dump_of(*texts, prompt_length=3)
    made = []
    for ids, features in texts:
        text = pack(net, [(ids, features)])
        hits = accepted(draft_chains(net, text, torch.arange(len(ids) - 1), STEPS), following(ids, len(ids) - 1, STEPS))
        made.append(walk(hits[: len(ids) - 1 - STEPS].tolist(), 2))

    beside = run(net, with_rounds(dump, made, 2), steps=STEPS)

    assert beside.served_alike == beside.served_rounds == beside.rounds == sum(map(len, made)) > 10
    assert [sum(row) for row in beside.served] == [sum(r.count(m) for r in made) for m in range(STEPS + 1)]
    assert run(net, dump, steps=STEPS).served == ()

    lied = with_rounds(dump, made, 2)
    lied[0].need("accepted")[2] = (made[0][0] + 1) % (STEPS + 1)
    told = run(net, lied, steps=STEPS)
    assert told.served_alike == beside.served_alike - 1
    assert told.served[(made[0][0] + 1) % (STEPS + 1)][made[0][0]] == 1
    assert (told.p, told.records) == (beside.p, beside.records)  # its own rounds are what they were


def test_keys_that_the_draft_keeps_follow_the_servers_rounds() -> None:
    """FM-50: what a round leaves behind depends on the round, so the server's are followed. The server is the benchmark's, which shares no
    code with the replay."""
    net = toy_net(4)
    ids, features = agreeing_text(net, 60)
    kept = Change("FM-50", "kept", loop=lambda loop: replace(loop, keep_draft_keys=True))
    stale = rounds(held(net, stale=True), ids, features, 2, STEPS)
    live = with_rounds(dump_of((ids, features), prompt_length=3), [stale], 2)

    faulty, healthy = (run(net, live, steps=STEPS, changes=changes) for changes in ((kept,), ()))

    assert faulty.served_alike == faulty.served_rounds == len(stale) > 10
    assert healthy.served_alike < healthy.served_rounds == len(stale)


# -- on another dump --------------------------------------------------------------------------------------------------------------


def side(ids: list[int], kept: list[int] | None = None, name: str = "a", width: int = 2) -> HiddenStates:
    record = {"name": name, "input_ids": ids, "features": torch.ones(len(ids), width), "prompt_length": 1}
    record |= {} if kept is None else {"accepted": kept}
    return HiddenStates.from_tensors([record], side="train" if kept is None else "live", target=TARGET)


def test_rounds_are_laid_on_the_record_of_the_same_tokens() -> None:
    """By tokens and not by name; as far as the tokens agree."""
    ids = [*range(10, 30)]
    kept = [-1, 2, -1, -1, 0, 4, -1, -1, -1, -1, 1, -1, 3, -1, -1, -1, -1, -1, -1, -1]
    trained = side(ids, name="another name")

    laid = with_rounds_of(side(ids, kept), trained)
    assert laid[0].accepted is not None and laid[0].accepted.tolist() == kept
    assert torch.equal(laid[0].features, trained[0].features) and laid.side == "train"

    # the answer took another turn: the round from row 10 accepted token 12, and the draft may have proposed another token 13
    for turn in (14, 13, 12):
        parted = with_rounds_of(side(ids, kept), side([*range(10, 10 + turn), *range(90, 110 - turn)]))
        assert parted[0].accepted is not None
        assert parted[0].accepted.tolist() == [*kept[:10], 1 if turn > 13 else -1, *[-1] * 9]
    # rows that are missing on the server's side part a round too
    gap = [i for i in range(20) if i not in (8, 9)]
    holed = HiddenStates.from_tensors(
        [{"name": "a", "input_ids": [ids[i] for i in gap], "features": torch.ones(18, 2), "positions": gap, "accepted": [kept[i] for i in gap]}],
        side="live", target=TARGET,
    )  # fmt: skip
    laid = with_rounds_of(holed, trained)
    assert laid[0].accepted is not None and laid[0].accepted.tolist() == [-1, 2, -1, -1, 0, *[-1] * 15]


def test_without_rounds_or_tokens_in_common_a_dump_stays_as_it_is() -> None:
    """Nothing is laid on what does not belong to it."""
    trained = side([*range(10, 30)])

    assert with_rounds_of(side([*range(10, 30)], None), trained) is trained
    assert with_rounds_of(side([*range(50, 70)], [0] * 20), trained) is trained


def test_rounds_that_cannot_be_are_no_rounds() -> None:
    """Whatever a file holds: more accepted than the text has, or less than none, is not taken for a round anywhere."""
    net = toy_net(4)
    dump = dump_of(agreeing_text(net, 30), prompt_length=3)
    wild = torch.full((30,), -1)
    wild[[2, 5, 9, 27]] = torch.tensor([2**63 - 1, -(2**63), 1, 40])
    record = dump[0]
    live = HiddenStates.from_tensors(
        [{"name": "a", "input_ids": record.input_ids, "features": record.features, "prompt_length": 3, "accepted": wild}],
        side="live", target=dump.target,
    )  # fmt: skip
    kept = Change("FM-50", "kept", loop=lambda loop: replace(loop, keep_draft_keys=True))

    assert live[0].accepted is not None and live[0].accepted.nonzero()[:, 0].tolist() == list(range(30))
    assert [m for m in live[0].accepted.tolist() if m >= 0] == [1]
    assert with_rounds_of(live, dump)[0].accepted is not None
    assert all(run(net, live, steps=STEPS, changes=c).served_rounds <= 1 for c in ((), (kept,)))


def test_rounds_are_whole_numbers_one_per_token() -> None:
    """A recorder's mistake is refused where the dump is made."""
    for kept in ([0.5] * 4, [1] * 3):
        with pytest.raises(BadArgument, match="accepted"):
            side([1, 2, 3, 4], kept)  # type: ignore[arg-type]


# -- what they say of a hypothesis ------------------------------------------------------------------------------------------------


matrices = st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=3, max_size=3).filter(lambda m: sum(map(sum, m)) > 0)


@given(matrices)
def test_rounds_beside_an_exact_replay_are_a_mixture_over_the_share_that_rounding_turns(rows: list[list[int]]) -> None:
    """Against the integral, by quadrature."""
    served = tuple(map(tuple, rows))
    total, unlike = sum(map(sum, rows)), sum(map(sum, rows)) - sum(rows[i][i] for i in range(3))

    for (a, b), found in ((ROUNDING, of_rounds(served)), (ANY_SHARE, of_near_rounds(served))):
        peak = max((unlike + a - 1) / (total + a + b - 2), 1e-9)

        def density(x: float, a: float = a, b: float = b) -> float:
            return float(beta.logpdf(x, a, b)) + unlike * math.log(x / 2) + (total - unlike) * math.log1p(-x)

        top = density(min(peak, 1 - 1e-9))
        width = 12 / math.sqrt(total + b)
        low, high = max(peak - width, 1e-12), min(peak + width, 1 - 1e-12)
        area = quad(lambda x: math.exp(density(x) - top), low, high, limit=200)[0]  # noqa: B023
        assert found == pytest.approx(top + math.log(area), abs=1e-3)


@given(matrices)
def test_how_often_so_many_are_accepted_may_be_all_that_is_foretold(rows: list[list[int]]) -> None:
    """Against scipy's Dirichlet-multinomial, which counts the orders that a sequence can come in."""
    seen, replayed = [sum(row) for row in rows], [sum(column) for column in zip(*rows, strict=True)]
    worth = min(1.0, 100 / sum(replayed))
    orders = multinomial.logpmf(seen, sum(seen), [1 / 3] * 3) - sum(seen) * math.log(1 / 3)
    expected = dirichlet_multinomial.logpmf(seen, [0.5 + worth * n for n in replayed], sum(seen)) - orders

    served = tuple(map(tuple, rows))
    assert of_as_often(served) == pytest.approx(expected, abs=1e-6)


@given(matrices)
def test_where_all_is_lost_drafts_are_right_by_accident(rows: list[list[int]]) -> None:
    """Against scipy's beta-binomial of each position, which counts the orders that hits can come in."""
    seen, total = [sum(row) for row in rows], sum(map(sum, rows))
    expected = 0.0
    for trials, hits in ((total, total - seen[0]), (total - seen[0], seen[2])):
        expected += betabinom.logpmf(hits, trials, *BY_ACCIDENT) - binom.logpmf(hits, trials, 0.5) + trials * math.log(0.5)

    assert of_lost_rounds(tuple(map(tuple, rows))) == pytest.approx(expected, abs=1e-6)


def test_all_that_can_be_served_has_probability_one() -> None:
    """Summed over everything that a server could have accepted in five rounds that the replay tells 0, 0, 1, 2, 2 of."""
    replayed = (0, 0, 1, 2, 2)
    total = dict.fromkeys((of_rounds, of_near_rounds, of_as_often, of_lost_rounds), 0.0)
    for served in itertools.product(range(3), repeat=5):
        matrix = tuple(tuple(sum(a == i and r == j for a, r in zip(served, replayed, strict=True)) for j in range(3)) for i in range(3))
        for likelihood in total:
            total[likelihood] += math.exp(likelihood(matrix))

    assert total == pytest.approx(dict.fromkeys(total, 1.0))


def test_rounding_is_forgiven_and_another_fault_is_not() -> None:
    """Four rounds in 200 otherwise than replayed, as two real engines have them, do not speak for an unlisted cause; forty do."""

    def matrix(unlike: int) -> tuple[tuple[int, ...], ...]:
        return ((120 - unlike, 0, 0), (unlike, 50, 0), (0, 0, 30))

    assert of_rounds(matrix(4)) > of_near_rounds(matrix(4)) + 2
    assert of_rounds(matrix(40)) < of_near_rounds(matrix(40)) - 2


def test_rounds_without_a_hit_are_those_of_a_server_that_lost_everything() -> None:
    """They tell such a one from a server that does some of what the replay does, and not from another under which nothing is right."""
    nothing = ((120, 50, 30), (0, 0, 0), (0, 0, 0))
    useless = ((200, 0, 0), (0, 0, 0), (0, 0, 0))

    assert of_lost_rounds(nothing) > of_near_rounds(nothing) + 50
    assert abs(of_lost_rounds(useless) - of_rounds(useless)) < 2
