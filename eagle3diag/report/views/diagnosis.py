"""How a diagnosis is shown: what was observed, what each fault would give, the trail, what is missing, then all the evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from eagle3diag.faults import named
from eagle3diag.findings import Severity
from eagle3diag.report.form import Band, Bar, Bars, Figure, Lines, Page, Row, Section, Series, Strip, Table
from eagle3diag.report.numbers import MISSING, fixed, many, num, percent, span
from eagle3diag.report.views import audit, comparison, replay, weights
from eagle3diag.report.views.common import accept_bar, accept_length, alike, broken, by_position, engine, joined, path_name

if TYPE_CHECKING:
    from eagle3diag.diagnose import Counterfactual, Diagnosis, Ranked, Suspect
    from eagle3diag.serving import Acceptance

SURE, DOUBTFUL = 0.9, 0.1  # below the first the certainty is said, below the second that two pieces of evidence do not go together
_SHOWN = 12  # counterfactuals in the figures, and suspects of one table in a terminal; the page has all of them
_FEW = 0.03  # share up to which a suspect has no row of its own in a terminal: of many such, none is worth a look before the others


def page(result: Diagnosis) -> Page:
    findings = result.findings
    remarks = tuple(_remark(result, ranked) for ranked in result.ranked)
    return Page("diagnose", result.verdict, tuple(_facts(result)), findings, tuple(_sections(result)), remarks, _strip(result))


def _strip(result: Diagnosis) -> Strip | None:
    """The waterfall: each row holds what is left, pale what went since the row before."""
    stages = result.waterfall
    if len(stages) < 2:
        return None
    hues = {"observed": 4, "on what the server fed it": 2}
    found = {r.finding.fault for r in result.ranked}
    rows = [
        Row(named(s.name), s.accept_length, before.accept_length if before else None, 1 if s.name in found else hues.get(s.name, 0), s.why)
        for before, s in zip((None, *stages), stages, strict=False)
    ]
    title = "Where acceptance is lost" if any(f.severity > Severity.NOTE for f in result.findings) else "Acceptance"
    return Strip(title, "Accept length; 1.00 means that nothing is accepted. Pale: lost since the row above.", 1.0, tuple(rows))


def _facts(result: Diagnosis) -> Iterator[tuple[str, str]]:
    if result.observed is not None:
        yield "observed", _observed(result.observed)
    if result.replay is not None:
        healthy = f"accept length {accept_length(result.replay.accept_length, result.replay.accept_length_interval)}"
        yield "replayed", f"{healthy} for {path_name(result.replay.draft)} on {path_name(result.replay.dump)}, {result.replay.steps} steps"
    looked = [
        name
        for name, part in (("checkpoint", result.audit), ("weights", result.weights), ("train against live", result.comparison))
        if part is not None
    ]
    if looked:
        yield "looked at", ", ".join(looked)


def _observed(seen: Acceptance) -> str:
    length = f"accept length {accept_length(seen.length, seen.interval)}" if seen.length is not None else None
    rounds = f"{num(seen.rounds)} rounds" if seen.rounds is not None else None
    steps = f"{seen.steps} steps" if seen.steps is not None else None
    return joined(length, rounds, steps, engine(seen.engine, seen.engine_version)) or MISSING


def _remark(result: Diagnosis, ranked: Ranked) -> str:
    """What ranks this finding where it is: its share, what its fault alone would give, what it costs."""
    note, weighed = ranked.finding.severity is Severity.NOTE, ranked.weight > 0
    words = [f"Its share of what is lost: {percent(ranked.weight, 0)}."] if weighed and (note or len(result.ranked) > 1) else []
    if note:  # a fact, harmless or not: what was accepted casts no doubt on it
        words = ["It hardly explains what was accepted."] if 0 < ranked.weight < 0.005 else words
    elif ranked.certainty < DOUBTFUL and (weighed or ranked.predicted is not None):
        words.append("It is in the evidence, but what was accepted speaks against it: was the number taken from this very server?")
    elif ranked.certainty < SURE and weighed:
        told = "What was found makes" if result.observed is None else "What was accepted makes"
        words.append(f"{told} it {percent(ranked.certainty, 0)} likely that the server has this fault.")
    if ranked.predicted is not None:
        alone = accept_length(ranked.predicted.accept_length, ranked.predicted.accept_length_interval)
        beside = [f"{result.observed.length:.2f} is observed"] if result.observed is not None and result.observed.length is not None else []
        undone = result.replay is not None and (ranked.cost or 0) > 0 and ranked.predicted.accept_length > result.replay.accept_length
        own = "the replay of the file as it is" if undone else "the healthy replay"
        beside += [f"{own} gives {result.replay.accept_length:.2f}"] if result.replay is not None else []
        how = "With this undone the replay" if undone else "The replay with this fault alone"
        words.append(f"{how} gives accept length {alone}" + (f"; {', '.join(beside)}." if beside else "."))
        if ranked.predicted.served_rounds:
            healthy = f", {num(result.replay.served_alike)} as in the healthy one" if result.replay is not None else ""
            words.append(f"Of the server's own rounds {alike(ranked.predicted)} come out as in it{healthy}.")
    return " ".join(words)


def _beyond_the_strip(result: Diagnosis) -> bool:
    """Whether there is more to predict than the strip shows, so that a terminal gets the bars too."""
    return not {c.fault for c in result.counterfactuals} <= {s.name for s in result.waterfall}


def _sections(result: Diagnosis) -> Iterator[Section]:
    figures = tuple(_figures(result))
    rest = (
        f"{percent(result.none_of_these, 0)} of what is lost is left for a cause that is not listed."
        if result.none_of_these >= 0.005
        else ""
    )
    if figures or result.counterfactuals:
        tables = (_counterfactuals(result),) if result.counterfactuals else ()
        yield Section(
            "Observed and predicted",
            "Each counterfactual is the healthy replay with one thing broken. The one that lands on the observed value explains it.",
            paragraphs=(rest,) if rest and not result.suspects else (),
            tables=tables,
            figures=figures,
            terminal=_beyond_the_strip(result),
        )
    if result.suspects:
        words = "Not seen, since the evidence given could not show them; each would explain the number."
        yield Section("Undetermined between", f"{words} {rest}".rstrip(), tables=tuple(_suspects(result)))
    if result.missing:
        yield Section("What would settle the rest", "Evidence that was not given, and what it would tell.", steps=result.missing)
    if result.trail:
        yield Section("The trail", "What was looked at, in order.", steps=result.trail)
    if result.audit is not None:
        yield from audit.page(result.audit).grouped("Evidence: the checkpoint under the engine", prefix="audit-")
    if result.comparison is not None:
        yield from comparison.page(result.comparison).grouped("Evidence: train against live", prefix="compare-", fold=False)
    if result.weights is not None:
        yield from weights.page(result.weights).grouped("Evidence: the weights", prefix="weights-")
    if result.replay is not None:
        yield from replay.page(result.replay).grouped("Evidence: the healthy replay", prefix="replay-")


def _suspects(result: Diagnosis) -> Iterator[Table]:
    """One table for all that the same evidence would tell apart; first the evidence that tells most."""
    beside = any(s.predicted is not None and s.predicted.served_rounds for s in result.suspects)
    played = any(s.predicted is not None for s in result.suspects)
    columns = ("fault", "what it is", "share", *(("would give",) if played else ()), *(("rounds alike",) if beside else ()))
    groups = [[s for s in result.suspects if s.tell == tell] for tell in dict.fromkeys(s.tell for s in result.suspects)]
    for same in sorted(groups, key=lambda same: -sum(s.weight for s in same)):
        rows = tuple(
            (named(s.fault), s.title, percent(s.weight, 0))
            + ((fixed(s.predicted.accept_length, 2) if s.predicted is not None else MISSING,) if played else ())
            + ((alike(s.predicted) if s.predicted is not None else MISSING,) if beside else ())
            for s in same
        )
        words = f"What would tell: {same[0].tell or 'nothing that can be recorded; change one thing of the server at a time'}"
        share = f" ({percent(sum(s.weight for s in same), 0)} together)" if len(same) > 1 else ""
        most = min(_SHOWN, sum(s.weight > _FEW for s in same))
        most += len(same) == most + 1  # one alone takes no more room than a word about it
        yield Table(columns, rows, align="llrrr", code=(0,), title=words + share, most=most, rest=_rest(same[most:], most))


def _rest(few: Sequence[Suspect], shown: int) -> str:
    """The suspects of a table that have no row in a terminal, likeliest first, in a line."""
    count = f"and {len(few)} more" if shown else many(len(few), "fault")
    names = ", ".join(named(s.fault) for s in few)
    return f"{count} of {math.ceil(100 * few[0].weight)} % or less each: {names}; see the HTML or JSON" if few else ""


def _nearest(result: Diagnosis) -> list[Counterfactual]:
    """Those of the faults that were found, then the others; in each, what lands closest to the observed value first."""
    found = {f.fault for f in result.findings}
    return sorted(result.counterfactuals, key=lambda c: (c.fault not in found, c.distance if c.distance is not None else math.inf))


def _figures(result: Diagnosis) -> Iterator[Figure]:
    bars: list[Bar] = []
    series: list[Series] = []
    observed = result.observed.length if result.observed is not None else None
    if result.observed is not None and observed is not None:
        bars.append(accept_bar("observed on the server", observed, result.observed.interval, 4))
        if result.observed.p:
            series.append(by_position("observed", result.observed.p, hue=4, dashed=True))
    if result.replay is not None:
        bars.append(accept_bar("replay, healthy", result.replay.accept_length, result.replay.accept_length_interval, 0))
        series.append(by_position("replay, healthy", result.replay.p, hue=0))
    if result.live_replay is not None:
        bars.append(accept_bar("replay on what live fed", result.live_replay.accept_length, result.live_replay.accept_length_interval, 2))
        series.append(by_position("replay on what live fed", result.live_replay.p, hue=2, dashed=True))
    near = _nearest(result)
    bars += [accept_bar(broken(c), c.accept_length, c.accept_length_interval, 1) for c in near[:_SHOWN]]
    series += [by_position(broken(c), c.p, hue=hue) for hue, c in zip((1, 3, 5), near, strict=False) if c.p]
    if len(bars) > 1:
        mark = Band(observed, observed, "observed") if observed is not None else None
        yield Bars(
            "accept-length",
            "Accept length, observed and predicted",
            "Tokens per round with the bonus token counted; 1 means that nothing is accepted. "
            "The dashed line is what was observed, whiskers are 95 % intervals.",
            "accept length",
            tuple(bars),
            start=1.0,
            mark=mark,
            terminal=_beyond_the_strip(result),
        )
    rounds = tuple(_round_bars(result))
    if rounds:
        yield Bars(
            "rounds-alike",
            "The server's own rounds",
            "Share of the recorded rounds in which the server accepts as many drafts as the replay does from the same token. The choice of prompts "
            "plays no part in it: a replay that makes nearly all of the rounds does what the server did.",
            "share of rounds alike",
            rounds,
            terminal=False,
        )
    if series and any(s.y for s in series):
        yield Lines(
            "by-position",
            "Acceptance by position",
            "Share of rounds in which the first i drafts were all accepted: the step at which two curves part says where a fault acts.",
            "draft position i",
            "p(i)",
            tuple(series),
            whole_x=True,
            y_range=(0.0, 1.0),
        )


def _round_bars(result: Diagnosis) -> Iterator[Bar]:
    """The healthy replay, then the counterfactuals, most alike first."""
    if result.replay is None or result.replay.served_share is None:
        return
    yield Bar("replay, healthy", result.replay.served_share, None, None, 0)
    beside = [(c.served_share, broken(c)) for c in (*result.counterfactuals, *result.series) if c.served_share is not None]
    for share, name in sorted(beside, key=lambda c: -c[0])[:_SHOWN]:
        yield Bar(name, share, None, None, 1)


def _counterfactuals(result: Diagnosis) -> Table:
    every = (*_nearest(result), *result.series)
    beside = any(c.served_rounds for c in every)
    rows = tuple(
        (
            named(c.fault),
            c.name,
            fixed(c.accept_length, 2),
            span(c.accept_length_interval),
            fixed(c.p[0]) if c.p else MISSING,
            num(c.distance),
        )
        + ((alike(c),) if beside else ())
        for c in every
    )
    return Table(
        ("fault", "what was broken", "accept length", "95 % interval", "p(1)", "distance") + (("rounds alike",) if beside else ()),
        rows,
        align="llrrrr" + "r" * beside,
        code=(0,),
        terminal=False,
    )
