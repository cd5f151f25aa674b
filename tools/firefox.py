"""A picture of a page on disk in headless Firefox, in an empty profile whose every request goes to a closed port."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_SETTINGS = {
    "network.proxy.type": 1,
    **{f"network.proxy.{kind}{part}": value for kind in ("http", "ssl") for part, value in (("", '"127.0.0.1"'), ("_port", 9))},
    "datareporting.policy.dataSubmissionEnabled": "false",
    "app.update.enabled": "false",
    "browser.aboutwelcome.enabled": "false",
}


def find() -> str | None:
    """The browser's path, or None."""
    return next((path for name in ("firefox-esr", "firefox") if (path := shutil.which(name))), None)


def picture(binary: str, page: Path, out: Path, scratch: Path, size: str = "1280,1500") -> Path:
    """Write ``out`` as PNG; ``scratch`` holds the profile."""
    profile = scratch / "firefox"
    profile.mkdir()
    (profile / "user.js").write_text("".join(f'user_pref("{name}", {value});\n' for name, value in _SETTINGS.items()))
    command = [binary, "--headless", "--no-remote", "--profile", str(profile), f"--window-size={size}", "--screenshot", str(out)]
    subprocess.run(
        [*command, page.resolve().as_uri()], check=True, capture_output=True, timeout=300, env=os.environ | {"HOME": str(scratch)}
    )
    return out
