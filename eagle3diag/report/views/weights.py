"""How the weights of a draft are shown: every tensor in one table, fc by aux state, spectra over the noise band, row norms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eagle3diag.report.form import Band, Lines, Page, Section, Series, Table
from eagle3diag.report.numbers import MISSING, many, num, percent
from eagle3diag.report.views.common import path_name, shape, verdict

if TYPE_CHECKING:
    from eagle3diag.weights import TensorWeights, WeightReport


def page(result: WeightReport) -> Page:
    findings = result.findings
    healthy = f"The weights of {path_name(result.draft)} look trained: nothing above a note."
    facts = [("draft", result.draft), ("tensors", f"{many(len(result.tensors), 'tensor')}, {num(result.total_parameters)} parameters")]
    if result.skipped:
        facts.append(("not weights", ", ".join(result.skipped)))
    return Page("weights", verdict(findings, healthy), tuple(facts), findings, tuple(_sections(result)))


def _sections(result: WeightReport) -> Iterator[Section]:
    caption = (
        "Mean and std cannot tell trained from fresh. Singular values above the noise edge, and norms that differ more than chance "
        "allows, can: training arranges entries, an initialisation does not."
    )
    yield Section("Every tensor", caption, tables=(_tensors(result),))
    for tensor in result.tensors:
        if tensor.blocks:
            yield Section(
                "fc, by aux state", "A block much weaker than the others means that its state is hardly used.", tables=(_blocks(tensor),)
            )
    with_spectra = sorted((t for t in result.tensors if t.spectrum is not None), key=lambda t: (not t.name.startswith("fc"), t.name))
    for i, tensor in enumerate(with_spectra):
        yield Section(f"Spectrum of {tensor.name}", _spectrum_words(tensor), figures=(_spectrum(tensor, i),), fold=i > 0, terminal=False)
    for i, tensor in enumerate(
        sorted((t for t in result.tensors if t.row_norm_series), key=lambda t: (not t.name.startswith("fc"), t.name))
    ):
        yield Section(f"Row norms of {tensor.name}", figures=(_rows(tensor, i),), fold=True, terminal=False)
    close = tuple(
        (t.name, n.name, num(n.std_ratio, 4), percent(n.implied_update), num(n.kurtosis_gap), num(n.max_over_bound, 4), num(n.z_std))
        for t in result.tensors
        for n in sorted(t.nulls, key=lambda n: n.distance)[:3]
        if n.std_ratio is not None
    )
    if close:
        columns = ("tensor", "initialisation", "std ratio", "implied update", "kurtosis gap", "max/bound", "z of std")
        text = (
            "For each tensor the three closest ways of initialising it. Read the effect sizes; with millions of entries every z is large."
        )
        yield Section(
            "Distance to initialisations", text, tables=(Table(columns, close, align="llrrrrr", code=(0, 1)),), fold=True, terminal=False
        )
    notes = tuple((t.name, t.note) for t in result.tensors if t.note)
    if notes:
        yield Section("Not measured", tables=(Table(("tensor", "why"), notes, code=(0,)),), fold=True, terminal=False)


def _tensors(result: WeightReport) -> Table:
    rows = tuple(
        (
            t.name,
            shape(t.shape),
            num(t.std, 4),
            num(t.kurtosis),
            _outside(t),
            percent(t.spectrum.outside_energy) if t.spectrum else MISSING,
            num(t.row_norms.cv) if t.row_norms else MISSING,
            t.nearest_null or MISSING,
            num(t.mean),
            num(t.abs_mean, 4),
            num(t.max_abs),
            num(t.zero_rows),
            num(t.nonfinite),
            t.dtype,
        )
        for t in result.tensors
    )
    norms = ("above the edge", "their energy", "row norm cv")
    moments = ("mean", "mean |w|", "max |w|", "zero rows", "not finite", "dtype")
    columns = ("tensor", "shape", "std", "kurtosis", *norms, "nearest init", *moments)
    return Table(columns, rows, align="llrrrrrlrrrrrl", narrow=(0, 1, 2, 3, 4), code=(0, 7))


def _outside(t: TensorWeights) -> str:
    if t.spectrum is None:
        return MISSING
    return f"{num(t.spectrum.outside)} of {num(min(t.shape))}" if t.spectrum.exact else f"≥ {num(t.spectrum.outside)}"


def _blocks(tensor: TensorWeights) -> Table:
    rows = tuple((str(b.block), num(b.frobenius, 4), num(b.std, 4), num(b.stable_rank, 4)) for b in tensor.blocks)
    return Table(("aux state", "Frobenius norm", "std", "stable rank"), rows, align="rrrr")


def _spectrum_words(tensor: TensorWeights) -> str:
    s = tensor.spectrum
    assert s is not None
    if s.outside:
        energy = percent(s.outside_energy)
        return f"{_outside(tensor)} singular values stand above what noise of this shape and std can reach, with {energy} of the energy."
    return "No singular value stands above what noise of this shape and std can reach."


def _spectrum(tensor: TensorWeights, index: int) -> Lines:
    s = tensor.spectrum
    assert s is not None
    values = s.singular_values
    # thinned lists keep the largest; the axis counts what is drawn, the caption says of how many
    series = Series("singular value", tuple(float(i) for i in range(1, len(values) + 1)), values)
    of = f" ({len(values):,} drawn of {s.count:,})" if len(values) < s.count else ""
    return Lines(
        f"spectrum-{index}",
        f"Singular values of {tensor.name}{of}",
        "Everything inside the band is what an untrained matrix of this shape and std would show.",
        "rank, largest first",
        "singular value",
        (series,),
        bands=(Band(s.band_low, s.tracy_widom_high, "noise band"),),
        log_y=True,
        log_x=True,
        whole_x=True,
    )


def _rows(tensor: TensorWeights, index: int) -> Lines:
    series = [_norms("row", tensor.row_norm_series, 0)]
    if tensor.column_norm_series:
        series.append(_norms("column", tensor.column_norm_series, 1))
    return Lines(
        f"rows-{index}",
        f"Row and column norms of {tensor.name}",
        "A fresh matrix has nearly equal norms; steps and dead stretches show where training did not reach.",
        "share of the tensor, %",
        "norm",
        tuple(series),
        y_range=(0.0, 1.05 * max(max(s.y) for s in series) or 1.0),
    )


def _norms(name: str, values: tuple[float, ...], hue: int) -> Series:
    return Series(f"{name} norm", tuple(100 * (i + 0.5) / len(values) for i in range(len(values))), values, hue)
