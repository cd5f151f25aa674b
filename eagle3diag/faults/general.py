"""What the audit says outside the numbered faults: other kinds of drafts, another number of layers, broken norms."""

from __future__ import annotations

from eagle3diag.audit import Audit
from eagle3diag.checkpoints.recognise import KIND_WORDS
from eagle3diag.faults.base import some_of
from eagle3diag.findings import Evidence, Finding, Severity


def other_kind(audit: Audit) -> Finding | None:
    """C1: no EAGLE-3 draft at all; what it is, and how it is served."""
    kind = audit.facts.config.kind
    if kind == "eagle3":
        return None
    return Finding(
        "C1",
        Severity.WARNING,
        f"not an EAGLE-3 draft: this is {KIND_WORDS[kind]}"[:200],
        "None of the checks of an EAGLE-3 draft apply to it, so none was run.",
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


def layer_count(audit: Audit) -> Finding | None:
    """K1: another number of layers in the config than in the file. A config copied from the target carries the target's."""
    promised, held = audit.facts.config.num_layers, audit.facts.layers
    if not held or held == tuple(range(promised)):
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
            Evidence(
                "layers in the file", f"{len(held)}, numbered {some_of([*map(str, held)])}", f"{promised}, numbered from 0", "checkpoint"
            ),
        ),
        f"Set num_hidden_layers to {len(held)}." if held == tuple(range(len(held))) else "Export again with layers numbered from 0.",
        "`eagle3diag audit` must list no missing parameter.",
    )


def broken_small(audit: Audit) -> Finding | None:
    """K3 of norms and biases, which the audit reads: entries that are not finite, norms of zeros. Matrices are the weight report's."""
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
        else "A norm that multiplies by its weight outputs zero. Zero is a normal start only where it multiplies by 1 + weight (Gemma).",
        tuple(Evidence(f"{t.name}: non-finite entries", t.nonfinite, f"0 of {t.size}", "checkpoint") for t in broken[:8])
        + tuple(Evidence(f"{t.name}: entries that are not zero", 0, f"about {t.size}", "checkpoint") for t in dead[:8]),
        "Export again from the last checkpoint whose loss was finite; eagle3diag weights looks at the matrices too.",
        "`eagle3diag weights` counts 0 non-finite entries." if broken else "`eagle3diag audit` must name no norm of zeros.",
    )


JUDGES = (layer_count,)
WITHOUT_WEIGHTS = (broken_small,)
"""Judges of the audit alone: in a diagnosis the weight report says the same of every tensor."""
