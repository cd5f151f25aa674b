"""The catalogue in words and the catalogue in code: one for all, and the pages made of both in step."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from eagle3diag.faults import _entries, catalogue, in_words
from eagle3diag.faults.base import no_changes

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {"group", "title", "mechanism", "symptom", "measure", "fix", "not_it", "seen"}


def test_every_fault_is_told_whole() -> None:
    """FM-01 to FM-80, every field, in sentences, and threads that are written as owner/repository#number."""
    words = in_words()

    assert list(words) == [f"FM-{n:02}" for n in range(1, 81)]
    for fault, told in words.items():
        assert set(told) == FIELDS, fault
        assert all(told[f].endswith((".", "!")) for f in FIELDS - {"group", "title", "seen"}), fault
        assert not told["title"].endswith("."), fault
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread) for thread in told["seen"]), fault


def test_what_the_code_knows_is_in_the_catalogue() -> None:
    """No fault is judged that no page explains; ids are given once; typical lengths are accept lengths."""
    ids = [f.id for f in catalogue()]

    assert len(set(ids)) == len(ids)
    assert {i for i in ids if i.startswith("FM-")} <= set(in_words())
    assert all(1 <= f.typical[0] <= f.typical[1] for f in catalogue() if f.typical)


def test_every_replay_that_an_entry_offers_is_offered_by_the_catalogue() -> None:
    """Entries of one fault are merged, and of two that replay it one would be lost."""
    replayed = [f.id for f in _entries() if f.changes is not no_changes]

    assert len(set(replayed)) == len(replayed)


def test_the_pages_are_in_step() -> None:
    """docs/faults/ is what the words and the code say."""
    tool = [sys.executable, "-m", "tools.fault_pages", "--check"]
    run = subprocess.run(tool, capture_output=True, text=True, cwd=ROOT)

    assert run.returncode == 0, run.stdout + run.stderr
