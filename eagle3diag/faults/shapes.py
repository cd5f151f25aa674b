"""Faults of shapes: FM-17 (width of fc), FM-18 (attention geometry), FM-22 (a part of a sharded save), FM-27 (another architecture), test K2."""

from __future__ import annotations

from eagle3diag.audit import Audit, ShapeCheck
from eagle3diag.audit.checks import padded
from eagle3diag.faults.base import in_files
from eagle3diag.findings import Evidence, Finding, Severity

_SHAPES = "`eagle3diag audit` must list no shape error."


def fc_width(audit: Audit) -> Finding | None:
    """FM-17: the number of aux states that fc takes, that the config lists, and that an engine builds, must be one."""
    facts = audit.facts
    if "fc.weight" not in facts or len(facts.shape("fc.weight")) != 2:
        return None
    c, width, ids = facts.config, facts.shape("fc.weight")[1], audit.aux_boundaries
    taken = width / audit.target_hidden_size
    said = c.raw.get("num_aux_hidden_states")
    built = said or (len(ids) if ids else 3)
    if taken == built and (not ids or len(ids) == taken):
        return None
    return Finding(
        "FM-17",
        Severity.ERROR,
        f"fc takes {taken:g} states of the target, the config promises {len(ids) if ids and len(ids) != taken else built}",
        "Engines build fc from num_aux_hidden_states, else from the number of aux layer ids, else for three states, each as wide as the "
        "target's hidden size (target_hidden_size where it differs from the draft's). Another width ends the start-up with a shape error.",
        (
            Evidence(
                "columns of fc.weight", width, f"{built * audit.target_hidden_size} = {built} x {audit.target_hidden_size}", "checkpoint"
            ),
            Evidence("aux layer ids in the config", len(ids) if ids else 0, f"{taken:g}", "config"),
            Evidence("num_aux_hidden_states", said if said is not None else "absent", f"{taken:g}", "config"),
        ),
        f"Set target_hidden_size to the target's hidden size: {width} is not a multiple of {audit.target_hidden_size}."
        if taken != int(taken)
        else f"List the {taken:g} layers that the draft was trained on in eagle_config.eagle_aux_hidden_state_layer_ids, and set "
        f"num_aux_hidden_states to {taken:g}.",
        _SHAPES,
    )


def _by_cause(audit: Audit) -> dict[str, tuple[ShapeCheck, ...]]:
    """The wrong shapes, each under the fault that explains it; what none explains is K2's."""
    found: dict[str, list[ShapeCheck]] = {}
    ratios = [r for s in audit.shapes if (r := _shard(s)) > 1]
    sharded = {r for r in ratios if ratios.count(r) > 1}  # one cut tensor may be a wrong config; two cut alike are a save
    # Other heads explain the attention alone; a save that cuts the MLP as well is the simpler reason.
    geometry = other_heads(audit) is not None and not any(_shard(s) in sharded for s in audit.shapes if not _of_heads(s))
    for s in audit.shapes:
        if geometry and _of_heads(s):
            cause = "FM-18"
        elif 0 in s.found or (len(s.expected) == 2 and len(s.found) == 1) or _shard(s) in sharded:
            cause = "FM-22"
        elif s.name == "fc.weight" and s.found[:1] == s.expected[:1]:
            cause = "FM-17"
        elif s.name in ("lm_head.weight", "embed_tokens.weight") and s.found[1:] == s.expected[1:] and padded(s.found[0], s.expected[0]):
            cause = "FM-16"
        else:
            cause = "K2"
        found.setdefault(cause, []).append(s)
    return {cause: tuple(checks) for cause, checks in found.items()}


def _of_heads(s: ShapeCheck) -> bool:
    return s.name.endswith(tuple(f".{leaf}.weight" for leaf in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")))


def _shard(s: ShapeCheck) -> int:
    """Into how many equal parts one axis seems cut; 1 for anything else."""
    if len(s.found) != len(s.expected) or 0 in s.found:
        return 1
    cut = [e // f for e, f in zip(s.expected, s.found, strict=True) if e != f and e % f == 0]
    same = sum(e == f for e, f in zip(s.expected, s.found, strict=True))
    return cut[0] if len(cut) == 1 and same == len(s.found) - 1 else 1


def other_heads(audit: Audit) -> tuple[str, int] | None:
    """The one field of the config, with its value, that makes the first layer's projections fit: ``head_dim`` or ``num_key_value_heads``."""
    facts = audit.facts
    if facts.config.latent is not None:
        return None
    c = facts.config
    q, k, o = (facts.shape(f"layers.0.self_attn.{name}_proj.weight") for name in "qko")
    if not len(q) == len(k) == len(o) == 2 or not q[0] or not k[0]:
        return None
    if q[0] % c.num_heads == 0 and (dim := q[0] // c.num_heads) != c.head_dim and k[0] == c.num_kv_heads * dim and o[1] == q[0]:
        return "head_dim", dim
    if q[0] == c.num_heads * c.head_dim and k[0] % c.head_dim == 0 and k[0] != c.num_kv_heads * c.head_dim:
        heads = k[0] // c.head_dim
        return ("num_key_value_heads", heads) if c.num_heads % heads == 0 else None
    return None


def _evidence(shapes: tuple[ShapeCheck, ...]) -> tuple[Evidence, ...]:
    return tuple(Evidence(s.name, str(list(s.found)), str(list(s.expected)), "checkpoint") for s in shapes[:8])


def attention_geometry(audit: Audit) -> Finding | None:
    """FM-18: head width or number of key heads other than the config says, or than an engine assumes where it says nothing."""
    shapes, field = _by_cause(audit).get("FM-18", ()), other_heads(audit)
    if not shapes or field is None:
        return None
    name, value = field
    nested = "transformer_layer_config." if audit.facts.config.style == "speculators" else ""
    stated = audit.facts.config.head_dim if name == "head_dim" else audit.facts.config.num_kv_heads
    return Finding(
        "FM-18",
        Severity.ERROR,
        f"the attention projections have {name} {value}, the config gives {stated}",
        "Where head_dim is absent, engines divide hidden_size by the number of heads; Qwen3-4B and others differ. The projections "
        "then do not fit at load, or are cut into wrong heads.",
        (Evidence(name, stated, str(value), "config"), *_evidence(shapes)),
        f"Set {nested}{name} to {value}.",
        _SHAPES,
    )


def partial_save(audit: Audit) -> Finding | None:
    """FM-22, the part that headers tell: empty or flattened tensors, and several cut into the same number of parts."""
    shapes = _by_cause(audit).get("FM-22", ())
    if not shapes:
        return None
    cut = sorted({r for s in shapes if (r := _shard(s)) > 1})
    return Finding(
        "FM-22",
        Severity.ERROR,
        f"{len(shapes)} tensors are empty, flattened, or one rank's part of a sharded save",
        "A sharded trainer (FSDP, ZeRO-3, DCP) that saves without gathering writes what one rank holds"
        + (f": here 1/{cut[0]} of the tensor." if cut else ", as an empty or a one-dimensional tensor."),
        _evidence(shapes),
        "Gather the full state dict before saving, and compare names and shapes with the trainer's parameters.",
        _SHAPES,
    )


def wrong_shapes(audit: Audit) -> Finding | None:
    """K2: shapes that the config does not promise, and that no fault of the catalogue explains."""
    shapes = _by_cause(audit).get("K2", ())
    if not shapes:
        return None
    return Finding(
        "K2",
        Severity.ERROR,
        f"{len(shapes)} tensor{'s do' if len(shapes) > 1 else ' does'} not have the shape that the config promises",
        "An engine ends with a shape error at load, or takes the tensor for another one.",
        _evidence(shapes),
        "Use the config that was saved with these weights.",
        _SHAPES,
    )


def other_architecture(audit: Audit) -> Finding | None:
    """FM-27: a dense draft under the name of an MLA class, or the reverse."""
    facts = audit.facts
    if not facts.config.architecture or facts.config.style == "speculators":
        return None
    latent, named = facts.config.latent is not None, any(w in facts.config.architecture for w in ("Deepseek", "Kimi"))
    dense = any(name.endswith("self_attn.k_proj.weight") for name in facts.tensors)
    if latent == named or not (latent or dense):
        return None
    right = "Eagle3DeepseekV2ForCausalLM" if latent else "LlamaForCausalLMEagle3"
    return Finding(
        "FM-27",
        Severity.ERROR,
        f"the weights are {'MLA' if latent else 'dense attention'}, the architecture is {facts.config.architecture}",
        "The engine builds the class that the config names. Its projections have other names, so none of the attention is loaded.",
        (
            Evidence("attention in the file", "kv_a_proj_with_mqa, kv_b_proj" if latent else "q_proj, k_proj, v_proj", None, "checkpoint"),
            Evidence("architectures", facts.config.architecture, right, "config"),
        ),
        f'Set architectures to ["{right}"].',
        "`eagle3diag audit` must list no missing parameter.",
    )


FAULTS = (
    in_files("FM-17", fc_width),
    in_files("FM-18", attention_geometry),
    in_files("FM-22", partial_save),
    in_files("FM-27", other_architecture),
)
GENERAL = (wrong_shapes,)
JUDGES = (fc_width, attention_geometry, partial_save, other_architecture, *GENERAL)
