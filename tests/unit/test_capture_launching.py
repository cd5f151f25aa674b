"""The launch command that records: what is added, what is left alone, and that no shell ever sees it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3diag import cli
from eagle3diag.capture.launching import recording_command
from eagle3diag.capture.options import Options
from eagle3diag.capture.vllm import VARIABLE
from eagle3diag.errors import BadArgument

SGLANG = ["python", "-m", "sglang.launch_server", "--model-path", "T", "--speculative-algorithm", "EAGLE3"]
VLLM = ["vllm", "serve", "T", "--speculative-config", '{"method": "eagle3", "model": "D d"}']


def hooks_in(words: tuple[str, ...]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(words[words.index("--forward-hooks") + 1])
    return found


def test_sglang_gets_its_hooks_and_what_they_need(tmp_path: Path) -> None:
    """The words that were there stay, in their order; the folder is absolute; what is set already is not set twice."""
    command = recording_command("sglang", [*SGLANG, "--disable-radix-cache"], str(tmp_path / "live"), limit=7)
    assert command.words[: len(SGLANG)] == tuple(SGLANG) and command.words.count("--disable-radix-cache") == 1
    for flag in ("--disable-cuda-graph", "--disable-overlap-schedule", "--skip-server-warmup"):
        assert flag in command.words and any(flag in sentence for sentence in command.added)
    assert {spec["config"]["part"] for spec in hooks_in(command.words)} == {"model", "fc", "hidden_norm"}
    assert all(spec["config"]["limit"] == 7 and spec["config"]["out"] == str(tmp_path / "live") for spec in hooks_in(command.words))
    assert shlex.split(str(command)) == list(command.words)


@pytest.mark.parametrize("form", [["--forward-hooks", "{}"], ["--forward-hooks={}"]])
def test_hooks_that_are_there_stay(tmp_path: Path, form: list[str]) -> None:
    """Ours are put behind them, in one list."""
    theirs = [{"name": "mine", "target_modules": ["lm_head"]}]
    command = recording_command("sglang", [*SGLANG, *(w.format(json.dumps(theirs)) for w in form)], str(tmp_path / "live"))
    assert hooks_in(command.words)[0] == theirs[0] and len(hooks_in(command.words)) == 4
    assert sum(w.startswith("--forward-hooks") for w in command.words) == 1


def test_vllm_gets_the_plugins_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager only where layers are hooked; a list of allowed plugins is extended; leading assignments are kept."""
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    command = recording_command("vllm", ["A=b c", *VLLM, "--enable-prefix-caching"], str(tmp_path / "live"), every=3)
    assert command.words == (*VLLM, "--no-enable-prefix-caching") and command.environment["A"] == "b c"
    assert Options.read(json.loads(command.environment[VARIABLE])) == Options(str(tmp_path / "live"), every=3)
    assert shlex.split(str(command)) == [f"{k}={v}" for k, v in command.environment.items()] + list(command.words)
    assert "VLLM_PLUGINS" not in command.environment
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    command = recording_command("vllm", VLLM, str(tmp_path / "live"), boundaries=[0, 3])
    assert command.environment["VLLM_PLUGINS"] == "other,eagle3diag" and "--enforce-eager" in command.words


def test_the_target_is_taken_from_the_command(tmp_path: Path) -> None:
    """A folder is named in the dump, with its hash; a name on a hub is left to the engine."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 3}))
    command = recording_command("vllm", ["vllm", "serve", "--model", str(tmp_path)], str(tmp_path / "live"))
    assert json.loads(command.environment[VARIABLE])["target"] == str(tmp_path)
    assert "target" not in json.loads(recording_command("vllm", VLLM, str(tmp_path / "live")).environment[VARIABLE])


@pytest.mark.parametrize(
    ("engine", "words", "options", "message"),
    [
        ("sglang", [], {}, "no command"),
        ("sglang", VLLM, {}, "starts vllm, not sglang"),
        ("sglang", ["ls"], {}, "neither sglang nor vllm"),
        ("sglang", [*SGLANG, "--forward-hooks", "nonsense"], {}, "not JSON"),
        ("sglang", [*SGLANG, "--forward-hooks", "3"], {}, "not a list"),
        ("sglang", SGLANG, {"boundaries": "all"}, "no target is named"),
        ("vllm", VLLM, {"boundaries": "all"}, "cannot be asked"),
        ("vllm", VLLM, {"ids": "hash"}, "salt"),
    ],
)
def test_what_cannot_be_recorded_is_refused(tmp_path: Path, engine: str, words: list[str], options: dict[str, Any], message: str) -> None:
    """Before anything is started."""
    with pytest.raises(BadArgument, match=message):
        recording_command(engine, words, str(tmp_path / "live"), **options)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    """The server could only say so in its log."""
    (tmp_path / "x").write_text("")
    with pytest.raises(BadArgument, match="not empty"):
        recording_command("vllm", VLLM, str(tmp_path))


def test_the_command_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard output nothing else, so that it can be copied; what was added is told beside it."""
    out = tmp_path / "live"
    assert cli.main(["capture", "sglang", "--out", str(out), "--limit", "3", "--boundaries", "1,2", "--", *SGLANG]) == 0
    shown = capsys.readouterr()
    words = shlex.split(shown.out)
    assert words[: len(SGLANG)] == SGLANG and {s["config"].get("boundary") for s in hooks_in(tuple(words))} == {None, 1, 2}
    assert "--disable-cuda-graph" in shown.err and "pip install --no-deps" in shown.err and not out.exists()


def test_the_command_is_run_without_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--run``: words and variables arrive as they were given, and the exit code comes back; the dump is then named, or missed."""
    seen = tmp_path / "seen.json"
    script = tmp_path / "vllm"
    script.write_text(f"import json, os, sys\njson.dump([sys.argv, os.environ['{VARIABLE}']], open({str(seen)!r}, 'w'))\n")
    words = [sys.executable, str(script), "serve", "$(touch pwned)", "a b;c"]
    assert cli.main(["capture", "vllm", "--out", str(tmp_path / "live"), "--run", "--", *words]) == 2
    argv, variable = json.loads(seen.read_text())
    assert argv[1:4] == words[2:] and json.loads(variable)["out"] == str(tmp_path / "live")
    assert "live" in capsys.readouterr().err and not (tmp_path / "pwned").exists()
    assert cli.main(["capture", "vllm", "--out", str(tmp_path / "live"), "--run", "--", "/nowhere/vllm", "serve", "T"]) == 2


def test_the_two_uses_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command without its engine, and a capture without a target, are told what is missing."""
    assert cli.main(["capture", "--out", str(tmp_path / "d"), "--target", "T", "--prompts", "p", "--", "vllm", "serve"]) == 2
    assert "no engine is named" in capsys.readouterr().err
    assert cli.main(["capture", "--out", str(tmp_path / "d")]) == 2
    assert "--target and --prompts missing" in capsys.readouterr().err
