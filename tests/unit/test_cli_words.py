"""The command line and what people type by mistake: every wrong word gets the right one back, at exit code 2 and in a line or two."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import write_draft, write_dump

from eagle3diag import cli, cli_options
from eagle3diag.errors import BadArgument
from eagle3diag.faults import named

WRONG = [
    ([], "where to begin"),
    (["diagnos"], "did you mean eagle3diag diagnose?"),
    (["check_dump", "d"], "did you mean eagle3diag check?"),
    (["before_after"], "did you mean eagle3diag report?"),
    (["zzz"], "there are diagnose, compare,"),
    (["audit", "d", "--traget", "t"], "did you mean --target?"),
    (["audit", "d", "--zzz"], "audit --help lists the options"),
    (["diagnose", "d"], "diagnose --draft d"),
    (["audit", "d", "e"], "e is one word too many"),
    (["compare", "d"], "required: LIVE"),
    (["capture"], "--out"),
]


@pytest.mark.parametrize(("argv", "said"), WRONG, ids=[" ".join(argv) or "nothing" for argv, _ in WRONG])
def test_a_wrong_word_is_answered_with_the_right_one(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Usage errors say what was meant, and not the whole usage."""
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    out = capsys.readouterr()
    assert end.value.code == 2 and said in out.err and out.out == ""
    assert not argv or len(out.err.splitlines()) == 2


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["diagnose", "--launch", "no/such.sh"], "nothing is there; expected a launch command"),
        (["diagnose", "--launch", "a b c"], "neither sglang nor vllm"),
        (["diagnose", "--acceptance", "40%"], "an accept length is a plain number"),
        (["diagnose", "--acceptance", "0.02"], "is this an accept rate?"),
        (["audit", "DRAFT", "--engine", "sglang=0.5.8"], "write sglang==VERSION"),
        (["audit", "DRAFT", "--engine", "tgi"], "known: sglang, vllm"),
        (["audit", "DUMP"], "a dump of hidden states, not a checkpoint"),
        (["replay", "DUMP", "DRAFT"], "were two arguments swapped?"),
        (["compare", "DRAFT", "DUMP"], "a checkpoint, not a dump of hidden states"),
        (["audit", "HERE"], "did you mean HERE/draft?"),
        (["check", "HERE"], "did you mean HERE/dump?"),
        (["report", "DRAFT"], "eagle3diag audit DRAFT"),
        (["notebooks", "HERE/n", "--draft", "no/such"], "expected what --draft names"),
        (["check", "DUMP", "--names", "ids"], "write --names input_ids=NAME"),
        (["check", "DUMP", "--names", "live:input_ids=ids"], "leave live: out"),
    ],
)
def test_a_wrong_input_is_answered_with_what_to_do(argv: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what is there, and what was probably meant."""
    write_draft(tmp_path / "draft")
    write_dump(tmp_path / "dump")
    places = {"HERE": tmp_path, "DRAFT": tmp_path / "draft", "DUMP": tmp_path / "dump"}
    for name, path in places.items():
        argv, said = [a.replace(name, str(path)) for a in argv], said.replace(name, str(path))
    assert cli.main(argv) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")


def own_dumps(folder: Path, ids: str, features: str) -> tuple[Path, Path]:
    """Two dumps as anybody writes them: the train side in .npz, the live side in .pt with the first two states exchanged."""
    g = torch.Generator().manual_seed(0)
    for side in ("train", "live"):
        (folder / side).mkdir(parents=True)
    for i in range(2):
        states = [torch.randn(40, 24, generator=g) * (b + 1) for b in range(3)]
        tokens = torch.randint(0, 99, (40,), generator=g)
        arrays: dict[str, Any] = {ids: tokens.numpy(), features: torch.cat(states, -1).numpy()}
        np.savez(folder / "train" / f"{i}.npz", **arrays)
        torch.save({ids: tokens, features: torch.cat([states[1], states[0], states[2]], -1)}, folder / "live" / f"{i}.pt")
    return folder / "train", folder / "live"


@pytest.mark.parametrize(("ids", "features"), [("input_ids", "hidden_states"), ("tokens", "aux"), ("token_ids", "features")])
def test_a_plain_dump_needs_no_words(ids: str, features: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ids and one wide row of numbers for each token can be nothing else, so nobody has to say which is which."""
    train, live = own_dumps(tmp_path, ids, features)
    assert cli.main(["compare", str(train), str(live)]) == 1
    out = capsys.readouterr().out
    assert "FM-33" in out and "rotated basis" not in out and "assumed" in out


def test_names_say_which_tensor_is_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names that nobody could guess are refused with the option that says them, and read with it; one side may be of ours."""
    train, live = own_dumps(tmp_path, "sequence", "h")
    assert cli.main(["compare", str(train), str(live)]) == 2
    assert "--names input_ids=NAME,features=NAME" in capsys.readouterr().err
    assert cli.main(["compare", str(train), str(live), "--names", "input_ids=sequence,features=h"]) == 1
    assert "FM-33" in capsys.readouterr().out


def test_each_side_may_have_its_own_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two writers seldom agree: a side's own words go before those for all, in compare and in diagnose, and a side without any is refused."""
    train, _ = own_dumps(tmp_path / "one", "sequence", "h")
    _, live = own_dumps(tmp_path / "other", "word", "fed")
    every = "train:input_ids=sequence,live:input_ids=word,features=h,live:features=fed"
    assert cli.main(["compare", str(train), str(live), "--names", every]) == 1
    assert "FM-33" in capsys.readouterr().out
    assert cli.main(["diagnose", "--train", str(train), "--live", str(live), "--names", every]) == 1
    assert "FM-33" in capsys.readouterr().out
    assert cli.main(["compare", str(train), str(live), "--names", "train:input_ids=sequence,train:features=h"]) == 2
    assert str(live) in (told := capsys.readouterr().err.replace("\n", " ")) and "--names" in told


@pytest.mark.parametrize("words", ["", "a", "a=", "=b", "a=b,c", "b:a=c", ":a=b", "live:=b"])
def test_names_that_cannot_be_read_are_bad_input(words: str) -> None:
    with pytest.raises(BadArgument, match="--names"):
        cli_options.names(words)


def test_help_leads_with_what_is_the_verbs_own(capsys: pytest.CaptureFixture[str]) -> None:
    """In 80 columns, the common options last, an example at the end."""
    for verb in cli._VERBS:
        with pytest.raises(SystemExit):
            cli.main([verb, "--help"])
        out = capsys.readouterr().out
        assert out.count("eagle3diag") >= 2 and f"usage: eagle3diag {verb}" in out.splitlines()[0], "a usage of one line, and an example"
        assert "--traceback" in out.splitlines()[-6:][0] or out.index("--traceback") > out.index("--progress") > len(out) // 3


def test_a_fault_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """By any spelling of its number, in 80 columns; all titles without one; a code that is none says what it is."""
    for spelling in ("FM-05", "fm-5", "5"):
        assert cli.main(["fault", spelling]) == 0
        out = capsys.readouterr().out
        assert out.startswith("FM-05  Decoder-layer names dropped") and "fix" in out and max(map(len, out.splitlines())) <= 80
    assert cli.main(["fault"]) == 0
    out = capsys.readouterr().out
    assert out.count("  FM-") == 80 and "K1  names" in out
    assert cli.main(["fault", "k4"]) == 0
    assert capsys.readouterr().out.startswith("K4  near its start\n  what shows it")
    assert cli.main(["fault", "X4"]) == 2
    assert "is no fault and no test" in capsys.readouterr().err


def test_every_code_of_a_finding_has_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the code and of the tables of facts: a page each, and the words beside the code in a report."""
    package = Path(cli.__file__).parent
    source = "".join(path.read_text() for folder in ("faults", "engines", "replay") for path in (package / folder).glob("*.py"))
    codes = set(re.findall(r'"((?:FM-\d\d)|[KCHMWD]\d{1,2})"', source))
    assert {"FM-05", "K1", "C0", "H6", "M1"} <= codes
    for code in sorted(codes):
        assert cli.main(["fault", code]) == 0, code
        assert "fix" in capsys.readouterr().out
    assert named("H6") == "H6 shift" and named("FM-05") == "FM-05"


def test_an_interrupt_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends with the shell's own code and a word."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eagle3diag.faults.in_words", interrupt)
    assert cli.main(["fault"]) == 130
    assert capsys.readouterr().err == "eagle3diag: interrupted\n"
