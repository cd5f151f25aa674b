"""Small hand-made results for the tests of reports, with one of each severity and strings that try to break out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from eagle3diag.compare import BlockComparison, Comparison, Quantiles, Side, TokenSeries, WorstToken
from eagle3diag.findings import Evidence, Finding, Result, Severity

HOSTILE = "<script>document.title='pwned'</script>\"'><img src=x onerror=alert(1)>\x1b[31mred\x1b]0;title\x07\u202egpj.exe"

FINDINGS = (
    Finding(
        "FM-01",
        Severity.ERROR,
        "The server feeds the draft one state of width 576; fc is skipped without a word",
        "The features that reach the draft are as wide as one hidden state, so the guard that would call fc is false.",
        (
            Evidence("width of the fed features", 576, expected="1728 = 3 x 576", source="live dump"),
            Evidence("calls of fc", 0, expected="one per forward", source="counters of the live dump"),
        ),
        "Start the server with `--speculative-algorithm EAGLE3`.",
        "Capture again: the live width must be 1728; then measure the accept length.",
    ),
    Finding("FM-28", Severity.WARNING, "The ids are read one boundary early", "Live block 0 is boundary 1.", (Evidence("margin", 0.1234567),)),
    Finding("H8", Severity.NOTE, "The last state is not normed", "As it should be."),
)


def given(result: Result, *findings: Finding) -> Any:
    """``result`` with these findings instead of those of the catalogue, so that a test of the report does not depend on thresholds."""
    kind = type(result)
    judged = type(kind.__name__, (kind,), {"findings": property(lambda self: findings)})
    copy = object.__new__(judged)
    copy.__dict__.update(result.__dict__)
    return copy


def quantiles(median: float) -> Quantiles:
    return Quantiles(median - 0.1, median - 0.05, median, median - 0.01)


def block(index: int, boundary: int | None, median: float) -> BlockComparison:
    return BlockComparison(index, boundary, 500, 31.5, 30.25, 0.96, quantiles(0.99), quantiles(median), 0.3, 0, 0, 1)


def comparison(name: str = "live_dump") -> Comparison:
    """Three blocks; live block 0 is really boundary 1, and one token of the series is not finite."""
    points = tuple(range(0, 200, 2))
    series = tuple(
        TokenSeries(
            record,
            b,
            points,
            tuple(0.99 - 0.001 * (p % 7) for p in points),
            tuple(math.nan if p == 40 else 0.9 - 0.3 * b * math.sin(p / 9) ** 2 for p in points),
            tuple(900.0 if p == 0 else 30.0 + 5 * b + p % 11 for p in points),
            tuple(880.0 if p == 0 else 29.0 + 5 * b + p % 13 for p in points),
        )
        for record in ("r0", "r1")
        for b in range(3)
    )
    side = Side("train_dump", "train", 1728, 3.0, "bfloat16", 12, 5120, "transformers", "5.24.0", (2, 15, 27), {"fc_calls": 12})
    return Comparison(
        train=side,
        live=replace(side, name=name, side="live", engine="sglang", engine_version="0.5.23", boundaries=(), counters={"fc_calls": 0}),
        hidden_size=576,
        aligned_tokens=5000,
        blocks=tuple(block(i, b, m) for i, (b, m) in enumerate(zip((2, 15, 27), (0.62, 0.998, 0.997), strict=True))),
        single=(),
        order=((0.6, 0.2, 0.1), (0.2, 0.99, 0.3), (0.1, 0.3, 0.98)),
        reference_boundaries=(*range(31), -1),
        reference=tuple(tuple(math.exp(-(((b - at) / 4) ** 2)) for at in (1, 15, 27)) for b in range(32)),
        shift=((-2, 0.1), (-1, 0.2), (0, 0.95), (1, 0.22), (2, 0.12)),
        live_final_rms=3.2,
        worst=(WorstToken("r0", 0, 17, 0.91, 0.8, 0.12),),
        unaligned=("record 9: its ids part from the train record's at token 31",),
        series=series,
    )


@dataclass(frozen=True)
class Oddity(Result):
    """A kind without a view of its own."""

    label: str
    numbers: tuple[float, ...]
    blocks: tuple[BlockComparison, ...]
    nothing: float | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return ()
