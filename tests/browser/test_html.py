"""The HTML report in a real Chromium, opened from disk: drawn, silent, offline, readable everywhere, and deaf to hostile data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import chromium
import pytest
import reports

from eagle3diag.before_after import before_after
from eagle3diag.report import html, notebook
from eagle3diag.report.form import Page, Section, Table
from eagle3diag.report.views import view

pytestmark = pytest.mark.browser

TOLD = view(reports.diagnosis())
FIGURES, ROWS = len(list(TOLD.figures())), len(TOLD.strip.rows) if TOLD.strip is not None else 0
SHOW_ALL = "document.querySelectorAll('details').forEach(d => { d.open = true })"
DRAW_ALL = """(async () => {
  for (let y = 0; y < document.body.scrollHeight; y += 500) { scrollTo({ top: y, behavior: 'instant' }); await new Promise(done => setTimeout(done, 60)) }
  scrollTo({ top: 0, behavior: 'instant' })
})()"""
ALL_DRAWN = "(([drawn, all]) => drawn === all && +all > 0)((document.documentElement.dataset.plots || '').split('/'))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A diagnosis, the kinds with hostile strings in every place, and a healthy comparison, as files."""
    path = tmp_path_factory.mktemp("pages")
    reports.diagnosis().to_html(path / "diagnosis.html")
    reports.given(reports.comparison()).to_html(path / "healthy.html")
    for i, result in enumerate(reports.hostile()):
        result.to_html(path / f"hostile-{i}.html")
    return path


def offline(tab: chromium.Tab) -> list[str]:
    """What was asked for besides the file itself and pictures inside it."""
    return [url for url in tab.requested if not url.startswith(("file:", "data:image/", "blob:"))]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_figure_is_drawn_without_a_word(tab: chromium.Tab, folder: Path, width: int, dark: bool) -> None:
    """All figures draw, nothing is said on the console, nothing is fetched, the page never scrolls sideways."""
    tab.open(folder / "diagnosis.html", width=width, dark=dark)
    tab.run(SHOW_ALL)
    tab.run(DRAW_ALL)

    assert tab.until(ALL_DRAWN), tab.run("document.documentElement.dataset.plots")
    assert tab.run("document.querySelectorAll('figure .main-svg').length") >= FIGURES
    assert tab.run("[...document.querySelectorAll('.static')].every(s => getComputedStyle(s).display === 'none')")
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert not tab.run("document.body.innerText.includes('undefined') || document.body.innerText.includes('NaN')")
    assert tab.said == []
    assert offline(tab) == []


def test_the_page_offers_no_upload(tab: chromium.Tab, folder: Path) -> None:
    """plotly's buttons have none that sends the chart away, and no link leaves the page."""
    tab.open(folder / "diagnosis.html")
    tab.run(DRAW_ALL)
    tab.until("document.querySelectorAll('.modebar-btn').length > 0")
    titles = tab.run("[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title || b.getAttribute('aria-label') || '')")

    assert titles
    assert not [t for t in titles if any(word in t.lower() for word in ("cloud", "share", "studio", "edit"))]
    assert tab.run("[...document.querySelectorAll('a[href]')].every(a => a.getAttribute('href').startsWith('#'))")


@pytest.mark.parametrize("number", range(6))
def test_hostile_strings_are_inert(tab: chromium.Tab, folder: Path, number: int) -> None:
    """Names with markup, in titles, tables, drawings, hovers and JSON, run nothing and add nothing."""
    tab.open(folder / f"hostile-{number}.html")
    tab.run(SHOW_ALL)
    tab.run(DRAW_ALL)
    if tab.run("document.querySelectorAll('figure').length"):
        assert tab.until(ALL_DRAWN)

    assert tab.run("document.title") != "pwned"
    assert tab.run("document.querySelectorAll('img, iframe, object, [onerror]').length") == 0
    assert tab.run("document.body.innerText.includes('<script>')")
    assert tab.said == []
    assert offline(tab) == []


def test_the_policy_stops_what_escaping_would_miss(tab: chromium.Tab, folder: Path) -> None:
    """Were markup to get through all the same, its script, its handler and its request would be refused."""
    tab.open(folder / "healthy.html")
    tab.run("document.body.insertAdjacentHTML('beforeend', '<img src=\"https://example.com/x.png\" onerror=\"document.title=1\">')")
    tab.run("(s => { s.textContent = 'document.title = 2'; document.body.append(s) })(document.createElement('script'))")

    assert tab.until("true")
    assert tab.run("fetch('https://example.com/').then(() => 'sent', () => 'refused')") == "refused"
    assert tab.run("document.title").startswith("compare:")
    assert len([s for s in tab.said if "Content Security Policy" in s]) >= 3


def test_readable_without_javascript(tab: chromium.Tab, folder: Path) -> None:
    """Findings, tables and all drawings are there; the parts that need a script are not shown."""
    tab.open(folder / "diagnosis.html", width=390, javascript=False)

    assert tab.run("getComputedStyle(document.querySelector('figure .static')).display") == "block"
    assert tab.run("document.querySelectorAll('figure .static svg').length") == FIGURES
    assert tab.run("document.getElementById('save-json').hidden")
    assert tab.run("document.querySelectorAll('button.sort, .filter').length") == 0
    assert tab.run("document.querySelectorAll('.strip .track').length") == ROWS
    assert "Start the server with" in tab.run("document.body.innerText")
    assert tab.run("document.documentElement.scrollWidth") <= 390


def test_colours_follow_the_reader(tab: chromium.Tab, folder: Path) -> None:
    """When the system turns dark while the page is open, drawn figures turn with it."""
    tab.open(folder / "diagnosis.html")
    tab.run("document.getElementById('accept-length').scrollIntoView({ behavior: 'instant' })")
    assert tab.until("document.querySelector('#accept-length .xtick text')")
    ink = "getComputedStyle(document.querySelector('#accept-length .xtick text')).fill"
    bar = "[...document.querySelectorAll('#accept-length .point path')].map(p => getComputedStyle(p).fill)"
    before = tab.run(ink), tab.run(bar)
    tab("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    assert tab.until(f"{ink} !== '{before[0]}'")
    assert tab.until(f"JSON.stringify({bar}) !== JSON.stringify({json.dumps(before[1])})")


def test_keyboard_and_structure(tab: chromium.Tab, folder: Path) -> None:
    """One first-level heading, a skip link first, folds that open with Enter, boxes that can be scrolled with keys."""
    tab.open(folder / "diagnosis.html")

    assert tab.run("document.querySelectorAll('h1').length") == 1
    assert tab.run("[...document.querySelectorAll('h1,h2,h3')].every((h, i, all) => !i || +h.tagName[1] <= +all[i - 1].tagName[1] + 1)")
    assert tab.run("document.querySelector('a').className") == "skip"
    assert tab.run("[...document.querySelectorAll('.scroll')].every(s => s.tabIndex === 0 && s.getAttribute('aria-label'))")
    assert tab.run("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size === document.querySelectorAll('[id]').length")
    tab.run("document.querySelector('section details summary').focus()")
    for kind in ("keyDown", "keyUp"):
        tab(
            "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r" if kind == "keyDown" else ""
        )
    assert tab.until("document.querySelector('section details').open")


TENSORS = "[...document.querySelectorAll('table')].find(t => t.textContent.includes('midlayer.mlp.up_proj.weight'))"


def press(tab: chromium.Tab, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
        tab("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"Enter": 13, "Tab": 9}[key], **text)


@pytest.mark.parametrize("view", ["page", "notebook"])
def test_tables_sort_and_filter(tab: chromium.Tab, folder: Path, tmp_path: Path, view: str) -> None:
    """By click and by key, numbers as numbers and what is missing last; the filter says how many rows are left."""
    rows = tuple(
        (f"layers.{i}.weight", value, "x")
        for i, value in enumerate(("10", "9.5", "-", "1,200", "2e-3", "-3", "5 of 576", "[1.5, 2]", "8 %", "11"))
    )
    table = Table(("name", "value", "note"), rows, align="lrl", title="Many")
    told = Page("compare", "Sorted.", (), (), (Section("Rows", tables=(table,)),))
    result = reports.Oddity("x", (), ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html if view == "page" else notebook, "view", lambda result: told)
        text = html.page(result) if view == "page" else f"<!doctype html><html data-plots='none'><body>{notebook.fragment(result)}"
    page = tmp_path / "table.html"
    page.write_text(text, encoding="utf-8")
    tab.open(page)
    column = "[...document.querySelectorAll('td:nth-child(2)')].filter(c => !c.parentElement.hidden).map(c => c.textContent)"

    tab.run("document.querySelectorAll('button.sort')[1].click()")
    assert tab.run(column) == ["-3", "2e-3", "[1.5, 2]", "5 of 576", "8 %", "9.5", "10", "11", "1,200", "-"]
    assert tab.run("document.querySelectorAll('th')[1].getAttribute('aria-sort')") == "ascending"
    tab.run("document.querySelectorAll('button.sort')[1].focus()")
    press(tab, "Enter")
    assert tab.until("document.querySelectorAll('th')[1].getAttribute('aria-sort') === 'descending'")
    assert tab.run(column) == ["1,200", "11", "10", "9.5", "8 %", "5 of 576", "[1.5, 2]", "2e-3", "-3", "-"]
    tab.run("document.querySelectorAll('button.sort')[0].click()")
    assert tab.run("document.querySelectorAll('[aria-sort]').length") == 1
    tab.run("(i => { i.value = 'LAYERS.3 x'; i.dispatchEvent(new Event('input')) })(document.querySelector('.filter input'))")
    assert tab.run(column) == ["1,200"]
    assert tab.run("document.querySelector('[role=status]').textContent") == "1 of 10 rows"
    assert tab.run("document.querySelector('.filter input').getAttribute('aria-label')") == "Filter the rows of Many"
    assert tab.said == []


def test_the_tab_key_reaches_all(tab: chromium.Tab, folder: Path) -> None:
    """From the skip link on, Tab passes links, columns, boxes and folds, each with a frame that shows where one is."""
    tab.open(folder / "diagnosis.html")
    seen = set()
    for _ in range(40):
        press(tab, "Tab")
        seen.add(tab.run("document.activeElement.className || document.activeElement.tagName"))
        assert tab.run("getComputedStyle(document.activeElement).outlineStyle") != "none"

    assert {"skip", "A", "SUMMARY", "sort", "scroll"} <= seen


def test_zero_width_and_long_words_stay_in_their_place(tab: chromium.Tab, tmp_path: Path) -> None:
    """Characters without width are shown as what they are; a word of 5,000 letters wraps, or scrolls in its box."""
    bad = "a\u200bb\u2066c" + "W" * 5000
    finding = replace(reports.FINDINGS[0], title=bad, because=bad, fix=bad)
    reports.given(replace(reports.checked(bad), assumed=(bad,)), finding).to_html(tmp_path / "long.html")
    tab.open(tmp_path / "long.html", width=390)
    tab.run(SHOW_ALL)

    assert tab.run("document.documentElement.scrollWidth") <= 390
    assert tab.run("document.body.innerText.includes('a\\\\u200bb\\\\u2066c')")
    assert not tab.run("/[\\u200b\\u2066]/.test(document.body.innerText)")


def test_before_and_after_on_a_phone(tab: chromium.Tab, tmp_path: Path) -> None:
    """The page of two results draws without a word, and fits."""
    fixed = replace(reports.diagnosis(), ranked=())
    before_after(reports.diagnosis(), fixed).to_html(tmp_path / "both.html")
    tab.open(tmp_path / "both.html", width=390)

    assert tab.run("document.querySelectorAll('.strip .track').length") == 3
    assert tab.run("document.documentElement.scrollWidth") <= 390
    assert tab.said == [] and offline(tab) == []


def test_a_link_opens_its_fold(tab: chromium.Tab, folder: Path) -> None:
    """Following the contents to a folded part opens it."""
    tab.open(folder / "diagnosis.html")
    tab.run("location.hash = document.querySelector('section.folded').id")

    assert tab.until("document.querySelector('section.folded > details').open")


def test_it_prints(tab: chromium.Tab, folder: Path) -> None:
    """Paper gets every part, with the static drawings, in several pages."""
    tab.open(folder / "diagnosis.html", dark=True)
    paper = tab.paper()

    assert paper.startswith(b"%PDF")
    assert paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page ") + paper.count(b"/Type/Page") >= 4


def test_numbers_can_be_saved(tab: chromium.Tab, folder: Path, tmp_path: Path) -> None:
    """The button writes the JSON that the page carries."""
    tab.open(folder / "healthy.html")
    tab("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    tab.run("document.getElementById('save-json').click()")
    saved = tmp_path / "eagle3diag.json"
    for _ in range(50):
        if saved.exists():
            break
        tab.run("new Promise(done => setTimeout(done, 100))")

    assert saved.read_text() == tab.run("document.getElementById('result').textContent")


def test_notebook_view_survives_alone(tab: chromium.Tab, tmp_path: Path) -> None:
    """The saved HTML of a notebook output, put into a bare page, shows its drawings with JavaScript off."""
    bundle = replace(reports.diagnosis(), verdict=reports.HOSTILE)._repr_mimebundle_()
    page = tmp_path / "cell.html"
    page.write_text(f"<!doctype html><meta charset='utf-8'><body>{bundle['text/html']}", encoding="utf-8")
    tab.open(page, javascript=False)

    assert tab.run("document.querySelectorAll('.e3d svg.e3d-svg').length") == FIGURES
    assert tab.run("document.querySelectorAll('.e3d svg.track').length") == ROWS
    assert tab.run("document.querySelectorAll('img, input').length") == 0
    assert offline(tab) == []
