"""What two dumps say of themselves, held against what was measured: other boundaries than trained (FM-28, FM-29), the same dump twice (D2)."""

from __future__ import annotations

from eagle3diag.compare import Comparison
from eagle3diag.findings import Evidence, Finding, Severity


def otherwise(c: Comparison, unlike: tuple[Evidence, ...]) -> Finding | None:
    """The live dump declares other boundaries than train, and the states differ as well: then no reference is needed to name them.

    A recorder writes down what the engine was set to capture, so the declaration is the cause and ``unlike`` is what it does.
    """
    trained, live = c.train.boundaries, c.live.boundaries
    if not trained or len(trained) != len(live) or trained == live:
        return None
    shifts = {b - a for a, b in zip(trained, live, strict=True)}
    by_one = len(shifts) == 1 and shifts <= {-1, 1}
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
