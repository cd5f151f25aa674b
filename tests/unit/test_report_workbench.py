"""The workbench, driven from Python as a person would drive it in a notebook."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import reports

import eagle3diag
from eagle3diag.errors import BadArgument, MissingDependency

pytest.importorskip("ipywidgets")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the form hands to ``diagnose``, which answers at once, in two steps."""
    seen: dict[str, Any] = {}

    def diagnose(*, progress: Any, **evidence: Any) -> Any:
        seen.update(evidence)
        progress("reading the launch command")
        seen["status on the way"] = seen["workbench"].status.value
        if evidence.get("log") == "bad":
            raise BadArgument("the log is <b>odd</b>", where="server.log", hint="give another")
        if evidence.get("log") == "crash":
            raise ZeroDivisionError("oops")
        return reports.diagnosis()

    monkeypatch.setattr(sys.modules["eagle3diag.diagnose"], "diagnose", diagnose)
    return seen


def workbench(given: dict[str, Any], folder: Path) -> eagle3diag.Workbench:
    given["workbench"] = eagle3diag.Workbench(folder)
    return given["workbench"]  # type: ignore[no-any-return]


def test_pick_run_read_export(given: dict[str, Any], tmp_path: Path) -> None:
    """Fields filled, Diagnose pressed: steps appear, then the findings; Export writes the page."""
    form = workbench(given, tmp_path)
    form.fields["draft"].value = " ./draft "
    form.fields["acceptance"].value = "1.03"
    assert form.export.disabled

    form.run.click()

    assert {k: given[k] for k in ("draft", "acceptance")} == {"draft": "./draft", "acceptance": "1.03"}
    assert "target" not in given and "engine" not in given
    assert "reading the launch command" in given["status on the way"]
    assert form.result == reports.diagnosis()
    assert "fc is skipped without a word" in form.shown.value and "<svg" in form.shown.value
    assert "2 findings above a note" in form.status.value
    form.path.value = str(tmp_path / "out" / "r.html")
    form.export.click()
    assert (tmp_path / "out" / "r.html").read_text().startswith("<!doctype html>")
    assert "without paths, hosts and texts" in form.status.value


def test_a_case_folder_fills_the_fields(given: dict[str, Any], tmp_path: Path) -> None:
    """What lies in the folder is put in; what was typed already stays."""
    (tmp_path / "live").mkdir()
    (tmp_path / "server.log").write_text("x")
    (tmp_path / "launch.txt").write_text("x")
    form = workbench(given, tmp_path)
    form.fields["log"].value = "mine.log"

    form.fields["case"].value = str(tmp_path)

    assert form.fields["live"].value == str(tmp_path / "live")
    assert form.fields["launch"].value == str(tmp_path / "launch.txt")
    assert form.fields["log"].value == "mine.log"
    assert "found live, launch, log" in form.status.value


def test_what_could_be_picked_is_offered(given: dict[str, Any], samples: Path) -> None:
    """Checkpoints, dumps, recorded servers and logs below the folder are suggested."""
    offered = workbench(given, samples).fields["draft"].options

    assert str(samples / "draft") in offered and str(samples / "train") in offered
    assert str(samples / "live" / "eagle_flag" / "server.log") in offered


def test_bad_input_is_said_under_the_form(given: dict[str, Any], tmp_path: Path) -> None:
    """Our exceptions are shown with their hint, escaped; the button works again, and there is nothing to export."""
    form = workbench(given, tmp_path)
    form.fields["log"].value = "bad"

    form.run.click()

    assert "server.log: the log is &lt;b&gt;odd&lt;/b&gt;" in form.status.value and "give another" in form.status.value
    assert not form.run.disabled and form.export.disabled and form.result is None
    form.fields["case"].value = str(tmp_path / "empty")
    assert "nothing to look at" in form.status.value


def test_our_own_crash_is_said_to_be_ours(given: dict[str, Any], tmp_path: Path) -> None:
    """Anything else is called a fault of ours; ipywidgets puts its traceback into the notebook's log."""
    form = workbench(given, tmp_path)
    form.fields["log"].value = "crash"

    form.run.click()

    assert "a fault of eagle3diag" in form.status.value and not form.run.disabled


def test_an_impossible_path_is_refused(given: dict[str, Any], tmp_path: Path) -> None:
    """A report that cannot be written is said so."""
    form = workbench(given, tmp_path)
    form.run.click()
    (tmp_path / "file").write_text("x")
    form.path.value = str(tmp_path / "file" / "r.html")

    form.export.click()

    assert "cannot write the report" in form.status.value


def test_it_shows_as_a_widget(given: dict[str, Any], tmp_path: Path) -> None:
    """JupyterLab and VS Code get the widget's own view."""
    assert "application/vnd.jupyter.widget-view+json" in workbench(given, tmp_path)._repr_mimebundle_()


def test_without_ipywidgets_it_names_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the library does without; the form says what it needs."""
    monkeypatch.setitem(sys.modules, "ipywidgets", None)

    with pytest.raises(MissingDependency) as caught:
        eagle3diag.Workbench()

    assert caught.value.hint == "pip install 'ipywidgets>=8.1'"
