"""Whether the draft's config agrees with itself and with the target's: rotation (C5), positions and window (C6), dtype (C7), epsilon (C4).

A draft may rightly differ from its target in each of these, if it was trained that way, so a difference alone is a note. Contradictions
within one config, and what an engine is known to misread, are warnings.
"""

from __future__ import annotations

from collections.abc import Mapping

from eagle3diag.audit import Audit
from eagle3diag.audit.facts import Facts
from eagle3diag.findings import Evidence, Finding, Severity

#: Fields without which a scaling cannot be computed. Source: Transformers 5.24, ``modeling_rope_utils.py``.
_NEEDS = {
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "linear": ("factor",),
    "dynamic": ("factor",),
}


def _bases(facts: Facts) -> dict[str, float]:
    """Every place of the config that names a RoPE base."""
    found: dict[str, float] = {}
    raw = facts.config.raw
    nested = raw.get("transformer_layer_config")
    for prefix, part in (("", raw), ("transformer_layer_config.", nested)):
        if not isinstance(part, Mapping):
            continue
        for name, holder in (("rope_theta", part), ("rope_parameters.rope_theta", part.get("rope_parameters"))):
            value = holder.get("rope_theta") if isinstance(holder, Mapping) else None
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found[prefix + name] = float(value)
    return found


def two_bases(audit: Audit) -> Finding | None:
    """C5: places of one config that name different RoPE bases; engines and their versions read different ones."""
    facts = audit.facts
    bases = _bases(facts)
    if len(set(bases.values())) < 2:
        return None
    return Finding(
        "C5",
        Severity.WARNING,
        f"the config names {len(set(bases.values()))} different RoPE bases",
        "SGLang reads rope_parameters first since 0.5.10 and only rope_theta before; Transformers 4 and 5 differ in the same way. The same file "
        "is then served with different rotations, which costs a few per cent of acceptance at short distance and more with context.",
        tuple(
            Evidence(place, value, f"{facts.config.rope_theta:g} everywhere, if that is the trained one", "config")
            for place, value in bases.items()
        ),
        "Write the base that the trainer used in every place; eagle3diag.replay with each of them tells which one it was.",
        "replay with both bases: the trained one accepts more, most of all late in the text.",
    )


def unfinished_scaling(audit: Audit) -> Finding | None:
    """C5: a scaling without a number that it is computed from; engines fall back to numbers of their own."""
    facts = audit.facts
    if facts.config.rope_scaling is None:
        return None
    scaling = facts.config.rope_scaling
    kind = str(scaling["rope_type"])
    missing = [f for f in _NEEDS.get(kind, ()) if scaling.get(f) is None]
    if not missing:
        return None
    return Finding(
        "C5",
        Severity.WARNING,
        f"rope scaling {kind!r} lacks {', '.join(missing)}",
        "Engines take max_position_embeddings in place of the original length, which a draft's config often has at another value, or end with "
        "a KeyError."
        if missing == ["original_max_position_embeddings"]
        else "Without it the frequencies cannot be computed: the engine ends with a KeyError or takes a number of its own.",
        tuple(Evidence(f"rope_scaling.{name}", "absent", "as in training", "config") for name in missing),
        "Copy the whole rope_scaling object from the target's config, if the draft was trained with it.",
        "replay by position: no fall with distance.",
    )


def other_rotation(audit: Audit) -> Finding | None:
    """C5: another base or scaling than the target's."""
    facts, target = audit.facts, audit.facts.target
    if target is None:
        return None
    c = facts.config
    kinds = tuple(str(s["rope_type"]) if s else "default" for s in (c.rope_scaling, target.rope_scaling))
    if c.rope_theta == target.rope_theta and kinds[0] == kinds[1]:
        return None
    stated = bool(_bases(facts))
    return Finding(
        "C5",
        Severity.NOTE,
        f"the draft rotates with base {c.rope_theta:g} ({kinds[0]}), the target with {target.rope_theta:g} ({kinds[1]})",
        "That is right if it was trained that way: several trainers rotate with base 10000 whatever the config says (SafeAILab's and AngelSlim's always, "
        "SpecForge's before 2025-10-30), and Model-Optimizer adds a scaling at export. Otherwise the rotation is wrong in serving.",
        (
            Evidence(
                "RoPE base of the draft",
                c.rope_theta,
                f"{target.rope_theta:g}, or as trained",
                "config" if stated else "the engines' default",
            ),
            Evidence("scaling of the draft", kinds[0], f"{kinds[1]}, or as trained", "config"),
        ),
        "",
        "replay with both bases: the trained one accepts more, most of all late in the text.",
    )


def positions(audit: Audit) -> Finding | None:
    """C6: a draft that knows fewer positions than its target."""
    facts, target = audit.facts, audit.facts.target
    if target is None or not target.max_position_embeddings:
        return None
    own = facts.config.max_position_embeddings
    if own is None or own >= target.max_position_embeddings:
        return None
    return Finding(
        "C6",
        Severity.NOTE,
        f"the draft's max_position_embeddings is {own}, the target's {target.max_position_embeddings}",
        "Beyond it the draft was most likely not trained, so acceptance falls with context; SGLang refuses a longer context unless "
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1, vLLM raises the number for most scalings since 0.23.",
        (Evidence("max_position_embeddings", own, f"{target.max_position_embeddings}, if longer text is served", "config"),),
    )


def window(audit: Audit) -> Finding | None:
    """C6: layers trained with a sliding window, under an engine whose draft class has none. Source: SGLang 0.5.23 ``llama_eagle3.py``."""
    facts = audit.facts
    if facts.config.sliding_window is None or audit.engine != "sglang":
        return None
    return Finding(
        "C6",
        Severity.WARNING,
        f"trained with a sliding window of {facts.config.sliding_window} tokens, which the engine does not apply",
        "SGLang ignores layer_types and sliding_window of a draft: up to the window nothing changes, beyond it the draft sees tokens that it "
        "never saw in training.",
        (Evidence("sliding_window", facts.config.sliding_window, "absent for SGLang", "config"),),
        f"Start the server with --speculative-draft-window-size {facts.config.sliding_window} (SGLang since 0.5.12).",
        "accept length by context length: no fall beyond the window.",
    )


def dtype(audit: Audit) -> Finding | None:
    """C7: another dtype than the target's. SGLang takes float16 for a config without one, or with float32 (``model_config.py``, 0.5.23)."""
    facts, target = audit.facts, audit.facts.target
    if target is None or target.dtype is None:
        return None
    said = facts.config.dtype
    fallback = audit.engine == "sglang" and said in (None, "float32")
    served = "float16" if fallback else said
    if served is None or served == target.dtype:
        return None
    return Finding(
        "C7",
        Severity.WARNING if fallback else Severity.NOTE,
        f"the draft would run in {served}, the target in {target.dtype}",
        (f"The config says {said or 'no dtype'}, for which SGLang takes float16. " if fallback else "")
        + "States of one dtype meet weights of another: an error at fc, or a second rounding and float16's smaller range.",
        (Evidence("dtype", said or "absent", target.dtype, "config"),),
        f'Set "dtype" and "torch_dtype" to "{target.dtype}" in the draft\'s config, or start the server with --dtype.' if fallback else "",
        "The log names one dtype for both models." if fallback else "",
    )


def epsilon(audit: Audit) -> Finding | None:
    """C4: another epsilon in the norms than the target's; small beside any real state, so a note."""
    facts, target = audit.facts, audit.facts.target
    if target is None or abs(facts.config.rms_norm_eps / target.rms_norm_eps - 1) < 0.01:  # float32 prints of one number
        return None
    return Finding(
        "C4",
        Severity.NOTE,
        f"rms_norm_eps is {facts.config.rms_norm_eps:g} in the draft, {target.rms_norm_eps:g} in the target",
        "Either is right if it was trained that way; the difference shows only where states are tiny.",
        (Evidence("rms_norm_eps", facts.config.rms_norm_eps, f"{target.rms_norm_eps:g}, or as trained", "config"),),
    )


GENERAL = (two_bases, unfinished_scaling, other_rotation, positions, window, dtype, epsilon)
JUDGES = GENERAL
