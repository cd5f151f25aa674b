"""The scripts beside the tests run inside the engines' own environments: they are not collected."""

from pathlib import Path

collect_ignore = sorted(p.name for p in Path(__file__).parent.glob("*.py") if not p.name.startswith("test_"))
