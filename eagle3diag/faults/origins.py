"""Faults of how a state is captured, told by the hypothesis that explains it: FM-34 to FM-38, shards (FM-39), shifted tokens (H6), scale (H3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from eagle3diag.compare import BlockComparison, BlockOrigin, Comparison
from eagle3diag.faults.widths import MARGIN, MATCHES
from eagle3diag.findings import Evidence, Finding, Severity

EXPLAINS = 0.9
"""Share of a live block's variance (median channel) from which a hypothesis is taken for the truth. Two real engines in bf16 give 0.999
and more on SmolLM2, a state that is one boundary away 0.65 to 0.77."""

BETTER = 0.02
"""By how much a hypothesis must explain more than "as trained" before it is named. Two readings of one state differ by 0.001; the mildest
fault injected, half of one block's last sum missing, costs 0.03."""

SHAPED = 0.95
"""The same where the hypothesis has many free factors (those of a norm, or of channels): rows that are broken otherwise let it reach 0.93."""

ONLY_SCALED = 0.98
"""Fit of the trained state as it is from which a norm that is off is a scale and nothing else: 5 % more leaves 0.995, half of a block's last
sum missing 0.91."""

SCALE = 0.02
"""Relative size from which a scale is named: norms of the same states agree to 0.0004 between real engines (test H3 proposes this bound)."""

ISOMETRY = 0.05
"""Relative difference of Gram matrices under which two sides are one up to rotation (test H9). The same states in two engines give up to
0.021, a neighbouring boundary 0.18 and more."""

UNLIKE = 0.5
"""Channel-standardised cosine under which a block is not the trained one in this basis; neighbours keep 0.80 and more."""

SAME_BUFFER = 1e-3
"""Relative difference under which two live blocks are one buffer (test H13): between real boundaries it is 1.7 and more."""

SHARD = 1 / 32
"""Share of a block's channels that are constant from which a shard is missing: more than 32 ranks share no hidden state. Single channels can be
constant, massive ones that a short dtype or a limit holds at its largest value."""


def named(c: Comparison, *kinds: str) -> tuple[BlockOrigin, ...]:
    """The live blocks that a hypothesis of one of these kinds explains, and clearly better than what was trained."""
    return tuple(o for o in c.origins if o.best.kind in kinds and o.best.fit >= EXPLAINS and o.margin >= BETTER)


def shifted(c: Comparison) -> Finding | None:
    """H6: the live state of each token is that of a neighbour, in all blocks or in some."""
    moved = [o for o in named(c, "as it is") if o.best.shift and o.best.source == o.declared.source]
    if not moved:
        return None
    shifts = dict.fromkeys(o.best.shift for o in moved)
    words = " and ".join(
        f"{_whose(c, [o for o in moved if o.best.shift == s])} is that of the token {abs(s)} {'later' if s > 0 else 'earlier'}"
        for s in shifts
    )
    return Finding(
        "H6",
        Severity.ERROR,
        words,
        "The states are the trained ones, at other tokens: ids and states were shifted against each other when they were recorded or fed.",
        tuple(_evidence(c, o) for o in moved),
        "Pair the state of token t with the embedding of token t + 1, as the trainer does; look for a second shift in the recorder.",
        "compare() must find its highest point at shift 0.",
    )


def _whose(c: Comparison, moved: list[BlockOrigin]) -> str:
    return "every live state" if len(moved) == len(c.origins) else f"the state of live block {_numbers(moved)}"


def scaled(c: Comparison) -> Finding | None:
    """H3: the right states times a factor."""
    off = [o for o in c.origins if o.best.kind == "scaled" and o.best.fit >= ONLY_SCALED and abs(o.best.factor - 1) > SCALE]
    if all(judge(c) is None for judge in CAPTURED):
        off += [o for o in c.origins if o not in off and _ratio_off(c, o)]
    if not off:
        return None
    return Finding(
        "H3",
        Severity.ERROR,
        f"the live states are {_factor(c, off[0]):.3g} times the trained ones",
        "Direction and token agree, the length does not: a multiplier of the target (residual or embedding scale) is applied on one side only, "
        "or a quantised state was not scaled back.",
        tuple(Evidence(f"block {o.block}: norm live/train", c.blocks[o.block].norm_ratio, f"1 within {SCALE:.0%}", "compare") for o in off),
        "Capture at the same point on both sides, before or after the multiplier.",
        f"compare() must find norm ratios within {SCALE:.0%} of 1.",
    )


def _ratio_off(c: Comparison, o: BlockOrigin) -> bool:
    """The trained state as it is fits well, and yet all norms are off: a factor too near one to cost much fit."""
    block = c.blocks[o.block]
    right = o.best.kind in ("as it is", "scaled") and o.best.source == o.declared.source and not o.best.shift
    return right and o.best.fit >= ONLY_SCALED and abs(block.norm_ratio - 1) > SCALE and block.standardised.median > 0.9


def _factor(c: Comparison, o: BlockOrigin) -> float:
    return o.best.factor if o.best.kind == "scaled" else c.blocks[o.block].norm_ratio


def rescaled(c: Comparison) -> Finding | None:
    """H3: each channel follows the trained one, times a factor or plus an offset of its own, which nothing else explains."""
    gained = {o.block for o in named(c, "channels scaled") if o.best.source == o.declared.source and o.best.fit >= SHAPED}
    off = [b for b in c.blocks if b.block in gained or (b.block < len(c.order) and _follows(c, b))]
    if not off or any(judge(c) is not None for judge in (*CAPTURED, scaled)):
        return None
    return Finding(
        "H3",
        Severity.ERROR,
        f"live block {', '.join(str(b.block) for b in off)} has another scale or offset in each channel",
        "Each side by its own means and deviations, the states agree; by those of train they do not. A weight is multiplied in, or folded into "
        "other tensors, on one side only.",
        tuple(
            Evidence(
                f"block {b.block}: cosine by the moments of train",
                b.standardised.median,
                f"{c.order[b.block][b.block]:.3f} by its own",
                "compare",
            )
            for b in off
        ),
        "Capture the residual stream at the same point on both sides, of a target whose weights were not folded otherwise.",
        "compare() must find the same cosine either way.",
    )


def _follows(c: Comparison, b: BlockComparison) -> bool:
    own = c.order[b.block][b.block]
    return b.standardised.median < MATCHES <= own and own - b.standardised.median > MARGIN


def shards(c: Comparison) -> Finding | None:
    """FM-39: channels that the shards of ranks were not gathered to: some empty, or at another's place."""
    empty = [b for b in c.blocks if max(SHARD * c.hidden_size, 8) <= b.constant_channels < c.hidden_size]  # all: one row again and again
    moved = [o for o in c.origins if o.best.kind == "shards"]
    if not empty and not moved:
        return None
    if empty:
        title = (
            f"{max(b.constant_channels for b in empty) / c.hidden_size:.0%} of the channels of live block {_numbers(empty)} hold nothing"
        )
    else:
        title = f"live block {_numbers(moved)} is put together of shards at wrong places"
    return Finding(
        "FM-39",
        Severity.ERROR,
        title,
        "Ranks of tensor parallelism hold a part of the channels each. The parts were not gathered (one for the whole), or in another order than the "
        "trainer's.",
        (
            *(
                Evidence(f"block {b.block}: channels of one value in all rows", b.constant_channels, f"0 of {c.hidden_size}", "compare")
                for b in empty
            ),
            *(_evidence(c, o) for o in moved),
        ),
        "Gather each state over the ranks, along the channels and in the order of ranks, before the states are put side by side.",
        "compare() must find the trained states as they are.",
    )


def _numbers(blocks: Iterable[BlockComparison | BlockOrigin]) -> str:
    return ", ".join(str(b.block) for b in blocks)


def normed(c: Comparison) -> Finding | None:
    """FM-35: the final norm on one side only."""
    after, before = (tuple(o for o in named(c, kind) if o.best.fit >= SHAPED) for kind in ("normed", "un-normed"))
    if not after and not before:
        return None
    words = ((after, "normed, where the raw state"), (before, "raw, where the normed state"))
    return Finding(
        "FM-35",
        Severity.ERROR,
        " and ".join(f"live block {_numbers(found)} is {how} was trained" for found, how in words if found),
        "EAGLE-3 drafts are trained on the residual stream before any norm; a norm between the capture and fc changes the length of every token.",
        tuple(_evidence(c, o) for o in after + before),
        "Capture the residual stream, not the output of a norm (in SGLang: the residual that input_layernorm returns).",
        "compare() must find the trained states as they are.",
    )


def residual_lost(c: Comparison) -> Finding | None:
    """FM-34: what a block adds, without the stream that it is added to."""
    lost = named(c, "branch", "less embedding")
    if not lost:
        return None
    return Finding(
        "FM-34",
        Severity.ERROR,
        f"live block {', '.join(str(o.block) for o in lost)} lacks the residual",
        "A layer of the engine returns its output and the residual apart (since SGLang 0.5.22 the output alone); their sum was trained.",
        tuple(_evidence(c, o) for o in lost),
        "Add the residual, or hook input_layernorm of the next layer and take its second output.",
        "compare() must find the trained states as they are.",
    )


def partial_sums(c: Comparison) -> Finding | None:
    """FM-37: the last block's output is not, or more than once, summed over the ranks."""
    parts = [o for o in named(c, "partial sum") if o.best.source == o.declared.source]
    if not parts:
        return None
    return Finding(
        "FM-37",
        Severity.ERROR,
        f"live block {', '.join(str(o.block) for o in parts)} holds {parts[0].best.factor:.2f} of what its last layer adds",
        "With tensor parallelism and a fused all-reduce the output of a layer is still one rank's partial sum when the hook reads it.",
        tuple(_evidence(c, o) for o in parts),
        "Read the residual after the reduction, upgrade (SGLang 0.5.14 has it), or turn the fused all-reduce off.",
        "Capture with one rank: compare() must then find the trained states.",
    )


def rotated(c: Comparison) -> Finding | None:
    """FM-38: the right states in another basis."""
    turned = [b for b in c.blocks if b.gram_error < ISOMETRY and b.standardised.median < UNLIKE and b.centred.median < UNLIKE]
    if not turned or len(turned) < len(c.blocks):
        return None
    solved = {o.block: o for o in named(c, "rotated")}
    return Finding(
        "FM-38",
        Severity.ERROR,
        "the live states are the trained ones in a rotated basis",
        "All distances between tokens agree, no channel does. Quantisers that rotate the residual stream (QuaRot, SpinQuant) do that.",
        (
            *(Evidence(f"block {b.block}: difference of Gram matrices", b.gram_error, f"under {ISOMETRY}", "compare") for b in turned),
            *(Evidence(f"block {b.block}: standardised cosine", b.standardised.median, "near 1", "compare") for b in turned),
            *(_evidence(c, o) for o in solved.values()),
        ),
        "Fold the rotation into each column block of fc (and into the embedding if it is shared), or serve a target that is not rotated.",
        "compare() against a dump of the rotated target must find the states as they are.",
    )


def overwritten(c: Comparison) -> Finding | None:
    """FM-36: two blocks are one buffer."""
    same = [a for a in c.alike if a.live < SAME_BUFFER and a.train > 100 * SAME_BUFFER]
    if not same:
        return None
    return Finding(
        "FM-36",
        Severity.ERROR,
        f"live blocks {', '.join(f'{a.one} and {a.other}' for a in same[:3])} are the same tensor",
        "A reference was kept where a copy was needed, and a later layer wrote into the buffer.",
        tuple(
            Evidence(f"blocks {a.one} and {a.other}: relative difference", a.live, f"{a.train:.3g}, as trained", "live dump") for a in same
        ),
        "Clone the state where it is captured.",
        "compare() must find different blocks.",
    )


def _evidence(c: Comparison, o: BlockOrigin) -> Evidence:
    best, as_trained = o.best, o.declared.fit
    return Evidence(f"block {o.block} is {best.words(c.numbered)}: variance explained", best.fit, f"as trained {as_trained:.3f}", "compare")


CAPTURED: tuple[Callable[[Comparison], Finding | None], ...] = (
    shards, overwritten, shifted, normed, residual_lost, partial_sums, rotated,
)  # fmt: skip
JUDGES = (*CAPTURED, scaled, rescaled)


def explained(c: Comparison) -> bool:
    """Whether one of these faults says what the live blocks are: then they are not another set of layers besides."""
    return any(judge(c) is not None for judge in JUDGES)
