"""How a replay is shown: the accept length to expect, acceptance by position, and the records it came from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from eagle3diag.findings import headline
from eagle3diag.report.form import Bars, Lines, Page, Section, Table
from eagle3diag.report.numbers import MISSING, fixed, listed, num, percent, span
from eagle3diag.report.views.common import accept_bar, accept_length, alike, by_position, path_name

if TYPE_CHECKING:
    from eagle3diag.replay import Replay, Sampled, SettingReplay


def page(result: Replay) -> Page:
    findings = result.findings
    said = f"Expect an accept length of {accept_length(result.accept_length, result.accept_length_interval)} with {result.steps} steps."
    facts = [
        ("draft", result.draft),
        ("dump", result.dump),
        ("replayed", f"{shape(result)}, {num(result.rounds)} rounds over {num(len(result.records))} records, in {result.dtype}"),
    ]
    if result.served_rounds:
        facts.append(("the server", f"accepted as many in {alike(result)} recorded rounds"))
    if result.engine:
        facts.append(("loop of", result.engine))
    if result.changes:
        facts.append(("changed", listed(result.changes)))
    # the number is what a replay is asked for, so it leads, whatever the findings add
    worse = headline(findings, "")
    return Page("replay", f"{said} {worse}".strip(), tuple(facts), findings, tuple(sections(result)))


def shape(result: Replay) -> str:
    if result.topk == 1:
        return f"chain of {result.steps} steps"
    return f"tree of {result.steps} steps, top-k {result.topk}, {result.num_draft_tokens} slots"


def sections(result: Replay) -> Iterator[Section]:
    label = path_name(result.draft)
    series = [by_position("as the server counts (free-running)", result.p, hue=0)]
    if result.every_position_p:
        series.append(by_position("over every position of the text", result.every_position_p, hue=1, dashed=True))
    figures = (
        Bars(
            "accept-length",
            "Accept length",
            "Tokens per round with the bonus token counted; 1 means that nothing is accepted.",
            "accept length",
            (accept_bar(label, result.accept_length, result.accept_length_interval, 0),),
            start=1.0,
        ),
        Lines(
            "by-position",
            "Acceptance by position",
            "Share of rounds in which the first i drafts were all accepted.",
            "draft position i",
            "p(i)",
            tuple(series),
            whole_x=True,
            y_range=(0.0, 1.0),
        ),
    )
    yield Section("Acceptance", _vocabulary(result), tables=(positions(result),), figures=figures)
    if result.sampled:
        yield sampled(result.sampled)
    if len(result.settings) > 1 or result.cost:
        yield tried(result)
    if result.records:
        rows = tuple((r.name, num(r.rounds), fixed(r.accept_length, 2)) for r in result.records)
        yield Section(
            "Record by record",
            tables=(Table(("record", "rounds", "accept length"), rows, align="lrr", code=(0,)),),
            fold=True,
            terminal=False,
        )


def sampled(result: Sampled) -> Section:
    said = (
        f"When the target samples at temperature {result.temperature:g}, expect {fixed(result.accept_length, 2)} with the drafts that engines "
        f"propose, the most likely tokens"
    )
    if result.drafted_accept_length is not None:
        said += f", and {fixed(result.drafted_accept_length, 2)} with drafts that are sampled too"
    both = result.drafted_p or (None,) * len(result.p)
    rows = tuple((str(i + 1), fixed(p), MISSING if q is None else fixed(q)) for i, (p, q) in enumerate(zip(result.p, both, strict=True)))
    table = Table(("position", "p, most likely drafts", "p, sampled drafts"), rows, align="rrr")
    return Section("Sampling", f"{said}. Averaged over {num(result.positions)} positions of the text.", tables=(table,))


def tried(result: Replay) -> Section:
    best = result.best
    said = "The same drafts, counted for every setting."
    if result.cost:
        said = (
            f"One draft forward costs {result.cost.draft:g} and each further slot {result.cost.slot:g} of a decoding step of the target. "
            + (f"{setting(best)} serves best: {fixed(best.speedup or 0.0, 2)} times decoding without a draft." if best else "")
        )
    rows = tuple(
        (
            num(s.setting.steps),
            num(s.setting.topk),
            num(s.setting.num_draft_tokens),
            accept_length(s.accept_length, s.accept_length_interval),
            MISSING if s.speedup is None else fixed(s.speedup, 2),
        )
        for s in result.settings
    )
    return Section("Settings", said, tables=(Table(("steps", "top-k", "slots", "accept length", "speed-up"), rows, align="rrrrr"),))


def setting(result: SettingReplay) -> str:
    s = result.setting
    return f"{s.steps} steps" if s.topk == 1 else f"{s.steps} steps, top-k {s.topk}, {s.num_draft_tokens} slots"


def positions(result: Replay) -> Table:
    rows = []
    for i, p in enumerate(result.p):
        every = fixed(result.every_position_p[i]) if i < len(result.every_position_p) else MISSING
        interval = span(result.p_interval[i], 3) if i < len(result.p_interval) else MISSING
        conditional = fixed(result.c[i]) if i < len(result.c) and math.isfinite(result.c[i]) else MISSING  # none of none
        rows.append((str(i + 1), fixed(p), interval, conditional, every))
    return Table(("position", "p", "95 % interval", "c, given the one before", "p, every position"), tuple(rows), align="rrrrr")


def _vocabulary(result: Replay) -> str:
    if math.isnan(result.out_of_vocabulary):
        return ""
    if not result.out_of_vocabulary:
        return "Every token that the target chose is in the draft's vocabulary."
    share = percent(result.out_of_vocabulary)
    return f"{share} of the tokens that the target chose are outside the draft's vocabulary and can never be accepted."
