"""What an injection is, and what it leaves behind: a broken deployment."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.injection.engine import Held
from benchmarks.injection.world import STEPS, Fed, World, as_trained
from eagle3diag.checkpoints import Draft


@dataclass(frozen=True, eq=False)
class Broken:
    """One broken deployment: the files on disk, what the engine holds and feeds, and how it was started.

    ``held`` None: the server ends at start, so nothing is counted. ``fed``: rows as the engine captures and the recorder sees them.
    ``after``: rows as they arrive in the draft's forward, where they are other ones.
    """

    draft: Draft
    held: Held | None
    fed: Fed = as_trained
    after: Fed | None = None
    algorithm: str = "--speculative-algorithm EAGLE3 "
    engine: str = "0.5.23"
    flags: str = ""
    slots: int = 5
    steps: int = STEPS
    environment: str = ""


Seen = Literal["files", "dumps", "number"]


@dataclass(frozen=True)
class Injection:
    """``seen``: which evidence shows it: checkpoint and command line; the dumps; or nothing but the number that it costs.
    ``drafts``: the drafts that can have it; empty: all."""

    fault: str
    name: str
    make: Callable[[World, random.Random], Broken]
    seen: Seen
    drafts: tuple[str, ...] = ()
