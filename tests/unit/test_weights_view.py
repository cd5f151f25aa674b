"""The weights' page: every part that a report can have is shown, names out of files cannot break out, and it stays small."""

from __future__ import annotations

import dataclasses

import torch
from reports import HOSTILE
from starts import draft, seeded
from test_weights_origin import target
from test_weights_reading import dump, trained

from eagle3diag.report import html, text
from eagle3diag.report.views import view
from eagle3diag.weights import WeightReport, weights


def whole() -> WeightReport:
    """A draft with a target, a dump and two other checkpoints, measured."""
    tensors = {"fc.weight": trained(), "norm.weight": 1 + 0.1 * torch.randn(64, generator=seeded(90))}
    report = weights(tensors, dump=dump(records=6), against=[{"fc.weight": trained() * 1.5}, {"norm.weight": torch.ones(64)}])
    layer = {n: t for n, t in draft(seeded(91)).items() if n != "fc.weight"}
    other = weights(layer, target=target())
    return dataclasses.replace(report, tensors=report.tensors + other.tensors, origins=other.origins, overlaps=other.overlaps, target="T")


def test_every_part_is_shown() -> None:
    """A section for each kind of evidence, and a page per tensor with its spectrum, norms and map."""
    report = whole()
    page = view(report)
    titles = [s.title for s in page.sections]
    assert {
        "Every tensor",
        "fc, by aux state",
        "fc tested on the states of the dump",
        "Against other checkpoints",
        "What it shares with the target",
    } <= set(titles)
    assert [t.name for t in report.tensors if len(t.shape) == 2 and t.name not in titles] == []
    figures = {f.id for f in page.figures()}
    assert {"fc-order", "fc-directions", "changes", "spectrum-0", "rows-0", "tiles-0"} <= figures and len(figures) == len(
        list(page.figures())
    )
    shown = text.render(report)
    assert "trained" in shown and "fc tested on the states of the dump" in shown and "order 3, 2, 1" in shown


def test_a_page_of_ten_matrices_stays_small() -> None:
    """All sections of a whole draft, without plotly itself: under 450 kB."""
    written = html.page(whole())
    body = written.split("<script", 1)[0]
    assert len(body.encode()) < 450_000


def test_names_out_of_files_cannot_break_out() -> None:
    """Checkpoint, tensor and target names are escaped wherever they stand."""
    report = whole()
    (first, second) = report.against
    change = dataclasses.replace(first.changes[0], tensor=HOSTILE)
    origin = dataclasses.replace(report.origins[0], tensor=HOSTILE, source=HOSTILE)
    overlap = dataclasses.replace(report.overlaps[0], tensor=HOSTILE)
    assert report.reading is not None
    bad = dataclasses.replace(
        report,
        target=HOSTILE,
        against=(dataclasses.replace(first, other=HOSTILE, changes=(change,), only_here=(HOSTILE,)), second),
        origins=(origin, *report.origins),
        overlaps=(overlap, *report.overlaps),
        reading=dataclasses.replace(report.reading, dump=HOSTILE),
    )
    written = html.page(bad)
    assert "<img" not in written and "<script>document" not in written
    assert "\x1b" not in text.render(bad)
