"""The engine versions whose loaders are run, from ``versions.txt``; ``python versions.py 0.5.8`` prints what to install for one."""

from __future__ import annotations

import sys
from pathlib import Path


def table() -> list[tuple[str, str, tuple[str, ...]]]:
    """Engine, version and pinned packages, oldest first."""
    lines = (Path(__file__).with_suffix(".txt")).read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return [(engine, version, tuple(packages)) for engine, version, *packages in rows]


def run() -> dict[str, tuple[str, ...]]:
    """Engine to the versions that are run."""
    found: dict[str, tuple[str, ...]] = {}
    for engine, version, _ in table():
        found[engine] = (*found.get(engine, ()), version)
    return found


if __name__ == "__main__":
    engine, version, packages = next(row for row in table() if row[1] == sys.argv[1])
    print(f"{engine}=={version}", *packages)
