"""What the audit says outside the numbered faults: other kinds of drafts, unknown engine versions, lost tensors and layers, odds and ends."""

from __future__ import annotations

from eagle3diag.audit import Audit
from eagle3diag.checkpoints.names import IDLE
from eagle3diag.checkpoints.recognise import KIND_WORDS
from eagle3diag.findings import Evidence, Finding, Severity


def other_kind(audit: Audit) -> Finding | None:
    """C1: no EAGLE-3 draft at all; what it is, and how it is served."""
    if audit.facts is None or audit.facts.config.kind == "eagle3":
        return None
    kind = audit.facts.config.kind
    return Finding(
        "C1",
        Severity.WARNING,
        f"no EAGLE-3 draft: this is {KIND_WORDS[kind]}"[:200],
        "None of the checks of an EAGLE-3 draft apply to it, so none was made.",
        (
            Evidence("kind", kind, "eagle3", "checkpoint"),
            Evidence("grounds", audit.assumed[0] if audit.assumed else "", None, "checkpoint"),
        ),
        _SERVED.get(kind, "Give the folder of the draft itself."),
        "",
    )


#: How each kind is asked for, where engines serve it. Source: SGLang 0.5.23 ``server_args.py``, vLLM 0.33 ``config/speculative.py``.
_SERVED = {
    "eagle": 'Serve it with --speculative-algorithm EAGLE (vLLM: "method": "eagle").',
    "peagle": 'Serve it with vLLM: "method": "eagle3" with "parallel_drafting": true; SGLang has no such draft.',
    "mtp": 'Serve it with --speculative-algorithm EAGLE or NEXTN (vLLM: "method": "mtp").',
    "medusa": 'Serve it with vLLM: "method": "medusa".',
    "dflash": 'Serve it with --speculative-algorithm DFLASH (vLLM: "method": "dflash").',
    "dspark": 'Serve it with vLLM: "method": "dspark".',
    "xpress": "No engine that eagle3diag knows serves it.",
}


def lost_tensors(audit: Audit) -> Finding | None:
    """K1, the harmless half: tensors dropped although every parameter has its value. Norms are FM-20's, biases FM-26's."""
    if audit.missing_layer:
        return None
    told = (*IDLE, ".bias", *(["lm_head.weight"] if audit.tie_word_embeddings else []))  # a head that is tied is FM-10's
    lost = [load for load in audit.outcome("dropped") if not load.name.endswith(told) and "norm" not in load.canonical]
    if not lost:
        return None
    return Finding(
        "K1",
        Severity.WARNING,
        f"{len(lost)} tensor{'s are' if len(lost) > 1 else ' is'} dropped without a message",
        "All parameters have a value, but what is dropped was in the trainer's model and will not be applied.",
        tuple(Evidence(load.name, "dropped", "loaded", "audit") for load in lost[:8]),
        "Use an engine version that knows these tensors, or train without them.",
        "`eagle3diag audit` must list no dropped tensor.",
    )


def layer_count(audit: Audit) -> Finding | None:
    """K1: another number of layers in the config than in the file. A config copied from the target carries the target's."""
    if audit.facts is None or not audit.facts.layers:
        return None
    promised, held = audit.facts.config.num_layers, audit.facts.layers
    if held == tuple(range(promised)):
        return None
    fewer = len(held) < promised
    return Finding(
        "K1",
        Severity.ERROR,
        f"the config promises {promised} decoder layer{'s' if promised > 1 else ''}, the file holds {len(held)}",
        "The engine builds as many as the config says and does not report those that nothing fills: their weights are whatever memory held, "
        "and every state passes through them. (SGLang before 0.5.12 ends with an error for more than one.)"
        if fewer
        else "The layers above are dropped, or end the start-up; they were trained with the draft.",
        (
            Evidence("num_hidden_layers", promised, str(len(held)), "config"),
            Evidence("layers in the file", ", ".join(map(str, held[:12])), f"0 to {promised - 1}", "checkpoint"),
        ),
        f"Set num_hidden_layers to {len(held)}." if held == tuple(range(len(held))) else "Export again with layers numbered from 0.",
        "`eagle3diag audit` must list no missing parameter.",
    )


def broken_small(audit: Audit) -> Finding | None:
    """K3 of norms and biases, which the audit reads: entries that are not finite, norms of zeros. Matrices are the weight report's."""
    if audit.facts is None:
        return None
    broken = [t for t in audit.facts.small if t.nonfinite]
    dead = [t for t in audit.facts.small if t.zero and t.canonical.endswith("norm.weight")]
    if not broken and not dead:
        return None
    return Finding(
        "K3",
        Severity.ERROR if broken else Severity.WARNING,
        f"{'NaN or infinite' if broken else 'all-zero'} entries in {', '.join(t.name for t in (broken or dead)[:4])}",
        "One such entry makes every logit of the draft non-finite."
        if broken
        else "A norm that multiplies by its weight outputs zero. Only where it multiplies by 1 + weight (Gemma) is zero a plain start.",
        tuple(Evidence(f"{t.name}: non-finite entries", t.nonfinite, f"0 of {t.size}", "checkpoint") for t in broken[:8])
        + tuple(Evidence(f"{t.name}: entries that are not zero", 0, f"about {t.size}", "checkpoint") for t in dead[:8]),
        "Export again from the last checkpoint whose loss was finite; eagle3diag weights looks at the matrices too.",
        "`eagle3diag weights` counts 0 non-finite entries." if broken else "`eagle3diag audit` must name no norm of zeros.",
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


JUDGES = (lost_tensors, missing_others, layer_count)
WITHOUT_WEIGHTS = (broken_small,)
"""Judges of the audit alone: in a diagnosis the weight report says the same of every tensor."""
