"""How a probe is shown: what the server is, what it accepted for the prompts that were sent, and what could not be told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eagle3diag.findings import headline
from eagle3diag.report.form import Lines, Page, Section, Table
from eagle3diag.report.numbers import MISSING, fixed, num, percent, span
from eagle3diag.report.views.common import accept_length, by_position, engine, joined

if TYPE_CHECKING:
    from eagle3diag.serving import Acceptance
    from eagle3diag.serving.probe import Answer, Probe

_SHOWN = ("speculative-algorithm", "speculative-draft-model-path", "speculative-num-steps", "speculative-eagle-topk",
          "speculative-num-draft-tokens", "dtype", "quantization", "attention-backend", "tp-size", "disable-cuda-graph")  # fmt: skip


def page(result: Probe) -> Page:
    findings, seen = result.findings, result.acceptance
    length = accept_length(seen.length, seen.interval) if seen.length is not None else MISSING
    calm = f"Accept length {length} over {num(seen.rounds)} rounds." if seen.rounds else "No draft was proposed."
    return Page("probe", headline(findings, calm), tuple(_facts(result)), findings, tuple(_sections(result)))


def _facts(result: Probe) -> Iterator[tuple[str, str]]:
    seen = result.acceptance
    yield "server", joined(result.url, engine(result.engine, result.engine_version)) or result.url
    if result.model is not None:
        yield "model", result.model
    if seen.length is not None:
        rounds = f"{num(seen.rounds)} rounds" if seen.rounds is not None else None
        yield "observed", joined(f"accept length {accept_length(seen.length, seen.interval)}", rounds) or MISSING
    yield "counted by", "the server, for each request" if result.source == "meta_info" else "the growth of its counters meanwhile"


def _sections(result: Probe) -> Iterator[Section]:
    if result.acceptance.p:
        yield _positions(result.acceptance)
    columns = ("request", "prompt tokens", "tokens written", "rounds", "accepted drafts", "different tokens", "seconds")
    rows = tuple(_request(i, answer) for i, answer in enumerate(result.answers, 1))
    requests = Table(columns, rows, align="rrrrrrr", narrow=(0, 2, 3, 4))
    yield Section("The requests", "Sent one after the other, greedily. Their text is not kept.", tables=(requests,))
    if result.launch is not None:
        options = tuple((f"--{name}", value) for name in _SHOWN if (value := result.launch.get(name)) is not None)
        table = Table(("option", "value"), options, code=(0,))
        yield Section("The server's arguments", "As it resolved them; those that matter to a draft.", tables=(table,))
    if result.limits:
        yield Section("What this probe cannot tell", steps=result.limits)


def _positions(seen: Acceptance) -> Section:
    intervals = seen.p_intervals or ((0.0, 1.0),) * len(seen.p)
    conditional = (*seen.c, *(0.0,) * len(seen.p))
    rows = tuple(
        (str(i), fixed(p), span(interval), fixed(c))
        for i, (p, interval, c) in enumerate(zip(seen.p, intervals, conditional, strict=False), 1)
    )
    curve = (by_position("observed", seen.p, hue=4),)
    return Section(
        "Acceptance by position",
        "p(i): share of rounds in which the first i drafts were all accepted; c(i): of those that got that far.",
        tables=(Table(("position", "p(i)", "95 % interval", "c(i)"), rows, align="rrrr"),),
        figures=(Lines("by-position", "Acceptance by position", "", "draft position i", "p(i)", curve, whole_x=True, y_range=(0.0, 1.0)),),
    )


def _request(index: int, answer: Answer) -> tuple[str, ...]:
    rounds, accepted = (num(n) if n is not None else MISSING for n in (answer.rounds, answer.accepted))
    distinct = percent(answer.distinct, 0) if answer.distinct is not None else MISSING
    return str(index), num(answer.prompt_tokens), num(answer.tokens), rounds, accepted, distinct, fixed(answer.seconds, 1)
