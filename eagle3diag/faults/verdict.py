"""What one weight is: fresh, moved by so much, trained, copied, dead, quantised and back. Thresholds of the nulls live here.

The thresholds were set on random starts of 40 seeds, 5 shapes, 4 laws and 2 dtypes (1600 matrices), where no z exceeded 4.2. Errors were
then counted on others: ``benchmarks/weights_errors.py``, whose table stands in ``docs/weights.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from eagle3diag.weights import Grid, NullDistance, Origin, TensorWeights

Z_LIMIT = 5.0
"""Largest |z| that chance is granted. A draft gives some forty z; below 5 chance keeps 40 of them together in all but 2 in 100,000."""

EDGE_LIMIT = 5.0
"""How far, in Tracy-Widom units, the largest singular value of noise may reach: beyond 5 chance goes once in some 44,000 matrices. The edge
that is counted against (3.27) is passed once in 1000."""

LAW_LIMIT = 2.8
"""``sqrt(N)`` times the largest gap between distribution functions: chance passes it once in three million (``2 exp(-2 x^2)``)."""

STD_CLOSE, KURTOSIS_CLOSE, LAW_CLOSE = 0.005, 0.02, 0.003
"""Effects too small to matter however large z is (a matrix of 1.5e8 entries has z = 5 at a std 0.02 % off)."""

NEAR_STD = 0.10
"""Within this of an initialisation's std a reader takes the tensor for fresh: the seed case's fc was 2.5 % above."""

BULK_NEAR = (0.9, 1.35)
"""The noise under a trained matrix lies at its start's std or somewhat above (broad updates), a little below with weight decay. On the
sample draft, which started at uniform_fan_in, it is 1.07 (fc) to 1.32 (o_proj) times the start's after eight epochs."""

SMALLEST_SIDE = 16
"""Matrices with a shorter side have too few singular values and norms to tell learning from chance."""

COPY = 0.004
"""Relative difference that rounding to bfloat16 leaves (2^-8 at most): as good as equal (K6)."""

FROM_COPY, NORM_FROM_COPY = 0.7, 0.15
"""Relative difference up to which a weight is said to have started as the target's: unrelated matrices of one std differ by 1.4. Norm weights
are all alike (two layers' differ by 0.2 and more on SmolLM2), so that they need more."""

MOVED = 0.10
"""Below this relative update the answer is "moved by", above it "trained": eight epochs moved the sample draft's matrices by 69 % and more."""

FOUR_BITS, FLOAT8, ON_GRID = 16, {4: "float8 e5m2", 8: "float8 e4m3"}, 0.08
"""Distinct values and mantissas that these formats can have (smooth rows show about 120 and 80 of 128), and the mean distance to an evenly
spaced grid, in steps, below which a row lies on it: int8 in bfloat16 gives 0.03, smooth rows 0.21 and more."""

SPARSE = 0.8
"""Share of zeros from which few distinct values say nothing: a pruned matrix has few as well. Int4 leaves up to 0.6 of a heavy-tailed one."""

State = Literal["initial", "noise", "learned", "copied", "dead", "unknown"]


@dataclass(frozen=True)
class Verdict:
    """What one matrix is: ``initial`` (no structure, law and scale of ``null``), ``noise`` (no structure, no known start), ``copied`` (the
    target's ``origin``, unchanged), ``learned`` (``signs`` of structure, in words), ``dead`` (empty, zero or constant), ``unknown`` (too small or
    not finite). Norm weights start at one: ``initial`` while they are, ``learned`` after.

    ``update``: the change relative to the start, with the range that the known starts and its standard error (times two) allow; None when
    there is no telling. ``quantised``: the format that the entries went through, or None. ``words``: the answer in a few words.
    """

    state: State
    null: NullDistance | None = None
    signs: tuple[str, ...] = ()
    origin: Origin | None = None
    update: float | None = None
    update_range: tuple[float, float] | None = None
    quantised: str | None = None

    @property
    def words(self) -> str:
        quantised = f"; {self.quantised} and back" if self.quantised else ""
        return self._start() + quantised

    def _start(self) -> str:
        if self.state in ("unknown", "dead"):
            return {"unknown": "cannot be told", "dead": "dead"}[self.state]
        if self.origin is not None:
            where = f"the target's layer {self.origin.layer}" if self.origin.layer is not None else f"the target's {self.origin.source[4:]}"
            return f"copied from {where}" if self.state == "copied" else f"{where}, moved by {_percent(self.origin.relative_change)}"
        if self.state == "initial":
            return f"at init ({self.null.name})" if self.null is not None else "at init"
        if self.state == "noise":
            return f"moved by {self._size()}, in no direction" if self.update is not None else "no structure, no known start"
        if self.update is None:
            return "trained"
        return f"moved by {self._size()}" if self.update < MOVED else f"trained, moved by {self._size()}"

    def _size(self) -> str:
        assert self.update is not None  # asked for only then
        return span(*(self.update_range or (self.update, self.update)))


def span(low: float, high: float) -> str:
    """
    >>> span(0.031, 0.0312), span(0.004, 1.2)
    ('3 %', '0.4 to 120 %')
    """
    first, last = _percent(low), _percent(high)
    return f"{first.removesuffix(' %')} to {last}" if first != last else first


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0095 else f"{100 * share:.1f} %"


def verdict(tensor: TensorWeights, origin: Origin | None = None) -> Verdict:
    """Fresh or trained? Structure decides; std, mean and kurtosis only name the start of a matrix that has none.

    The four signs of structure: singular values above the noise edge, and row, column or fc block norms that differ more than iid
    entries allow. One suffices, because each has a false-alarm rate of a few in 100,000.
    """
    quantised = format_of(tensor.grid) if tensor.zeros < SPARSE * tensor.size else None
    if origin is not None and _started_as(tensor, origin):
        state: State = "copied" if origin.relative_change <= COPY else "learned"
        return Verdict(state, origin=origin, signs=tuple(_signs(tensor)), update=origin.relative_change, quantised=quantised)
    ones = tensor.null("ones")
    if len(tensor.shape) == 1 and "norm" in tensor.name and ones is not None and ones.off_value is not None and tensor.zeros < tensor.size:
        moved = ones.off_value  # NaN when nothing is finite
        return Verdict("initial", ones) if moved == 0 else Verdict("learned", update=moved) if moved > 0 else Verdict("unknown")
    if len(tensor.shape) > 1 and (tensor.size == 0 or tensor.constant):
        return Verdict("dead")
    if len(tensor.shape) != 2 or min(tensor.shape) < SMALLEST_SIDE or tensor.nonfinite or tensor.constant or tensor.structure is None:
        return Verdict("unknown", quantised=quantised)
    signs = tuple(_signs(tensor))
    fresh = [n for n in tensor.nulls if _is(n, quantised is not None)]
    if fresh and not signs:
        return Verdict("initial", min(fresh, key=lambda n: n.distance), quantised=quantised)
    start = near(tensor)
    # independent noise of an unknown std is no start that moved: only one whose std is near a start's can be
    update = _update(tensor) if signs or start is not None else None
    middle, span = (update[0], update[1:]) if update is not None else (None, None)
    return Verdict("learned" if signs else "noise", start, signs, update=middle, update_range=span, quantised=quantised)


def _started_as(tensor: TensorWeights, origin: Origin) -> bool:
    limit = FROM_COPY if len(tensor.shape) > 1 else NORM_FROM_COPY
    ones = tensor.null("ones")
    plain = ones is not None and ones.off_value is not None and ones.off_value < COPY  # a norm of ones resembles another
    return origin.relative_change < limit and not plain


def _signs(tensor: TensorWeights) -> Iterator[str]:
    s = tensor.structure
    if s is None or min(tensor.shape) < SMALLEST_SIDE:
        return
    if tensor.spectrum and tensor.spectrum.tracy_widom > EDGE_LIMIT:
        yield f"{tensor.spectrum.outside} singular values above the noise edge"
    for kind, z, top, far in (("row", s.z_row, s.top_row, s.top_row_z), ("column", s.z_column, s.top_column, s.top_column_z)):
        if abs(z) > Z_LIMIT:
            yield f"{kind} norms {'more' if z > 0 else 'less'} spread than noise (z {z:.1f}; {kind} {top} by {far:.0f} standard errors)"
    if s.z_block is not None and s.z_block > Z_LIMIT:  # a low z only says that three blocks are alike
        strong = max(tensor.blocks, key=lambda b: b.frobenius)
        yield f"blocks of unequal norm (z {s.z_block:.1f}; the strongest reads aux state {strong.block + 1})"


def _is(null: NullDistance, quantised: bool) -> bool:
    """Law and scale of this null, within chance or within an effect that does not matter; no entry beyond a bounded law's bound.

    Going through a grid moves the law's moments by that grid's coarseness, of which int4 has 1 %: there only the scale is compared.
    """
    if null.std_ratio is None or null.z_std is None or null.kurtosis_gap is None or null.z_kurtosis is None:
        return False
    if quantised:
        return abs(null.std_ratio - 1) <= 5 * STD_CLOSE and abs(null.kurtosis_gap) <= 5 * KURTOSIS_CLOSE
    bounded = null.name.startswith(("uniform", "truncated")) or null.name.endswith("_uniform")
    return (
        (abs(null.std_ratio - 1) <= STD_CLOSE or abs(null.z_std) <= Z_LIMIT)
        and (abs(null.kurtosis_gap) <= KURTOSIS_CLOSE or abs(null.z_kurtosis) <= Z_LIMIT)
        and (null.law_gap is None or null.law_gap <= LAW_CLOSE or (null.z_law or 0.0) <= LAW_LIMIT)
        and not (bounded and null.max_over_bound is not None and null.max_over_bound > 1)
    )


def _usual(tensor: TensorWeights) -> list[NullDistance]:
    """The starts that draft trainers use."""
    return [n for n in tensor.nulls if n.name.startswith(("uniform_fan_in", "normal_")) and n.std_ratio is not None]


def near(tensor: TensorWeights) -> NullDistance | None:
    """The nearest of the usual starts whose std this tensor's is within NEAR_STD of."""
    return min((n for n in _usual(tensor) if n.std_ratio and abs(n.std_ratio - 1) <= NEAR_STD), key=lambda n: n.distance, default=None)


def _update(tensor: TensorWeights) -> tuple[float, float, float] | None:
    """Relative update and its range over the usual starts that the noise under the signal allows; None when it allows none.

    A small update of a uniform start is read from the entries beyond its bound; else from the std, which it raises in squares; and when it
    does not stand out there, from the energy outside the bulk.
    """
    under = tensor.spectrum.bulk_std if tensor.spectrum else tensor.std
    found: list[tuple[float, float]] = []
    for n in _usual(tensor):
        if not BULK_NEAR[0] <= under / n.null_std <= BULK_NEAR[1]:
            continue
        if n.edge_update is not None and n.beyond and n.edge_update < 0.2:
            found.append((n.edge_update, 2 * n.edge_update / math.sqrt(n.beyond)))
        elif n.implied_update is not None and n.update_error is not None and n.z_std is not None and n.z_std > Z_LIMIT:
            found.append((n.implied_update, 2 * n.update_error))
        elif tensor.spectrum and 0 < tensor.spectrum.bulk_outside_energy < 1:
            share = tensor.spectrum.bulk_outside_energy
            found.append((math.sqrt(share / (1 - share)), 0.0))
    if not found:
        return None
    middle = found[0][0] if len(found) == 1 else math.sqrt(min(u for u, _ in found) * max(u for u, _ in found))
    return middle, max(0.0, min(u - e for u, e in found)), max(u + e for u, e in found)


def unseen(tensor: TensorWeights, null: NullDistance) -> tuple[float | None, float | None]:
    """The smallest changes relative to a start that would have shown: spread evenly over the entries, and in a single direction. They shrink
    with the matrix, which is how far "at init" can be trusted."""
    spread = math.sqrt(2 * Z_LIMIT * null.ratio_error) if null.ratio_error else None
    return spread, math.sqrt(tensor.spectrum.visible_energy) if tensor.spectrum else None


def format_of(grid: Grid | None) -> str | None:
    """The number format whose grid the entries lie on; None for smooth entries."""
    if grid is None:
        return None
    for group, levels in zip((128, 64, 32), reversed(grid.levels), strict=True):
        if levels <= FOUR_BITS:
            return f"4 bits in groups of {group} or more" if group == 128 else f"4 bits in groups of {group}"
    for most, name in FLOAT8.items():
        if grid.mantissas <= most:
            return name
    return "int8" if grid.off_step < ON_GRID and grid.steps > FOUR_BITS else None
