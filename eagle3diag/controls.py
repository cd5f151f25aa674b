"""Now break it yourself: notebook controls that put faults into a healthy replay, one or several, and show at once what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eagle3diag.case import Case, Given
from eagle3diag.compare import compare
from eagle3diag.dumps import HiddenStates
from eagle3diag.errors import BadArgument, MissingDependency
from eagle3diag.faults import catalogue, named
from eagle3diag.replay import Change, Replay, run
from eagle3diag.report import svg
from eagle3diag.report.form import Bars, Lines
from eagle3diag.report.views.common import accept_bar, by_position

MOST_STEPS = 8


@dataclass(frozen=True)
class Outcome:
    """One setting of the controls: the replay with the chosen faults beside the healthy one, what the draft was trained on, and what is fed."""

    healthy: Replay
    broken: Replay
    train: HiddenStates
    fed: HiddenStates

    @cached_property
    def cosine(self) -> tuple[float, ...]:
        """Median channel-standardised cosine per block, of what is fed with what was trained on; empty where the widths differ."""
        return tuple(b.standardised.median for b in compare(self.train, self.fed).blocks)

    @property
    def summary(self) -> str:
        fed = ", ".join(f"{c:.3f}" for c in self.cosine) if self.cosine else "of another width"
        return (
            f"accept length {self.broken.accept_length:.2f} (healthy {self.healthy.accept_length:.2f}); what is fed, by block: cosine {fed}"
        )

    def html(self) -> str:
        """Two drawings: accept lengths, and acceptance by position."""
        bars = (
            accept_bar("as trained", self.healthy.accept_length, self.healthy.accept_length_interval, 0),
            accept_bar("with these faults", self.broken.accept_length, self.broken.accept_length_interval, 1),
        )
        curves = (by_position("as trained", self.healthy.p, hue=0), by_position("with these faults", self.broken.p, hue=1, dashed=True))
        lengths = Bars("broken-lengths", "Accept length", self.summary, "accept length", bars, start=1.0)
        positions = Lines("broken-positions", "By position", "", "draft position i", "p(i)", curves, whole_x=True, y_range=(0.0, 1.0))
        return f"<div style='max-width:760px'>{svg.draw(lengths)}{svg.draw(positions)}</div>"


class Bench:
    """A healthy draft and its training dump, ready to be broken. ``faults`` are the counterfactuals that this evidence allows, by label."""

    def __init__(self, draft: Any, train: Any, *, target: Any, reference: Any = None) -> None:
        self.case = Case(Given(draft=draft, train=train, target=target, reference=reference))
        if self.case.net is None or self.case.train is None:
            raise BadArgument("nothing to replay", where="Bench", hint="give a draft with its map, a training dump, and the target")
        self.faults: dict[str, Change] = {f"{named(c.fault)} · {c.name}": c for fault in catalogue() for c in fault.changes(self.case)}
        self._healthy: dict[int, Replay] = {}

    def outcome(self, labels: Sequence[str], steps: int = 4) -> Outcome:
        """The replay with the faults of these labels, in this order.

        Raises
        ------
        BadArgument: a label that is not among :attr:`faults`, or steps that are not positive.
        """
        unknown = [label for label in labels if label not in self.faults]
        if unknown:
            raise BadArgument(f"no fault {unknown[0]!r}", hint=f"one of: {'; '.join(self.faults)}")
        if steps not in self._healthy:
            self._healthy[steps] = self._run(steps)
        changes = tuple(self.faults[label] for label in labels)
        assert self.case.train is not None
        fed = self.case.train
        for change in changes:
            fed = fed.map_features(change.features)
        return Outcome(self._healthy[steps], self._run(steps, *changes), self.case.train, fed)

    def _run(self, steps: int, *changes: Change) -> Replay:
        assert self.case.net is not None and self.case.train is not None
        return run(self.case.net, self.case.train, steps=steps, changes=changes)

    def controls(self) -> Any:
        """A list of faults (several may be chosen), a slider for the steps, and the outcome below; an ``ipywidgets.VBox``.

        Raises
        ------
        MissingDependency: ipywidgets is not installed. :meth:`outcome` does the same without it.
        """
        try:
            import ipywidgets as widgets
        except ImportError as error:
            raise MissingDependency("the controls need ipywidgets", hint="pip install 'eagle3diag[notebooks]'") from error
        chosen = widgets.SelectMultiple(options=list(self.faults), rows=min(12, len(self.faults)), description="faults")
        chosen.layout.width, chosen.layout.max_width = "100%", "760px"
        steps = widgets.IntSlider(value=4, min=1, max=MOST_STEPS, description="steps", continuous_update=False)
        words, drawing = widgets.Label(), widgets.HTML()

        def show(_: object = None) -> None:
            outcome = self.outcome(chosen.value, steps.value)
            words.value, drawing.value = outcome.summary, outcome.html()

        chosen.observe(show, "value")
        steps.observe(show, "value")
        show()
        return widgets.VBox([chosen, steps, words, drawing])
