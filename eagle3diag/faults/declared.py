"""What dumps say of themselves, held against what was measured and what will be captured: other boundaries than trained (FM-28, FM-29), the same
dump twice (D2)."""

from __future__ import annotations

from eagle3diag.case import Case
from eagle3diag.compare import Comparison
from eagle3diag.faults import engine
from eagle3diag.faults.base import off_by_one
from eagle3diag.findings import Evidence, Finding, Severity


def otherwise(c: Comparison, unlike: tuple[Evidence, ...]) -> Finding | None:
    """The live dump declares other boundaries than train, and the states differ as well: then no reference is needed to name them.

    A recorder writes down what the engine was set to capture, so the declaration is the cause and ``unlike`` is what it does.
    """
    trained, live = c.train.boundaries, c.live.boundaries
    if not trained or len(trained) != len(live) or trained == live:
        return None
    by_one = off_by_one(trained, live)
    seen, wanted = (", ".join(map(str, boundaries)) for boundaries in (live, trained))
    return Finding(
        "FM-29" if by_one else "FM-28",
        Severity.ERROR,
        f"the engine captures boundaries {seen} where the draft was trained on {wanted}" + (": each is off by one" if by_one else ""),
        "Ids of layer outputs, ids of layer inputs and indices of hidden_states differ by one; one side's ids were read in the other's convention."
        if by_one
        else "Without readable ids an engine takes its default (2, n//2, n-3); ids in a place that it does not read count as none.",
        (Evidence("boundaries that the live dump declares", seen, wanted, "manifests"), *unlike),
        "Write the ids in the engine's convention. SGLang reads eagle_config.eagle_aux_hidden_state_layer_ids as output ids, boundary - 1: "
        f"[{', '.join(str(b - 1) for b in trained)}]; vLLM reads boundaries: [{wanted}].",
        "Capture again: compare() must find the trained states. eagle3diag diagnose says what this fault costs: it can be little.",
    )


def configured(case: Case) -> Finding | None:
    """The config has the engine capture other boundaries than the training dump holds. A live dump says what is captured, and is believed before."""
    trained = case.train.boundaries if case.train is not None and case.given.train is not None else ()
    if not trained or case.audit is None or case.live is not None or engine.other_layers(case.audit) is not None:
        return None
    captured = case.audit.captures[0].boundaries if case.audit.captures else None
    if captured is None or captured == tuple(sorted(trained)) or len(captured) != len(trained):
        return None
    by_one = off_by_one(sorted(trained), captured)
    seen, wanted = (", ".join(map(str, boundaries)) for boundaries in (captured, trained))
    name = f"{case.audit.engine} {case.audit.engine_version}"
    return Finding(
        "FM-29" if by_one else "FM-28",
        Severity.WARNING if by_one else Severity.ERROR,
        f"{name} will capture boundaries {seen}, the training dump holds {wanted}",
        "What the config names and what the dump given as training says of itself are not the same states: the config is of another run, or its ids "
        "are in another convention, or the dump is of another draft.",
        (Evidence("boundaries captured", seen, wanted, case.audit.captures[0].read_from),),
        "If the dump is of this draft: " + engine.layer_fix(case.audit, case.audit.captures[0], trained),
        "A live dump shows which boundaries are captured; `eagle3diag weights DRAFT --dump train/` which ones fc expects.",
    )


def same_bits(c: Comparison) -> Finding | None:
    """D2: no bit differs, which two runs of two programs do not give: most likely one dump was given twice, or copied."""
    if not c.blocks or any(b.relative_error > 0 or b.nonfinite_live or b.nonfinite_train for b in c.blocks):
        return None
    return Finding(
        "D2",
        Severity.NOTE,
        "live equals train bit for bit: was one dump given twice?",
        "An engine and a trainer round differently. Only one program on one machine gives the same bits twice.",
        tuple(
            Evidence(f"block {b.block}: relative difference", b.relative_error, "0.001 to 0.02 between two programs", "compare")
            for b in c.blocks
        ),
        "Give the dump that was recorded in the engine as live.",
    )
