"""A notebook as one file for others: results drawn anew from their numbers, everything else text, nothing run, nothing told that is private."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import reports
from test_report_redaction import SECRETS

import eagle3diag
from eagle3diag import cli
from eagle3diag.errors import UnreadableFile
from eagle3diag.investigation import Investigation
from eagle3diag.report import html, notebook_file, notebook_page, prose
from eagle3diag.report.notebook import MIME

PROSE = "# A case\n\nServed at **1.02**, `steps=4`.\n\n## What was measured\n\n- one\n- two\n\n| a | b |\n|---|---|\n| x | `y|z` |\n"


def output(data: dict[str, Any], kind: str = "execute_result") -> dict[str, Any]:
    return {"output_type": kind, "metadata": {}, "execution_count": 1, "data": data}


def code(source: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "metadata": {}, "execution_count": 1, "source": source.splitlines(keepends=True), "outputs": list(outputs)}


def words(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def saved(path: Path, *cells: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}), encoding="utf-8")
    return path


def case(path: Path) -> Path:
    """Prose, two results and a printed line."""
    return saved(
        path,
        words(PROSE),
        code("replay = e3.replay(DRAFT, TRAIN)\nreplay", output(reports.acceptance()._repr_mimebundle_())),
        code("print(prompt)", {"output_type": "stream", "name": "stdout", "text": ["Tell me about ", "Ada Lovelace\n"]}),
        code("diagnosis", output(reports.diagnosis()._repr_mimebundle_())),
    )


def page(path: Path, **options: bool) -> str:
    return notebook_page.page(notebook_file.read(path), **options)


def body(text: str) -> str:
    return text[text.index("<main>") : text.index("</main>")]


def test_results_are_drawn_and_open_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``export`` writes a page with prose and results; ``load`` gives both back, and their report can be written."""
    out = tmp_path / "out.html"

    assert cli.main(["export", str(case(tmp_path / "n.ipynb")), "--html", str(out)]) == 0
    assert "2 results" in capsys.readouterr().out
    text, again = out.read_text(), eagle3diag.load(out)
    assert "<h1>A case</h1>" in text and "<h2 id='part-0'>What was measured</h2>" in text and "<td>x</td>" in text
    assert text.count("<h1>") == 1
    assert body(text).count("<div class='e3d'>") == 2 and "Start the server with" in text
    assert isinstance(again, Investigation)
    assert [type(r).__name__ for r in again.results] == ["Replay", "Diagnosis"]
    assert again.results[0] == reports.acceptance()
    assert {f.fault for f in reports.diagnosis().findings} <= {f.fault for f in again.findings}
    assert "result-2-accept-length" in html.page(again)


def test_code_and_printed_text_are_left_out_and_counted(tmp_path: Path) -> None:
    """By default neither is there; asked for, both are; either way the page says so."""
    path = case(tmp_path / "n.ipynb")
    safe, whole = page(path), page(path, include_text=True)

    assert "Ada Lovelace" not in safe and "DRAFT, TRAIN" not in safe
    assert "Tell me about Ada Lovelace" in whole and "replay = e3.replay(DRAFT, TRAIN)" in whole
    assert re.search(r"<td class='l short'>code</td><td class='r short'>3</td>", safe)
    assert re.search(r"<td class='l short'>text output</td><td class='r short'>1</td>", safe)
    assert "text output" not in whole[whole.index("id='left-out'") :]


def test_lines_of_one_loop_stand_together(tmp_path: Path) -> None:
    """What a cell wrote in pieces is one text; errors it wrote in between are another."""
    said = [{"output_type": "stream", "name": name, "text": f"{name} {n}\n"} for n, name in enumerate(("stdout", "stdout", "stderr"))]
    notebook = notebook_file.read(saved(tmp_path / "n.ipynb", code("x", *said)))

    assert [o.text for o in notebook.cells[0].outputs if isinstance(o, notebook_file.Words)] == ["stdout 0\nstdout 1\n", "stderr 2\n"]


def test_the_same_notebook_gives_the_same_bytes(tmp_path: Path) -> None:
    """Wherever it lies, and however often."""
    assert page(case(tmp_path / "a.ipynb")) == page(case(tmp_path / "b.ipynb"))


@pytest.mark.parametrize("place", ["prose", "result", "printed, asked for"])
def test_no_planted_secret_gets_out(tmp_path: Path, place: str) -> None:
    """In prose, in results, in what is printed: keys never; the rest only when asked for."""
    cells = []
    for _, text, _ in SECRETS:
        if place == "prose":
            cells.append(words(text))
        elif place == "result":
            cells.append(code(text, output({MIME: reports.checked(text).to_dict()})))
        else:
            cells.append(code(text, {"output_type": "stream", "name": "stdout", "text": text}))
    text = page(saved(tmp_path / "n.ipynb", *cells, code("x", output({"text/plain": "y"}))), texts=place == "printed, asked for")
    told = body(text) + reports.Elements(text).scripts["result"]

    for kind, _, gone in SECRETS:
        assert not [part for part in gone if part in told], (kind, gone)
        assert f">{kind}</td>" in told


HOSTILE_OUTPUTS = {
    "markup": {"text/html": reports.HOSTILE, "text/plain": reports.HOSTILE},
    "script": {"application/javascript": "document.title = 'pwned'", "text/plain": reports.HOSTILE},
    "our markup, forged": {"text/html": f"<div class='e3d'>{reports.HOSTILE}</div><script>document.title='pwned'</script>"},
    "picture": {"image/svg+xml": "<svg onload=alert(1)>", "image/png": "AAAA"},
    "widget": {"application/vnd.jupyter.widget-view+json": {"model_id": reports.HOSTILE}, "text/plain": reports.HOSTILE},
    "formula": {"text/latex": "$\\href{javascript:alert(1)}{x}$"},
    "forged numbers": {MIME: {"kind": "Replay", "draft": reports.HOSTILE}, "text/html": reports.HOSTILE, "text/plain": reports.HOSTILE},
    "forged kind": {MIME: {"kind": "os.system"}, "text/html": reports.HOSTILE},
    "numbers that do not fit": {MIME: json.loads(reports.comparison().to_json()) | {"order": [[], [0.5]], "blocks": []}},
    "a notebook in a notebook": {
        MIME: {"kind": "Investigation", "title": "x", "results": [{"kind": "Investigation", "title": "", "results": []}]}
    },
    "a result with hostile names": reports.hostile()[4]._repr_mimebundle_(),
}


@pytest.mark.parametrize("name", HOSTILE_OUTPUTS)
def test_hostile_outputs_stay_text(tmp_path: Path, name: str) -> None:
    """Markup of a notebook never becomes markup of the page, not even when it looks like ours."""
    path = saved(tmp_path / "n.ipynb", words(reports.HOSTILE), code(reports.HOSTILE, output(HOSTILE_OUTPUTS[name])))
    for options in ({}, {"include_text": True}):
        text = page(path, **options)
        page_elements = reports.Elements(text)

        assert sorted(page_elements.scripts) == ["loader", "result"] and text.count("<script") == 2
        assert not {"img", "iframe", "object"} & {tag for tag, _ in page_elements.seen}
        assert not [name for _, attributes in page_elements.seen for name in attributes if name.startswith("on")]
        assert all((attributes.get("href") or "#").startswith("#") for _, attributes in page_elements.seen)
        assert "\x1b" not in text and "\u202e" not in text


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "nbformat 4"),
        ('{"nbformat": 3, "worksheets": []}', "nbformat 4"),
        ('{"nbformat": 4, "cells": {}}', "nbformat 4"),
        ('{"nbformat": 4, "cells": [1]}', "cell 1"),
        ('{"nbformat": 4, "cells": [{"cell_type": "code", "source": 3}]}', "cell 1"),
        ('{"nbformat": 4, "cells": [{"cell_type": "code", "source": "", "outputs": 7}]}', "cell 1"),
        ('{"nbformat": 4, "cells": [{"cell_type": "code", "source": "", "outputs": [{"output_type": "x"}]}]}', "cell 1"),
        ('{"nbformat": 4, "cells": [{"cell_type": "code", "source": "", "outputs": [{"output_type": "stream", "text": {}}]}]}', "cell 1"),
        ('{"nbformat": 4, "cells": [{"cell_type": "code", "source": "1", "outputs": []}]}', "run it and save it"),
    ],
)
def test_what_is_no_run_notebook_is_named(tmp_path: Path, content: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one sentence, never a traceback."""
    path = tmp_path / "n.ipynb"
    path.write_text(content)

    with pytest.raises(UnreadableFile, match=told):
        notebook_file.read(path)
    assert cli.main(["export", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """As at every other door: what is no regular file is never read."""
    os.mkfifo(tmp_path / "n.ipynb")

    with pytest.raises(UnreadableFile, match="not a regular file"):
        notebook_file.read(tmp_path / "n.ipynb")


def test_a_large_notebook_stays_under_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The details of the largest results go first, and the page lists them; every verdict is still there."""
    monkeypatch.setattr(notebook_page, "LIMIT", 400_000)
    shown = code("d", output(reports.diagnosis()._repr_mimebundle_()))
    path = saved(tmp_path / "n.ipynb", *[shown] * 4, code("x", {"output_type": "stream", "name": "stdout", "text": "y" * 1_000_000}))
    text = page(path, texts=True)

    assert len(text.encode()) < 400_000
    assert body(text).count("e3d-verdict") == 4
    assert "the details of result" in text[text.index("id='left-out'") :]


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("a\nb\n\nc", "<p>a b</p><p>c</p>"),
        ("**a** *b* a*b*c `**c**` x`", "<p><strong>a</strong> <em>b</em> a*b*c <code>**c**</code> x`</p>"),
        ("1. a\n2. b", "<ol><li>a</li><li>b</li></ol>"),
        ("> a\n> b", "<blockquote><p>a b</p></blockquote>"),
        ("```sh\n<b> **x**\n\ny\n```\nz", "<pre><code>&lt;b&gt; **x**\n\ny</code></pre><p>z</p>"),
        ("```\nnever closed", "<pre><code>never closed</code></pre>"),
        ("[a](javascript:alert(1)) ![b](https://x.org/t.png)", "<p>[a](javascript:alert(1)) b (https://x.org/t.png)</p>"),
        ("<script>x</script>", "<p>&lt;script&gt;x&lt;/script&gt;</p>"),
        ("---", "<hr>"),
        ("### a", "<h3>a</h3>"),
    ],
)
def test_prose_is_markdown_out_of_escaped_text(source: str, made: str) -> None:
    """The few forms that notebooks use; links are words, markup is text."""
    assert prose.blocks(source) == made
