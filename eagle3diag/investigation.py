"""The results that one notebook showed, together: what an exported notebook carries and ``load`` opens again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle3diag.findings import Finding, Result

__all__ = ["Investigation"]


@dataclass(frozen=True)
class Investigation(Result):
    """``results`` in the order in which the notebook called ``title`` showed them."""

    title: str
    results: tuple[Result, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What any of the results says, each finding once, most severe first."""
        found = {(f.fault, f.title): f for result in reversed(self.results) for f in result.findings}
        return tuple(sorted(found.values(), key=lambda f: -f.severity))

    def to_dict(self) -> dict[str, Any]:
        """As every result; each of ``results`` with its kind."""
        return super().to_dict() | {"results": [result.to_dict() for result in self.results]}
