"""The report: one page form, drawn as text, notebook view and HTML, with whatever comes out of files kept inert."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import reports
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3diag.diagnose import Suspect
from eagle3diag.findings import Evidence, Result, Severity
from eagle3diag.report import html, notebook, plots, svg, text
from eagle3diag.report.form import Bar, Bars, Heat, Lines, Series, Table
from eagle3diag.report.markup import asset
from eagle3diag.report.numbers import thin
from eagle3diag.report.palette import HUES, luminance
from eagle3diag.report.safe import shorten, visible, width
from eagle3diag.report.tables import behind
from eagle3diag.report.views import view

# -- text ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", reports.every_kind(), ids=lambda r: type(r).__name__)
def test_text_fits_eighty_columns(result: Result) -> None:
    """No line of the terminal view is wider than 80 columns."""
    for line in text.render(result).splitlines():
        assert width(line) <= 80, line


def test_text_says_verdict_evidence_fix_and_check() -> None:
    """A finding shows its id, its numbers with what was expected, the fix, and what to measure again."""
    shown = text.render(reports.given(reports.comparison(), *reports.FINDINGS))

    for words in ("✖ 1 error, 1 warning, 1 note", "FM-01", "576 (expected 1728 = 3 x 576) [live dump]", "fix    Start", "check  Capture"):
        assert words in shown


def test_colour_only_when_asked() -> None:
    """Escape sequences appear with ``colour=True`` and only then, and the words are the same."""
    result = reports.given(reports.comparison(), *reports.FINDINGS)
    plain, coloured = text.render(result), text.render(result, colour=True)

    assert "\x1b" not in plain
    assert "\x1b[1;31m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert str(result) == plain


@pytest.mark.parametrize("result", reports.hostile(), ids=lambda r: type(r).__name__)
def test_text_shows_control_characters_instead_of_obeying_them(result: Result) -> None:
    """Terminal escapes, line tricks and direction overrides from a file come out as visible escapes."""
    shown = text.render(result)

    assert not reports.CONTROLS.search(shown)
    assert "\\x1b" in shown


def test_long_tables_are_cut_with_a_word_about_it() -> None:
    """A terminal gets the first rows and the number of the others."""
    load = reports.checked().loads[0]
    many = replace(reports.checked(), loads=tuple(replace(load, canonical=f"t{i:03}", outcome="dropped") for i in range(40)))

    assert "28 more rows" in text.render(reports.given(many))


def test_healthy_result_is_calm() -> None:
    """Without findings the verdict says so and no severity word appears."""
    shown = text.render(reports.given(reports.comparison()))

    assert "✔ no findings" in shown
    assert "error" not in shown.splitlines()[0]


# -- making text harmless ------------------------------------------------------------------------------------------------------------


@given(st.text())
def test_visible_leaves_nothing_that_acts(value: str) -> None:
    """Whatever the string, what is shown holds no control, format or surrogate character, and is stable."""
    shown = visible(value)

    assert not reports.CONTROLS.search(shown)
    assert not re.search("[\ud800-\udfff]", shown)
    assert visible(shown) == shown


@given(st.text(), st.integers(1, 40))
def test_shorten_keeps_to_its_columns(value: str, columns: int) -> None:
    """A shortened text is never wider than asked, and a short one is not touched."""
    value = visible(value)
    shown = shorten(value, columns)

    assert width(shown) <= columns
    assert shown == value or width(value) > columns


# -- figures -------------------------------------------------------------------------------------------------------------------------


def test_plotly_accepts_every_figure() -> None:
    """plotly's own validators take each of them; ``figures`` gives them to whoever wants to go on."""
    drawn = plots.figures(reports.diagnosis())

    assert len(drawn) == 14
    assert drawn["accept-length"].data[0].type == "bar"
    assert drawn["compare-boundaries"].data[0].type == "heatmap"


@pytest.mark.parametrize(
    "figure",
    [
        Lines("a", "t", "c", "x", "y", (Series("s", (), ()),)),
        Lines("a", "t", "c", "x", "y", (Series("s", (0.0, 1.0), (math.nan, math.inf)),), log_y=True, log_x=True),
        Lines("a", "t", "c", "x", "y", (Series("s", (1.0,), (5.0,)),), log_y=True),
        Lines("a", "t", "c", "x", "y", (Series("s", (1.0, 2.0, 3.0), (5.0, math.nan, -2.0)),)),
        Bars("a", "t", "c", "x", ()),
        Bars("a", "t", "c", "x", (Bar("b", math.nan), Bar("c", 1.0, math.nan, math.inf)), start=1.0),
        Heat("a", "t", "c", "x", "y", (), (), ()),
        Heat("a", "t", "c", "x", "y", ("p",), ("q",), ((math.nan,),), marked=((0, 0),), mark_label="m"),
    ],
    ids=range(8),
)
def test_odd_figures_are_drawn_or_say_so(figure: Any) -> None:
    """Empty, single, infinite and missing values neither crash a drawing nor leak into its coordinates."""
    drawn = svg.draw(figure)
    spec = json.dumps(plots.spec(figure), allow_nan=False)

    assert not re.search(r'="[^"]*\b(nan|inf)', drawn)
    assert spec
    assert isinstance(behind(figure), Table)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(2, 60), st.booleans())
@settings(max_examples=60)
def test_thinning_keeps_the_extremes(values: list[float], limit: int, log: bool) -> None:
    """However a series is thinned, its lowest and highest value and its order remain, and the limit holds."""
    x, y = thin(range(len(values)), values, limit, log=log)

    assert len(y) <= max(limit, 2)
    assert min(y) == min(values) and max(y) == max(values)
    assert list(x) == sorted(set(x))


def test_colours_stand_out_on_both_pages() -> None:
    """Lines and bars keep 3:1 against the light and the dark page."""

    def against(colour: str, page: str) -> float:
        a, b = (luminance(*bytes.fromhex(c[1:])) for c in (colour, page))
        return (max(a, b) + 0.05) / (min(a, b) + 0.05)

    for light, dark in HUES:
        assert against(light, "#ffffff") >= 3
        assert against(dark, "#14171b") >= 3


def test_plotly_is_imported_only_for_its_figures() -> None:
    """Text, HTML and notebook views do without importing plotly."""
    code = (
        "import sys; sys.path[:0] = ['tests/unit']; import reports; from eagle3diag.report import html, notebook, plots;"
        "r = reports.diagnosis(); str(r); html.page(r); notebook.bundle(r); assert 'plotly' not in sys.modules;"
        "plots.figures(r); assert 'plotly' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- notebook ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [*reports.every_kind(), *reports.hostile()], ids=lambda r: type(r).__name__)
def test_notebook_view_needs_no_kernel_and_no_network(result: Result) -> None:
    """The saved output is complete by itself: drawings that tell their values, tables; its one script is ours, and only sorts."""
    bundle = notebook.bundle(result)
    elements = reports.Elements(bundle["text/html"])

    assert bundle["text/plain"] == str(result)
    assert result._repr_mimebundle_() == bundle
    assert not {t for t, _ in elements.seen} & {"img", "iframe", "link"}
    assert [t for t, _ in elements.seen].count("script") == 1
    assert elements.scripts == {"loader": asset("tables.js")}
    assert not [a for _, a in elements.seen if a.get("src") or a.get("href")]
    assert bundle["text/html"].count('<svg class="e3d-svg"') == sum(1 for _ in view(result).figures())
    assert not reports.CONTROLS.search(bundle["text/html"])


def test_lines_tell_their_values_in_a_notebook() -> None:
    """Without a script, the pointer over a line shows series, place and value; at most 48 places a line."""
    figure = Lines("a", "t", "c", "position", "y", (Series("live", tuple(map(float, range(500))), tuple(0.1 * i for i in range(500))),))

    told = re.findall(r"<title>([^<]*)</title>", svg.draw(figure, hover=True))

    assert 40 <= len(told) <= 48
    assert told[0] == "live; position 0: 0" and told[-1] == "live; position 499: 49.9"
    assert "<title>" not in svg.draw(figure)


# -- the strip -----------------------------------------------------------------------------------------------------------------------


def test_strip_is_the_waterfall() -> None:
    """From a perfect draft down to what is observed, each row against the one above, with the diagnosis' own numbers."""
    result = reports.diagnosis()
    strip = view(result).strip

    assert strip is not None and strip.title == "Where acceptance is lost"
    assert [(r.label, r.value, r.whole, r.hue) for r in strip.rows] == [
        ("all drafts right", 5.0, None, 0),
        ("the draft as it was trained", 1.83, 5.0, 0),
        ("FM-01", 1.03, 1.83, 1),
        ("observed", 1.022, 1.03, 4),
    ]
    assert strip.rows[2].note == "one state, fc skipped"
    assert strip.share(1.0) == 0 and strip.share(5.0) == 1 and strip.share(math.nan) == 0
    assert "as it was trained" in str(result) and "█" in str(result)


def three(result: Result) -> dict[str, str]:
    """The words of each rendering, without markup and line ends."""
    told = {"terminal": text.render(result), "page": html.page(result), "notebook": notebook.fragment(result)}
    return {
        name: " ".join(re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]*>", " ", shown, flags=re.DOTALL).split())
        for name, shown in told.items()
    }


def test_suspects_stand_under_what_would_tell_them_apart() -> None:
    """Once each, what tells most first, with what it tells of together; alike in every rendering."""
    played = reports.diagnosis().counterfactuals[1]
    suspects = (
        Suspect("FM-38", "a rotated basis", 0.2, None, "--live live/"),
        Suspect("FM-05", "names dropped", 0.15, played, "--draft FOLDER"),
        Suspect("H3", "another scale", 0.12, None, "--draft FOLDER"),
        Suspect("FM-62", "decay with uptime", 0.01, None, ""),
    )
    result = replace(reports.diagnosis(), suspects=suspects, comparison=None, weights=None, audit=None)
    for name, shown in three(result).items():
        part = shown[shown.index("each would explain the number.") :].split("What would settle the rest")[0]
        assert [
            part.count(words) for words in ("tell: --draft FOLDER (27 % together)", "tell: --live live/", "nothing that can be recorded")
        ] == [1, 1, 1], name
        places = [part.index(words) for words in ("--draft FOLDER", "FM-05", "H3 scale", "--live live/", "FM-38", "nothing", "FM-62")]
        assert places == sorted(places), name
        assert "1.08" in part, name


def test_codes_of_tests_have_their_words() -> None:
    """In the findings, the strip, the tables and the figures of every rendering; a series names each of its parts."""
    base = reports.diagnosis()
    counterfactuals = (replace(base.counterfactuals[0], fault="H3"), *base.counterfactuals[1:])
    series = (replace(base.counterfactuals[1], fault="FM-05+H3"),)
    ranked = (*base.ranked, replace(base.ranked[0], finding=replace(base.ranked[0].finding, fault="K3")))
    stages = (*base.waterfall[:2], replace(base.waterfall[2], name="H3"), base.waterfall[3])
    result = replace(
        base, counterfactuals=counterfactuals, series=series, ranked=ranked, waterfall=stages, comparison=None, weights=None, audit=None
    )
    for name, shown in three(result).items():
        words = {"K3": "dead entries", "H8": "normed or not", "H3": "scale"}
        for code, said in words.items():
            assert f"{code} {said}" in shown and not re.search(rf"\b{code}\b(?! {said})", shown), (name, code)
        assert name == "terminal" or "FM-05+H3 scale" in shown


def test_much_evidence_is_cut_in_a_terminal_with_a_word_about_it() -> None:
    """A finding on twenty tensors has eighty numbers; the page has them all."""
    many = tuple(Evidence(f"tensor {i}", i) for i in range(20))
    result = reports.given(reports.comparison(), replace(reports.FINDINGS[0], evidence=many))
    assert "tensor 11: 11" in text.render(result) and "tensor 12" not in text.render(result) and "8 more numbers" in text.render(result)
    assert "tensor 19" in html.page(result)


def test_strip_needs_two_numbers() -> None:
    """One number alone, or none, is not drawn against nothing."""
    bare = replace(reports.diagnosis(), waterfall=reports.diagnosis().waterfall[:1])

    assert view(bare).strip is None
    assert "Where acceptance" not in str(bare)


def test_verdict_of_a_note_is_healthy() -> None:
    """A note alone leaves the verdict calm."""
    told = view(reports.given(reports.comparison(), reports.FINDINGS[2]))

    assert told.worst is Severity.NOTE
    assert "agree" in told.verdict


@pytest.mark.parametrize("columns", [6, 18, 30])
def test_names_that_are_wanted_whole_go_on_in_the_next_line(columns: int) -> None:
    """Two keys that differ at their beginnings only must not look alike; a single part wider than the column still loses its middle."""
    writer = text._Writer(80, False)
    for name in ("config: eagle_config.eagle_aux_hidden_state_layer_ids", "config: eagle_aux_hidden_state_layer_ids", "[2, 15, 27]", ""):
        lines = writer.cell(name, columns, prose=False, whole=True)
        assert max(map(len, lines)) <= columns
        assert columns < 10 or "".join(lines).replace(" ", "") == name.replace(" ", "")
