"""Judge what changed between two checkpoints: K9 (frozen, moved), FM-13 (another map), conversions and quantisation."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3diag.faults.base import some_of
from eagle3diag.faults.verdict import format_of, span
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.weights import Against, TensorChange, WeightReport

ROUNDED = 0.9999
"""Share of entries that agree after rounding to the coarser dtype: a conversion leaves all; a training step a third at most in bfloat16."""

BORROWED = ("embed_tokens.weight",)
"""What trainers freeze: a draft's embedding is the target's (SafeAILab, SpecForge, TorchSpec, AngelSlim)."""

OFF_SCALE = 0.004
"""What rounding to bfloat16 leaves of a matrix that was multiplied by a number and is otherwise the same."""


def changed(report: WeightReport) -> Iterator[Finding]:
    """For every other checkpoint: frozen and moved tensors, the map, and what a conversion did."""
    for against in report.against:
        yield from _map(against)
        trained = [c for c in against.changes if not c.tensor.startswith(BORROWED)]
        moved = [c for c in trained if not _same(c)]
        if trained and not moved:
            yield _converted(against, trained)
            continue
        yield from _frozen(against, [c for c in trained if _same(c) and len(c.shapes[0]) > 1], moved)
        yield from _frozen_norms(against, [c for c in trained if _same(c) and len(c.shapes[0]) == 1])
        yield from _moved_embedding(against)
        yield from _scaled(against, moved)
        yield from _quantised(against, moved)
        yield _how_far(against, moved)


def _same(c: TensorChange) -> bool:
    """Nothing but a change of dtype."""
    return c.equal_rounded >= ROUNDED and (c.dtypes[0] != c.dtypes[1] or c.relative_change == 0)


def _map(a: Against) -> Iterator[Finding]:
    if not a.map_changed:
        return
    yield Finding(
        "FM-13",
        Severity.ERROR,
        f"The vocabulary map differs from that of {a.other}",
        "Each row of the head stands for the token that d2t gives it. A head that was trained further with another map, or a map built anew for a "
        "head that was kept, gets every such token wrong; training metrics do not notice, because they use the same map.",
        (Evidence("draft ids that mean another token", a.map_changed, "0", f"d2t, of {a.map_size}"),),
        "Keep the parent's d2t and t2d when training goes on from it.",
        "weights(draft, against=parent) counts no changed id; then replay with either map.",
    )


def _converted(a: Against, same: list[TensorChange]) -> Finding:
    dtypes = sorted({f"{c.dtypes[1]} to {c.dtypes[0]}" for c in same if c.dtypes[0] != c.dtypes[1]})
    what = f"only the dtype differs ({', '.join(dtypes)})" if dtypes else "every tensor is the same, entry by entry"
    return Finding(
        "K9",
        Severity.NOTE if dtypes else Severity.WARNING,
        f"Nothing was learned since {a.other}: {what}",
        "A conversion should do just this. Two epochs that are the same mean that the wrong object was saved, or nothing was trained.",
        (Evidence("tensors compared", len(same)), Evidence("largest relative change", max(c.relative_change for c in same), None, a.other)),
        "" if dtypes else "If these are two epochs: save the trained parameters, and check that the optimiser holds them.",
        "" if dtypes else "weights(draft, against=...) shows every matrix moved.",
    )


def _frozen(a: Against, frozen: list[TensorChange], moved: list[TensorChange]) -> Iterator[Finding]:
    head = [c for c in frozen if c.tensor == "lm_head.weight"]
    rest = [c for c in frozen if c.tensor != "lm_head.weight"]
    if rest:
        yield Finding(
            "K9",
            Severity.WARNING,
            f"Did not move since {a.other}, while others did: {_listed(rest)}",
            "Every matrix of a draft layer gets a gradient. One that stays the same entry by entry is not held by the optimiser, or is saved from "
            "an object other than the one being trained.",
            tuple(Evidence(f"{c.tensor}: relative change", c.relative_change, _others(moved), a.other) for c in rest[:4]),
            "Check requires_grad and the optimiser's groups for these names, and what the save function gathers.",
            "weights(next_epoch, against=this) shows them moved.",
        )
    if head:
        yield Finding(
            "K9",
            Severity.NOTE,
            f"lm_head did not move since {a.other}",
            "speculators freezes it on purpose; the other trainers train it.",
            (Evidence("lm_head.weight: relative change", head[0].relative_change, None, a.other),),
        )


def _frozen_norms(a: Against, frozen: list[TensorChange]) -> Iterator[Finding]:
    if frozen:
        yield Finding(
            "K9",
            Severity.NOTE,
            f"Norm weights did not move since {a.other}: {_listed(frozen)}",
            "Frozen, or trained in pure bfloat16, where steps below 0.004 around 1 round away. Harmless by itself.",
            tuple(Evidence(f"{c.tensor}: relative change", c.relative_change, None, a.other) for c in frozen[:4]),
        )


def _moved_embedding(a: Against) -> Iterator[Finding]:
    for c in a.changes:
        if c.tensor.startswith(BORROWED) and not _same(c):
            yield Finding(
                "FM-08",
                Severity.WARNING,
                f"The embedding moved since {a.other}",
                "Trainers freeze it, and engines that lend the draft the target's embedding overwrite it: the draft then runs with an "
                "embedding that it was not trained with.",
                (Evidence(f"{c.tensor}: relative change", c.relative_change, "0", a.other),),
                "Freeze embed_tokens; or make sure that the engine loads the draft's own.",
                "weights(next_epoch, against=this) shows it unchanged; replay with either embedding.",
            )


def _scaled(a: Against, moved: list[TensorChange]) -> Iterator[Finding]:
    scaled = [c for c in moved if c.off_scale < OFF_SCALE <= c.relative_change]
    if scaled:
        yield Finding(
            "K9",
            Severity.WARNING,
            f"Multiplied by a number since {a.other}, and otherwise the same: {_listed(scaled)}",
            "Training does not do that; a conversion that folds a norm or a scale into a weight does, and must then leave that norm out.",
            tuple(Evidence(f"{c.tensor}: factor", c.scale, "1", a.other) for c in scaled[:4]),
            "Look for the scale in the converter, and check whether the engine applies it again.",
            "replay both checkpoints.",
        )


def _quantised(a: Against, moved: list[TensorChange]) -> Iterator[Finding]:
    found = [(c, name) for c in moved if (name := format_of(c.grids[0])) is not None and format_of(c.grids[1]) is None]
    if found:
        yield Finding(
            "K9",
            Severity.NOTE,
            f"Quantised since {a.other}: {_listed([c for c, _ in found])} ({', '.join(sorted({name for _, name in found}))})",
            "The entries lie on a grid that they did not lie on before; the difference is rounding, spread over all directions.",
            tuple(
                Evidence(f"{c.tensor}: relative change", c.relative_change, "0.01 for int8, 0.1 for int4", a.other) for c, _ in found[:4]
            ),
            check="replay both checkpoints: the difference in accept length is what it costs.",
        )


def _how_far(a: Against, moved: list[TensorChange]) -> Finding:
    matrices = sorted((c for c in moved if len(c.shapes[0]) > 1), key=lambda c: -c.relative_change) or moved
    return Finding(
        "K9",
        Severity.NOTE,
        f"Moved since {a.other}: {len(moved)} tensors, by {span(matrices[-1].relative_change, matrices[0].relative_change)}",
        "Relative to the other checkpoint. Leading directions that stay while entries move are what was learned before and kept.",
        tuple(
            Evidence(
                f"{c.tensor}: relative change; overlap of the leading directions",
                f"{c.relative_change:.3g}; {c.overlap:.2f}",
                None,
                a.other,
            )
            for c in matrices[:4]
            if c.overlap is not None
        ),
    )


def _others(moved: list[TensorChange]) -> str:
    middle = sorted(c.relative_change for c in moved)[len(moved) // 2] if moved else 0.0
    return f"the others moved by {middle:.2g}"


def _listed(found: list[TensorChange]) -> str:
    return some_of([c.tensor for c in found])
