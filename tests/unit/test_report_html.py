"""The report as one HTML file: small, offline, the same each time, and deaf to whatever stands in the files it tells of."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from typing import Any

import pytest
import reports

from eagle3diag.findings import Result
from eagle3diag.report import budget
from eagle3diag.report import html as page_of


@pytest.mark.parametrize("result", reports.every_kind(), ids=lambda r: type(r).__name__)
def test_page_is_small_offline_and_the_same_each_time(result: Result) -> None:
    """Under 3 MB, no address to fetch from, a policy that forbids fetching, and equal bytes for an equal result."""
    page = page_of.page(result)
    elements = reports.Elements(page)

    assert len(page.encode()) < 3_000_000
    assert page == page_of.page(result)
    for tag, attributes in elements.seen:
        assert tag not in {"link", "iframe", "object", "embed", "base", "form"}
        assert not attributes.get("src")
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    policy = next(a["content"] for t, a in elements.seen if t == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src" not in policy and "unsafe-eval" not in policy and "http" not in policy
    assert "unsafe-inline" not in policy.split("style-src-attr")[0]


def carried(result: Result) -> Any:
    """What ``to_dict`` gives, as it comes back out of JSON, with the count of what was removed: nothing."""
    return json.loads(json.dumps(result.to_dict() | {"removed": {}}))


def test_page_carries_the_result_as_json() -> None:
    """What is inside the page is what ``to_dict`` gives, digit for digit."""
    result = reports.given(reports.comparison(), *reports.FINDINGS)

    assert json.loads(reports.Elements(page_of.page(result)).scripts["result"]) == carried(result)


@pytest.mark.parametrize("result", reports.hostile(), ids=lambda r: type(r).__name__)
def test_strings_from_files_stay_strings(result: Result) -> None:
    """No element, script or attribute of the page comes from the data, and the JSON still round-trips."""
    page = page_of.page(result)
    elements = reports.Elements(page)

    assert not [t for t, _ in elements.seen if t == "img"]
    assert set(elements.scripts) <= {"result", "figures-packed", "plot-config", "hues", "plotly-packed", "loader"}
    assert not reports.CONTROLS.search(page)
    assert json.loads(elements.scripts["result"]) == carried(result)
    if "figures-packed" in elements.scripts:
        figures = gzip.decompress(base64.b64decode(elements.scripts["figures-packed"])).decode()
        for words in re.findall(r'"(?:name|text|title)":"((?:[^"\\]|\\.)*)"', figures):
            assert "<script" not in json.loads(f'"{words}"')


def test_page_without_plotly_keeps_its_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where plotly is not installed, the page is the static one."""
    monkeypatch.setattr(page_of, "_plotly", lambda: (None, ""))
    page = page_of.page(reports.given(reports.comparison()))

    assert "plotly-packed" not in page.split("<script>")[0]
    assert page.count('<svg class="e3d-svg"') == 7
    assert len(page) < 400_000


def test_every_figure_has_caption_drawing_and_table() -> None:
    """Each figure can be read without colour, without JavaScript, and without eyes."""
    page = page_of.page(reports.diagnosis())
    figures = re.findall(r"<figure id='([\w-]+)'>(.*?)</figure>", page, re.DOTALL)

    assert len(figures) == len({name for name, _ in figures}) == 14
    for name, body in figures:
        assert re.search(r"<figcaption>[^<]{20,}", body), name
        assert "<svg" in body and "aria-label=" in body and "<table>" in body and "<caption" in body, name


def test_numbers_that_do_not_fit_lose_digits_then_lists() -> None:
    """When the numbers would pass their room they lose digits, then the longest lists go, by name; findings stay."""
    body = {"findings": ["f"] * 50, "short": [1 / 3] * 3, "long": [1 / 3] * 300}
    left = budget.LeftOut()

    assert budget.numbers_within(body, 100_000, left) == budget.json_text(body)
    assert left.lines() == ()
    assert json.loads(budget.numbers_within(body, 4_000, left))["long"] == [0.333333] * 300
    assert left.digits and not left.lists
    assert json.loads(budget.numbers_within(body, 1_000, left)) == {
        "findings": ["f"] * 50,
        "short": [0.333333] * 3,
        "long": {"left_out": 300},
    }
    assert left.lists == ["long"]


def test_a_page_without_room_keeps_its_findings_and_lists_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hover goes, then the numbers' long lists, then the last parts of the page; verdict, strip and findings never; all of it is listed."""
    monkeypatch.setattr(page_of, "LIMIT", 0)
    result = reports.diagnosis()
    page = page_of.page(result)
    elements = reports.Elements(page)

    assert "id='findings'" in page and "id='loss'" in page and "id='part-0'" not in page
    for words in ("the long lists", "The parts Observed and predicted", "Digits after the sixth"):
        assert words in page.split("id='left-out'")[1], words
    assert len(json.loads(elements.scripts["result"])["findings"]) == 3
    assert [a["href"] for t, a in elements.seen if t == "a"] == ["#findings", "#loss", "#findings", "#left-out"]


@pytest.mark.parametrize("room", [2_100_000, 2_130_000, 2_160_000])
def test_the_limit_holds(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """A page that is made to fit fits, as long as plotly itself does."""
    monkeypatch.setattr(page_of, "LIMIT", room)
    page = page_of.page(reports.diagnosis())

    assert len(page.encode()) <= room
    assert "To stay under" in page


def test_very_long_strings_do_not_fill_the_page() -> None:
    """A name of a million characters, in every place where a file's own words are shown, leaves a page that opens."""
    long = "x" * 1_000_000
    load = replace(reports.checked().loads[0], name=long, canonical=long)
    result = replace(reports.diagnosis(long), audit=replace(reports.checked(long), loads=(load,)), trail=(long,), missing=(long,))

    assert len(page_of.page(result).split('id="result"')[0]) < 1_000_000


def test_every_part_has_its_landmark_and_name() -> None:
    """Sections are named by their headings, tables have captions, boxes that scroll have names, and links lead somewhere."""
    elements = reports.Elements(page_of.page(reports.diagnosis()))
    ids = [a["id"] for _, a in elements.seen if "id" in a]

    assert len(ids) == len(set(ids))
    assert all(a["aria-labelledby"] in ids for t, a in elements.seen if t == "section")
    assert all((a["href"] or "")[1:] in ids for t, a in elements.seen if t == "a")
    assert {"header", "nav", "main", "footer"} <= {t for t, _ in elements.seen}
    assert sum(t == "table" for t, _ in elements.seen) == sum(t == "caption" for t, _ in elements.seen)


def test_plotly_uploads_nothing() -> None:
    """The button that sends a chart away is off in the page, and so is the logo that links to the vendor."""
    config = json.loads(reports.Elements(page_of.page(reports.diagnosis())).scripts["plot-config"])

    assert config["showSendToCloud"] is False
    assert config["displaylogo"] is False
    assert config["showEditInChartStudio"] is False


def test_to_html_writes_the_page(tmp_path: Any) -> None:
    """``result.to_html`` is the page, in UTF-8."""
    result = reports.diagnosis()
    path = result.to_html(tmp_path / "r" / "report.html")

    assert path.read_text(encoding="utf-8") == page_of.page(result)
