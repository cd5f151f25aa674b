"""Why is my EAGLE-3 draft not accepted?  Reads, measures, replays, and says which fault explains the accept length that you see.

>>> import eagle3diag as e3
>>> result = e3.compare("train_dump", "live_dump")  # doctest: +SKIP
>>> result.ok, result.findings[0].title             # doctest: +SKIP

The verbs are loaded when they are first used, so importing the package costs milliseconds and pulls in neither torch nor plotly.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from eagle3diag.errors import (
    BadArgument,
    CaptureError,
    Eagle3DiagError,
    FindingsFound,
    InputError,
    MismatchedInputs,
    MissingDependency,
    MissingPart,
    UnreadableFile,
    UnsafeFile,
    UnusableServer,
)
from eagle3diag.findings import Finding, Severity

if TYPE_CHECKING:  # what type-checkers and editors see; at run time __getattr__ below does the same, later
    from eagle3diag.audit import audit
    from eagle3diag.before_after import before_after
    from eagle3diag.capture import capture
    from eagle3diag.checkpoints import open_draft, open_target
    from eagle3diag.compare import check_dump, compare
    from eagle3diag.convert import convert
    from eagle3diag.diagnose import diagnose
    from eagle3diag.dumps import open_dump
    from eagle3diag.replay import replay
    from eagle3diag.report.saved import load
    from eagle3diag.serving.probe import probe
    from eagle3diag.weights import weights
    from eagle3diag.workbench import Workbench

__version__ = "0.1.0"

__all__ = [
    "BadArgument",
    "CaptureError",
    "Eagle3DiagError",
    "Finding",
    "FindingsFound",
    "InputError",
    "MismatchedInputs",
    "MissingDependency",
    "MissingPart",
    "Severity",
    "UnreadableFile",
    "UnsafeFile",
    "UnusableServer",
    "Workbench",
    "audit",
    "before_after",
    "capture",
    "check_dump",
    "compare",
    "convert",
    "diagnose",
    "load",
    "open_draft",
    "open_dump",
    "open_target",
    "probe",
    "replay",
    "weights",
]

_VERBS = (
    "audit",
    "before_after",
    "capture",
    "compare",
    "convert",
    "diagnose",
    "replay",
    "weights",
)  # each lives in the module of the same name
_HOMES = {verb: verb for verb in _VERBS} | {
    "Workbench": "workbench",
    "check_dump": "compare",
    "load": "report.saved",
    "open_draft": "checkpoints",
    "open_dump": "dumps",
    "open_target": "checkpoints",
    "probe": "serving.probe",
}


class _Package(ModuleType):
    """The package's own type, so that ``eagle3diag.compare`` is the function whatever was imported before.

    Importing the folder ``eagle3diag/compare`` makes Python set the attribute ``compare`` of the package to that folder's
    module, which would hide the verb of the same name. The one assignment is answered with the verb instead;
    ``from eagle3diag.compare import Comparison`` is not affected, because it goes through ``sys.modules``.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _VERBS and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
