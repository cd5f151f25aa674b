"""Faults of which states are captured: FM-28 (wrong layers), FM-29 (off by one), FM-31 (none of them), FM-33 (another order); rows (H2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations

import torch
from torch import Tensor

from eagle3diag.case import Case
from eagle3diag.compare import BlockComparison, Comparison
from eagle3diag.dumps import HiddenStates, Record
from eagle3diag.engines.sglang import default_boundaries
from eagle3diag.faults import declared, origins, rows, widths
from eagle3diag.faults.base import IN_DUMPS, Fault
from eagle3diag.faults.origins import explained
from eagle3diag.faults.widths import MARGIN, MATCHES, found_boundaries
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.replay import Change


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
                f"live block {j} is train block {i}: cosine",
                c.order[i][j],
                f"train block {j}, which fits with {c.order[j][j]:.3f}",
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
    if widths.last_boundary(c) is not None or widths.other_stage(c) is not None or no_boundary(c) is not None:
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
    if (otherwise := declared.otherwise(c, _fit(unlike))) is not None:
        return otherwise
    return Finding(
        "FM-28",
        Severity.WARNING,
        f"{len(unlike)} of {len(c.blocks)} captured states are not the trained ones; which they are cannot be told without a reference",
        "Their channel-standardised cosine lies below what rounding explains. A wrong layer set (FM-28) and a shift by one (FM-29) look alike here.",
        _fit(unlike),
        "Capture every boundary of the target on the same tokens and pass it as reference=: "
        "eagle3diag capture --target TARGET --prompts PROMPTS --boundaries all --out reference/",
        "With a reference each block is named.",
    )


def _fit(unlike: list[BlockComparison]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(f"block {b.block} (boundary {b.boundary}): cosine", b.standardised.median, f"at least {MATCHES}", "compare")
        for b in unlike
    )


def no_boundary(c: Comparison) -> Finding | None:
    """FM-31: states of the target's, none of which is any boundary. A drift of numbers (FM-41) begins with a first block that fits."""
    found = found_boundaries(c)
    nowhere = [j for j, b in enumerate(c.blocks) if found and b.standardised.median < MATCHES and found[j][1] < MATCHES]
    if 0 not in nowhere or explained(c) or rows.elsewhere(c) is not None:
        return None
    if (fall := rows.falls(c)) is not None and fall.severity > Severity.NOTE:
        return None
    return Finding(
        "FM-31",
        Severity.ERROR,
        f"{len(nowhere)} of {len(c.blocks)} captured states are no boundary of the target",
        "They are alike to several and equal to none, in no form that was tried: the engine reads the stream at another point (inside a block, "
        "one of several streams, a sum of blocks) than the trainer did.",
        _fits(c, found),
        "Mirror the trainer's definition of the state in the engine, or capture the training data with the engine.",
        f"compare() with the reference must find each declared boundary with a cosine of at least {MATCHES}.",
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


JUDGES: tuple[Callable[[Comparison], Finding | None], ...] = (
    *widths.JUDGES, broken_rows, wrong_order, *origins.JUDGES, no_boundary, wrong_layers, *rows.JUDGES, declared.same_bits,
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
    Fault("FM-30", "", _named(widths.last_boundary, "FM-30"), shown_by=IN_DUMPS),
    Fault("FM-31", "", _named(no_boundary, "FM-31"), _as_fed("FM-31", _named(no_boundary, "FM-31")), IN_DUMPS),
    Fault("FM-40", "", _named(widths.other_stage, "FM-40"), shown_by=IN_DUMPS),
    Fault("H1", "another number of states", _named(widths.odd_width, "H1"), shown_by=IN_DUMPS),
    Fault("FM-32", "", _named(widths.odd_width, "FM-32"), shown_by=IN_DUMPS),
)
