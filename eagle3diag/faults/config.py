"""Faults of the config: FM-20 (a norm not applied), FM-23 (inherited quantisation), FM-26 (biases), FM-78 (scales lost); tests C2, C3, C7, K10."""

from __future__ import annotations

import re

from eagle3diag.audit import Audit
from eagle3diag.audit.facts import Facts
from eagle3diag.checkpoints.names import PACKED, SCALES
from eagle3diag.checkpoints.recognise import speculators_since
from eagle3diag.faults.base import in_files
from eagle3diag.faults.engine import lost_layer
from eagle3diag.findings import Evidence, Finding, Severity

FLOATS = ("bfloat16", "float16", "float32", "float64")
AUX_NORM = re.compile(r"(input_norm|fc_norm\.\d+)\.weight")
HEAD_NORM = re.compile(r"layers\.\d+\.self_attn\.[qk]_norm\.weight")
_AUDIT = "`eagle3diag audit` must stay silent about it; then measure again, since faults come in series."


def unapplied_norm(audit: Audit) -> Finding | None:
    """FM-20: a norm in the file that no flag names where engines look for it, or that the engine has no parameter for."""
    facts = audit.facts
    c = facts.config
    flagged = {"input_norm": c.norm_before_fc, "fc_norm": c.fc_norm}
    unnamed = [n for n in facts.tensors if AUX_NORM.fullmatch(n) and not flagged[n.split(".")[0]]]
    dropped = [n for n in _dropped(audit) if AUX_NORM.fullmatch(n) or HEAD_NORM.fullmatch(n)]
    lost = list(dict.fromkeys([*unnamed, *dropped]))
    if not lost:
        return None
    flags = sorted({"norm_before_fc" if n.startswith("input_norm") else "fc_norm" for n in unnamed})
    return Finding(
        "FM-20",
        Severity.ERROR,
        f"{len(lost)} norm{'s' if len(lost) > 1 else ''} in the checkpoint {'are' if len(lost) > 1 else 'is'} not applied",
        "They were trained with the draft and scale what fc or attention reads. "
        + (
            f"The config does not set {' and '.join(flags)} at its top level, where engines read it."
            if unnamed
            else f"{audit.engine} {audit.engine_version} has no such parameter."
        )
        + _ends(audit, lost),
        tuple(Evidence(n, "dropped" if n in dropped else "no flag", "applied", "audit" if n in dropped else "config") for n in lost[:8]),
        f"Set {', '.join(f'{f}: true' for f in flags)} in config.json."
        if unnamed
        else "Serve with an engine version that has them (SGLang: fc_norm since 0.5.12, input_norm since 0.5.17; q_norm and k_norm: vLLM).",
        _AUDIT,
    )


def _dropped(audit: Audit) -> list[str]:
    return [load.canonical for load in (*audit.outcome("dropped"), *audit.outcome("raises"))]


def _ends(audit: Audit, names: list[str]) -> str:
    """What to add where the engine does not only drop these."""
    raising = any(load.canonical in names for load in audit.outcome("raises"))
    return f" {audit.engine} {audit.engine_version} ends its start with an error over them." if raising else ""


def promised_norm(audit: Audit) -> Finding | None:
    """K10: a flag whose norm is not in the file."""
    facts = audit.facts
    c = facts.config
    wanted = (["input_norm.weight"] if c.norm_before_fc else []) + ([f"fc_norm.{i}.weight" for i in range(c.n_aux)] if c.fc_norm else [])
    missing = [n for n in wanted if n not in facts]
    if not missing:
        return None
    return Finding(
        "K10",
        Severity.ERROR,
        f"the config promises {'norms' if len(missing) > 1 else 'a norm'} that the file does not hold: {', '.join(missing)}",
        "The engine builds the norm, nothing fills it, and it stays at ones: what fc reads is then normed without the trained weight, or was "
        "never normed in training.",
        tuple(Evidence(n, "missing", str([facts.config.target_hidden_size]), "checkpoint") for n in missing),
        "Export again with the norm, or take the flag (norm_before_fc, fc_norm) out if the draft was trained without it.",
        _AUDIT,
    )


def lost_bias(audit: Audit) -> Finding | None:
    """FM-26: biases in the file that are not built; those that a class makes up are the engine's. Zero biases change nothing."""
    facts = audit.facts
    there = [n for n in facts.tensors if n.endswith(".bias") and re.match(r"fc\.|layers\.\d+\.(self_attn|mlp)\.", n) and not facts.zero(n)]
    dropped = set(_dropped(audit))
    lost = [n for n in there if n in dropped or (".self_attn." in n and not facts.config.attention_bias)]
    if not lost:
        return None
    ends = _ends(audit, lost)
    return Finding(
        "FM-26",
        Severity.ERROR if ends else Severity.WARNING,
        f"{len(lost)} trained biases are not applied",
        "SGLang's draft class builds q, k and v without a bias whatever attention_bias says."
        if audit.engine == "sglang" and all(n in dropped for n in lost)
        else "The config does not say attention_bias (or bias, for fc), so the engine has no parameter for them." + ends,
        tuple(Evidence(n, "dropped" if n in dropped else "no flag", "loaded", "audit") for n in lost[:8]),
        "Set attention_bias (fc: bias) to true and serve with an engine that builds them, or train without biases.",
        _AUDIT,
    )


def inherited_quantisation(audit: Audit) -> Finding | None:
    """FM-23: the config names a quantisation, and every weight in the file is a plain float without a scale."""
    facts = audit.facts
    if facts.config.quantization is None or _quantised(facts):
        return None
    return Finding(
        "FM-23",
        Severity.ERROR,
        f"the draft's config carries a {facts.config.quantization} quantisation that its weights do not have",
        "It was copied from the target's config. An engine then looks for scales that are not there, or reads plain weights as codes.",
        (
            Evidence("quantization_config", facts.config.quantization, "absent", "config"),
            Evidence("dtypes of the weights", ", ".join(sorted({t.dtype for t in facts.tensors.values()})), None, "checkpoint"),
            Evidence("scales in the file", 0, "one per quantised weight", "checkpoint"),
        ),
        "Take quantization_config out of the draft's config; where the server is started with --quantization, add "
        "--speculative-draft-model-quantization unquant.",
        _AUDIT,
    )


def _quantised(facts: Facts) -> bool:
    return any(SCALES.search(n) for n in facts.tensors) or any(
        t.dtype not in FLOATS for n, t in facts.tensors.items() if n.endswith(".weight")
    )


def codes_without_scale(audit: Audit) -> Finding | None:
    """FM-78, the part that headers tell: weights in a narrow dtype without a scale of their own, or without a config that says how to read them."""
    facts = audit.facts
    narrow = [n for n, t in facts.tensors.items() if n.endswith(".weight") and t.dtype not in FLOATS]
    scaled = {n.rpartition(".")[0] for n in facts.tensors if SCALES.search(n)}
    bare = [n for n in narrow if n.removesuffix(".weight") not in scaled]
    packed = [n for n in facts.tensors if PACKED.search(n)]
    lost = bare or ([*narrow, *packed] if facts.config.quantization is None else [])
    if not lost:
        return None
    return Finding(
        "FM-78",
        Severity.ERROR,
        f"{len(lost)} weights are codes ({facts.tensors[lost[0]].dtype}) that nothing says how to decode",
        "A quantised weight needs its scale in the file and its scheme in quantization_config; a conversion dropped one of them.",
        (
            Evidence("for example", lost[0], None, "checkpoint"),
            Evidence("quantization_config", facts.config.quantization or "absent", "the scheme", "config"),
            Evidence("quantised weights with a scale", len(narrow) - len(bare), f"all {len(narrow)}", "checkpoint"),
        ),
        "Ship the draft's native weights: pass the draft through the conversion byte for byte.",
        _AUDIT,
    )


def packed_draft(audit: Audit) -> Finding | None:
    """C7: a draft whose weights are packed codes of a quantisation, and whose config says so. What an engine makes of fc is another matter:
    SGLang's is a plain ``nn.Linear`` (``llama_eagle3.py`` 0.5.23), which takes no codes."""
    scheme = audit.facts.config.quantization
    if not audit.packed or scheme is None:
        return None
    fc = audit.engine == "sglang" and "fc.weight" in audit.packed
    return Finding(
        "C7",
        Severity.ERROR if fc else Severity.NOTE,
        f"fc is quantised ({scheme}), and SGLang's fc takes no codes"
        if fc
        else f"the draft is quantised: {len(audit.packed)} weights in {scheme} codes",
        "Its fc is a plain nn.Linear without a quantisation: the codes are dropped, and fc stays random."
        if fc
        else "Engines build the layers in the scheme of the draft's own config; which kernels they have for it is not simulated, and codes are not "
        "replayed.",
        (
            Evidence("quantization_config", scheme, None, "config"),
            Evidence("for example", min(audit.packed), "in packed codes", "checkpoint"),
        ),
        "Leave fc, norms and head out of the quantisation (modules_to_not_convert, or ignore)."
        if fc
        else "If acceptance is low, serve the unquantised draft once: a draft is small, and codes save little.",
        "Measure the accept length of both.",
    )


def rotated_target(audit: Audit) -> Finding | None:
    """C7: a target whose quantisation turns the residual stream (FM-38, the part that a config tells)."""
    target = audit.facts.target
    if target is None or target.rotated is None:
        return None
    return Finding(
        "C7",
        Severity.WARNING,
        "the target's quantisation rotates its residual stream, which the draft reads",
        "QuaRot, SpinQuant and their kin store the target in another basis. Its text is right, and its hidden states are not those that the "
        "draft was trained on, unless fc was rotated too.",
        (
            Evidence("quantization_config", target.quantization or "", None, "target's config"),
            Evidence("the word that says so", target.rotated, "none", "target's config"),
        ),
        "Fold the rotation into each column block of fc (and into the embedding, where it is shared), or train on this target's states.",
        "compare(train, live): the Gram matrices must agree and the cosine must be near one.",
    )


def aux_ids(audit: Audit) -> Finding | None:
    """C2: aux boundaries that do not exist, come twice, or are the embedding. Another order than ascending is FM-33's."""
    ids, facts = audit.aux_boundaries, audit.facts
    if not ids:
        return None
    n = facts.target.n_layers if facts.target else None
    evidence = []
    if outside := [b for b in ids if b < 0 or (n is not None and b > n)]:
        evidence.append(Evidence("boundaries outside the target", str(outside), f"0 to {n if n is not None else 'n_layers'}", "config"))
    if len(set(ids)) < len(ids):
        evidence.append(Evidence("boundaries", str(list(ids)), "distinct: engines capture each once", "config"))
    if 0 in ids and lost_layer(audit) is None:
        evidence.append(Evidence("boundaries", str(list(ids)), "above 0, which is the embedding's output", "config"))
    if not evidence:
        return None
    fatal = bool(outside) or len(set(ids)) < len(ids)
    return Finding(
        "C2",
        Severity.ERROR if fatal else Severity.WARNING,
        "the aux layer ids are not what an engine can deliver as listed",
        "An engine collects states while it runs through the layers: each once, in ascending order, and only those that exist. "
        + ("Fewer states then reach fc than it takes." if fatal else "Not every engine version captures the embedding's output."),
        tuple(evidence),
        "List the ids as they were in training; if that was not ascending, permute the column blocks of fc to the ascending order.",
        "compare(train, live) must find every block in its place.",
    )


def old_offset(audit: Audit) -> Finding | None:
    """C3: speculators up to 0.4 trained one layer deeper than engines serve by default, and wrote no ids. Reference: A2.3; inferred."""
    facts = audit.facts
    if facts.config.trainer != "speculators" or audit.aux_boundaries is not None:
        return None
    # Converted EAGLE drafts have no ids either and are right with the default; the trainer always set norm_before_residual.
    if facts.config.raw.get("norm_before_residual") is not True or speculators_since(facts.config.raw) not in ("0.3", "0.4"):
        return None
    return Finding(
        "C3",
        Severity.NOTE,
        "trained by speculators 0.3 or 0.4: perhaps one layer deeper than it is served",
        "These versions captured boundaries 3, n // 2 + 1 and n - 2 and wrote no ids; engines then take 2, n // 2 and n - 3.",
        (Evidence("eagle_aux_hidden_state_layer_ids", "absent", "[3, n // 2 + 1, n - 2]", "config"),),
        "Replay on dumps of both sets of boundaries; if the deeper one is better, write it into eagle_aux_hidden_state_layer_ids.",
    )


FAULTS = (
    in_files("FM-20", unapplied_norm),
    in_files("FM-23", inherited_quantisation),
    in_files("FM-26", lost_bias),
    in_files("FM-78", codes_without_scale),
)
GENERAL = (packed_draft, promised_norm, rotated_target, aux_ids, old_offset)
JUDGES = (unapplied_norm, lost_bias, inherited_quantisation, codes_without_scale, *GENERAL)
