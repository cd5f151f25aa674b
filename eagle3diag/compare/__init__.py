"""Train against live: ``compare(train_dump, live_dump)`` says where the two sides part, in numbers."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import torch
from torch import Tensor

from eagle3diag.checkpoints import TargetSource
from eagle3diag.compare.align import Alignment, align
from eagle3diag.compare.chunked import work
from eagle3diag.compare.comparison import (
    FINAL,
    BlockComparison,
    BlockOrigin,
    Comparison,
    Displaced,
    Hypothesis,
    TokenSeries,
    WorstToken,
)
from eagle3diag.compare.gain import final_norm_gain
from eagle3diag.compare.hypotheses import origins
from eagle3diag.compare.identity import against_reference, displaced, identify
from eagle3diag.compare.measure import Measured, Plan, finish, numbered, opened, plan
from eagle3diag.compare.metrics import Quantiles
from eagle3diag.compare.one_dump import DumpCheck, Reading, check_dump
from eagle3diag.compare.sample import Sampled, draw
from eagle3diag.compare.sampling import Layout
from eagle3diag.compare.sources import Loaded, Side, Source, load
from eagle3diag.compare.there import pairs_elsewhere, same_work, working_device
from eagle3diag.errors import BadArgument, MismatchedInputs

__all__ = [
    "FINAL",
    "BlockComparison",
    "BlockOrigin",
    "Comparison",
    "Displaced",
    "DumpCheck",
    "Hypothesis",
    "Quantiles",
    "Reading",
    "Sampled",
    "Side",
    "TokenSeries",
    "WorstToken",
    "check_dump",
    "compare",
]

USUAL_STATES = 3
"""States that nearly every EAGLE-3 draft is fed side by side: taken for granted where two sides of one width state no hidden size. As one
wide block, the same states in another order would look like a rotation."""


def compare(
    train: Source,
    live: Source,
    *,
    reference: Source | None = None,
    target: TargetSource | Tensor | None = None,
    hidden_size: int | None = None,
    chunk_tokens: int | None = None,
    sample: int | None = None,
    seed: int = 0,
    resume: str | os.PathLike[str] | None = None,
    ray: str | None = None,
    device: str | torch.device | None = None,
) -> Comparison:
    """Compare what the draft was trained on with what it is fed, token by token.

    Parameters
    ----------
    train, live: a dump (path or :class:`~eagle3diag.dumps.HiddenStates`), records, a finished capture, or plain tensors [T, W]. Records are
        paired by token ids (``eagle3diag.compare.align``); plain tensors row by row, and their first row is taken for the sink token.
    reference: states of many boundaries on the same tokens, to identify the live blocks with; one made by
        ``capture(target, boundaries=range(n_layers + 1))`` serves best.
    target: the target, or the gain [H] of its final norm, for ``live_final_rms``.
    hidden_size: H, where neither a dump nor the target states it. Otherwise it is taken for the largest width that divides both sides, of
        equal sides for a third of their width, which is what drafts are fed; ``assumed`` says so.
    chunk_tokens: rows worked on at once, by default as many as fit into the processor's cache; changes memory, not results.
    sample, seed: look at this many live records only, drawn evenly over the dump's order and the records' lengths; the result says so.
    resume: a folder in which finished work is kept; the same call takes it up there when it was interrupted. For dumps on disk.
    ray: do the work on a Ray cluster: ``auto``, or its address (``eagle3diag.compare.on_ray``). Both dumps are then given by paths that
        every node sees. The result is the same, bit for bit, as without it.
    device: where all rows are summed up, as torch names it (``cuda``); states come there chunk by chunk, and the sums back once a record. By
        default where the states lie: the CPU for dumps on disk. The few hundred rows that blocks are identified by are looked at on the CPU
        in any case. The result is the same within the rounding of float32.

    Raises
    ------
    MismatchedInputs: nothing aligns, records of one dump differ in width, the two sides come from targets of different sizes, or the dumps
    say of themselves that they were given in the wrong order.
    BadArgument: not one of the above. MissingDependency, UnusableServer: no ray, no cluster. Reading errors pass through.

    >>> import torch
    >>> train = torch.randn(64, 3 * 32, generator=torch.Generator().manual_seed(0))
    >>> result = compare(train, train.roll(32, dims=1), hidden_size=32)  # live blocks are in another order
    >>> [max(range(3), key=lambda i: result.order[i][j]) for j in range(3)]
    [2, 0, 1]
    """
    if chunk_tokens is not None and chunk_tokens < 1:
        raise BadArgument(f"chunk_tokens={chunk_tokens}", hint="a positive number of rows")
    sides = load(train, "train"), load(live, "live")
    _check_order(*sides)
    gain = None if target is None else final_norm_gain(target)
    layout, assumed = _layout(*sides, hidden_size, None if gain is None else len(gain))
    if gain is not None and len(gain) != layout.hidden_size:
        raise MismatchedInputs(
            f"the target's final norm has {len(gain)} channels, but a block of the dumps has {layout.hidden_size}",
            where="target",
            hint="give the target that the dumps were made with",
        )
    on = working_device(device, ray, sides[1].device, sides[0].device)
    drawn, sampled = draw([r.tokens for r in sides[1].rows], sample, seed)
    chosen = replace(sides[1], rows=tuple(sides[1].rows[i] for i in drawn))
    alignment = align(sides[0], chosen, sampled=sampled is not None)
    planned = plan(alignment, layout, sides[0].boundaries, chunk_tokens, on)
    measured = Measured() if planned is None else _measured(planned, alignment, sides, (train, live), resume, ray)
    identity = identify(alignment, layout, gain)
    known, declared, by_reference = alignment, _declared(sides[0].boundaries, layout), False
    boundaries: tuple[int, ...] = ()
    matrix: tuple[tuple[float, ...], ...] = ()
    if reference is not None:
        held = align(load(reference, "reference"), chosen)
        boundaries, matrix = against_reference(held, layout)
        if set(sides[0].boundaries) <= set(boundaries) and len(sides[0].boundaries) == layout.live_blocks:
            known, declared, by_reference = held, sides[0].boundaries, True
    blocks = tuple(
        replace(b, cka=identity.cka[i], gram_error=identity.gram_error[i], constant_channels=identity.constant[i])
        if i < len(identity.cka)
        else b
        for i, b in enumerate(measured.blocks)
    )
    return Comparison(
        train=sides[0].describe(layout.hidden_size),
        live=sides[1].describe(layout.hidden_size),
        hidden_size=layout.hidden_size,
        aligned_tokens=alignment.tokens,
        blocks=blocks if layout.paired else (),
        single=measured.blocks if layout.single else (),
        order=identity.order,
        reference_boundaries=boundaries,
        reference=matrix,
        shift=identity.shift,
        live_final_rms=identity.live_final_rms,
        worst=measured.worst,
        unaligned=alignment.unaligned,
        series=measured.series,
        origins=origins(known, layout, declared, gain, by_reference) if layout.paired else (),
        displaced=displaced(alignment, layout, measured.least),
        alike=identity.alike,
        absent=alignment.absent,
        sampled=sampled,
        assumed=assumed,
        zero_tokens=measured.zero_tokens,
        nonfinite_tokens=measured.nonfinite_tokens,
        duplicate_tokens=measured.duplicate_tokens,
    )


def _measured(
    planned: Plan,
    alignment: Alignment,
    sides: tuple[Loaded, Loaded],
    sources: tuple[Source, Source],
    resume: str | os.PathLike[str] | None,
    ray: str | None,
) -> Measured:
    """All values of all pairs, wherever they are taken."""
    pairs = numbered(alignment)
    whole = work(
        "comparing",
        [p.pair.tokens for p in pairs],
        planned.layout.train_width,
        lambda number: opened(planned, pairs[number]),
        resume=resume,
        bound=lambda: same_work(planned, pairs, sides),
        ray=ray,
        elsewhere=lambda: pairs_elsewhere(planned, pairs, sources),
    )
    return finish(planned, whole)


def _check_order(train: Loaded, live: Loaded) -> None:
    """Swapped sides give a mirrored diagnosis, so it is worth an error where both dumps say what they are."""
    if (train.side, live.side) == ("live", "train"):
        raise MismatchedInputs(
            "the first dump says that it was recorded live, the second that it is from training",
            where=f"{train.name} / {live.name}",
            hint="give them in the order train, live",
        )


def _declared(boundaries: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """What the train blocks are called: their boundaries, or their numbers."""
    return boundaries if len(boundaries) == layout.train_blocks else tuple(range(layout.train_blocks))


def _layout(train: Loaded, live: Loaded, hidden_size: int | None, of_target: int | None) -> tuple[Layout, tuple[str, ...]]:
    """How wide a block is, and what had to be assumed for it."""
    if hidden_size is not None and hidden_size < 1:
        raise BadArgument(f"hidden_size={hidden_size}", hint="the target's hidden size, a positive number")
    stated = hidden_size or train.hidden_size or live.hidden_size or of_target
    differ = train.hidden_size and live.hidden_size and train.hidden_size != live.hidden_size
    # a reader that knew no better may have called the live width the hidden size: that is a finding, not an error
    if hidden_size is None and differ and live.width % (train.hidden_size or 1):
        raise MismatchedInputs(
            f"train comes from a target of hidden size {train.hidden_size}, live from one of {live.hidden_size}",
            where=f"{train.name} / {live.name}",
            hint="dump both sides with the same target",
        )
    if stated:
        return Layout(stated, train.width, live.width), ()
    common = math.gcd(train.width, live.width)
    third = common // USUAL_STATES if train.width == live.width == common and common % USUAL_STATES == 0 else 0
    words = f"{USUAL_STATES} states of {third} side by side" if third else f"a hidden size of {common}, which divides both widths"
    hint = "neither side states the hidden size: give the target, or hidden_size="
    return Layout(third or common, train.width, live.width), (f"{words}; {hint}",)
