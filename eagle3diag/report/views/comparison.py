"""How a comparison of train and live is shown: first the blocks, then which layer each block is, then tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from eagle3diag.findings import headline
from eagle3diag.report.form import Band, Figure, Heat, Lines, Page, Section, Series, Table
from eagle3diag.report.numbers import fixed, listed, many, num
from eagle3diag.report.views.common import boundary, engine, joined

if TYPE_CHECKING:
    from eagle3diag.compare import BlockComparison, Comparison, Displaced, TokenSeries
    from eagle3diag.compare.sources import Side

_TWO_COSINES = (
    "Plain cosine flatters: a few very large channels make unrelated layers look alike. "
    "The standardised cosine weighs every channel the same; decide by it."
)

LIKENESS = 0.9  # of a fit, below which a name would say more than is known: neighbouring boundaries fit one another at 0.6 to 0.9


def page(result: Comparison) -> Page:
    findings = result.findings
    healthy = f"Train and live agree over {many(result.aligned_tokens, 'aligned token')}: nothing above a note."
    return Page("compare", headline(findings, healthy), tuple(_facts(result)), findings, tuple(_sections(result)))


def _facts(result: Comparison) -> Iterator[tuple[str, str]]:
    yield "train", _side(result.train)
    yield "live", _side(result.live)
    if result.sampled is not None:
        yield "looked at", str(result.sampled)
    yield "aligned", f"{many(result.aligned_tokens, 'token')}, hidden size {result.hidden_size:,}"
    for words in result.assumed:
        yield "assumed", words
    if result.live_final_rms is not None:
        yield (
            "last live block",
            f"rms {num(result.live_final_rms)} after dividing by the target's final-norm gain (1 means it is already normed)",
        )


def _side(side: Side) -> str:
    return joined(
        side.name,
        engine(side.engine, side.engine_version),
        f"{side.width:,} wide = {num(side.width_in_h)} x H",
        f"boundaries {listed(side.boundaries)}" if side.boundaries else "boundaries not declared",
        side.dtype,
        f"{many(side.records, 'record')}, {many(side.tokens, 'token')}",
    )


def _sections(result: Comparison) -> Iterator[Section]:
    if result.blocks:
        yield Section("Block by block", f"One row per H-wide block of the fused features. {_TWO_COSINES}", tables=(_blocks(result.blocks),))
    if result.single:
        caption = (
            "Live carries a single state per token, so blocks cannot be paired; here it is compared with each state that train has. "
            "The row that agrees names the layer that live really delivers."
        )
        yield Section("The one live state against each train state", caption, tables=(_blocks(result.single),))
    if result.origins:
        caption = (
            "For every live block the explanation that fits best, of all that were tried: other boundaries and tokens, a scale, a norm, "
            "a missing residual, sums of one rank, a rotation. The fit is the share of the block's variance that it explains, in the median channel."
        )
        yield Section("What is each live block?", caption, tables=(_origins(result),))
    heats = tuple(_heats(result))
    if heats:
        yield Section(
            "Which layer is it?", "Neighbouring layers are alike, so the margin between cells decides, not the value of one.", figures=heats
        )
    if result.shift:
        yield Section("Are the rows the same tokens?", figures=(_shift(result.shift),), terminal=False)
    records = list(dict.fromkeys(s.record for s in result.series))
    for i, record in enumerate(records):
        figures = tuple(
            _tokens([s for s in result.series if s.record == record], i, {b.block: b.boundary for b in (*result.blocks, *result.single)})
        )
        yield Section(f"Token by token: {record}", _TWO_COSINES if i == 0 else "", figures=figures, fold=i > 0, terminal=False)
    if result.worst:
        yield Section(
            "Where they part most",
            "The tokens that agree least; look at what they are and where they stand.",
            tables=(_worst(result),),
            terminal=False,
        )
    moved = [d for d in result.displaced if (d.record, d.position) != (d.best_record, d.best_position)]
    if moved:
        yield Section(
            "Which token is it?",
            "The tokens that agree least, whose live state fits another train row better than their own. High cosines here are rows from elsewhere.",
            tables=(_displaced(moved),),
            fold=True,
            terminal=False,
        )
    counters = sorted({*result.train.counters, *result.live.counters})
    if counters:
        rows = tuple((name, num(result.train.counters.get(name)), num(result.live.counters.get(name))) for name in counters)
        yield Section(
            "Counted while capturing",
            "How often the hooks saw each call.",
            tables=(Table(("count", "train", "live"), rows, align="lrr", code=(0,)),),
        )
    for title, caption, lines in (
        ("Cut short or left out", "Live records whose token ids part from those of every train record.", result.unaligned),
        ("Not on both sides", "Rows that were skipped, and train records that are not in live.", result.absent),
    ):
        if lines:
            yield Section(
                title, caption, tables=(Table(("record",), tuple((r,) for r in lines)),), fold=True, terminal=title != "Not on both sides"
            )


def _origins(result: Comparison) -> Table:
    rows = tuple(
        (
            str(o.block),
            o.best.words(result.numbered) if o.best.fit > LIKENESS else f"none that was tried; nearest {o.best.words(result.numbered)}",
            fixed(o.best.fit, 4),
            fixed(o.declared.fit, 4),
            "; ".join(f"{h.words(result.numbered)} ({h.fit:.3f})" for h in o.others),
        )
        for o in result.origins
    )
    return Table(("live block", "what it is", "fit", "fit as trained", "next best"), rows, align="rlrrl", narrow=(0, 1, 2, 3))


def _displaced(moved: Sequence[Displaced]) -> Table:
    rows = tuple(
        (d.record, num(d.position), fixed(d.cosine, 3), d.best_record, num(d.best_position), fixed(d.best_cosine, 3)) for d in moved
    )
    columns = ("live record", "position", "cosine with its own", "train record it fits", "position", "cosine there")
    return Table(columns, rows, align="lrrlrr", code=(0, 3))


def _blocks(blocks: Sequence[BlockComparison]) -> Table:
    counts: dict[str, Callable[[BlockComparison], int]] = {
        "zero rows": lambda b: b.zero_rows,
        "not finite, train": lambda b: b.nonfinite_train,
        "not finite, live": lambda b: b.nonfinite_live,
        "repeated rows": lambda b: b.duplicate_rows,
        "constant channels": lambda b: b.constant_channels,
    }
    broken = {name: count for name, count in counts.items() if any(count(b) for b in blocks)}  # no columns of zeros
    rows = tuple(
        (
            str(b.block),
            boundary(b.boundary),
            num(b.tokens),
            fixed(b.cosine.median, 4),
            fixed(b.cosine.p1, 4),
            fixed(b.standardised.median, 4),
            fixed(b.standardised.p1, 4),
            num(b.train_norm, 4),
            num(b.live_norm, 4),
            num(b.norm_ratio, 4),
            num(b.relative_error),
            num(dict(b.rounding).get("bfloat16")),
            *(num(count(b)) for count in broken.values()),
        )
        for b in blocks
    )
    columns = (
        "block",
        "train state",
        "tokens",
        "cosine, median",
        "cosine, 1st %",
        "standardised, median",
        "standardised, 1st %",
        "norm, train",
        "norm, live",
        "live/train",
        "relative error",
        "roundings to bf16",
        *broken,
    )
    return Table(columns, rows, align="rl" + "r" * 14, narrow=(0, 1, 3, 5, 9))


def _heats(result: Comparison) -> Iterator[Figure]:
    if result.order and len(result.order) * len(result.order[0]) > 1:
        declared = result.train.boundaries
        names = tuple(f"train {i}" + (f" (b {declared[i]})" if i < len(declared) else "") for i in range(len(result.order)))
        yield Heat(
            "order",
            "Every train block against every live block",
            "Median standardised cosine; in the right order the framed best match of every live block lies on the diagonal.",
            "live block",
            "train block",
            tuple(f"live {j}" for j in range(len(result.order[0]))),
            names,
            result.order,
            marked=_best_rows(result.order),
            mark_label="best match of each live block",
        )
    if result.reference and result.reference[0]:
        turned = tuple(zip(*result.reference, strict=True))
        yield Heat(
            "boundaries",
            "Every boundary of the reference against every live block",
            "Median standardised cosine with each boundary of the target; the frame is the boundary that a live block really is.",
            "boundary of the reference",
            "live block",
            tuple("normed" if b == -1 else str(b) for b in result.reference_boundaries),
            tuple(f"live {j}" for j in range(len(turned))),
            turned,
            marked=tuple((c, r) for r, c in _best_rows(result.reference)),
            mark_label="best match",
        )


def _best_rows(matrix: Sequence[Sequence[float]]) -> tuple[tuple[int, int], ...]:
    """Of each column the cell to frame; a column without a finite value gets none."""
    best = []
    for c in range(len(matrix[0])):
        finite = [r for r in range(len(matrix)) if math.isfinite(matrix[r][c])]
        if finite:
            best.append((max(finite, key=lambda r: matrix[r][c]), c))
    return tuple(best)


def _shift(shift: Sequence[tuple[int, float]]) -> Lines:
    series = Series("live token t against train token t + s", tuple(float(s) for s, _ in shift), tuple(v for _, v in shift), points=True)
    return Lines(
        "shift",
        "Live moved against train by s tokens",
        "Mean standardised cosine for each shift; the highest point belongs at 0.",
        "shift s",
        "mean standardised cosine",
        (series,),
        whole_x=True,
    )


def _tokens(series: Sequence[TokenSeries], index: int, boundaries: dict[int, int | None]) -> Iterator[Figure]:
    cosines, norms = [], []
    for s in series:
        # "final" is the train state that a lone live vector is held against; it has no place among the declared boundaries
        name = boundary(boundaries[s.block]) if boundaries.get(s.block) is not None else f"block {s.block}"
        hue = max(0, s.block) if s.block >= 0 else len(series) - 1
        x = tuple(float(p) for p in s.positions)
        cosines += [Series(f"{name}, standardised", x, s.standardised, hue), Series(f"{name}, plain", x, s.cosine, hue, dashed=True)]
        norms += [Series(f"{name}, live", x, s.live_norm, hue), Series(f"{name}, train", x, s.train_norm, hue, dashed=True)]
    yield Lines(
        f"cosine-{index}",
        "Cosine per token",
        "1 means the draft is fed what it was trained on, at this token and boundary.",
        "token position",
        "cosine",
        tuple(cosines),
        bands=(Band(1.0, 1.0, ""),),
        whole_x=True,
    )
    yield Lines(
        f"norm-{index}",
        "Norm per token",
        "Solid is live, dashed is train; on a log scale a constant factor is a constant gap. "
        "The first token is an attention sink and may lie far above the range shown.",
        "token position",
        "norm",
        tuple(norms),
        log_y=True,
        whole_x=True,
        y_range=_range_without_sink(norms),
    )


def _range_without_sink(norms: Sequence[Series]) -> tuple[float, float] | None:
    """The norms of all tokens but the first, which would squeeze the rest into a line."""
    values = [y for s in norms for x, y in zip(s.x, s.y, strict=True) if x > 0 and math.isfinite(y) and y > 0]
    return (min(values) / 1.1, max(values) * 1.1) if values else None


def _worst(result: Comparison) -> Table:
    rows = tuple(
        (w.record, str(w.block), num(w.position), fixed(w.standardised, 4), fixed(w.cosine, 4), num(w.norm_ratio, 4)) for w in result.worst
    )
    return Table(("record", "block", "position", "standardised", "cosine", "live/train norm"), rows, align="lrrrrr", code=(0,))
