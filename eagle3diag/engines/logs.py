"""What log lines of an engine mean, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["aux", "sharing", "weights", "graph", "settings", "numbers", "capture"]


@dataclass(frozen=True)
class Line:
    """A line is of this ``kind`` when it holds ``marker`` (bytes, as the file has them). ``means``: what it says, in our words."""

    kind: Kind
    marker: bytes
    means: str
    source: str
