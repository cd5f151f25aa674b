"""The HTML report in a real Chromium, opened from disk: drawn, silent, offline, readable everywhere, and deaf to hostile data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import chromium
import pytest
import reports
import test_report

pytestmark = pytest.mark.browser

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
    for i, result in enumerate(test_report.hostile()):
        result.to_html(path / f"hostile-{i}.html")
    return path


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[chromium.Tab]:
    binary = chromium.find()
    if binary is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with chromium.browser(binary, tmp_path / "profile") as opened:
        yield opened


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
    assert tab.run("document.querySelectorAll('figure .main-svg').length") >= 13
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
    assert tab.run("document.querySelectorAll('figure .static svg').length") == 13
    assert tab.run("document.getElementById('save-json').hidden")
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
    """The saved HTML of a notebook output, put into a bare page, shows its drawings with no script at all."""
    bundle = replace(reports.diagnosis(), verdict=reports.HOSTILE)._repr_mimebundle_()
    page = tmp_path / "cell.html"
    page.write_text(f"<!doctype html><meta charset='utf-8'><body>{bundle['text/html']}", encoding="utf-8")
    tab.open(page, javascript=False)

    assert tab.run("document.querySelectorAll('.e3d svg').length") == 13
    assert tab.run("document.querySelectorAll('img, script').length") == 0
    assert offline(tab) == []
