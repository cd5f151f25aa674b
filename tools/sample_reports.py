"""Write the three sample reports: ``python tools/sample_reports.py TARGET FOLDER``: nothing accepted, mended, and one against the other."""

from __future__ import annotations

import sys
from pathlib import Path

import eagle3diag as e3
from eagle3diag.demo import Samples

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    samples, folder = Samples(ROOT / "data_samples", Path(sys.argv[1])), Path(sys.argv[2])
    draft = e3.open_draft(samples.root / "draft")
    broken, healthy = (samples.case(server, draft, lambda words: None) for server in ("eagle_flag", "eagle3"))
    for name, result in (("broken", broken), ("healthy", healthy), ("before_after", e3.before_after(broken, healthy))):
        path = result.to_html(folder / f"{name}.html")
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
