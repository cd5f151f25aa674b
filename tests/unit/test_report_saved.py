"""Results that travel: saved, exported, opened again, held against each other, and without a secret in any of it."""

from __future__ import annotations

import json
import re
import secrets
import sys
from dataclasses import is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import pytest
import reports
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_report_redaction import CARRIERS, SECRETS

import eagle3diag
from eagle3diag import bounds, cli
from eagle3diag.before_after import before_after
from eagle3diag.errors import BadArgument, UnreadableFile
from eagle3diag.evidence import evidence
from eagle3diag.findings import Evidence, Result
from eagle3diag.investigation import Investigation
from eagle3diag.report import html as page_of
from eagle3diag.report.saved import KINDS, load
from eagle3diag.report.views import view
from eagle3diag.serving.answers import Answer

ROOT = Path(__file__).resolve().parents[2]
FIXED = replace(
    reports.diagnosis("Nothing is wrong: 1.80 is served, the replay gives 1.83."),
    observed=replace(reports.diagnosis().observed, accepted=800),  # type: ignore[type-var]
    ranked=reports.diagnosis().ranked[1:],
)


def results() -> list[Result]:
    """One of each kind, with NaN, None, nested and empty values in them."""
    bare = replace(reports.diagnosis(), observed=None, replay=None, live_replay=None, audit=None, comparison=None, weights=None, ranked=())
    return [
        reports.comparison(),
        reports.measured_weights(),
        reports.acceptance(),
        reports.checked(),
        replace(reports.checked(), vocabulary=None, aux_boundaries=None, needs_target_width=float("nan")),
        reports.diagnosis(),
        bare,
        before_after(reports.diagnosis(), FIXED),
        reports.dump_check(),
        Investigation("A case", (reports.acceptance(), reports.dump_check(), reports.checked())),
    ]


# -- opening again -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", results(), ids=lambda r: type(r).__name__)
def test_what_is_saved_opens_as_it_was(result: Result, tmp_path: Path) -> None:
    """JSON and HTML give back the same kind with the same values, and from there the same bytes."""
    for path in (result.save(tmp_path / "r.json"), result.to_html(tmp_path / "r.html")):
        again = load(path)

        assert type(again) is type(result)
        assert json.dumps(again.to_dict(), sort_keys=True) == json.dumps(result.to_dict(), sort_keys=True)
        assert str(again) == str(result)
        assert again.to_json() == result.to_json()
        assert page_of.page(again) == page_of.page(result)


def test_a_notebook_inside_a_notebook_is_refused(tmp_path: Path) -> None:
    """Results of results would have no end."""
    inner = Investigation("inner", ()).to_dict()
    (tmp_path / "r.json").write_text(json.dumps(Investigation("outer", ()).to_dict() | {"results": [inner]}))

    with pytest.raises(UnreadableFile, match="a notebook inside a notebook"):
        load(tmp_path / "r.json")


def test_every_kind_of_result_can_be_opened() -> None:
    """A new kind of result is one more line in the table of kinds."""
    text = "\n".join(p.read_text() for p in (ROOT / "eagle3diag").rglob("*.py"))

    assert set(re.findall(r"^class (\w+)\(Result\)", text, re.MULTILINE)) == set(KINDS)


def test_a_saved_measurement_is_judged_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of the version that opens the file count, not those of the one that wrote it."""
    path = reports.comparison().save(tmp_path / "r.json")
    monkeypatch.setattr("eagle3diag.faults.judge", lambda result: reports.FINDINGS)

    assert load(path).findings == reports.FINDINGS
    assert json.loads(path.read_text())["findings"] != load(path).to_dict()["findings"]


def test_unknown_fields_are_passed_over_and_new_ones_take_their_default(tmp_path: Path) -> None:
    """A file of a neighbouring version opens: a field more is ignored, a field with a default may be missing."""
    body = json.loads(reports.acceptance().to_json())
    (tmp_path / "r.json").write_text(json.dumps({k: v for k, v in body.items() if k != "changes"} | {"from_the_future": [1]}))

    assert load(tmp_path / "r.json") == reports.acceptance()


def broken(**changes: Any) -> str:
    body: dict[str, Any] = json.loads(reports.comparison().to_json())
    return json.dumps(body | changes)


PAGE = page_of.page(reports.acceptance())
BAD: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "neither the JSON"),
    "no text": (b"\xff\xff\x00", "is not UTF-8 text"),
    "half a text": (b"\xff\xfe\x00", "is not UTF-16 text"),
    "another JSON": ('{"a": 1}', "not a result of eagle3diag"),
    "a list": ("[1]", "not a result of eagle3diag"),
    "a number": ("1", "not a result of eagle3diag"),
    "cut off": (reports.comparison().to_json()[:500], "cut off"),
    "a page cut off": (PAGE[: PAGE.index('id="result"') + 200], "cut off"),
    "another page": ("<!doctype html><html><p>hello</p></html>", "without the numbers"),
    "unknown kind": ('{"kind": "os.system"}', "unknown kind 'os.system'"),
    "kind of another type": ('{"kind": ["Audit"]}', "not a result"),
    "a kind without values": ('{"kind": "Replay"}', "replay.draft is missing"),
    "not JSON": ('{"kind": "Replay", "steps": NaN}', "neither"),
    "nested without end": ("[" * 100_000, "neither"),
    "rows of different lengths": (broken(order=[[0.5, 0.4], [0.5]]), "comparison.order has rows of different lengths"),
    "a text for a number": (broken(hidden_size="576; import os"), "comparison.hidden_size is '576; import os', not int"),
    "a boolean for a number": (broken(hidden_size=True), "not int"),
    "a list for an object": (broken(train=[]), "comparison.train is [], not an object"),
    "an object for a list": (broken(blocks={}), "comparison.blocks is {}, not a list"),
    "a wrong item": (broken(blocks=[{"block": None}]), "comparison.blocks[0].block is None, not int"),
    "a pair of three": (broken(shift=[[1, 2, 3]]), "comparison.shift[0] has 3 values, not 2"),
    "null for a value": (broken(order=None), "comparison.order is None, not a list"),
    "left out": (broken(series={"left_out": 9}), "did not fit into the page: open the saved JSON"),
    "huge number": (broken(hidden_size=1e400), "neither"),
}


@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_said_to_be_bad(content: str | bytes, words: str, tmp_path: Path) -> None:
    """Whatever the file is, the answer is our exception with the place and what to do; nothing in it is run or imported."""
    path = tmp_path / "r.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(UnreadableFile) as caught:
        load(path)

    assert words in caught.value.what
    assert caught.value.where == str(path) and caught.value.hint
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("path", ["nowhere.json", "a\0b", "."])
def test_a_path_that_is_no_file(path: str, tmp_path: Path) -> None:
    """A missing file, a folder and an impossible name are said to be that."""
    with pytest.raises(UnreadableFile):
        load(tmp_path / path)


def put(result: Result, at: str, value: Any) -> str:
    """The saved result with ``value`` at a path such as ``audit.shapes.0.found``."""
    body = json.loads(result.to_json())
    holder: Any = body
    *way, last = at.split(".")
    for step in way:
        holder = holder[int(step) if isinstance(holder, list) else step]
    holder[int(last) if isinstance(holder, list) else last] = value
    return json.dumps(body)


ABSURD: list[tuple[Result, str, Any, str]] = [
    (reports.acceptance(), "rounds", -1, "replay.rounds is -1, not within 0"),
    (reports.acceptance(), "rounds", 1 << 60, "replay.rounds is"),
    (reports.acceptance(), "p.1", 1.5, "replay.p is 1.5, not within 0 to 1"),
    (reports.acceptance(), "p.1", 0.9, "no draft is accepted more often than the one before it"),
    (reports.acceptance(), "p", [0.5], "one value a step"),
    (reports.acceptance(), "accept_length", 1e308, "replay.accept_length is 1e+308"),
    (reports.acceptance(), "accept_length", "inf", "replay.accept_length is inf"),
    (reports.acceptance(), "accept_length", 0.2, "replay.accept_length is 0.2, not within 1"),
    (reports.acceptance(), "accept_length", 7.0, "steps + 1 tokens"),
    (reports.acceptance(), "accept_length_interval", [1.9, 1.7], "replay.accept_length_interval ends before it begins"),
    (reports.acceptance(), "p_interval.0", [0.9, 0.1], "replay.p_interval ends before it begins"),
    (reports.acceptance(), "served", [[1, 2], [3]], "replay.served has rows of different lengths"),
    (reports.acceptance(), "served", [[1, 2], [3, 4]], "one row and column for each"),
    (reports.acceptance(), "served", [[-1] * 5] * 5, "replay.served is -1"),
    (reports.acceptance(), "records.0.rounds", -3, "replay.records[0].rounds is -3"),
    (reports.comparison(), "order.0.0", 17.0, "comparison.order is 17, not within -1 to 1"),
    (reports.comparison(), "reference", [[0.5, 0.5, 0.5]], "a row for each of its boundaries"),
    (reports.comparison(), "blocks.0.cosine.p5", 0.999, "comparison.blocks[0].cosine does not hang together: quantiles rise"),
    (reports.comparison(), "blocks.0.tokens", -1, "comparison.blocks[0].tokens is -1"),
    (reports.comparison(), "train.counters.fc_calls", -1, "comparison.train.counters is -1"),
    (reports.comparison(), "series.0.cosine", [1.0], "a value for each position"),
    (reports.dump_check(), "parts.0.zero_rows", 501, "those that are odd"),
    (reports.measured_weights(), "tensors.0.size", 5, "the product of the shape"),
    (reports.measured_weights(), "tensors.0.spectrum.singular_values.0", 0.0, "singular values fall"),
    (reports.diagnosis(), "ranked.0.weight", 0.95, "one together"),
    (reports.diagnosis(), "observed.p.0", -0.5, "diagnosis.observed.p is -0.5"),
    (reports.diagnosis(), "counterfactuals.0.served_alike", 5, "a part of served_rounds"),
]


@pytest.mark.parametrize(("result", "at", "value", "words"), ABSURD, ids=[f"{at} {value!r:.20}" for _, at, value, _ in ABSURD])
def test_numbers_that_nothing_measures_are_refused(result: Result, at: str, value: Any, words: str, tmp_path: Path) -> None:
    """A file changed by hand: the field is named, and what it can hold."""
    (tmp_path / "r.json").write_text(put(result, at, value))
    with pytest.raises(UnreadableFile) as caught:
        load(tmp_path / "r.json")
    assert words in caught.value.what


def test_every_bound_is_of_a_field() -> None:
    """No range and no rule outlives its field; and what has no range of its own is a count where whole numbers are held."""
    kinds = every_kind_inside()
    named = {name for kind in kinds for field in bounds._ranges(kind) for name in (field, f"{kind.__name__}.{field}")}

    assert set(bounds._RANGES) <= named and set(bounds._TOGETHER) <= {kind.__name__ for kind in kinds}
    assert bounds._ranges(Answer)["prompt_tokens"] == bounds._COUNT


def every_kind_inside() -> set[type[Any]]:
    """The kinds of results, and every dataclass that is somewhere in one."""
    found: set[type[Any]] = set()
    todo: list[Any] = [getattr(import_module(module), kind) for kind, module in KINDS.items()]
    while todo:
        hint = todo.pop()
        todo += get_args(hint)
        if is_dataclass(hint) and hint not in found:
            found.add(cast("type[Any]", hint))
            todo += get_type_hints(hint).values()
    return found


WHOLE = reports.acceptance().to_json()


@given(st.integers(0, len(WHOLE) - 1), st.text('{}[]",:0aN-\x00', min_size=0, max_size=3))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_opens_or_is_refused(tmp_path: Path, place: int, instead: str) -> None:
    """Any character replaced by any others: a whole result or our exception, never another one."""
    path = tmp_path / "r.json"
    path.write_text(WHOLE[:place] + instead + WHOLE[place + 1 :], encoding="utf-8")
    try:
        str(load(path))
    except UnreadableFile:
        return


# -- safe to share -------------------------------------------------------------------------------------------------------------------


def planted() -> Result:
    """A diagnosis with every planted secret in what it took from logs, commands, paths, configs and names."""
    texts = [text for _, text, _ in SECRETS]
    evidence = tuple(Evidence(f"line {i}", text, expected=text, source="log") for i, text in enumerate(texts))
    load_ = reports.checked().loads[0]
    finding = replace(reports.FINDINGS[0], because=" ".join(texts), fix=texts[0], evidence=evidence)
    result = reports.diagnosis(" and ".join(texts[:3]))
    return replace(
        result,
        ranked=tuple(replace(r, finding=finding) for r in result.ranked),
        replay=reports.acceptance("/home/alice/drafts/one"),
        audit=replace(reports.checked("/home/alice"), loads=tuple(replace(load_, name=t, note=t) for t in texts), assumed=tuple(texts)),
        comparison=replace(reports.comparison("C:\\Users\\alice"), unaligned=tuple(texts)),
        trail=tuple(texts),
        missing=tuple(texts),
        counterfactuals=tuple(replace(c, name=texts[i]) for i, c in enumerate(result.counterfactuals)),
    )


def readable(page: str) -> str:
    """The page without what is packed in it, and what is packed in it besides plotly."""
    import base64
    import gzip

    figures = re.search(r'id="figures-packed">([^<]*)<', page)
    inside = gzip.decompress(base64.b64decode(figures[1])).decode() if figures else ""
    return re.sub(r'id="(?:plotly|figures)-packed">[^<]*<', "", page) + inside


def test_no_planted_secret_is_in_what_travels(tmp_path: Path) -> None:
    """Sixty planted secrets, in some twenty places each: none is in the HTML, its JSON, its drawings or the saved JSON."""
    result = planted()
    known = readable(page_of.page(reports.diagnosis()))
    files = {"html": readable(result.to_html(tmp_path / "r.html").read_text()), "json": result.save(tmp_path / "r.json").read_text()}

    parts = [part for _, _, gone in SECRETS for part in gone if part not in known]
    assert len(parts) > 60
    for name, text in files.items():
        assert not [part for part in parts if part in text or json.dumps(part)[1:-1] in text], name


def test_no_key_in_any_carrier_is_in_any_rendering(tmp_path: Path) -> None:
    """One random key in every spelling, as evidence, advice, trail and name: not in the terminal's text, a notebook's view, HTML or JSON, nor
    where all text was asked for."""
    key = f"q7{secrets.token_hex(8)}Zw"
    texts = [carrier.replace("KEY", key) for carriers in CARRIERS.values() for carrier in carriers]
    shown = tuple(Evidence(f"line {i}", text, expected=text, source=text) for i, text in enumerate(texts))
    finding = replace(reports.FINDINGS[0], because="\n".join(texts), fix=texts[0], evidence=shown)
    result = reports.diagnosis(texts[0])
    result = replace(
        result,
        ranked=tuple(replace(r, finding=finding) for r in result.ranked),
        trail=tuple(texts),
        missing=tuple(texts),
        counterfactuals=tuple(replace(c, name=texts[i]) for i, c in enumerate(result.counterfactuals)),
        comparison=replace(reports.comparison(), unaligned=tuple(texts)),
        audit=replace(reports.checked(), assumed=tuple(texts)),
    )
    renderings = {
        "terminal": str(result),
        "notebook": json.dumps(result._repr_mimebundle_()),
        "html": readable(result.to_html(tmp_path / "r.html").read_text()),
        "json": result.to_json(),
        "html with text": readable(result.to_html(tmp_path / "t.html", include_text=True).read_text()),
        "json with text": result.to_json(include_text=True),
    }
    # eight characters are no accident, as five are among the megabytes of a page's script
    assert not [name for name, text in renderings.items() for i in range(len(key) - 7) if key[i : i + 8] in text]


def test_what_was_removed_is_listed(tmp_path: Path) -> None:
    """By kind and number of places, in the page and in the JSON; and still so when the saved file becomes a page."""
    path = planted().save(tmp_path / "r.json")
    counts = json.loads(path.read_text())["removed"]
    page = page_of.page(load(path))

    assert set(counts) == {kind for kind, _, _ in SECRETS}
    assert min(counts.values()) >= 5
    assert json.loads(reports.Elements(page).scripts["result"])["removed"] == counts
    listed = page.split("id='left-out'")[1]
    for kind, places in counts.items():
        assert re.search(rf">{kind}</td><td[^>]*>{places:,}</td>", listed), kind


def test_text_is_included_when_asked_for_and_keys_never(tmp_path: Path) -> None:
    """``include_text`` keeps paths, hosts and names; a key stays out of every file."""
    result = planted()
    page = readable(result.to_html(tmp_path / "r.html", include_text=True).read_text())

    assert "/home/alice/drafts/one" in page and "10.12.0.7" in page and "gpu17.cluster.internal" in page
    assert "planted123" not in page and "MIIEow" not in page
    assert "were kept because that was asked for" in page
    assert load(tmp_path / "r.html").to_dict()["replay"]["draft"] == "/home/alice/drafts/one"


def test_judgement_does_not_hang_on_what_is_removed() -> None:
    """The findings of a page are those of the result: nothing that judges reads a host, a person or a key."""
    from eagle3diag.report.redaction import cleaned

    for result in results():
        assert [f.fault for f in cleaned(result).findings] == [f.fault for f in result.findings]


# -- before and after ----------------------------------------------------------------------------------------------------------------


def test_before_and_after(tmp_path: Path) -> None:
    """What is gone, what is still there, what it did to the accept length; from results as from files of both kinds."""
    before, after = reports.diagnosis(), FIXED
    result = before_after(before.save(tmp_path / "b.json"), after.to_html(tmp_path / "a.html"))

    assert result == before_after(before, after)
    assert [f.fault for f in result.gone] == ["FM-01"] and [f.fault for f in result.still] == ["FM-28"] and result.new == ()
    assert result.gained == pytest.approx(0.8 - 0.022)
    told = view(result)
    assert told.verdict == "Accept length 1.02 before, 1.80 after: 1 finding gone, 1 finding still there."
    assert told.strip is not None and [r.label for r in told.strip.rows[:2]] == ["observed before", "observed after"]
    assert told.remarks == ("It was there before the fix.", "It was there before the fix.")
    assert "FM-01" in page_of.page(result).split("part-1-title")[2]


def test_a_new_fault_leads(tmp_path: Path) -> None:
    """Faults come in series: what the first one hid is new, and stands first."""
    result = before_after(FIXED, reports.diagnosis())

    assert [f.fault for f in result.new] == ["FM-01"] and result.findings[0].fault == "FM-01"
    assert view(result).remarks[0] == "New since the fix."
    assert not result.ok


def test_two_kinds_are_not_compared() -> None:
    """A replay has nothing to say after a diagnosis."""
    with pytest.raises(BadArgument, match="a Diagnosis and a Replay cannot be compared"):
        eagle3diag.before_after(reports.diagnosis(), reports.acceptance())


# -- the command ---------------------------------------------------------------------------------------------------------------------


def test_report_of_a_saved_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``eagle3diag report saved.json --html out.html`` shows it, writes it, and exits as the verb that made it did."""
    saved = reports.diagnosis().save(tmp_path / "r.json")

    code = cli.main(["report", str(saved), "--html", str(tmp_path / "r.html"), "--colour", "never"])

    assert code == cli.FINDINGS
    assert capsys.readouterr().out.startswith(str(reports.diagnosis()))
    assert (tmp_path / "r.html").read_text() == page_of.page(reports.diagnosis())


def test_report_of_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two files are before and after; ``--json`` gives what opens again."""
    before, after = reports.diagnosis().save(tmp_path / "b.json"), FIXED.to_html(tmp_path / "a.html")

    assert cli.main(["report", str(before), str(after), "--json"]) == cli.FINDINGS

    (tmp_path / "both.json").write_text(capsys.readouterr().out)
    assert load(tmp_path / "both.json") == before_after(reports.diagnosis(), FIXED)


def test_report_of_a_folder_takes_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of a case are known by their names; a plain log wins over a packed one; the draft may be given beside the folder."""
    for name in ("train", "live"):
        (tmp_path / "case" / name).mkdir(parents=True)
    for name in ("launch.txt", "server.log", "server.log.gz", "notes.md"):
        (tmp_path / "case" / name).write_text("x")
    seen: dict[str, Any] = {}
    monkeypatch.setattr(sys.modules["eagle3diag.diagnose"], "diagnose", lambda **given: seen.update(given) or reports.diagnosis())

    cli.main(["report", str(tmp_path / "case"), "--draft", "elsewhere", "--html", str(tmp_path / "r.html")])

    assert {k: Path(v).name for k, v in seen.items() if isinstance(v, str)} == {
        "train": "train",
        "live": "live",
        "launch": "launch.txt",
        "log": "server.log",
        "draft": "elsewhere",
    }


def test_report_of_an_empty_folder_says_what_it_looked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, with the names that a case may have."""
    assert cli.main(["report", str(tmp_path)]) == cli.BAD_INPUT
    assert "draft, target, train, live, reference, launch.txt, server.log, acceptance.json" in capsys.readouterr().err


def test_include_text_at_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` and ``--html`` are safe to pass on unless ``--include-text`` is given."""
    saved = replace(reports.acceptance("/home/alice/one")).save(tmp_path / "r.json", include_text=True)

    cli.main(["report", str(saved), "--json"])
    assert json.loads(capsys.readouterr().out)["draft"] == "(home)/one"
    cli.main(["report", str(saved), "--json", "--include-text"])
    assert json.loads(capsys.readouterr().out)["draft"] == "/home/alice/one"


def test_case_folder_of_a_sample(samples: Path) -> None:
    """A recorded server is such a folder as it lies there."""
    assert set(evidence(samples / "live" / "eagle_flag")) == {"live", "launch", "log", "acceptance"}
