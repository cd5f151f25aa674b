"""What a reader is told: nothing that the evidence does not carry, nothing cut off that matters, in words that say what is meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import reports
from builders import write_draft

import eagle3diag
from eagle3diag.diagnose import Ranked, Suspect
from eagle3diag.errors import UnreadableFile
from eagle3diag.findings import Finding, Severity
from eagle3diag.report import html, text
from eagle3diag.report.form import Page, Section, Table

SGLANG = "python -m sglang.launch_server --model-path T --speculative-algorithm {} --speculative-draft-model-path {}"
VLLM = 'vllm serve T --speculative-config \'{{"method": "{}", "model": "{}", "num_speculative_tokens": 3}}\''


@pytest.mark.parametrize("command", [SGLANG.format("EAGLE3", "d"), VLLM.format("eagle3", "d")])
def test_a_launch_command_that_names_eagle3_clears_that_suspect(command: str) -> None:
    """Whoever gave the command has shown the flag: it is not undetermined any more."""
    without = eagle3diag.diagnose(acceptance=1.0)
    given = eagle3diag.diagnose(acceptance=1.0, launch=command)
    assert without.suspects[0].fault == "FM-01"
    assert "FM-01" not in [s.fault for s in given.suspects] and "FM-01" not in given.verdict


@pytest.mark.parametrize("command", [SGLANG.format("EAGLE", "d"), SGLANG.format("NEXTN", "d"), VLLM.format("eagle", "d")])
def test_a_launch_command_that_names_eagle_is_said_where_nothing_is_accepted(command: str) -> None:
    """Even with a draft of any name; where drafts are accepted it may be an EAGLE-2 one, so nothing is said."""
    assert eagle3diag.diagnose(acceptance=1.0, launch=command).findings[0].fault == "FM-01"
    assert "FM-01" not in [f.fault for f in eagle3diag.diagnose(acceptance=2.6, launch=command).findings]


def test_a_log_without_a_line_of_a_server_is_no_evidence_of_health(tmp_path: Path) -> None:
    """A launch script, or the log of something else, given as the log: said, and not passed with a green mark."""
    path = tmp_path / "server.log"
    path.write_text("#!/bin/sh\necho starting\nnginx: worker process started\n")
    with pytest.raises(UnreadableFile, match="no line in it is SGLang's or vLLM's"):
        eagle3diag.diagnose(log=path)
    path.write_text("[2026-11-01 10:00:00] server_args=ServerArgs(model_path='T', speculative_algorithm='EAGLE3', version='0.5.8')\n")
    assert any("no accept length in the log" in words for words in eagle3diag.diagnose(log=path).missing)


def test_a_replay_of_nothing_is_a_finding_and_a_counterfactual_is_not() -> None:
    """Where no engine takes part, the cause is in the draft or the dump; a replay that was broken on purpose is meant to be low."""
    healthy = reports.acceptance()
    dead = replace(healthy, accept_length=1.0, rounds=400, changes=(), out_of_vocabulary=0.68)
    assert healthy.ok
    (finding,) = dead.findings
    assert (finding.fault, finding.severity) == ("M1", Severity.WARNING) and "vocabulary is the first suspect" in finding.because
    assert not replace(dead, changes=("d2t lost",)).findings and not replace(dead, rounds=20).findings


@pytest.mark.parametrize("name", ["renamed", "whole"])
def test_an_audit_shows_the_names_it_has_trouble_with_and_no_others(name: str, tmp_path: Path) -> None:
    """A clean list is left to the HTML; of a troubled one only the outcomes that are there are explained, and no name loses its middle."""
    draft = eagle3diag.open_draft(write_draft(tmp_path / "draft"))
    other = draft.replace(rename=lambda tensor: tensor.replace("midlayer.", "other."))
    audited = eagle3diag.audit(other if name == "renamed" else draft)
    shown = str(audited)
    if name == "whole":
        assert "What the loader does" not in shown and "as it was saved" in shown
    else:
        assert "`missing`" in shown and "`raises`" not in shown and "self_attn.q_proj.weight" in shown


def test_prose_in_a_table_wraps_and_names_do_not() -> None:
    """The reason of a change is the one thing that must be read whole."""
    why = "the same boundaries, written where and as the engine reads them, and not where the trainer left them"
    name = "model.layers.0.self_attn.q_proj.weight_with_a_long_tail"
    page = Page("x", "v", (), (), (Section("s", tables=(Table(("what", "why"), ((name, why),), code=(0,)),)),))
    lines = list(text._Writer(60, False).page(page))
    words = " ".join(line[30:].strip() for line in lines)
    assert why in words and max(map(len, lines)) <= 60
    assert sum("…" in line for line in lines) == 1, "the name has one line, and what it has too much is in its middle"


@pytest.mark.parametrize(
    ("severity", "weight", "certainty", "said"),
    [
        (Severity.NOTE, 1e-5, 1e-5, "It hardly explains what was accepted."),
        (Severity.NOTE, 0.06, 0.06, "Its share of what is lost: 6 %."),
        (Severity.NOTE, 0.0, 0.0, ""),
        (Severity.WARNING, 1e-5, 1e-5, "It is in the evidence, but what was accepted speaks against it"),
        (Severity.WARNING, 0.0, 0.0, ""),  # a symptom
        (Severity.WARNING, 0.6, 0.7, "What was accepted makes it 70 % likely that the server has this fault."),
        (Severity.ERROR, 0.97, 0.98, ""),
    ],
)
def test_what_is_in_the_evidence_is_not_called_unlikely(severity: Severity, weight: float, certainty: float, said: str) -> None:
    """A note is a fact, and its doubt is whether it costs anything; of graver findings the contradiction with the number is what is said."""
    base = reports.diagnosis()
    finding = Finding("FM-49", severity, "draft positions off by one in this version")
    shown = " ".join(str(replace(base, ranked=(Ranked(finding, weight, None, None, certainty),), suspects=(), waterfall=())).split())
    assert said in shown and " 0 %" not in shown
    assert said or not any(words in shown for words in ("share of what is lost", "likely that", "explains what was", "speaks against"))


def test_suspects_say_what_would_tell_in_a_terminal() -> None:
    """What the reader acts on is there in 80 columns: once for all faults that it tells apart, and what tells next in the verdict."""
    shown = str(eagle3diag.diagnose(acceptance=1.0))
    verdict, table = shown.split("Undetermined between")
    assert "what would tell next: --launch" in " ".join(verdict.split())
    table = " ".join(table.split("What would settle the rest")[0].split())
    assert table.count("What would tell: --draft FOLDER (") == table.count("What would tell: --launch") == 1 and "together)" in table
    assert all(f" {fault} " in table for fault in ("FM-01", "FM-11", "FM-38"))


@pytest.mark.parametrize(
    ("shares", "rows", "said"),
    [
        ((0.4, 0.2, 0.03, 0.02, 0.001), 2, "and 3 more of 3 % or less each: FM-03, FM-04, FM-05; see the HTML or JSON"),
        ((0.4, 0.2, 0.02), 3, ""),  # one alone has its row
        ((0.02,), 1, ""),
        ((0.011, 0.004), 0, "2 faults of 2 % or less each: FM-01, FM-02; see the HTML or JSON"),
        ((0.05,) * 14, 12, "and 2 more of 5 % or less each: FM-13, FM-14; see the HTML or JSON"),
    ],
)
def test_suspects_of_small_shares_have_one_line_in_a_terminal(shares: tuple[float, ...], rows: int, said: str) -> None:
    """The few that matter have rows; the result, its JSON and its page keep all of them."""
    suspects = tuple(Suspect(f"FM-{n:02}", f"title {n}", share, None, "") for n, share in enumerate(shares, 1))
    result = replace(reports.diagnosis(), suspects=suspects)
    shown = str(result).split("Undetermined between\n")[1].split("\n\n")[0]
    assert [f"title {n}" in shown for n in range(1, len(shares) + 1)] == [n <= rows for n in range(1, len(shares) + 1)]
    assert said in " ".join(shown.split()) and ("see the HTML" in shown) is bool(said)
    assert ("what it is" in shown) is (rows > 0)
    page = html.page(result)
    assert all(f"title {n}" in page for n in range(1, len(shares) + 1)) and len(result.to_dict()["suspects"]) == len(shares)


@pytest.mark.parametrize("make", [reports.comparison, reports.acceptance, reports.diagnosis])
def test_a_result_in_a_prompt_is_one_line(make: object) -> None:
    """Its fields are thousands of numbers."""
    result = make()  # type: ignore[operator]
    assert repr(result).startswith(f"<{type(result).__name__}: ") and len(repr(result)) < 1000 and "\n" not in repr(result)
