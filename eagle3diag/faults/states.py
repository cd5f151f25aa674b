"""Faults of which states are captured: FM-28 (wrong layers), FM-29 (off by one), FM-31 (none of them), FM-33 (another order); rows (H2)."""

from __future__ import annotations

from collections.abc import Callable

from eagle3diag.case import Case
from eagle3diag.compare import BlockComparison, Comparison
from eagle3diag.faults import copies, declared, fed, origins, rows, widths
from eagle3diag.faults.base import IN_DUMPS, Fault
from eagle3diag.faults.origins import explained
from eagle3diag.faults.widths import MARGIN, MATCHES, block_order, found_boundaries
from eagle3diag.findings import Evidence, Finding, Severity


def wrong_order(c: Comparison) -> Finding | None:
    """FM-33: the right states, side by side in another order than trained."""
    order = block_order(c)
    if order is None or order == tuple(range(len(order))):
        return None
    names = [str(c.train.boundaries[i]) if i < len(c.train.boundaries) else f"block {i}" for i in order]
    return Finding(
        "FM-33",
        Severity.ERROR,
        "the aux states reach the draft in a different order from training",
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
        "`eagle3diag capture --target TARGET --prompts PROMPTS --boundaries all --out reference/`",
        "With a reference each block is named.",
    )


def _fit(unlike: list[BlockComparison]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(f"block {b.block} (boundary {b.boundary}): cosine", b.standardised.median, f"at least {MATCHES}", "compare")
        for b in unlike
    )


def no_boundary(c: Comparison) -> Finding | None:
    """FM-31: states of the target's, none of which is any boundary."""
    found = found_boundaries(c)
    nowhere = _nowhere(c, found)
    if not nowhere or explained(c) or rows.elsewhere(c) is not None:
        return None
    if (fall := rows.falls(c)) is not None and fall.severity > Severity.NOTE:
        return None
    return Finding(
        "FM-31",
        Severity.ERROR,
        f"live block {', '.join(map(str, nowhere))} {'matches' if len(nowhere) == 1 else 'match'} no boundary of the target",
        "Such a state equals none, in any form that was tried: the engine reads the stream at another point (inside a block, "
        "one of several streams, a sum of blocks) than the trainer did, or puts the channels elsewhere.",
        _fits(c, found),
        "Mirror the trainer's definition of the state in the engine, or capture the training data with the engine.",
        f"compare() with the reference must find each declared boundary with a cosine of at least {MATCHES}.",
    )


def _nowhere(c: Comparison, found: tuple[tuple[int, float, float], ...]) -> list[int]:
    """Blocks that no boundary fits. A drift of numbers (FM-41) begins with a first block that fits, and does not go as far as DRIFTS; other
    layers, which fit better than the declared ones, are FM-28's."""
    unlike = [j for j, b in enumerate(c.blocks) if found and b.standardised.median < MATCHES and found[j][1] < MATCHES]
    if 0 in unlike:
        return unlike
    return [j for j in unlike if found[j][1] < rows.DRIFTS or (found[j][2] <= MARGIN and rows.drift(c) is None)]


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
        "compare() with the reference must name the declared boundaries. The counterfactual says what this fault costs: it can be little.",
    )


def _other_set(c: Comparison, found: tuple[tuple[int, float, float], ...]) -> Finding:
    seen = ", ".join("final" if best == -1 else str(best) for best, _, _ in found)
    return Finding(
        "FM-28",
        Severity.ERROR,
        f"the engine captures boundaries {seen} where the draft was trained on {', '.join(map(str, c.train.boundaries))}",
        "Without readable ids an engine takes its default (2, n//2, n-3); ids in a place that it does not read count as none.",
        _fits(c, found),
        f"Put eagle_aux_hidden_state_layer_ids [{', '.join(str(b - 1) for b in c.train.boundaries)}] (output ids) into the draft's eagle_config.",
        "compare() with the reference must name the declared boundaries.",
    )


def broken_rows(c: Comparison) -> Finding | None:
    """H2: rows that are zero or not finite on the live side."""
    zero, bad = c.zero_tokens, c.nonfinite_tokens
    if not zero and not bad:
        return None
    return Finding(
        "H2",
        Severity.ERROR,
        "live features hold rows that are zero or not finite",
        "Padding taken for tokens gives zero rows (FM-39), an overflow in the target gives NaN or infinities (FM-43).",
        (
            Evidence("tokens with a zero row", zero, f"0 of {c.aligned_tokens}", "live dump"),
            Evidence("tokens with NaN or infinity", bad, f"0 of {c.aligned_tokens}", "live dump"),
        ),
        "Look at where they lie (tail: padding; chunk edges: prefill) and at the target's dtype.",
        "compare() must count none.",
    )


JUDGES: tuple[Callable[[Comparison], Finding | None], ...] = (
    *widths.JUDGES, broken_rows, wrong_order, *origins.JUDGES, no_boundary, wrong_layers, *rows.JUDGES, declared.same_bits,
)  # fmt: skip


def _judged(fault: str, *judges: Callable[[Comparison], Finding | None]) -> Callable[[Case], Finding | None]:
    """The first judgement that names this fault."""

    def detect(case: Case) -> Finding | None:
        found = (judge(case.comparison) for judge in judges) if case.comparison is not None else ()
        return next((f for f in found if f is not None and f.fault == fault), None)

    return detect


def _unless_said(fault: str) -> Callable[[Case], Finding | None]:
    """The same of other layers, whose advice looks at the config that was given."""
    named = _judged(fault, wrong_layers)

    def detect(case: Case) -> Finding | None:
        found = named(case)
        if found is None or case.comparison is None or found.severity < Severity.ERROR:  # which they are is not known
            return found
        return copies.said_already(case, found, case.comparison.train.boundaries)

    return detect


def _seen_in_rows(
    fault: str, typical: tuple[float, float] | None, judges: tuple[Callable[[Comparison], Finding | None], ...], own_title: str = ""
) -> Fault:
    """A fault that the rows of the live dump show, and a replay of those rows reproduces."""
    detect = _judged(fault, *judges)
    return Fault(fault, detect, fed.as_live(fault, detect), IN_DUMPS, typical, own_title=own_title)


_ROWS = (*origins.JUDGES, *rows.JUDGES)

# Accept lengths where the draft is otherwise healthy, as the symptom of each entry tells them
FAULTS = (
    Fault("FM-28", _unless_said("FM-28"), fed.other_layers, IN_DUMPS, (1.0, 2.5)),
    Fault("FM-29", _unless_said("FM-29"), fed.shifted, IN_DUMPS, (1.0, 3.0)),
    Fault("FM-28", declared.configured),
    Fault("FM-33", _judged("FM-33", wrong_order), fed.reordered, IN_DUMPS, (1.0, 1.6)),
    _seen_in_rows("H6", (1.0, 2.5), _ROWS, own_title="states of other tokens"),
    _seen_in_rows("FM-34", (1.0, 1.3), _ROWS),
    _seen_in_rows("FM-35", (1.0, 1.6), _ROWS),
    _seen_in_rows("FM-36", (1.0, 2.0), _ROWS),
    _seen_in_rows("FM-37", (1.0, 2.5), _ROWS),
    _seen_in_rows("FM-38", (1.0, 1.1), _ROWS),
    _seen_in_rows("FM-39", (1.0, 2.0), _ROWS),
    _seen_in_rows("FM-41", (1.5, 3.5), _ROWS),
    _seen_in_rows("FM-42", (1.5, 3.5), _ROWS),
    _seen_in_rows("H3", (1.0, 2.5), _ROWS, own_title="another scale"),
    _seen_in_rows("H12", (1.5, 3.5), _ROWS, own_title="agreement lost along the context"),
    _seen_in_rows("H2", (1.0, 1.5), (broken_rows, rows.duplicates), own_title="zero, non-finite or repeated rows"),
    Fault("FM-30", _judged("FM-30", widths.last_boundary), shown_by=IN_DUMPS),
    _seen_in_rows("FM-31", None, (no_boundary,)),
    Fault("FM-40", _judged("FM-40", widths.other_stage), shown_by=IN_DUMPS),
    Fault("H1", _judged("H1", widths.odd_width), shown_by=IN_DUMPS, own_title="another number of states"),
    Fault("FM-32", _judged("FM-32", widths.odd_width), shown_by=IN_DUMPS),
)
