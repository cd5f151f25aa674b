"""Take a picture of a report with headless Chromium: ``python tools/picture.py report.html picture.png``."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SIZE = "1280,1500"


def main() -> None:
    report, picture = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("Chromium is not installed (on Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-quic"]
        subprocess.run(
            [
                browser,
                *flags,
                f"--user-data-dir={profile}",
                f"--window-size={SIZE}",
                "--virtual-time-budget=8000",
                f"--screenshot={picture}",
                report.as_uri(),
            ],
            check=True,
            capture_output=True,
        )


if __name__ == "__main__":
    main()
