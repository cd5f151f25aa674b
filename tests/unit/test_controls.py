"""The controls of the notebooks: what they show is what a replay gives, and a widget answers a change at once."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

import pytest
from builders import small_dump, small_target
from small import small_draft

from eagle3diag.controls import Bench
from eagle3diag.errors import BadArgument, MissingDependency
from eagle3diag.replay import replay


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(small_draft(), small_dump(), target=small_target())


def test_nothing_chosen_is_the_healthy_replay(bench: Bench) -> None:
    """Also what is fed is then what was trained on."""
    outcome = bench.outcome([], steps=3)

    assert outcome.broken.to_dict() == outcome.healthy.to_dict()
    assert outcome.healthy.p == replay(small_draft(), small_dump(), target=small_target(), steps=3).p
    assert outcome.cosine == pytest.approx((1.0, 1.0, 1.0), abs=1e-6)


def test_a_choice_is_the_replay_with_that_change(bench: Bench) -> None:
    """One, and two together; a change of what is fed moves the cosine."""
    labels = [label for label in bench.faults if label.startswith(("FM-33", "FM-12"))][:2]
    changes = [bench.faults[label] for label in labels]

    assert bench.outcome(labels).broken.p == replay(small_draft(), small_dump(), target=small_target(), changes=changes).p
    swapped = next(label for label in bench.faults if label.startswith("FM-33"))
    assert min(bench.outcome([swapped]).cosine) < 0.9


def test_an_unknown_label_names_the_known_ones(bench: Bench) -> None:
    """One clear error."""
    with pytest.raises(BadArgument, match="no fault 'FM-99'"):
        bench.outcome(["FM-99"])


def test_evidence_that_cannot_be_replayed_is_refused() -> None:
    """No target, no embedding, nothing to replay."""
    with pytest.raises(BadArgument, match="nothing to replay"):
        Bench(small_draft(), small_dump(), target=None)


def test_the_widget_answers_a_change(bench: Bench) -> None:
    """Choosing a fault and moving the slider redraw the outcome."""
    pytest.importorskip("ipywidgets")
    chosen, steps, words, drawing = bench.controls().children
    before = (words.value, drawing.value)
    label = next(label for label in bench.faults if label.startswith("FM-33"))

    chosen.value = (label,)
    broken = (words.value, drawing.value)
    steps.value = 2

    assert words.value == bench.outcome([label], 2).summary
    assert len({before, broken, (words.value, drawing.value)}) == 3
    assert drawing.value.count("<svg") == 2


def test_without_ipywidgets_the_line_to_install_it_is_shown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """And :meth:`Bench.outcome` goes on working."""
    found = builtins.__import__

    def hidden(name: str, globals: Mapping[str, Any] | None = None, *rest: Any) -> Any:
        if name == "ipywidgets":
            raise ImportError(name)
        return found(name, globals, *rest)

    monkeypatch.setattr(builtins, "__import__", hidden)
    with pytest.raises(MissingDependency, match="ipywidgets") as caught:
        bench.controls()
    assert "pip install" in str(caught.value)
    assert bench.outcome([]).healthy.steps == 4
