"""Reports and exported notebooks for every reader: names that a screen reader says, contrast, order of focus, paper, and Firefox."""

from __future__ import annotations

from pathlib import Path

import chromium
import firefox
import pytest
import reports
from test_html import SHOW_ALL, offline, press
from test_notebook_export import HOSTILE_OUTPUTS, case, code, output, saved, words

from eagle3diag.report import notebook_file, notebook_page

pytestmark = pytest.mark.browser
KINDS = ("report", "notebook")

CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report and an exported notebook, by kind."""
    path = tmp_path_factory.mktemp("pages")
    reports.diagnosis().to_html(path / "report.html")
    page = notebook_page.page(notebook_file.read(case(path / "n.ipynb")), include_text=True)
    (path / "notebook.html").write_text(page, encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_text_stands_out_from_what_is_behind_it(tab: chromium.Tab, folder: Path, kind: str, dark: bool) -> None:
    """Every text, unfolded parts and drawings included, in both themes, on a desktop and on a phone."""
    for width in (1280, 390):
        tab.open(folder / f"{kind}.html", width=width, dark=dark, javascript=width > 1000)
        tab.run(SHOW_ALL)
        assert tab.run(CONTRAST) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_screen_reader_has_a_name_for_everything(tab: chromium.Tab, folder: Path, kind: str) -> None:
    """In the tree that Chromium hands to screen readers, whatever can be used or stands for a picture or a part has a name."""
    tab.open(folder / f"{kind}.html")
    tab.run(SHOW_ALL)
    tab("Accessibility.enable")
    nodes = [n for n in tab("Accessibility.getFullAXTree")["nodes"] if not n.get("ignored")]
    need = {"button", "link", "textbox", "searchbox", "image", "table", "region", "navigation", "heading", "DisclosureTriangle"}
    nameless = [n["role"]["value"] for n in nodes if n["role"]["value"] in need and not n.get("name", {}).get("value", "").strip()]
    roles = [n["role"]["value"] for n in nodes]

    assert nameless == []
    assert roles.count("main") == 1 and roles.count("navigation") == 1 and roles.count("banner") == 1 and roles.count("contentinfo") == 1
    assert {"table", "columnheader", "heading", "link", "image"} <= set(roles)
    assert tab.run("document.documentElement.lang") == "en" and tab.run("document.title")
    assert tab.run('document.querySelectorAll(\'[tabindex]:not([tabindex="0"]):not([tabindex="-1"])\').length') == 0
    assert tab.run("[...document.querySelectorAll('th')].every(h => h.scope)")


@pytest.mark.parametrize("kind", KINDS)
def test_focus_goes_down_the_page(tab: chromium.Tab, folder: Path, kind: str) -> None:
    """Tab visits what can be used in the order in which it is read, and each place shows where one is."""
    tab.open(folder / f"{kind}.html")
    places = []
    for _ in range(30):
        press(tab, "Tab")
        places.append(tab.run("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
        assert tab.run("getComputedStyle(document.activeElement).outlineStyle") != "none"

    assert places == sorted(set(places))
    tab.open(folder / f"{kind}.html")
    press(tab, "Tab")
    press(tab, "Enter")
    assert tab.until("document.querySelector(location.hash || '#none') !== null")


@pytest.mark.parametrize("javascript", [True, False], ids=["with a script", "without"])
@pytest.mark.parametrize("width", [1280, 390])
def test_an_exported_notebook_reads_everywhere(tab: chromium.Tab, folder: Path, width: int, javascript: bool) -> None:
    """From disk, with and without JavaScript: prose, results and drawings; no word on the console, no request, nothing sideways."""
    tab.open(folder / "notebook.html", width=width, javascript=javascript)
    tab.run(SHOW_ALL)

    assert tab.run("document.querySelectorAll('svg.e3d-svg').length") > 10
    assert tab.run("document.body.innerText.includes('Start the server with')")
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert (tab.run("document.querySelectorAll('button.sort').length") > 0) == javascript
    if javascript:
        first = "document.querySelector('.e3d table:has(button.sort) tbody td:last-child').textContent"
        before = tab.run(first)
        tab.run("[...document.querySelectorAll('.e3d table:has(button.sort)')][0].querySelector('th:last-child button').click()")
        tab.run("[...document.querySelectorAll('.e3d table:has(button.sort)')][0].querySelector('th:last-child button').click()")
        assert tab.run("document.querySelectorAll('[aria-sort=descending]').length") == 1, before
    assert tab.said == [] and offline(tab) == []


def test_a_hostile_notebook_is_inert(tab: chromium.Tab, tmp_path: Path) -> None:
    """Markup, scripts, forged views and hostile names of a notebook, prose and code included, run nothing and fetch nothing."""
    cells = [cell for data in HOSTILE_OUTPUTS.values() for cell in (words(reports.HOSTILE), code(reports.HOSTILE, output(data)))]
    page = notebook_page.page(notebook_file.read(saved(tmp_path / "n.ipynb", *cells)), include_text=True)
    (tmp_path / "hostile.html").write_text(page, encoding="utf-8")
    tab.open(tmp_path / "hostile.html")
    tab.run(SHOW_ALL)

    assert tab.run("document.title") != "pwned"
    assert tab.run("document.querySelectorAll('img, iframe, object, [onerror]').length") == 0
    assert tab.run("document.querySelectorAll('script:not([type])').length") == 1
    assert tab.run("document.body.innerText.includes('<script>')")
    assert tab.said == [] and offline(tab) == []


@pytest.mark.parametrize("kind", KINDS)
def test_paper_gets_what_is_folded(tab: chromium.Tab, folder: Path, kind: str) -> None:
    """Printed as it opens, a folded part is on the paper too."""
    tab.open(folder / f"{kind}.html")
    whole = len(tab.paper())
    tab.run("document.querySelectorAll('details').forEach(d => d.remove())")

    assert len(tab.paper()) < whole * 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_firefox_draws_it(folder: Path, kind: str, tmp_path: Path) -> None:
    """A picture of the page in Firefox, opened from disk, is not blank; its network is a closed door."""
    binary = firefox.find()
    if binary is None:
        pytest.skip("no Firefox: apt-get install firefox-esr")
    picture = firefox.picture(binary, folder / f"{kind}.html", tmp_path / "p.png", tmp_path)

    assert picture.stat().st_size > 30_000
