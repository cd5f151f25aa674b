"""Faults of how many states reach the draft, and of those that cannot: H1, FM-01 (one), FM-32 (all), FM-30 (the last), FM-40 (other stages)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from eagle3diag.compare import FINAL, Comparison
from eagle3diag.findings import Evidence, Finding, Severity

MATCHES = 0.97
"""Channel-standardised cosine (median per block) from which a live block counts as the trained one. Measured on SmolLM2: the SGLang
engine on CPU against Transformers, both bf16, gives 0.99 and more; the nearest wrong boundary gives 0.93 at most."""

MARGIN = 0.02
"""By how much another boundary must fit better than the declared one before it is named. Neighbours of the right one lie 0.07 and more
below it on SmolLM2; two readings of the same states differ by under 0.005."""


def found_boundaries(comparison: Comparison) -> tuple[tuple[int, float, float], ...]:
    """For each live block: the reference boundary that fits best, its cosine, and its margin over the declared one (-1: final state)."""
    declared = comparison.train.boundaries
    if not comparison.reference or len(declared) != len(comparison.reference[0]):
        return ()
    found = []
    for block, wanted in enumerate(declared):
        column = dict(zip(comparison.reference_boundaries, (row[block] for row in comparison.reference), strict=True))
        best = max(column, key=lambda b: column[b])
        found.append((best, column[best], column[best] - column.get(wanted, 0.0)))
    return tuple(found)


def block_order(comparison: Comparison) -> tuple[int, ...] | None:
    """Which train block each live block is, when every one has a clear partner and no partner is taken twice (test H7)."""
    order = comparison.order
    if not order or not comparison.blocks:
        return None
    n = len(order)
    best = tuple(max(range(n), key=lambda i: order[i][j]) for j in range(n))
    clear = all(order[best[j]][j] >= MATCHES and order[best[j]][j] - order[j][j] > MARGIN for j in range(n) if best[j] != j)
    return best if clear and sorted(best) == list(range(n)) else None


def _lost(c: Comparison) -> list[int]:
    """Train blocks that no live block is."""
    if not c.order or not c.order[0]:
        return []
    return [i for i, row in enumerate(c.order) if max(row) < MATCHES]


def _name(c: Comparison, block: int) -> str:
    return f"boundary {c.train.boundaries[block]}" if block < len(c.train.boundaries) else f"block {block}"


def _best_fits(c: Comparison, blocks: Iterable[int]) -> tuple[Evidence, ...]:
    """How well the live block that fits best fits each of these train blocks."""
    return tuple(
        Evidence(f"{_name(c, i)}: best cosine among the live blocks", max(c.order[i]), f"at least {MATCHES}", "compare") for i in blocks
    )


def last_boundary(c: Comparison) -> Finding | None:
    """FM-30: the boundary behind the last block does not reach the draft, or the one before it does in its place."""
    declared, layers = c.train.boundaries, c.train.n_layers or c.live.n_layers
    if not declared or not layers or declared[-1] != layers:
        return None
    last, found = len(declared) - 1, found_boundaries(c)
    absent = not c.blocks and len(c.order) == len(declared) and c.live.width < c.train.width and _lost(c) == [last]
    off = [j for j, (best, _, margin) in enumerate(found) if best != declared[j] and margin > MARGIN]
    replaced = bool(c.blocks) and off == [last] and found[last][0] == layers - 1
    if not absent and not replaced:
        return None
    return Finding(
        "FM-30",
        Severity.ERROR,
        f"boundary {layers}, after the last block, is {'not captured' if absent else f'replaced by boundary {layers - 1}'}",
        "Engines that capture before each block never see the state after the last one: its id counts for nothing, or was lowered by one to "
        "make the draft load. The final state after the norm is not that boundary either.",
        _best_fits(c, range(len(c.order))),
        "Capture after the loop over the blocks, before the final norm; or train on boundaries below the last.",
        f"compare() must find boundary {layers} among the live blocks.",
    )


def other_stage(c: Comparison) -> Finding | None:
    """FM-40: the first of the states are missing, or all are one stage further on: layers were counted, or seen, on one stage only."""
    declared, lost = c.train.boundaries, _lost(c)
    kept = [i for i in range(len(c.order)) if i not in lost]
    fed = [b for b in c.single if b.boundary != FINAL and b.standardised.median >= MATCHES]
    first = not c.blocks and c.live.width < c.train.width and bool(lost) and bool(kept) and lost == list(range(len(lost)))
    shifts = {best - wanted for (best, _, _), wanted in zip(found_boundaries(c), declared, strict=False) if best != FINAL}
    local = len(shifts) == 1 and max(shifts) > 1 and all(cosine >= MATCHES for _, cosine, _ in found_boundaries(c))
    if (not local and not first) or (c.single and not fed):
        return None
    title = (
        f"the layers are numbered from block {max(shifts)} on: every state is that many boundaries late"
        if local
        else f"{', '.join(_name(c, i) for i in lost)} {'is' if len(lost) == 1 else 'are'} missing: states of earlier layers do not reach the draft"
    )
    return Finding(
        "FM-40",
        Severity.ERROR,
        title,
        "The draft runs on the last stage of the pipeline, where hooks see local layers with local numbers. Without pipeline parallelism it is "
        "FM-17: fewer layers are configured than were trained on.",
        _best_fits(c, range(len(c.order))),
        "Relay the states from stage to stage in order and number layers globally, or serve without pipeline parallelism.",
        "compare() must find equal widths and the declared boundaries.",
    )


def odd_width(c: Comparison) -> Finding | None:
    """H1, FM-32: a width that is neither the trained one nor a single state (that case is FM-01)."""
    if c.blocks or abs(c.live.width_in_h - 1) < 0.25:
        return None
    if last_boundary(c) is not None or other_stage(c) is not None:
        return None
    lost = _lost(c)
    every = bool(c.order) and not lost and c.live.width > c.train.width
    return Finding(
        "FM-32" if every else "H1",
        Severity.ERROR,
        f"the draft is fed {c.live.width_in_h:g} hidden sizes, it was trained on {c.train.width_in_h:g}"
        + (": all trained states are among them" if every else f"; {', '.join(_name(c, i) for i in lost)} is missing" if lost else ""),
        "The engine hands over the states of all layers; the draft was trained on a few."
        if every
        else "The number of aux states captured is not the one that the draft was trained on (FM-17); the last boundary, layers of another pipeline "
        "stage, or double ids are what engines leave out (FM-30, FM-40).",
        (
            Evidence("live width", c.live.width, str(c.train.width), "compare"),
            Evidence("hidden size", c.hidden_size, None, "dump"),
            *_best_fits(c, lost),
        ),
        "Make the number of captured layers equal the number that fc takes.",
        "compare() must find equal widths.",
    )


def narrow_width(c: Comparison) -> Finding | None:
    """The seeds' case, from two dumps alone: one state where several were trained."""
    if not c.single or c.blocks or abs(c.live.width_in_h - 1) >= 0.25 or c.train.width_in_h < 1.5 or other_stage(c) is not None:
        return None
    best = max(c.single, key=lambda b: b.standardised.median)
    what = "the target's final normed state" if best.boundary == -1 else f"boundary {best.boundary}"
    return Finding(
        "FM-01",
        Severity.ERROR,
        f"one hidden state reaches the draft where {c.train.width_in_h:g} were trained: fc is skipped",
        "The widths of the fed state and of the embedding agree, so the guard before fc lets it pass by. "
        "Aux capture is armed only by the exact name: SGLang's algorithm EAGLE3, vLLM's method eagle3.",
        (
            Evidence("width fed to the draft", c.live.width, f"{c.train.width} = {c.train.width_in_h:g} x {c.hidden_size}", "compare"),
            Evidence(f"what is fed is {what}: cosine", best.standardised.median, None, "compare"),
        ),
        'Start the server with --speculative-algorithm EAGLE3 (vLLM: "method": "eagle3"), and capture again.',
        "compare() must find equal widths.",
    )


JUDGES: tuple[Callable[[Comparison], Finding | None], ...] = (narrow_width, last_boundary, other_stage, odd_width)
