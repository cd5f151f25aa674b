"""What the audit says outside the numbered faults of this release: shapes, unknown engine versions, lost or rewritten odds and ends."""

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


def unknown_engine(audit: Audit) -> Finding | None:
    """An engine version that was never read is a finding, not a guess."""
    if audit.engine_known:
        return None
    return Finding(
        "C0",
        Severity.NOTE,
        f"{audit.engine} {audit.engine_version} is outside the versions whose rules are known",
        "The rules of the nearest known version were used.",
        (Evidence("engine version", audit.engine_version, "0.4.5 to 0.5.23", "caller"),),
        "Check the loader of your version for names it drops, or upgrade eagle3diag.",
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


def unserved_residual(audit: Audit) -> Finding | None:
    """FM-47, the part that a config tells: a residual that SGLang cannot serve."""
    if audit.engine != "sglang" or not audit.norm_before_residual:
        return None
    return Finding(
        "FM-47",
        Severity.WARNING,
        "trained with norm_before_residual, which SGLang does not know",
        "SGLang always keeps the state before hidden_norm as the residual; the flag appears nowhere in its code up to 0.5.23.",
        (Evidence("norm_before_residual", "true", "false for SGLang", "config"),),
        "Serve this draft with vLLM, or train with norm_before_residual false.",
        "Replay both ways: eagle3diag.replay reads the flag.",
    )


JUDGES = (wrong_shapes, unknown_engine, lost_tensors, missing_others, unserved_residual)
