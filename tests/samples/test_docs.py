"""The commands and the code of the documentation are run as they stand."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections import defaultdict
from pathlib import Path

import pytest

from eagle3diag import cli, cli_capture, cli_options
from eagle3diag.dumps.formats import FORMATS
from eagle3diag.engines import options_sglang, options_vllm
from eagle3diag.engines.rules import Version

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted((ROOT / "docs" / "journeys").glob("*.md")), ROOT / "docs" / "compare.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_code_runs(page: Path, target_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks of a page, one after the other, from the root of a checkout."""
    monkeypatch.chdir(ROOT)
    names = {"TARGET": str(target_folder)}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, page.name, "exec"), names)  # our own pages


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_commands_run(page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every ``eagle3diag`` command that names shipped files ends clean or with findings, not with bad input."""
    monkeypatch.chdir(ROOT)
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["eagle3diag"]:
                assert cli.main(words[1:]) in (0, 1), line
                assert capsys.readouterr().out


def commands(text: str) -> list[list[str]]:
    """Every line of the shell blocks of a page, in words; lines that go on are joined."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    made = []
    for block in blocks:
        words = shlex.split(re.sub(r"\\\n\s*", " ", block).replace("\n", " \0 "), comments=True)
        while words:
            end = words.index("\0") if "\0" in words else len(words)
            made.append(words[:end])
            words = words[end + 1 :]
    return [words for words in made if words]


def test_every_command_of_ours_is_one() -> None:
    """In shell blocks and in the middle of sentences, on every page: the verb is there, and it has the options."""
    parser = cli_options.build(defaultdict(lambda: lambda _: 0))
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices
    seen = 0
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        text = page.read_text(encoding="utf-8")
        inline = [
            re.findall(r"[^\s`]+", said)
            for said in re.findall(r"`(eagle3diag [a-z][^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        ]
        for words in [w for w in commands(text) if w[0] == "eagle3diag"] + inline:
            own, _ = cli_capture.split(words[1:])
            assert own[0].startswith("-") or own[0] in verbs, f"{page.name}: {words}"
            known = {option for action in verbs[own[0]]._actions for option in action.option_strings} if own[0] in verbs else {own[0]}
            asked = {re.match(r"-+[\w-]*", w.lstrip("["))[0] for w in own if re.match(r"\[?--?[a-z]", w)}  # type: ignore[index]
            assert asked <= known | {"--version", "--help"}, f"{page.name}: {words}"
            seen += 1
    assert seen > 45


def test_every_option_of_an_engine_is_one() -> None:
    """Launch commands on every page use what the newest version that was read has."""
    seen = 0
    for page in DOCS.rglob("*.md"):
        for said in map(" ".join, commands(page.read_text(encoding="utf-8"))):
            for start, table in (("sglang.launch_server", options_sglang.TABLE), ("vllm serve", options_vllm.TABLE)):
                for option in re.findall(r"(?<= --)[a-z][\w-]*", said.partition(start)[2]):
                    newest = Version.parse(table.read[-1])
                    assert table.knows(option.removeprefix("no-"), newest) or table.knows(option, newest), f"{page.name}: --{option}"
                    seen += 1
    assert seen > 20


def test_the_commands_that_wrap_a_server_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command of the pages on dumps prints what to start, recorder included; the Python beside it compiles and imports what is there."""
    pages = [DOCS / "capture.md", *(DOCS / "capture").glob("*.md"), *(DOCS / "formats").glob("*.md")]
    texts = {str(page.relative_to(DOCS)): page.read_text(encoding="utf-8") for page in pages}
    wrapping = [w for text in texts.values() for w in commands(text) if w[:2] == ["eagle3diag", "capture"] and w[2] in ("sglang", "vllm")]
    assert len(wrapping) >= 4
    for words in wrapping:
        assert cli.main(words[1:]) == 0, words
        printed = capsys.readouterr().out
        assert ("eagle3diag.capture.sglang" in printed and "--disable-cuda-graph" in printed) or "EAGLE3DIAG_CAPTURE=" in printed
    for name, text in texts.items():
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            compile(block, name, "exec")
            for module, wanted in re.findall(r"from (eagle3diag\S*) import (.+)", block):
                assert all(hasattr(importlib.import_module(module), one.strip()) for one in wanted.split(","))


#: The page of each reader, by the beginning of its name.
FORMAT_PAGES = {
    "SpecForge": "specforge", "EAGLE": "ge_data", "speculators": "speculators", "Model-Optimizer": "modelopt", "AngelSlim": "angelslim",
    "TorchSpec": "torchspec", "NeMo": "automodel", "TensorRT-LLM": "tensorrt_llm", "SGLang dumper": "sglang_dumper",
    "SGLang debug tensor dump": "sglang_tensor_dump", "SGLang responses": "sglang_responses", "plain": "plain",
}  # fmt: skip


def test_every_format_has_its_page() -> None:
    """What every reader reads, what it assumes, and how its files are made and read; every page is in the table and in the menu."""
    for reader in FORMATS:
        assert any(reader.name.startswith(start) for start in FORMAT_PAGES), reader.name
    table, menu = (DOCS / "formats.md").read_text(encoding="utf-8"), (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (DOCS / "formats").glob("*.md")}
    assert set(pages) == {*FORMAT_PAGES.values(), "native", "vllm"}
    for name, text in pages.items():
        assert f"(formats/{name}.md)" in table and f": formats/{name}.md" in menu, name
        parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
        assert parts[1::2] == ["Layout", "What is assumed", "How to produce it", "How to read it"], name
        assert all(len(part.strip()) > 30 for part in parts[2::2]), name
        assert "```" in parts[6] or name == "ge_data", name  # whose scripts take no options
        assert "open_dump(" in parts[8], name
    for engine in ("transformers", "sglang", "vllm", "tensorrt_llm"):
        assert f": capture/{engine}.md" in menu and f"(capture/{engine}.md)" in (DOCS / "capture.md").read_text(encoding="utf-8")


def test_links_lead_somewhere() -> None:
    """Every link from page to page, and its heading."""
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)):
            path, _, anchor = target.partition("#")
            if "://" in target or not path.endswith((".md", "")) or (path and not path.endswith(".md")):
                continue
            other = (page.parent / path).resolve() if path else page
            assert other.is_file(), f"{page.name}: {target}"
            headings = re.findall(r"^#+ (.+)$", other.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in headings}
            assert not anchor or anchor in slugs or "id=" in other.read_text(encoding="utf-8"), f"{page.name}: {target}"
