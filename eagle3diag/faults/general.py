"""What the audit says outside the numbered faults of this release: shapes, lost or rewritten odds and ends."""

from __future__ import annotations

from eagle3diag.audit import Audit
from eagle3diag.findings import Evidence, Finding, Severity


def wrong_shapes(audit: Audit) -> Finding | None:
    """K2: shapes that the config does not promise."""
    if not audit.shapes:
        return None
    return Finding(
        "K2",
        Severity.ERROR,
        f"{len(audit.shapes)} tensors do not have the shape that the config promises",
        "An engine ends with a shape error at load, or takes the tensor for another one.",
        tuple(Evidence(s.name, str(list(s.found)), str(list(s.expected)), "checkpoint") for s in audit.shapes),
        "Use the config that was saved with these weights.",
        "`eagle3diag audit` must list no shape.",
    )


def lost_tensors(audit: Audit) -> Finding | None:
    """K1, the harmless half: tensors dropped although every parameter has its value."""
    lost = audit.outcome("dropped")
    if not lost or audit.missing_layer:
        return None
    return Finding(
        "K1",
        Severity.WARNING,
        f"{len(lost)} tensors are dropped without a message",
        "All parameters have a value, but what is dropped (biases, q/k norms, norms of aux states) was trained and will not be applied.",
        tuple(Evidence(load.name, "dropped", "loaded", "audit") for load in lost[:8]),
        "Use an engine version that knows these tensors, or train without them.",
        "`eagle3diag audit` must list no dropped tensor.",
    )


def missing_others(audit: Audit) -> Finding | None:
    """K1: fc or the last norm missing; the layer is FM-05's, the head FM-06's."""
    missing = [load for load in audit.outcome("missing") if load.name in ("fc.weight", "norm.weight", "embed_tokens.weight")]
    if not missing:
        return None
    return Finding(
        "K1",
        Severity.ERROR,
        f"{', '.join(load.name for load in missing)} left at {missing[0].note}",
        "No tensor of the file fills it, and the loader does not say so.",
        tuple(Evidence(load.name, "missing", "loaded", "audit") for load in missing),
        "Export the checkpoint again with all its tensors.",
        "`eagle3diag audit` must list no missing parameter.",
    )


JUDGES = (wrong_shapes, lost_tensors, missing_others)
