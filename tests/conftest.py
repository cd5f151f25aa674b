"""Where tests find the samples and their target; both are the real ones."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from eagle3diag.checkpoints import Draft, Target, open_draft, open_target
from eagle3diag.dumps import HiddenStates, open_dump

ROOT = Path(__file__).resolve().parent.parent
collect_ignore = ["fixtures"]  # data, and the script that wrote it in engines' environments


@pytest.fixture(scope="session")
def samples() -> Path:
    return ROOT / "data_samples"


@pytest.fixture(scope="session")
def target_folder() -> Path:
    """The samples' target; ``make test`` builds it and names it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("EAGLE3DIAG_TARGET") or cache / "eagle3diag" / "SmolLM2-135M-Instruct")
    if not (folder / "model.safetensors").is_file():
        pytest.fail(f"the samples' target is not at {folder}: run `make test`, which builds it")
    return folder


@pytest.fixture(scope="session")
def target(target_folder: Path) -> Target:
    return open_target(target_folder)


@pytest.fixture(scope="session")
def draft(samples: Path) -> Draft:
    return open_draft(samples / "draft")


@pytest.fixture(scope="session")
def train(samples: Path) -> HiddenStates:
    return open_dump(samples / "train")


def _skipped(report: pytest.CollectReport | pytest.TestReport) -> bool:
    """Whether a target that promises an engine or a browser found none; what a machine may not do (mount) is no such promise."""
    return bool(os.environ.get("EAGLE3DIAG_NO_SKIP")) and report.skipped and "may not" not in str(report.longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """`make test-engines` and `make test-browser` fail where they would otherwise skip, and so pass."""
    report = yield
    if _skipped(report):
        report.outcome = "failed"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The same for single tests."""
    report = yield
    if _skipped(report):
        report.outcome = "failed"
    return report
