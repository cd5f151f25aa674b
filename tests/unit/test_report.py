"""The report: one page form, drawn as text, notebook view and HTML, with whatever comes out of files kept inert."""

from __future__ import annotations

import html.parser
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

from eagle3diag.findings import Result, Severity
from eagle3diag.report import html as page_of
from eagle3diag.report import notebook, plots, svg, text
from eagle3diag.report.form import Bar, Bars, Heat, Lines, Series, Table
from eagle3diag.report.numbers import thin
from eagle3diag.report.palette import HUES, luminance
from eagle3diag.report.safe import redacted, shorten, visible, width
from eagle3diag.report.tables import behind
from eagle3diag.report.views import view

CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


def every_kind() -> list[Result]:
    return [
        reports.given(reports.comparison(), *reports.FINDINGS),
        reports.given(reports.measured_weights()),
        reports.given(reports.acceptance()),
        reports.given(reports.checked(), reports.FINDINGS[0]),
        reports.diagnosis(),
        reports.Oddity("label", (1.0, 2.0), (reports.block(0, 2, 0.9),)),
    ]


def hostile() -> list[Result]:
    """Every kind again, with a string that tries to break out in each place where a file's own words are shown."""
    bad = reports.HOSTILE
    finding = replace(reports.FINDINGS[0], fault=bad, title=bad, because=bad, fix=bad, check=bad)
    finding = replace(finding, evidence=(replace(finding.evidence[0], name=bad, value=bad, expected=bad, source=bad),))
    load = replace(reports.checked().loads[0], name=bad, canonical=bad, into=bad, note=bad, dtype=bad)
    compared = replace(reports.comparison(bad), unaligned=(bad,))
    compared = replace(compared, series=tuple(replace(s, record=bad) for s in compared.series))
    weighed = reports.measured_weights()
    weighed = replace(weighed, draft=bad, tensors=tuple(replace(t, name=bad, note=bad) for t in weighed.tensors))
    diagnosed = replace(reports.diagnosis(bad), trail=(bad,), missing=(bad,), comparison=compared, weights=weighed)
    diagnosed = replace(diagnosed, ranked=tuple(replace(r, finding=finding) for r in diagnosed.ranked))
    diagnosed = replace(diagnosed, counterfactuals=tuple(replace(c, name=bad) for c in diagnosed.counterfactuals))
    return [
        reports.given(compared, finding),
        reports.given(weighed, finding),
        reports.given(replace(reports.acceptance(bad), dump=bad, changes=(bad,)), finding),
        reports.given(replace(reports.checked(bad), loads=(load,)), finding),
        diagnosed,
        reports.Oddity(bad, (), ()),
    ]


class Elements(html.parser.HTMLParser):
    """What a browser would see: element names with their attributes, and script contents by id."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._script: str | None = None
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs).get("id") or "loader"
            self.scripts[self._script] = ""

    def handle_endtag(self, tag: str) -> None:
        self._script = None if tag == "script" else self._script

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] += data


# -- text ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", every_kind(), ids=lambda r: type(r).__name__)
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


@pytest.mark.parametrize("result", hostile(), ids=lambda r: type(r).__name__)
def test_text_shows_control_characters_instead_of_obeying_them(result: Result) -> None:
    """Terminal escapes, line tricks and direction overrides from a file come out as visible escapes."""
    shown = text.render(result)

    assert not CONTROLS.search(shown)
    assert "\\x1b" in shown


def test_long_tables_are_cut_with_a_word_about_it() -> None:
    """A terminal gets the first rows and the number of the others."""
    load = reports.checked().loads[0]
    many = replace(reports.checked(), loads=tuple(replace(load, canonical=f"t{i:03}") for i in range(40)))

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

    assert not CONTROLS.search(shown)
    assert not re.search("[\ud800-\udfff]", shown)
    assert visible(shown) == shown


@given(st.text(), st.integers(1, 40))
def test_shorten_keeps_to_its_columns(value: str, columns: int) -> None:
    """A shortened text is never wider than asked, and a short one is not touched."""
    value = visible(value)
    shown = shorten(value, columns)

    assert width(shown) <= columns
    assert shown == value or width(value) > columns


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("vllm serve m --api-key s3cret", "vllm serve m --api-key (hidden)"),
        ("OPENAI_API_KEY=abc python -m x", "OPENAI_API_KEY=(hidden) python -m x"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer (hidden)"),
        ("token hf_abcdefghijklmnopqrst end", "token (hidden) end"),
        ("--max-total-token 4096 --speculative-num-draft-tokens 5", "--max-total-token 4096 --speculative-num-draft-tokens 5"),
        ("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.q_proj.weight"),
    ],
)
def test_keys_are_not_repeated(given_text: str, shown: str) -> None:
    """API keys in launch commands and logs are hidden, numbers of token flags are not."""
    assert redacted(given_text) == shown


# -- HTML ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", every_kind(), ids=lambda r: type(r).__name__)
def test_page_is_small_offline_and_the_same_each_time(result: Result) -> None:
    """Under 3 MB, no address to fetch from, a policy that forbids fetching, and equal bytes for an equal result."""
    page = page_of.page(result)
    elements = Elements(page)

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


def test_page_carries_the_result_as_json() -> None:
    """What is inside the page is what ``to_dict`` gives, digit for digit."""
    result = reports.given(reports.comparison(), *reports.FINDINGS)

    assert json.loads(Elements(page_of.page(result)).scripts["result"]) == json.loads(json.dumps(result.to_dict()))


@pytest.mark.parametrize("result", hostile(), ids=lambda r: type(r).__name__)
def test_strings_from_files_stay_strings(result: Result) -> None:
    """No element, script or attribute of the page comes from the data, and the JSON still round-trips."""
    page = page_of.page(result)
    elements = Elements(page)

    assert not [t for t, _ in elements.seen if t == "img"]
    assert set(elements.scripts) <= {"result", "figures", "plot-config", "hues", "plotly-packed", "loader"}
    assert not CONTROLS.search(page)
    assert json.loads(elements.scripts["result"]) == json.loads(json.dumps(result.to_dict()))
    if "figures" in elements.scripts:
        for words in re.findall(r'"(?:name|text|title)":"((?:[^"\\]|\\.)*)"', elements.scripts["figures"]):
            assert "<script" not in json.loads(f'"{words}"')


def test_page_without_plotly_keeps_its_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where plotly is not installed, the page is the static one."""
    monkeypatch.setattr(page_of, "_plotly", lambda: (None, ""))
    page = page_of.page(reports.given(reports.comparison()))

    assert "plotly-packed" not in page.split("<script>")[0]
    assert page.count("<svg") == 7
    assert len(page) < 400_000


def test_every_figure_has_caption_drawing_and_table() -> None:
    """Each figure can be read without colour, without JavaScript, and without eyes."""
    page = page_of.page(reports.diagnosis())
    figures = re.findall(r"<figure id='([\w-]+)'>(.*?)</figure>", page, re.DOTALL)

    assert len(figures) == len({name for name, _ in figures}) == 14
    for name, body in figures:
        assert re.search(r"<figcaption>[^<]{20,}", body), name
        assert "<svg" in body and "aria-label=" in body and "<table>" in body, name


def test_lists_that_do_not_fit_are_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the numbers would pass the limit they lose digits, then the longest lists go, and the foot of the page says which."""
    body = {"findings": ["f"] * 50, "short": [1 / 3] * 3, "long": [1 / 3] * 300}

    assert page_of._within(body, 100_000) == (page_of._json(body), [])
    assert json.loads(page_of._within(body, 4_000)[0])["long"] == [0.333333] * 300
    text, left_out = page_of._within(body, 1_000)
    assert json.loads(text) == {"findings": ["f"] * 50, "short": [0.333333] * 3, "long": {"left_out": 300}}
    assert left_out == ["long"]

    monkeypatch.setattr(page_of, "LIMIT", 0)
    page = page_of.page(reports.given(reports.comparison(), *reports.FINDINGS))
    assert "except for the long lists" in page
    assert len(json.loads(Elements(page).scripts["result"])["findings"]) == 3


def test_plotly_uploads_nothing() -> None:
    """The button that sends a chart away is off in the page, and so is the logo that links to the vendor."""
    config = json.loads(Elements(page_of.page(reports.diagnosis())).scripts["plot-config"])

    assert config["showSendToCloud"] is False
    assert config["displaylogo"] is False
    assert config["showEditInChartStudio"] is False


def test_to_html_writes_the_page(tmp_path: Any) -> None:
    """``result.to_html`` is the page, in UTF-8."""
    result = reports.diagnosis()
    path = result.to_html(tmp_path / "r" / "report.html")

    assert path.read_text(encoding="utf-8") == page_of.page(result)


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


@pytest.mark.parametrize("result", [*every_kind(), *hostile()], ids=lambda r: type(r).__name__)
def test_notebook_view_needs_no_kernel_and_no_script(result: Result) -> None:
    """The saved output is complete by itself: drawings and tables, nothing to run and nothing to fetch."""
    bundle = notebook.bundle(result)
    elements = Elements(bundle["text/html"])

    assert bundle["text/plain"] == str(result)
    assert result._repr_mimebundle_() == bundle
    assert not {t for t, _ in elements.seen} & {"script", "img", "iframe", "link"}
    assert not [a for _, a in elements.seen if a.get("src") or a.get("href")]
    assert bundle["text/html"].count("<svg") == sum(1 for _ in view(result).figures())
    assert not CONTROLS.search(bundle["text/html"])


def test_verdict_of_a_note_is_healthy() -> None:
    """A note alone leaves the verdict calm."""
    told = view(reports.given(reports.comparison(), reports.FINDINGS[2]))

    assert told.worst is Severity.NOTE
    assert "agree" in told.verdict
