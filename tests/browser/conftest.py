"""A tab of a real Chromium, opened anew for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[chromium.Tab]:
    binary = chromium.find()
    if binary is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with chromium.browser(binary, tmp_path / "profile") as opened:
        yield opened
