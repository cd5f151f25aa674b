"""Every command that a text of ours names is one: our own parser takes it, and the engines know the options."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from replay_reference import agreeing_text, dump_of
from small import H, V, small_draft

import eagle3diag
from eagle3diag import cli, cli_capture, cli_options, faults
from eagle3diag.checkpoints import Draft, Target
from eagle3diag.dumps import HiddenStates
from eagle3diag.engines import options_sglang, options_vllm
from eagle3diag.replay import build
from eagle3diag.serving import parse_launch

PACKAGE = Path(cli.__file__).parent
OURS = re.compile(r"eagle3diag ([a-z]+)\b")
TABLES = (options_sglang.TABLE, options_vllm.TABLE)
SOURCES = [
    *sorted((PACKAGE / "faults").glob("*.py")),
    *sorted((PACKAGE / "diagnose").glob("*.py")),
    *sorted((PACKAGE / "engines").glob("*.py")),
]


def literals(path: Path) -> Iterator[str]:
    """The texts of a module; what is put into them when they are made stands there as X."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node) if part is not node}
    for node in nodes:
        if id(node) in inside:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def told() -> Iterator[tuple[str, str]]:
    """Every text that a finding, the catalogue or a diagnosis may show, with where it stands."""
    for code, words in (faults.in_words() | faults.tests_in_words()).items():
        yield from ((f"{code} {field}", text) for field, text in words.items() if isinstance(text, str))
    for path in SOURCES:
        yield from ((path.name, text) for text in literals(path))


def checked(text: str) -> int:
    """Commands in ``text``, each parsed; in backticks where it is more than the name of a verb."""
    whole = [part for part in text.split("`")[1::2] if part.startswith("eagle3diag ")]
    for command in whole:
        words, behind = cli_capture.split(shlex.split(command)[1:])
        assert words[0] in cli._VERBS, command
        if len(words) == 1:
            continue
        try:
            cli_options.read(words, cli._VERBS)
        except SystemExit:
            pytest.fail(f"not a command of ours: {command}")
        if behind and behind != ["COMMAND"]:
            assert parse_launch(shlex.join(behind)).algorithm in ("EAGLE3", "eagle3"), command
    outside = " ".join(text.split("`")[::2])
    for found in OURS.finditer(outside):
        assert not re.match(r"( [\w/.]+){0,3} --?[a-z]", outside[found.end() :]), f"a command without backticks: {text}"
    return len(whole)


def test_commands_in_texts_are_commands() -> None:
    """Of the catalogue, the tests beside it, the findings and the words of a diagnosis."""
    assert sum(checked(text) for _, text in told()) > 100


def test_options_in_the_catalogue_are_options() -> None:
    """Between backticks, and not of a command of ours: of a version of SGLang or vLLM that was read."""
    unknown = {
        (code, option)
        for code, words in faults.in_words().items()
        for field in ("measure", "fix")
        for span in words[field].split("`")[1::2]
        for option in re.findall(r"(?<![\w-])--([a-z][\w-]*)", span)
        if not span.startswith("eagle3diag ") and not any(t.ever(option) or t.ever(option.removeprefix("no-")) for t in TABLES)
    }
    assert not unknown


def test_backticks_come_in_pairs() -> None:
    """An odd one would set half of the text as code."""
    assert not [(where, text) for where, text in told() if text.count("`") % 2 and "``" not in text and " " in text]


TARGET = Target(
    "small",
    {"hidden_size": H, "num_hidden_layers": 4, "vocab_size": V, "num_attention_heads": 4, "tie_word_embeddings": True},
    {"model.embed_tokens.weight": torch.randn(V, H, generator=torch.Generator().manual_seed(1)), "model.norm.weight": torch.ones(H)},
)
VLLM = """\
INFO 11-29 10:00:00 [core.py:58] Initializing a V1 LLM engine (v0.32.0) with config: model='T', speculative_config=SpeculativeConfig(\
method='eagle3', model='D', num_spec_tokens=3), tokenizer='T', dtype=torch.bfloat16
INFO 11-29 10:00:10 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 1.05, Accepted throughput: 1.00 tokens/s, Drafted throughput: \
9.00 tokens/s, Accepted: 20 tokens, Drafted: 1200 tokens, Per-position acceptance rate: 0.040, 0.007, 0.003, Avg Draft acceptance rate: 1.7%
"""
SGLANG = (
    "[2026-11-01 10:00:00] server_args=ServerArgs(model_path='T', speculative_algorithm='EAGLE3', speculative_draft_model_path='D', "
    "speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4)\n"
    "[2026-11-01 10:00:09] Decode batch, #running-req: 1, #token: 353, token usage: 0.00, accept len: 1.02, accept rate: 0.01, cuda graph: True\n"
)
COST = {"log": 0, "acceptance": 0, "engine": 0, "launch": 0, "draft": 0, "target": 0, "train": 1, "reference": 1, "live": 2}


def own_embedding() -> Draft:
    draft = small_draft()
    return draft.replace(tensors={**draft.tensors, "embed_tokens.weight": TARGET.tensors["model.embed_tokens.weight"]})


@lru_cache(maxsize=1)
def train() -> HiddenStates:
    return dump_of(agreeing_text(build(small_draft(), TARGET), 60))


def cases() -> dict[str, dict[str, Any]]:
    """What a user has, from least to most."""
    files: dict[str, Any] = {"draft": own_embedding(), "log": VLLM}
    return {
        "a number": {"acceptance": 1.0},
        "the log": {"log": SGLANG},
        "vLLM's log": {"log": VLLM},
        "the checkpoint": {"draft": small_draft()},
        "checkpoint and log": files,
        "and the command": {"draft": small_draft(), "log": SGLANG, "launch": "sglang serve --model-path T --speculative-algorithm EAGLE3"},
        "and the target": files | {"target": TARGET},
        "and a training dump": files | {"target": TARGET, "train": train()},
        "and a live dump": files | {"target": TARGET, "train": train(), "live": replace(train(), side="live", engine="vllm")},
    }


@pytest.mark.parametrize("case", cases())
def test_what_a_diagnosis_asks_for(case: str) -> None:
    """Nothing that was given; a word or a file that is there before what must be run, and that before what must be recorded; as commands that are
    understood."""
    given = cases()[case]
    found = eagle3diag.diagnose(**given)
    texts = [found.verdict, *found.missing, *(s.tell for s in found.suspects)]
    texts += [text for f in found.findings for text in (f.title, f.because, f.fix, f.check)]
    for text in texts:
        checked(text)
        for command in re.findall(r"--launch '(?!the command)([^']*)'", text):
            parse_launch(command)

    asked = [kinds for line in found.missing if (kinds := re.findall(rf"(?:pass |or |--out |; )-{{0,2}}({'|'.join(COST)})\b[/ ]", line))]
    first = [min(COST[k] for k in kinds) for kinds in asked]
    assert first == sorted(first), found.missing
    assert not {k for kinds in asked for k in kinds} & (set(given) - {"log"})


def test_the_target_is_asked_for_before_any_dump() -> None:
    """A draft with an embedding of its own can be replayed without the target; but the target is a file that the user has."""
    missing = eagle3diag.diagnose(**cases()["checkpoint and log"]).missing
    assert next(line for line in missing if "--" in line).endswith("pass --target FOLDER"), missing
    assert [line.split(":")[0] for line in missing] == ["no target", "no training dump", "no live dump"]
    assert "capture vllm" in missing[-1]


def test_a_log_that_names_the_algorithm_clears_that_suspect() -> None:
    """It is what ran, whether or not the command is given; and a log that says nothing of its start does not."""
    silent = SGLANG.split("\n", 1)[1]
    assert "FM-01" in [s.fault for s in eagle3diag.diagnose(log=silent + "\n").suspects]
    for log in (SGLANG, VLLM):
        found = eagle3diag.diagnose(log=log)
        assert found.suspects and "FM-01" not in [s.fault for s in found.suspects] and "FM-01" not in found.verdict
