"""Small hand-made results for the tests of reports, with one of each severity and strings that try to break out."""

from __future__ import annotations

import html.parser
import math
import re
from dataclasses import dataclass, replace
from typing import Any

import torch

from eagle3diag.audit import Audit, MapCheck, ShapeCheck, TensorLoad
from eagle3diag.audit.facts import Facts
from eagle3diag.checkpoints.config import read_config
from eagle3diag.compare import BlockComparison, Comparison, Quantiles, Side, TokenSeries, WorstToken
from eagle3diag.compare.comparison import Alike
from eagle3diag.compare.one_dump import DumpCheck, PartCheck, Reading, RecordReading
from eagle3diag.diagnose import Counterfactual, Diagnosis, Ranked, Stage
from eagle3diag.findings import Evidence, Finding, Result, Severity
from eagle3diag.replay import RecordReplay, Replay
from eagle3diag.serving import Acceptance
from eagle3diag.weights import WeightReport, weights

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
    Finding(
        "FM-28", Severity.WARNING, "The ids are read one boundary early", "Live block 0 is boundary 1.", (Evidence("margin", 0.1234567),)
    ),
    Finding("H8", Severity.NOTE, "The last state is not normed", "As it should be."),
)


def given(result: Result, *findings: Finding) -> Any:
    """``result`` with these findings instead of those of the catalogue, so that a test of the report does not depend on thresholds."""
    kind = type(result)
    judged = type(kind.__name__, (kind,), {"findings": property(lambda self: findings)})
    copy: Any = object.__new__(judged)
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


def acceptance(name: str = "draft", length: float = 1.83) -> Replay:
    p = tuple(0.55 * 0.6**i for i in range(4))
    return Replay(
        draft=name,
        dump="train",
        steps=4,
        rounds=1200,
        p=p,
        p_interval=tuple((v - 0.03, v + 0.03) for v in p),
        c=(0.55, 0.6, 0.6, 0.6),
        accept_length=length,
        accept_length_interval=(length - 0.06, length + 0.06),
        every_position_p=tuple(v + 0.02 for v in p),
        out_of_vocabulary=0.031,
        records=tuple(RecordReplay(f"r{i}", 100, length) for i in range(12)),
    )


CONFIG = {
    "hidden_size": 576, "num_attention_heads": 9, "intermediate_size": 1536, "vocab_size": 49152, "draft_vocab_size": 8192,
    "num_hidden_layers": 1,
}  # fmt: skip


def checked(name: str = "draft") -> Audit:
    """A draft of which the loader drops one name and therefore leaves one parameter as it was allocated."""
    return Audit(
        draft=name,
        engine="sglang",
        engine_version="0.5.23",
        engine_known=True,
        loads=(
            TensorLoad("fc.weight", "fc.weight", "loaded", "model.fc.weight", (576, 1728), "bfloat16"),
            TensorLoad("midlayer.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight", "dropped", None, (1536, 576), "bfloat16"),
            TensorLoad("layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight", "missing", None, note="left as allocated"),
            TensorLoad("embed_tokens.weight", "embed_tokens.weight", "borrowed", "model.embed_tokens.weight"),
        ),
        shapes=(ShapeCheck("lm_head.weight", (8192, 576), (8192, 512)),),
        vocabulary=MapCheck(8192, 8192, 1.0, 0.2, 1.0, 1.0, 1.0, 0.1, False, False, 8192),
        vocab_size=49152,
        draft_vocab_size=8192,
        hidden_size=576,
        target_hidden_size=576,
        needs_target_width=3.0,
        aux_boundaries=(2, 15, 27),
        default_boundaries=(2, 15, 27),
        tie_word_embeddings=False,
        norm_before_residual=True,
        assumed=("rms_norm_eps 1e-6",),
        facts=Facts(read_config(CONFIG), {}, (0,), (), None),
    )


def dump_check(name: str = "train_dump") -> DumpCheck:
    """Two blocks, with a target; the second record predicts the first one's tokens."""
    parts = tuple(PartCheck(f"boundary.{b}", i, 500, 0, 1, 2, 30.5 * b) for i, b in enumerate((2, 15)))
    readings = tuple(Reading("final", form, s, 0.9 if s == 1 else 0.01, 480) for form in ("as it is", "after the norm") for s in (0, 1))
    records = (RecordReading("r1", 0.2, 48, "r0", 0.9), RecordReading("r0", 0.95, 48, "r1", 0.05))
    alike = (Alike(0, 1, 1.5, math.nan),)
    return DumpCheck(name, "train", "transformers", 2, 500, (2, 15), ("ids",), parts, alike, readings, readings[1], 1.0, records)


def measured_weights() -> WeightReport:
    torch.manual_seed(0)
    learned = torch.outer(torch.randn(48), torch.randn(144)) * 0.05
    return weights({"fc.weight": torch.randn(48, 144) * 0.02 + learned, "norm.weight": torch.ones(48)})


def diagnosis(verdict: str = "FM-01: the flag said EAGLE where EAGLE3 was meant.") -> Diagnosis:
    """Every part is there; four counterfactuals of which the first lands on the observed value."""
    played = tuple(
        Counterfactual(
            fault, what, length, (length - 0.03, length + 0.03), tuple((length - 1) * 0.6**i for i in range(4)), abs(length - 1.02)
        )
        for fault, what, length in (
            ("FM-01", "one state, fc skipped", 1.03),
            ("FM-05", "layer left at its start", 1.08),
            ("FM-28", "states one boundary early", 1.80),
            ("FM-17", "rope base 10000", 1.52),
        )
    )
    return Diagnosis(
        verdict=verdict,
        observed=Acceptance.from_histogram([980, 18, 2], steps=4, num_draft_tokens=5, engine="sglang", engine_version="0.5.23"),
        replay=acceptance(),
        live_replay=acceptance(length=1.03),
        counterfactuals=played,
        ranked=tuple(
            Ranked(f, w, played[i] if i < 2 else None, 0.5) for i, (f, w) in enumerate(zip(FINDINGS, (0.7, 0.2, 0.0), strict=True))
        ),
        none_of_these=0.1,
        audit=checked(),
        comparison=comparison(),
        weights=measured_weights(),
        trail=("launch command: sglang, algorithm EAGLE", "log: 12 windows", "compare: 1728 wide trained, 576 wide fed"),
        missing=("no reference: cannot tell FM-28 from FM-29",),
        waterfall=(
            Stage("all drafts right", 5.0, "4 drafts a round, and the bonus token"),
            Stage("the draft as it was trained", 1.83, "replayed on train"),
            Stage("FM-01", 1.03, "one state, fc skipped"),
            Stage("observed", 1.022, "engine, sampling, other prompts: what no stage above shows"),
        ),
    )


CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


def every_kind() -> list[Result]:
    return [
        given(comparison(), *FINDINGS),
        given(measured_weights()),
        given(acceptance()),
        given(checked(), FINDINGS[0]),
        diagnosis(),
        Oddity("label", (1.0, 2.0), (block(0, 2, 0.9),)),
    ]


def hostile() -> list[Result]:
    """Every kind again, with a string that tries to break out in each place where a file's own words are shown."""
    bad = HOSTILE
    finding = replace(FINDINGS[0], fault=bad, title=bad, because=bad, fix=bad, check=bad)
    finding = replace(finding, evidence=(replace(finding.evidence[0], name=bad, value=bad, expected=bad, source=bad),))
    load = replace(checked().loads[0], name=bad, canonical=bad, into=bad, note=bad, dtype=bad)
    compared = replace(comparison(bad), unaligned=(bad,))
    compared = replace(compared, series=tuple(replace(s, record=bad) for s in compared.series))
    weighed = measured_weights()
    weighed = replace(weighed, draft=bad, tensors=tuple(replace(t, name=bad, note=bad) for t in weighed.tensors))
    diagnosed = replace(diagnosis(bad), trail=(bad,), missing=(bad,), comparison=compared, weights=weighed)
    diagnosed = replace(diagnosed, ranked=tuple(replace(r, finding=finding) for r in diagnosed.ranked))
    diagnosed = replace(diagnosed, counterfactuals=tuple(replace(c, name=bad) for c in diagnosed.counterfactuals))
    return [
        given(compared, finding),
        given(weighed, finding),
        given(replace(acceptance(bad), dump=bad, changes=(bad,)), finding),
        given(replace(checked(bad), loads=(load,)), finding),
        diagnosed,
        Oddity(bad, (), ()),
    ]


class Elements(html.parser.HTMLParser):
    """What a browser would see: element names with their attributes, and script contents by id."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._script: str | None = None
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs).get("id") or "loader"
            self.scripts[self._script] = ""

    def handle_endtag(self, tag: str) -> None:
        self._script = None if tag == "script" else self._script

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] += data
