"""``python -m eagle3diag`` is the command ``eagle3diag``."""

from __future__ import annotations

from eagle3diag.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
