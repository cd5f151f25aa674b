"""Parts of the weights' page: what fc reads, what changed, what came from the target, and the page of one tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eagle3diag.report.form import Band, Figure, Heat, Lines, Section, Series, Table
from eagle3diag.report.numbers import MISSING, num, percent
from eagle3diag.report.views.common import shape

if TYPE_CHECKING:
    from eagle3diag.faults.verdict import Verdict
    from eagle3diag.weights import FcReading, TensorWeights, WeightReport


def reading(r: FcReading) -> Iterator[Section]:
    names = [f"state {b.block + 1}" + (f", boundary {r.boundaries[i]}" if i < len(r.boundaries) else "") for i, b in enumerate(r.blocks)]
    caption = (
        f"{r.tokens} tokens of {r.records} sequences. Gain: energy that passes over what would pass a matrix without memory, channels "
        "standardised. Training leaves its inputs' directions in fc, so the states it was trained on pass with a gain above 1."
    )
    blocks = tuple(
        (name, num(b.rms), percent(b.energy), num(b.gain, 4), num(b.gain_error, 2), percent(b.channel_share))
        for name, b in zip(names, r.blocks, strict=True)
    )
    ways = tuple(
        (
            h.name,
            num(h.gain, 4),
            _difference(h.gain_drop, h.gain_drop_error),
            num(h.behind, 4),
            _difference(h.behind_drop, h.behind_drop_error),
            num(h.output_cosine),
        )
        for h in r.hypotheses
    )
    order = Heat(
        "fc-order",
        "Which state each block of fc was trained on",
        "Gain of a block (rows) for a state of the dump (columns): 1 by chance. The trained state stands out.",
        "state of the dump",
        "block of fc",
        tuple(names),
        tuple(f"block {b.block + 1}" for b in r.blocks),
        r.order_gain,
        low=1.0,
        high=max(max(row) for row in r.order_gain),
    )
    directions = Lines(
        "fc-directions",
        "What fc reads of each state",
        "Gain along the principal directions of the standardised state, most variance first. Inside the band fc has no preference; below it a "
        "direction is ignored.",
        "principal direction",
        "gain",
        tuple(
            Series(n, tuple(float(i + 1) for i in range(len(b.directions))), b.directions, b.block)
            for n, b in zip(names, r.blocks, strict=True)
        ),
        bands=(Band(1 - 2 * r.blocks[0].direction_error, 1 + 2 * r.blocks[0].direction_error, "no memory"),),
        whole_x=True,
    )
    yield Section(
        "fc tested on the states of the dump",
        caption,
        tables=(
            Table(("state", "rms", "share of fc's output", "gain", "±", "in 1 % of its channels"), blocks, align="lrrrrr"),
            Table(
                ("fed", "gain", "worse than as dumped by", "after fc", "worse by", "output cosine"),
                ways,
                align="lrrrrr",
                title="Other ways of feeding fc, compared with the dump as it is. After fc: the gain of q, k and v for its normed output.",
            ),
        ),
        figures=(order, directions),
    )


def _difference(drop: float | None, error: float | None) -> str:
    return MISSING if drop is None or error is None else "0" if abs(drop) < 1e-6 else f"{drop:+.3f} ± {error:.3f}"


def changes(result: WeightReport) -> Iterator[Section]:
    if not result.against:
        return
    names = sorted({c.tensor for a in result.against for c in a.changes})
    strip = Heat(
        "changes",
        "How far each tensor is from each checkpoint",
        "Relative change, |here - there| / |there|.",
        "checkpoint",
        "tensor",
        tuple(a.other for a in result.against),
        tuple(names),
        tuple(tuple(c.relative_change if (c := a.change(n)) is not None else float("nan") for a in result.against) for n in names),
    )
    rows = tuple(
        (
            a.other,
            c.tensor,
            num(c.relative_change),
            percent(c.equal_rounded),
            num(c.scale, 4),
            num(c.overlap),
            num(c.change_rank),
            num(c.max_change),
            " to ".join(dict.fromkeys(reversed(c.dtypes))),
        )
        for a in result.against
        for c in a.changes
    )
    columns = ("against", "tensor", "change", "equal", "scale", "overlap", "rank of change", "largest", "dtype")
    apart = tuple(
        (a.other, name, what)
        for a in result.against
        for group, what in ((a.only_here, "only here"), (a.only_there, "only there"), ([n for n, _, _ in a.reshaped], "another shape"))
        for name in group
    )
    caption = "Overlap: mean squared cosine of the 16 leading directions there and here. Equal: entries that agree after rounding to the coarser dtype."
    yield Section(
        "Against other checkpoints",
        caption,
        tables=(
            Table(columns, rows, align="llrrrrrrl", narrow=(0, 1, 2, 3, 5), code=(1,)),
            *((Table(("against", "tensor", "where"), apart, code=(1,), terminal=False),) if apart else ()),
        ),
        figures=(strip,) if names else (),
    )


def origins(result: WeightReport) -> Iterator[Section]:
    if not result.origins and not result.overlaps:
        return
    found = tuple(
        (o.tensor, o.source, o.part or MISSING, num(o.relative_change), num(o.cosine), num(o.next_cosine), percent(o.equal))
        for o in result.origins
    )
    shared = tuple((o.tensor, f"{o.side} {o.source}", num(o.overlap), f"{o.by_chance:.3f} ± {o.chance_error:.3f}") for o in result.overlaps)
    yield Section(
        "What it shares with the target",
        "For each tensor the one of the target that resembles it most: unrelated matrices have a cosine near 0 and a relative change of 1 and more.",
        tables=(
            Table(("tensor", "closest", "part", "change", "cosine", "next", "equal"), found, align="lllrrrr", code=(0, 1)),
            Table(
                ("tensor", "side", "overlap", "by chance"),
                shared,
                align="llrr",
                code=(0,),
                title="Leading directions against those of the target's vocabulary: what is learned in its terms lies above chance.",
            ),
        ),
        fold=True,
        terminal=False,
    )


def tensor_page(t: TensorWeights, v: Verdict, index: int) -> Section:
    """Everything about one matrix, fc's opened, the others folded."""
    figures: list[Figure] = [figure for figure in (_spectrum(t, index), _rows(t, index)) if figure is not None]
    if t.blocks and (tiles := _tiles(t, index)) is not None:  # of the others the numbers are in the JSON: a map each would double the page
        figures.append(tiles)
    words = f"Verdict: {v.words}." + (f" {'; '.join(v.signs)}." if v.signs else "")
    return Section(t.name, words, _spectrum_words(t), tables=tuple(_numbers(t)), figures=tuple(figures), fold=index > 0, terminal=False)


def outside(t: TensorWeights) -> str:
    if t.spectrum is None:
        return MISSING
    return f"{num(t.spectrum.outside)} of {num(min(t.shape))}" if t.spectrum.exact else f"≥ {num(t.spectrum.outside)}"


def _spectrum_words(t: TensorWeights) -> tuple[str, ...]:
    s = t.spectrum
    if s is None:
        return ()
    if not s.outside:
        return ("No singular value stands above what noise of this shape and std can reach.",)
    energy = percent(s.outside_energy)
    words = f"{outside(t)} singular values stand above what noise of this shape and std can reach, with {energy} of the energy."
    under = f" The noise under them fits a std of {num(s.bulk_std)}, above whose edge stand {num(s.bulk_outside)} with {percent(s.bulk_outside_energy)}."
    return (words + under,)


def _numbers(t: TensorWeights) -> Iterator[Table]:
    close = tuple(
        (
            n.name,
            num(n.std_ratio, 4),
            percent(n.implied_update),
            percent(n.edge_update),
            num(n.kurtosis_gap),
            num(n.law_gap),
            num(n.max_over_bound, 4),
            num(n.z_std),
        )
        for n in sorted(t.nulls, key=lambda n: n.distance)[:4]
        if n.std_ratio is not None
    )
    if close:
        columns = ("initialisation", "std ratio", "implied update", "by the bound", "kurtosis gap", "law gap", "max/bound", "z of std")
        yield Table(
            columns,
            close,
            align="lrrrrrrr",
            code=(0,),
            title="The closest initialisations. Read the effect sizes; with millions of entries every z is large.",
        )
    if (s := t.spectrum) is not None:
        tail = f"{num(s.tail_exponent)} ± {num(s.tail_error, 1)}" if s.tail_exponent is not None else MISSING
        values = (
            num(s.stable_rank, 4),
            num(s.effective_rank, 4),
            tail,
            num(s.tracy_widom),
            num(s.bulk_misfit, 2),
            num(s.visible_energy, 2),
        )
        ranks = ("stable rank", "effective rank", "tail exponent", "largest, Tracy-Widom", "misfit of the bulk", "visible from (energy)")
        yield Table(ranks, (values,), align="rrrrrr")


def _spectrum(t: TensorWeights, index: int) -> Lines | None:
    s = t.spectrum
    if s is None:
        return None
    values = s.singular_values
    # thinned lists keep the largest; the axis counts what is drawn, the caption says of how many
    series = Series("singular value", tuple(float(i) for i in range(1, len(values) + 1)), values)
    of = f" ({len(values):,} drawn of {s.count:,})" if len(values) < s.count else ""
    return Lines(
        f"spectrum-{index}",
        f"Singular values of {t.name}{of}",
        "Everything inside the band is what an untrained matrix of this shape and std would show; the dashed line is the edge of the noise that "
        "lies under the signal.",
        "rank, largest first",
        "singular value",
        (series,),
        bands=(Band(s.band_low, s.tracy_widom_high, "noise band"), Band(s.bulk_edge, s.bulk_edge, "edge of the bulk")),
        log_y=True,
        log_x=True,
        whole_x=True,
    )


def _rows(t: TensorWeights, index: int) -> Lines | None:
    if not t.row_norm_series:
        return None
    series = [_norms("row", t.row_norm_series, 0)]
    if t.column_norm_series:
        series.append(_norms("column", t.column_norm_series, 1))
    return Lines(
        f"rows-{index}",
        f"Row and column norms of {t.name}",
        "A fresh matrix has nearly equal norms; steps and dead stretches show where training did not reach.",
        "share of the tensor, %",
        "norm",
        tuple(series),
        y_range=(0.0, 1.05 * max(max(s.y) for s in series) or 1.0),
    )


def _tiles(t: TensorWeights, index: int) -> Heat | None:
    if len(t.tiles) < 2 or len(t.tiles[0]) < 2:
        return None
    cells = [v for row in t.tiles for v in row]
    return Heat(
        f"tiles-{index}",
        f"Where {t.name} is strong",
        f"Root mean square of the entries in {len(t.tiles)} x {len(t.tiles[0])} parts of {shape(t.shape)}, over that of the whole: 1 everywhere in a "
        "fresh matrix.",
        "columns, from the first to the last",
        "rows",
        tuple(f"{100 * c // len(t.tiles[0])} %" for c in range(len(t.tiles[0]))),
        tuple(f"{100 * r // len(t.tiles)} %" for r in range(len(t.tiles))),
        t.tiles,
        low=min(0.9, *cells),
        high=max(1.1, *cells),
    )


def _norms(name: str, values: tuple[float, ...], hue: int) -> Series:
    return Series(f"{name} norm", tuple(100 * (i + 0.5) / len(values) for i in range(len(values))), values, hue)
