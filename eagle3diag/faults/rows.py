"""Faults of single rows and of the numbers: rows from elsewhere (FM-39), drift (FM-41, FM-42), loss along the context (H12), mere rounding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from eagle3diag.compare import BlockComparison, Comparison, Displaced
from eagle3diag.faults.origins import EXPLAINS, explained
from eagle3diag.findings import Evidence, Finding, Severity

STEPS_A_BLOCK = 60
"""Roundings to bf16 for each block of the target that are taken for rounding. SGLang on CPU against Transformers takes 8 to 12 on SmolLM2;
a neighbouring boundary needs a thousand and more a block. Five times what was measured leaves room for other kernels and orders of summation."""

NOT_HERE, ELSEWHERE = 0.5, 0.9
"""A row is from elsewhere when it is this unlike its own train row and this like another one (standardised cosine). Rows of the same
state in two engines give 0.99 and more, rows of different tokens 0.3 at most."""

DRIFTS = 0.4
"""Standardised cosine under which no drift is named. The worst known had 0.51 at block 58 (a fused norm of low precision,
sgl-project/sglang#27540); of SmolLM2, weights of 8 bits leave 0.985 at the least, of 4 bits 0.84, states of int8 0.87. Rows of different tokens
have 0.3 at most."""

EIGHT_BITS = 0.8
"""The same of numbers of eight bits, see above."""

SOME_ROWS = 3
"""Rows from elsewhere that make a finding: one or two can be a token that was recorded twice."""

FALLS, FALLS_FAR = 0.005, 0.05
"""Loss of standardised cosine along the context that is a trend, and one that a draft may feel: between real engines all octaves agree
within 0.001; SmolLM2 with the first half of its context lost is 0.008 off, which is no more than an 8-bit target is."""

AGREE = 0.97
"""Standardised cosine of the first octave from which the two sides agree there: real engines give 0.999, an 8-bit target 0.99, a state that is
no boundary up to 0.94."""

ENOUGH_TOKENS = 16
"""Tokens of an octave whose median counts."""


def rounding_steps(block: BlockComparison, dtype: str = "bfloat16") -> float:
    """Roundings to ``dtype`` a block of the target that explain the difference; the number of blocks below is the boundary."""
    below = block.boundary if block.boundary is not None and block.boundary >= 0 else 0
    return dict(block.rounding).get(dtype, float("nan")) / (below + 1)


def mere_rounding(c: Comparison) -> Finding | None:
    """H4, the healthy verdict: train and live are the same states, each rounded on its own way."""
    if not c.blocks or any(not rounding_steps(b) <= STEPS_A_BLOCK for b in c.blocks) or not any(b.relative_error > 0 for b in c.blocks):
        return None
    return Finding(
        "H4",
        Severity.NOTE,
        "train and live differ by rounding only",
        f"Up to {max(rounding_steps(b) for b in c.blocks):.2g} roundings to bfloat16 for each block of the target explain every block; "
        f"another order of summation takes about ten.",
        tuple(
            Evidence(f"block {b.block}: roundings to bfloat16 a block", rounding_steps(b), f"up to {STEPS_A_BLOCK}", "compare")
            for b in c.blocks
        ),
    )


def drift(c: Comparison) -> Finding | None:
    """FM-41: the declared states, further off than rounding goes, and more so with depth. FM-42 where fp8 would explain it."""
    if not c.blocks or not c.origins or explained(c) or elsewhere(c) is not None or falls(c) is not None:
        return None
    right = all(o.best.kind == "as it is" and o.best.source == o.declared.source and not o.best.shift for o in c.origins)
    off = [b for b in c.blocks if rounding_steps(b) > STEPS_A_BLOCK and not b.nonfinite_live]
    certain = bool(c.reference) or all(o.best.fit >= EXPLAINS for o in c.origins)
    if not right or not off or not certain:
        return None
    fp8 = all(rounding_steps(b, "float8_e4m3fn") <= STEPS_A_BLOCK for b in off)
    worst = min(b.standardised.median for b in off)
    if worst < (EIGHT_BITS if fp8 else DRIFTS):
        return None
    return Finding(
        "FM-42" if fp8 else "FM-41",
        # what an 8-bit target does to its states costs little where it was measured (z-lab/dflash#152, speculators#461)
        Severity.WARNING if worst < 0.9 else Severity.NOTE,
        f"the right states, but with a larger error than bf16 rounding{': as large as 8-bit numbers would give' if fp8 else ''}",
        "Every block is the declared one, with an error that rounding does not explain: a quantised target, or kernels of low precision "
        "whose error grows from layer to layer.",
        tuple(Evidence(f"block {b.block}: standardised cosine", b.standardised.median, "at least 0.99", "compare") for b in off)
        + tuple(
            Evidence(f"block {b.block}: roundings to bfloat16 a block", rounding_steps(b), f"up to {STEPS_A_BLOCK}", "compare") for b in off
        ),
        "Compare with the target served in bf16 and fp32 norms; train on features of the engine that will serve.",
        "Replay the draft on both dumps: the difference in accept length is what this costs.",
    )


def elsewhere(c: Comparison) -> Finding | None:
    """FM-39 and kin: rows that are other tokens' states: another request's, or moved by padding."""
    moved = [d for d in c.displaced if d.cosine < NOT_HERE and d.best_cosine > ELSEWHERE and not _own(d)]
    if any(b.duplicate_rows for b in c.blocks):  # a row that repeats an earlier one is H2's
        moved = [d for d in moved if d.record != d.best_record]
    if len(moved) < SOME_ROWS or explained(c):
        return None
    others = sum(d.record != d.best_record and d.best_position == d.position for d in moved)
    steps = Counter(d.best_position - d.position for d in moved)
    step, count = steps.most_common(1)[0]
    swapped = others > len(moved) / 2
    if swapped:
        title = "rows of different requests are swapped"
    elif count > len(moved) / 2:
        title = f"a run of rows is moved by {step:+d} tokens"
    else:
        title = "rows hold the states of other tokens"
    return Finding(
        "FM-39",
        Severity.ERROR,
        title,
        "These rows are states of the target, but of other tokens: rows of a batch were cut at the wrong places, or padding of one request "
        "was taken for tokens of the next.",
        (
            Evidence("rows that fit another token", len(moved), f"0 (of the {len(c.displaced)} that agree least)", "compare"),
            *(
                Evidence(
                    f"{d.record} token {d.position} is {d.best_record} token {d.best_position}: cosine",
                    d.best_cosine,
                    f"{d.cosine:.2f} with its own",
                    "compare",
                )
                for d in moved[:5]
            ),
        ),
        "Cut the rows by the lengths of the batch; strip padding of data parallelism before the draft reads them.",
        "compare() must find every row at its own token.",
    )


def _own(d: Displaced) -> bool:
    return d.record == d.best_record and d.position == d.best_position


def duplicates(c: Comparison) -> Finding | None:
    """H2: rows written twice."""
    if not c.duplicate_tokens:
        return None
    return Finding(
        "H2",
        Severity.ERROR,
        "live rows repeat the row before, where the trained ones differ",
        "A row was written twice, or a buffer was read before it was filled again.",
        (Evidence("tokens with a repeated row", c.duplicate_tokens, f"0 of {c.aligned_tokens}", "live dump"),),
        "Look at where they lie: at chunk edges the prefill is cut wrongly, everywhere the buffer is shared.",
        "compare() must count none.",
    )


def falls(c: Comparison) -> Finding | None:
    """H12: agreement that is lost along the context."""
    if explained(c) or elsewhere(c) is not None:
        return None
    found, far = [], 0.0
    for b in c.blocks:
        octaves = [o for o in b.trend if o.tokens >= ENOUGH_TOKENS]
        if len(octaves) < 2 or octaves[0].standardised < AGREE:
            continue
        fall = max(o.standardised for o in octaves[:-1]) - octaves[-1].standardised
        if fall > FALLS:
            found.append((b, octaves))
            far = max(far, fall)
    if not found:
        return None
    return Finding(
        "H12",
        Severity.WARNING if far > FALLS_FAR else Severity.NOTE,
        "train and live agree at the beginning and part along the context",
        "A rope base or scaling, an attention window, or a prefix cache that differs between the two sides looks like this.",
        tuple(
            Evidence(
                f"block {b.block}: cosine from token {o[-1].first} on",
                o[-1].standardised,
                f"{o[0].standardised:.3f} at the beginning",
                "compare",
            )
            for b, o in found
        ),
        "Compare rope parameters, sliding windows and prefix caching of the two runs of the target.",
        "compare() must find the same cosine in every octave.",
    )


JUDGES: tuple[Callable[[Comparison], Finding | None], ...] = (duplicates, elsewhere, falls, drift, mere_rounding)
