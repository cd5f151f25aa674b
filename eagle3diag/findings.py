"""Findings, and what every result shares: plain frozen values that render, save and reload the same way everywhere."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from eagle3diag.errors import BadArgument, FindingsFound
from eagle3diag.files import kind

TEXT: Mapping[str, bool] = MappingProxyType({"text": True})
"""Marks a dataclass field, ``field(metadata=TEXT)``, that holds words of prompts or answers: exports leave them out unless asked."""


class Severity(IntEnum):
    """How much a finding matters; comparisons are by value, so ``severity >= Severity.WARNING`` works."""

    NOTE = 10
    WARNING = 20
    ERROR = 30

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Evidence:
    """One measured number (or word), what a healthy case would show, and where it was read.

    >>> print(Evidence("width of the fed features", 576, expected="1728 = 3 x 576", source="live dump"))
    width of the fed features: 576 (expected 1728 = 3 x 576) [live dump]
    """

    name: str
    value: float | int | str
    expected: str | None = None
    source: str | None = None

    def __str__(self) -> str:
        value = f"{self.value:.4g}" if isinstance(self.value, float) else str(self.value)
        return (
            f"{self.name}: {value}"
            + (f" (expected {self.expected})" if self.expected else "")
            + (f" [{self.source}]" if self.source else "")
        )


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (or worth a note), with its numbers and what to do.

    Attributes
    ----------
    fault: catalogue id such as ``"FM-05"``; checks outside the catalogue use their test's name, such as ``"H2"``.
    title: one line, in words a tired engineer understands.
    because: how the evidence leads to the finding, one or two sentences.
    fix: what to change; the exact command or field where there is one.
    check: what to measure again after the fix.
    """

    fault: str
    severity: Severity
    title: str
    because: str = ""
    evidence: tuple[Evidence, ...] = ()
    fix: str = ""
    check: str = ""


def headline(findings: Sequence[Finding], healthy: str = "Nothing above a note was found.") -> str:
    """One sentence: the gravest finding, or what it means that there is none above a note."""
    worst = max(findings, key=lambda f: f.severity, default=None)
    if worst is None or worst.severity <= Severity.NOTE:
        return healthy
    title = worst.title.strip()
    return title if title.endswith((".", "!", "?")) else f"{title}."


class Result:
    """Base of everything a public verb returns. Subclasses are frozen dataclasses of plain values: no tensors inside."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the measurement says, most severe first. It is judged when asked for, so that a saved one can be judged again with newer
        rules; what is made of findings, such as a diagnosis, has its own."""
        from eagle3diag.faults import judge

        return judge(self)

    @property
    def ok(self) -> bool:
        """True when nothing above a note was found."""
        return all(f.severity <= Severity.NOTE for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values: ``{"kind", "ok", "findings", ...the dataclass fields}``; NaN and infinities become strings."""
        body = plain(self)
        assert isinstance(body, dict)
        return {"kind": type(self).__name__, "ok": self.ok, "findings": plain(self.findings), **body}

    def to_json(self, *, include_text: bool = False) -> str:
        """:meth:`to_dict` as JSON for others to read: without keys, and without what names persons and machines or was said in prompts,
        unless ``include_text``. What is not there is counted under ``"removed"``."""
        from eagle3diag.report.redaction import cleaned, removed

        shown = cleaned(self, private=include_text)
        return json.dumps(shown.to_dict() | {"removed": removed(shown)}, indent=1, sort_keys=True, allow_nan=False) + "\n"

    def save(self, path: str | os.PathLike[str], *, include_text: bool = False) -> Path:
        """Write :meth:`to_json`, atomically; returns the path. :func:`eagle3diag.load` opens it again."""
        return write_atomically(path, self.to_json(include_text=include_text))

    def to_html(self, path: str | os.PathLike[str], *, include_text: bool = False) -> Path:
        """Write one self-contained, offline HTML file, atomically; returns the path. It tells no more than :meth:`to_json`."""
        from eagle3diag.report import html

        return write_atomically(path, html.page(self, include_text=include_text))

    def raise_for_findings(self, at_least: Severity = Severity.WARNING) -> None:
        """Raise :class:`~eagle3diag.errors.FindingsFound` when a finding of this severity or above exists."""
        found = [f for f in self.findings if f.severity >= at_least]
        if found:
            raise FindingsFound("; ".join(f"{f.fault} {f.title}" for f in found), hint=found[0].fix or None)

    def __init_subclass__(cls) -> None:
        """A result in a prompt says what it found: its fields are thousands of numbers, and ``print`` shows those that matter."""
        cls.__repr__ = Result.__repr__  # type: ignore[method-assign]  # in the class itself, so that dataclass does not write another

    def __repr__(self) -> str:
        from eagle3diag.report.safe import visible
        from eagle3diag.report.views import view

        page = view(self)
        return f"<{type(self).__name__}: {page.counts}. {visible(page.verdict)} print() shows it.>"

    def __str__(self) -> str:
        from eagle3diag.report import text

        return text.render(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        from eagle3diag.report import notebook

        return notebook.bundle(self)


def plain(value: Any) -> Any:
    """Dataclasses, tuples, enums and mappings as JSON-ready values.

    >>> plain((Severity.ERROR, float("nan"), {1: (2.5,)}))
    ['error', 'nan', {'1': [2.5]}]
    """
    if isinstance(value, Severity):
        return value.label
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write beside the destination, then rename: a crash leaves the old file or the new one, never half of one. A pipe or a device
    (``/dev/stdout``) is written to as it stands: renamed over, it would be a device no more."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    if kind(target) == "special":
        target.write_bytes(data)
        return target
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


@contextmanager
def writing(what: str, where: object, hint: str | None = None) -> Iterator[None]:
    """What the system refuses within this block (no space, no rights, a folder in the way), said of ``what`` that the user asked for.

    Raises
    ------
    BadArgument: in place of any OSError.
    """
    try:
        yield
    except OSError as error:
        raise BadArgument(f"cannot write {what}: {error.strerror or error}", where=where, hint=hint) from error


__all__ = ["TEXT", "Evidence", "Finding", "Result", "Severity", "headline", "plain", "write_atomically", "writing"]
