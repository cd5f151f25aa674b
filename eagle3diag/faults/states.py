"""Faults of which states are captured: FM-28 (wrong layers), FM-29 (off by one), FM-33 (another order), widths; dead or broken rows (H2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations

import torch
from torch import Tensor

from eagle3diag.case import Case
from eagle3diag.compare import Comparison
from eagle3diag.dumps import HiddenStates, Record
from eagle3diag.engines.sglang import default_boundaries
from eagle3diag.faults import origins, rows
from eagle3diag.faults.base import IN_DUMPS, Fault
from eagle3diag.faults.origins import explained
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.replay import Change

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


def wrong_order(c: Comparison) -> Finding | None:
    """FM-33: the right states, side by side in another order than trained."""
    order = block_order(c)
    if order is None or order == tuple(range(len(order))):
        return None
    names = [str(c.train.boundaries[i]) if i < len(c.train.boundaries) else f"block {i}" for i in order]
    return Finding(
        "FM-33",
        Severity.ERROR,
        "the aux states reach the draft in another order than it was trained with",
        f"Each live block is one of the trained ones, but they come as {', '.join(names)}: fc applies each block's columns to another state.",
        tuple(
            Evidence(
                f"live block {j} fits train block {i} with cosine",
                c.order[i][j],
                f"block {j} (which fits with {c.order[j][j]:.3f})",
                "compare",
            )
            for j, i in enumerate(order)
            if i != j
        ),
        "Concatenate in the trained order. SGLang always captures in ascending order, whatever the config lists: train that way.",
        "compare() must find the identity order.",
    )


def wrong_layers(c: Comparison) -> Finding | None:
    """FM-29 when every block is off by the same one boundary, FM-28 when the set is another; needs a reference to name them."""
    if not c.blocks or ((order := block_order(c)) is not None and order != tuple(range(len(order)))):
        return None
    fall = rows.falls(c)
    if explained(c) or rows.elsewhere(c) is not None or (fall is not None and fall.severity > Severity.NOTE):
        return None
    found = found_boundaries(c)
    off = [j for j, (best, _, margin) in enumerate(found) if best != c.train.boundaries[j] and margin > MARGIN]
    if found:
        if not off:
            return None
        shifts = {best - c.train.boundaries[j] for j, (best, _, _) in enumerate(found)}
        return _off_by_one(c, found, shifts.pop()) if len(shifts) == 1 and shifts <= {-1, 1} else _other_set(c, found)
    unlike = [b for b in c.blocks if b.standardised.median < MATCHES]
    if not unlike:
        return None
    return Finding(
        "FM-28",
        Severity.WARNING,
        f"{len(unlike)} of {len(c.blocks)} captured states are not the trained ones; which they are cannot be told without a reference",
        "Their channel-standardised cosine lies below what rounding explains. A wrong layer set (FM-28) and a shift by one (FM-29) look alike here.",
        tuple(
            Evidence(f"block {b.block} (boundary {b.boundary}): cosine", b.standardised.median, f"at least {MATCHES}", "compare")
            for b in unlike
        ),
        "Capture every boundary of the target on the same tokens and pass it as reference=: "
        "eagle3diag capture --target TARGET --prompts PROMPTS --boundaries all --out reference/",
        "With a reference each block is named.",
    )


def _fits(c: Comparison, found: tuple[tuple[int, float, float], ...]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            f"live block {j} is boundary {'final (normed)' if best == -1 else best}: cosine",
            cosine,
            f"boundary {c.train.boundaries[j]}, which fits with {cosine - margin:.3f}",
            "compare with reference",
        )
        for j, (best, cosine, margin) in enumerate(found)
    )


def _off_by_one(c: Comparison, found: tuple[tuple[int, float, float], ...], shift: int) -> Finding:
    word = "late" if shift > 0 else "early"
    return Finding(
        "FM-29",
        Severity.ERROR,
        f"every aux state is captured one boundary {word}",
        "Ids of layer outputs, ids of layer inputs and indices of hidden_states differ by one; here one side's ids were read in the other's convention.",
        _fits(c, found),
        "Write the ids in the engine's convention: SGLang wants eagle_config.eagle_aux_hidden_state_layer_ids as output ids, boundary - 1: "
        f"[{', '.join(str(b - 1) for b in c.train.boundaries)}].",
        "compare() with the reference must name the declared boundaries. What this fault costs, the counterfactual says: it can be little.",
    )


def _other_set(c: Comparison, found: tuple[tuple[int, float, float], ...]) -> Finding:
    seen = ", ".join("final" if best == -1 else str(best) for best, _, _ in found)
    return Finding(
        "FM-28",
        Severity.ERROR,
        f"the engine captures boundaries {seen} where the draft was trained on {', '.join(map(str, c.train.boundaries))}",
        "Without ids that it can read an engine takes its default (2, n//2, n-3); ids at a place it does not look at count as none.",
        _fits(c, found),
        f"Put eagle_aux_hidden_state_layer_ids [{', '.join(str(b - 1) for b in c.train.boundaries)}] (output ids) into the draft's eagle_config.",
        "compare() with the reference must name the declared boundaries.",
    )


def broken_rows(c: Comparison) -> Finding | None:
    """H2: rows that are zero or not finite on the live side."""
    zero, bad = sum(b.zero_rows for b in c.blocks + c.single), sum(b.nonfinite_live for b in c.blocks + c.single)
    if not zero and not bad:
        return None
    return Finding(
        "H2",
        Severity.ERROR,
        "live features hold rows that are zero or not finite",
        "Padding taken for tokens gives zero rows (FM-39), an overflow in the target gives NaN or infinities (FM-43).",
        (Evidence("zero rows", zero, "0", "live dump"), Evidence("rows with NaN or infinity", bad, "0", "live dump")),
        "Look at where they lie (tail: padding; chunk edges: prefill) and at the target's dtype.",
        "compare() must count none.",
    )


def odd_width(c: Comparison) -> Finding | None:
    """H1, FM-32: a width that is neither the trained one nor a single state (that case is FM-01)."""
    if c.blocks or abs(c.live.width_in_h - 1) < 0.25:
        return None
    best = [max(row, default=0.0) for row in c.order]
    lost = [i for i, cosine in enumerate(best) if cosine < MATCHES] if c.order and len(c.order[0]) > 1 else []
    names = [f"boundary {c.train.boundaries[i]}" if i < len(c.train.boundaries) else f"block {i}" for i in range(len(c.order))]
    every = bool(c.order) and not lost and c.live.width > c.train.width
    return Finding(
        "FM-32" if every else "H1",
        Severity.ERROR,
        f"the draft is fed {c.live.width_in_h:g} hidden sizes, it was trained on {c.train.width_in_h:g}"
        + (": all trained states are among them" if every else f"; {', '.join(names[i] for i in lost)} is missing" if lost else ""),
        "The engine hands over the states of all layers where a few were trained on."
        if every
        else "Another number of aux states is captured than the draft was trained on (FM-17); the last boundary, layers of another pipeline "
        "stage, or double ids are what engines leave out (FM-30, FM-40).",
        (
            Evidence("live width", c.live.width, str(c.train.width), "compare"),
            Evidence("hidden size", c.hidden_size, None, "dump"),
            *(Evidence(f"{names[i]}: best cosine among the live blocks", best[i], f"at least {MATCHES}", "compare") for i in lost),
        ),
        "Make the number of captured layers equal the number that fc takes.",
        "compare() must find equal widths.",
    )


def narrow_width(c: Comparison) -> Finding | None:
    """The seeds' case, from two dumps alone: one state where several were trained."""
    if not c.single or c.blocks or abs(c.live.width_in_h - 1) >= 0.25 or c.train.width_in_h < 1.5:
        return None
    best = max(c.single, key=lambda b: b.standardised.median)
    what = "the target's final normed state" if best.boundary == -1 else f"boundary {best.boundary}"
    return Finding(
        "FM-01",
        Severity.ERROR,
        f"one hidden state reaches the draft where {c.train.width_in_h:g} were trained: fc is skipped",
        "The widths of the fed state and of the embedding agree, so the guard before fc lets it pass by. "
        "Aux capture is armed only by the exact algorithm name EAGLE3.",
        (
            Evidence("width fed to the draft", c.live.width, f"{c.train.width} = {c.train.width_in_h:g} x {c.hidden_size}", "compare"),
            Evidence(f"what is fed is {what}: cosine", best.standardised.median, None, "compare"),
        ),
        "Start the server with --speculative-algorithm EAGLE3, and capture again.",
        "compare() must find equal widths.",
    )


JUDGES: tuple[Callable[[Comparison], Finding | None], ...] = (
    narrow_width, odd_width, broken_rows, wrong_order, *origins.JUDGES, wrong_layers, *rows.JUDGES,
)  # fmt: skip


def _named(judge: Callable[[Comparison], Finding | None], fault: str) -> Callable[[Case], Finding | None]:
    def detect(case: Case) -> Finding | None:
        finding = judge(case.comparison) if case.comparison is not None else None
        return finding if finding is not None and finding.fault == fault else None

    return detect


def _broken(case: Case) -> Finding | None:
    c = case.comparison
    return None if c is None else broken_rows(c) or rows.duplicates(c)


# -- counterfactuals ---------------------------------------------------------------------------------------------------------------


def _from_reference(reference: HiddenStates, boundaries: tuple[int, ...]) -> Callable[[Record, Tensor], Tensor]:
    """Features of ``boundaries`` for the same record (by token ids) of the reference; -1 is the final normed state."""
    by_ids = {tuple(r.input_ids.tolist()): r for r in reference}

    def features(record: Record, fed: Tensor) -> Tensor:
        known = by_ids.get(tuple(record.input_ids.tolist()))
        if known is None:
            return fed
        parts = [known.final if b == -1 else known.state(b) for b in boundaries]
        return torch.cat([p for p in parts if p is not None], -1)[: len(fed)]

    return features


def _covers(case: Case) -> HiddenStates | None:
    """The reference, when it holds every training record: otherwise a counterfactual would mix changed and unchanged records."""
    if case.reference is None or case.train is None:
        return None
    held = {tuple(r.input_ids.tolist()) for r in case.reference}
    return case.reference if all(tuple(r.input_ids.tolist()) in held for r in case.train) else None


def _seen(case: Case) -> tuple[int, ...] | None:
    """The boundaries that the live blocks are, when a reference names them."""
    found = found_boundaries(case.comparison) if case.comparison is not None else ()
    return tuple(best for best, _, _ in found) or None


def _shifted(case: Case) -> Iterator[Change]:
    reference = _covers(case)
    if reference is None or case.train is None:
        return
    seen = _seen(case)
    for step, word in ((-1, "early"), (1, "late")):
        moved = tuple(b + step for b in case.train.boundaries)
        if seen is not None and moved != seen:  # the live dump shows which way, if any
            continue
        if moved and set(moved) <= set(reference[0].boundaries):
            yield Change("FM-29", f"every state one boundary {word}", features=_from_reference(reference, moved))


def _other_layers(case: Case) -> Iterator[Change]:
    """The set that the live dump shows; without one the engine's default, when it is another."""
    reference = _covers(case)
    if reference is None or case.train is None:
        return
    seen = _seen(case)
    sets = [seen] if seen is not None else [default_boundaries(case.train.target.n_layers)]
    declared = case.train.boundaries
    shifts = {tuple(b + s for b in declared) for s in (-1, 0, 1)}
    for wanted in sets:
        if len(wanted) == len(declared) and wanted not in shifts and set(wanted) - {-1} <= set(reference[0].boundaries):
            yield Change("FM-28", f"boundaries {', '.join(map(str, wanted))} instead", features=_from_reference(reference, wanted))


def _reordered(case: Case) -> Iterator[Change]:
    """The order that the live dump shows; without one all others of up to three blocks, of more the reverse and the rotations."""
    if case.train is None or not case.train.boundaries:
        return
    n = len(case.train.boundaries)
    seen = block_order(case.comparison) if case.comparison is not None else None
    orders: list[tuple[int, ...]] = [seen] if seen is not None else _orders(n)
    for order in orders:
        if order != tuple(range(n)):
            names = ", ".join(str(case.train.boundaries[i]) for i in order)
            yield Change("FM-33", f"blocks in the order {names}", features=_permute(order))


def _orders(n: int) -> list[tuple[int, ...]]:
    if n <= 3:
        return list(permutations(range(n)))
    return [tuple((i + s) % n for i in range(n)) for s in range(1, n)] + [tuple(range(n))[::-1]]


def _permute(order: tuple[int, ...]) -> Callable[[Record, Tensor], Tensor]:
    def features(record: Record, fed: Tensor) -> Tensor:
        blocks = fed.chunk(len(order), -1)
        return torch.cat([blocks[i] for i in order], -1)

    return features


def _as_fed(fault: str, detect: Callable[[Case], Finding | None]) -> Callable[[Case], Iterator[Change]]:
    """What the live dump shows is its own counterfactual: the training dump with each record's rows as they were fed."""

    def changes(case: Case) -> Iterator[Change]:
        if case.live is None or case.train is None or detect(case) is None:
            return
        fed = {tuple(r.input_ids.tolist()): r for r in case.live}
        same = [(r, fed.get(tuple(r.input_ids.tolist()))) for r in case.train]
        if any(other is None or other.features.shape != r.features.shape for r, other in same):
            return  # a replay of some changed and some unchanged records would say nothing
        yield Change(fault, "rows as in the live dump", features=lambda record, _: fed[tuple(record.input_ids.tolist())].features)

    return changes


FORMS: dict[str, tuple[str, tuple[float, float]]] = {
    "H6": ("states of other tokens", (1.0, 2.5)),
    "FM-34": ("", (1.0, 1.3)),
    "FM-35": ("", (1.0, 1.6)),
    "FM-36": ("", (1.0, 2.0)),
    "FM-37": ("", (1.0, 2.5)),
    "FM-38": ("", (1.0, 1.1)),
    "FM-39": ("", (1.0, 2.0)),
    "FM-41": ("", (1.5, 3.5)),
    "FM-42": ("", (1.5, 3.5)),
    "H3": ("another scale", (1.0, 2.5)),
    "H12": ("agreement lost along the context", (1.5, 3.5)),
}
"""Titles of tests, and accept lengths where the draft is otherwise healthy, as the symptom of each entry tells them."""


def _any(fault: str) -> Callable[[Case], Finding | None]:
    """The first judgement that names this fault."""

    def detect(case: Case) -> Finding | None:
        found = [j(case.comparison) for j in (*origins.JUDGES, *rows.JUDGES)] if case.comparison is not None else []
        return next((f for f in found if f is not None and f.fault == fault), None)

    return detect


FAULTS = (
    Fault("FM-28", "", _named(wrong_layers, "FM-28"), _other_layers, IN_DUMPS, (1.0, 2.5)),
    Fault("FM-29", "", _named(wrong_layers, "FM-29"), _shifted, IN_DUMPS, (1.0, 3.0)),
    Fault("FM-33", "", _named(wrong_order, "FM-33"), _reordered, IN_DUMPS, (1.0, 1.6)),
    *(Fault(fault, title, _any(fault), _as_fed(fault, _any(fault)), IN_DUMPS, typical) for fault, (title, typical) in FORMS.items()),
    Fault("H2", "zero, non-finite or repeated rows", _broken, _as_fed("H2", _broken), IN_DUMPS, (1.0, 1.5)),
    Fault("H1", "another number of states", _named(odd_width, "H1"), shown_by=IN_DUMPS),
    Fault("FM-32", "", _named(odd_width, "FM-32"), shown_by=IN_DUMPS),
)
