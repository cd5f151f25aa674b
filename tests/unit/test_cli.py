"""The command line: exit codes, messages, what is imported when, and the public names."""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import reports

import eagle3diag
from eagle3diag import cli, cli_capture, cli_options, progress
from eagle3diag.errors import BadArgument, InputError, UnreadableFile
from eagle3diag.findings import Finding, Result

HEAVY = ("numpy", "plotly", "safetensors", "scipy", "torch", "transformers")


def run(code: str) -> str:
    """The output of a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def answers(monkeypatch: pytest.MonkeyPatch, result: Result | Exception) -> None:
    """Let ``eagle3diag weights`` give ``result``, or raise it."""

    def weights(draft: str, *, spectra: str) -> Result:
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr("sys.argv", ["eagle3diag"])
    monkeypatch.setattr(sys.modules["eagle3diag.weights"], "weights", weights)


def having(*findings: Finding) -> Result:
    return reports.given(reports.comparison(), *findings)


# -- imports and names ---------------------------------------------------------------------------------------------------------------


def test_nothing_heavy_is_imported_early() -> None:
    """Importing the package and the command line takes none of the large packages, so --help answers at once."""
    assert run(f"import sys, eagle3diag, eagle3diag.cli\nprint([m for m in {HEAVY} if m in sys.modules])") == "[]"


@pytest.mark.parametrize("option", [["--help"], ["--version"], ["compare", "--help"]])
def test_help_and_version_import_next_to_nothing(option: list[str]) -> None:
    """They exit 0 with under a hundred modules more than a bare interpreter: counted, because a clock is not to be trusted in CI."""
    code = (
        "import sys, contextlib, io\nbefore = set(sys.modules)\nfrom eagle3diag.cli import main\n"
        f"with contextlib.redirect_stdout(io.StringIO()) as out:\n    try: main({option})\n    except SystemExit as end: assert end.code == 0\n"
        "assert len(out.getvalue()) > 10\nprint(len(set(sys.modules) - before))"
    )

    assert int(run(code)) < 100


def test_public_names_are_pinned() -> None:
    """A name more or less is a decision; each of them resolves."""
    assert eagle3diag.__all__ == [
        "BadArgument",
        "CaptureError",
        "Eagle3DiagError",
        "Finding",
        "FindingsFound",
        "InputError",
        "MismatchedInputs",
        "MissingDependency",
        "MissingPart",
        "Severity",
        "UnreadableFile",
        "UnsafeFile",
        "UnusableServer",
        "Workbench",
        "audit",
        "before_after",
        "capture",
        "check_dump",
        "compare",
        "convert",
        "diagnose",
        "load",
        "open_draft",
        "open_dump",
        "open_target",
        "probe",
        "replay",
        "weights",
    ]
    assert eagle3diag.__all__ == sorted(eagle3diag.__all__)
    assert all(callable(getattr(eagle3diag, name)) for name in eagle3diag.__all__)
    assert set(eagle3diag.__all__) <= set(dir(eagle3diag))
    assert eagle3diag.__version__ == "0.1.0"


VERBS = ("audit", "before_after", "capture", "compare", "convert", "diagnose", "replay", "weights")
FIRST = {  # what a program may do with a verb's module before it calls the verb; each in a fresh interpreter
    "imports the folder": "import importlib\nfor v in VERBS: importlib.import_module(f'eagle3diag.{v}')",
    "takes something out of the folder": "from eagle3diag.compare import Comparison\nfrom eagle3diag.replay import Replay",
    "takes the verb": "from eagle3diag import audit, before_after, capture, compare, diagnose, replay, weights",
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST.keys())
def test_a_verb_is_the_function_whatever_was_imported_before(first: str) -> None:
    """``eagle3diag.compare`` is callable although a folder of that name exists, and the folder stays importable."""
    out = run(
        f"VERBS = {VERBS}\n{first}\nimport sys, types, importlib, eagle3diag\nfor v in VERBS:\n"
        "    assert isinstance(getattr(eagle3diag, v), types.FunctionType), v\n"
        "    folder = importlib.import_module(f'eagle3diag.{v}')\n"
        "    assert isinstance(folder, types.ModuleType) and folder is sys.modules[f'eagle3diag.{v}'], v\n"
        "    assert getattr(folder, v) is getattr(eagle3diag, v), v\n"
        "print('ok')"
    )

    assert out == "ok"


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name fails as it does for any module."""
    with pytest.raises(AttributeError, match="has no attribute 'comparee'"):
        eagle3diag.comparee  # noqa: B018 - the access is what is tested


# -- exit codes ----------------------------------------------------------------------------------------------------------------------

ERROR, WARNING, NOTE = reports.FINDINGS


@pytest.mark.parametrize(
    ("findings", "options", "code"),
    [
        ((), [], 0),
        ((NOTE,), [], 0),
        ((WARNING, NOTE), [], 1),
        ((WARNING, NOTE), ["--fail-on", "error"], 0),
        ((ERROR,), ["--fail-on", "error"], 1),
        ((ERROR,), ["--json"], 1),
    ],
)
def test_exit_code_follows_the_findings(
    findings: tuple[Finding, ...], options: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 below the limit, 1 at or above it; the limit is a warning unless said otherwise."""
    answers(monkeypatch, having(*findings))

    assert cli.main(["weights", "d", *options]) == code
    assert capsys.readouterr().err == ""


def test_json_is_the_result(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """stdout holds one JSON document and nothing else."""
    answers(monkeypatch, having(ERROR))
    cli.main(["weights", "d", "--json"])

    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(having(ERROR).to_dict() | {"removed": {}}))


def test_html_is_written_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``--html`` writes the page and says where."""
    answers(monkeypatch, having())
    path = tmp_path / "r.html"

    assert cli.main(["weights", "d", "--html", str(path)]) == 0
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert f"report: {path}" in capsys.readouterr().out


def test_a_path_that_cannot_be_written_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 and one clear message."""
    answers(monkeypatch, having())
    (tmp_path / "file").write_text("")

    assert cli.main(["weights", "d", "--html", str(tmp_path / "file" / "r.html")]) == 2
    assert "cannot write the report" in capsys.readouterr().err


def test_bad_input_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, what and where and what to do, no traceback; what came from a file is shown, not obeyed."""
    answers(monkeypatch, UnreadableFile("the header is cut off \x1b[2J", where="d/m.safetensors", hint="copy it again"))

    assert cli.main(["weights", "d"]) == 2
    assert capsys.readouterr().err == "eagle3diag: d/m.safetensors: the header is cut off \\x1b[2J\n  -> copy it again\n"


def test_a_path_that_does_not_exist_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    """The real readers, not a stand-in: exit 2 and the path in the message."""
    for argv in (["weights", "/no/such/draft"], ["audit", "/no/such/draft"], ["compare", "/no/such/a", "/no/such/b"]):
        assert cli.main(argv) == 2
        assert "/no/such/" in capsys.readouterr().err


def test_our_own_crash_is_three(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3, said to be our fault; the traceback comes only when asked for."""
    answers(monkeypatch, ZeroDivisionError("boom"))

    assert cli.main(["weights", "d"]) == 3
    said = capsys.readouterr().err
    assert "a fault of eagle3diag 0.1.0" in said and "boom" in said and "Traceback" not in said
    assert cli.main(["weights", "d", "--traceback"]) == 3
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 9.0 GiB"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"),
    ],
)
def test_a_lack_of_memory_is_no_fault_of_anyone(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, and what makes this verb smaller; its options are those that the verb has."""
    answers(monkeypatch, error)
    assert cli.main(["weights", "d"]) == 2
    said = capsys.readouterr().err
    assert "out of memory in weights" in said and "->" in said and "fault of eagle3diag" not in said and str(error) in said
    for verb, hint in cli._LESS.items():
        with pytest.raises(SystemExit):
            cli.main([verb, "--help"])
        shown = capsys.readouterr().out
        assert [option for option in re.findall(r"--[a-z-]+", hint) if option not in shown] == []


@pytest.mark.parametrize(
    "argv", [[], ["bogus"], ["compare", "one"], ["replay", "d", "x", "--steps", "many"], ["weights", "d", "--fail-on", "never"]]
)
def test_usage_errors_are_two(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """argparse's own code for usage is the code for bad input."""
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2


def test_the_demo_is_told_where_things_are(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The options reach the demo; without samples it is bad input, not a crash."""
    from eagle3diag import demo

    seen: list[tuple[str | None, ...]] = []
    with monkeypatch.context() as patch:
        patch.setattr(demo, "run", lambda *given: seen.append(given))
        assert cli.main(["demo", "--target", "t", "--html", "out.html"]) == 0
    assert seen == [("t", None, "out.html")]
    assert cli.main(["demo", "--samples", "/no/such/samples"]) == 2
    assert "/no/such/samples" in capsys.readouterr().err


def test_diagnose_without_evidence_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to look at; the message says what to give."""
    assert cli.main(["diagnose"]) == 2
    assert "--draft" in capsys.readouterr().err


def test_a_closed_pipe_is_no_crash() -> None:
    """``eagle3diag ... | head -1`` ends without a message."""
    code = (
        "import sys; sys.path[:0] = ['tests/unit']; import reports; from eagle3diag import cli\n"
        "import eagle3diag.weights; sys.modules['eagle3diag.weights'].weights = lambda d, *, spectra: reports.diagnosis()\n"
        "sys.exit(cli.main(['weights', 'd', '--json']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()  # before anything is written: what fits into the pipe's buffer would be written without an error
    said = process.stderr.read()
    process.stderr.close()

    assert process.wait() == 141
    assert said == b""


def test_colour_follows_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Auto is off without a terminal and with NO_COLOR; always is always."""
    answers(monkeypatch, having(ERROR))
    cli.main(["weights", "d"])
    assert "\x1b" not in capsys.readouterr().out
    cli.main(["weights", "d", "--colour", "always"])
    assert "\x1b[1;31m" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert cli._colour("auto")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not cli._colour("auto")


def test_python_m_is_the_command() -> None:
    """``python -m eagle3diag`` answers."""
    out = subprocess.run([sys.executable, "-m", "eagle3diag", "--version"], capture_output=True, text=True, check=True).stdout

    assert out == "eagle3diag 0.1.0\n"


# -- capture -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xff", "not UTF-8"),
        (b'{"text": "a"}\n{"text"', ":2: not JSON"),
        (b"[1, 2]\n", "neither"),
        (b'{"answer": "a"}\n', "neither"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_bad_prompt_files_name_their_line(content: bytes, said: str, tmp_path: Path) -> None:
    """Each unreadable line is one clear error."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)

    with pytest.raises(UnreadableFile) as error:
        list(cli_capture._lines(path))
    assert said in str(error.value)


@pytest.mark.parametrize(
    "line", [{"prompt_ids": []}, {"prompt_ids": [1, -2]}, {"prompt_ids": "12"}, {"prompt_ids": [1, True]}, {"text": 5}]
)
def test_bad_prompts_are_refused(line: dict[str, Any]) -> None:
    """Ids are whole numbers, and a prompt is not empty."""
    with pytest.raises(InputError):
        cli_capture._ids(line, None, 100, where="p:1")


def test_boundaries_are_read() -> None:
    """Numbers with commas, ``all``, or nothing."""
    assert cli_capture._boundaries("2,15,27") == (2, 15, 27)
    assert cli_capture._boundaries("all") == "all"
    assert cli_capture._boundaries(None) is None
    with pytest.raises(BadArgument, match="two"):
        cli_capture._boundaries("two")


def test_capture_writes_a_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tiny target over given ids: prompt and answer are one record that knows where the answer begins."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "target")
    lines = [{"prompt_ids": [1, 2, 3], "output_ids": [4, 5]}, {"prompt_ids": [6, 7, 8, 9]}]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    common = ["--target", str(tmp_path / "target"), "--prompts", str(tmp_path / "prompts.jsonl")]

    assert cli.main(["capture", *common, "--boundaries", "2,3", "--out", str(tmp_path / "dump")]) == 0
    dump = eagle3diag.open_dump(tmp_path / "dump")
    assert [r.input_ids.tolist() for r in dump] == [[1, 2, 3, 4, 5], [6, 7, 8, 9]]
    assert dump[0].prompt_length == 3
    assert dump.boundaries == (2, 3)
    assert "wrote 2 sequences" in capsys.readouterr().out

    assert (
        cli.main(["capture", *common, "--boundaries", "all", "--max-new", "3", "--side", "reference", "--out", str(tmp_path / "all")]) == 0
    )
    reference = eagle3diag.open_dump(tmp_path / "all")
    assert reference.side == "reference"
    assert reference[0].boundaries == tuple(range(7))
    assert len(reference[1].input_ids) == 4 + 3 - 1  # generate never feeds its last token


# -- progress ------------------------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_silent_where_nobody_watches() -> None:
    """Nothing by default and nothing in a log; the items pass through unchanged."""
    for wanted, stream in ((False, Terminal()), (None, io.StringIO())):
        with progress.shown(wanted):
            assert list(progress.track(range(3), "x", stream=stream)) == [0, 1, 2]
            with progress.saying(stream=stream) as say:
                say("step")
        assert stream.getvalue() == ""
    stream = Terminal()
    assert list(progress.track(range(3), "x", stream=stream)) == [0, 1, 2]
    assert stream.getvalue() == ""


def test_progress_redraws_one_line_on_a_terminal() -> None:
    """A terminal shows steps in place and gets its line back."""
    stream = Terminal()
    with progress.shown(None), progress.saying(stream=stream) as say:
        say("reading")
    assert stream.getvalue() == "\r\x1b[2Kreading ...\r\x1b[2K"


def test_progress_counts_up_to_an_error() -> None:
    """An exception inside the loop passes, and the count stays true."""
    stream = io.StringIO()
    with progress.shown(True), pytest.raises(ValueError, match="stop"):
        for item in progress.track(range(5), "x", stream=stream):
            if item == 2:
                raise ValueError("stop")
    assert stream.getvalue().startswith("x 2/5")


def test_every_verb_has_help() -> None:
    """Each subcommand describes itself in one sentence."""
    actions = [a for a in cli_options.build(cli._VERBS)._actions if isinstance(a, argparse._SubParsersAction)]

    measuring = ("diagnose", "compare", "check", "audit", "convert", "weights", "replay", "probe", "capture")
    verbs = {*measuring, "fault", "report", "notebooks", "export", "demo"}
    assert set(actions[0].choices) == verbs
    assert all(p.description and p.description.endswith(".") for p in actions[0].choices.values())
