"""Faults of an engine version: layer ids it does not read or reads otherwise (FM-02, 17, 28, 29, 30, 33), fields it does not honour
(FM-46, 47), biases it makes up (FM-26), drafts it does not build (FM-27), and its own known bugs."""

from __future__ import annotations

from collections.abc import Callable

from eagle3diag.audit import Audit
from eagle3diag.case import Case
from eagle3diag.engines import ENGINES
from eagle3diag.engines.draftclass import HOLDS
from eagle3diag.engines.layers import DEFAULT, Capture
from eagle3diag.engines.rules import Bug, Version
from eagle3diag.faults.base import off_by_one
from eagle3diag.faults.checkpoint import replaced_head, tied_by_mistake, wrong_names
from eagle3diag.faults.general import layer_count
from eagle3diag.faults.shapes import fc_width, other_architecture
from eagle3diag.faults.vocabulary import reduced
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.serving import Launch

_AGAIN = "`eagle3diag audit DRAFT --target TARGET` must show the trained boundaries as captured."


def unknown_engine(audit: Audit) -> Finding | None:
    """C0: an engine version that was never read is a finding, not a guess."""
    if audit.engine_known:
        return None
    facts = ENGINES[audit.engine]
    name = f"{audit.engine} {audit.engine_version}".strip()
    dated = bool(facts.last.numbers)
    return Finding(
        "C0",
        Severity.NOTE,
        f"{name} is outside the versions whose rules are known" if dated else f"the rules of {name} are one reading of its source",
        "The rules of the nearest known version were used." if dated else "No release can be named for them, and nothing was run.",
        (Evidence("engine version", audit.engine_version or "not named", f"{facts.first} to {facts.last}" if dated else None, "caller"),),
        "Check the loader of your version for names it drops, or upgrade eagle3diag.",
    )


def refused(audit: Audit) -> Finding | None:
    """FM-27: a config from which the engine builds no EAGLE-3 draft, whatever the tensors are. A class of other tensors, a number of layers that
    the file does not hold, and a head that is given away are said elsewhere."""
    told = {"num_hidden_layers": layer_count(audit), "draft_vocab_size": replaced_head(audit)}
    reasons = [r for r in audit.refused if not any(field in r and said is not None for field, said in told.items())]
    if not reasons or other_architecture(audit) is not None:
        return None
    return Finding(
        "FM-27",
        Severity.ERROR,
        f"{audit.engine} {audit.engine_version} builds no draft from this config".replace("  ", " "),
        "; ".join(reasons) + ".",
        tuple(Evidence("start-up", reason, "the class is built", f"{audit.draft_class} of {audit.engine}") for reason in reasons),
        "Set the fields as this engine reads them (eagle3diag.convert writes a repaired copy), or use an engine that reads this format.",
        "`eagle3diag audit` must no longer say so.",
    )


def shapes_end_start(audit: Audit) -> Finding | None:
    """K2: tensors that the engine's parameter does not fit, though the config promises this very shape: its class reads other fields."""
    promised = {check.name for check in audit.shapes}
    promised |= {"fc.weight"} if fc_width(audit) is not None else set()
    promised |= {"lm_head.weight", "d2t"} if replaced_head(audit) is not None else set()
    wrong = [load for load in audit.outcome("shape_error") if load.canonical not in promised]
    if not wrong or audit.refused or other_architecture(audit) is not None:
        return None
    fc = any(load.canonical == "fc.weight" for load in wrong)
    return Finding(
        "FM-17" if fc else "K2",
        Severity.ERROR,
        f"{audit.engine} {audit.engine_version} builds {wrong[0].canonical} with a shape other than the file's",
        "The class sizes its parameters from config fields other than those that the trainer wrote, and start-up ends with a shape error."
        + (" fc is sized from num_aux_hidden_states, else from eagle_config's ids, else three states." if fc else ""),
        tuple(Evidence(load.name, str(list(load.shape or ())), load.note, "audit") for load in wrong[:8]),
        "Add num_aux_hidden_states to the config." if fc else "Use a config that this version reads; see the fields above.",
        "`eagle3diag audit` must list no shape error.",
    )


def whole_head_borrowed(audit: Audit) -> Finding | None:
    """FM-06 as vLLM has it: no head in the file, so the target's is shared, whose rows are not those of the reduced vocabulary."""
    if audit.draft_vocab_size >= audit.vocab_size or tied_by_mistake(audit) is not None or "lm_head.weight" in wrong_names(audit):
        return None
    if not any(load.canonical == "lm_head.weight" and "reduced" in load.note for load in audit.outcome("borrowed")):
        return None
    return Finding(
        "FM-06",
        Severity.ERROR,
        "the draft has no lm_head, and the target's whole head takes its place",
        f"{audit.engine} shares the target's head when the file has none; the draft speaks {audit.draft_vocab_size} of "
        f"{audit.vocab_size} tokens, so row i of that head is not draft token i.",
        (
            Evidence("lm_head.weight", "the target's", f"[{audit.draft_vocab_size}, {audit.hidden_size}]", "audit"),
            Evidence("draft vocabulary", audit.draft_vocab_size, None, "config"),
        ),
        "Add the trained lm_head to the checkpoint.",
        "`eagle3diag audit` must list lm_head.weight as loaded.",
    )


def unfilled_bias(audit: Audit) -> Finding | None:
    """FM-26: a bias that the class has and the file has not, left at something other than zero."""
    left = [load for load in audit.outcome("missing") if load.name.endswith(".bias") and load.note != HOLDS["zeros"]]
    if not left:
        return None
    return Finding(
        "FM-26",
        Severity.WARNING,
        f"{len(left)} biases that the file does not hold are left at {left[0].note}",
        f"{audit.draft_class} of {audit.engine} {audit.engine_version} has them, and adds them to every state.",
        tuple(Evidence(load.canonical, load.note, "in the file, or not built", "audit") for load in left),
        "Set attention_bias and bias to false in the config of a draft without biases; before SGLang 0.4.9 fc always has one: upgrade.",
        "`eagle3diag audit` must list no bias as missing.",
    )


def unserved_field(audit: Audit) -> Finding | None:
    """FM-46, FM-47: a field that changes the forward pass and that this version does not honour; nothing says so when it starts."""
    if not audit.unserved:
        return None
    first = audit.unserved[0]
    names = " and ".join(u.field for u in audit.unserved)
    effect = {
        "FM-46": "The draft is fed back its state before the last norm where it was trained on the normed one: right first drafts, wrong later ones.",
        "FM-47": "The residual is the fused state, where it was trained as the normed one: the first draft is already off.",
    }
    return Finding(
        first.fault,
        Severity.WARNING,
        f"trained with {names}, which {audit.engine} {audit.engine_version} does not honour",
        " ".join(effect[u.fault] for u in audit.unserved),
        tuple(
            Evidence(u.field, "true", f"honoured {u.since}" if u.since else f"false for {audit.engine}", u.source) for u in audit.unserved
        ),
        "Upgrade the engine." if all(u.since for u in audit.unserved) else "Serve this draft with vLLM, or train without the field.",
        "Replay both ways: eagle3diag.replay reads the field.",
    )


def _first(audit: Audit) -> Capture | None:
    return audit.captures[0] if audit.captures else None


def unsupported_target(audit: Audit) -> Finding | None:
    """FM-02: the target's class has no capture of aux states in this version."""
    capture = _first(audit)
    if capture is None or capture.supported is not False or not audit.engine_known:
        return None
    return Finding(
        "FM-02",
        Severity.ERROR,
        f"{audit.engine} {audit.engine_version} cannot capture aux states of a {capture.target_class}",
        "The target's model class has no set_eagle3_layers_to_capture in this version: start-up ends, or nothing is captured.",
        (Evidence("architecture of the target", str(capture.target_class), "one with set_eagle3_layers_to_capture", "target"),),
        "Upgrade the engine, or serve this target with another one.",
        "The server must start and log its aux layers.",
    )


def other_layers(audit: Audit) -> Finding | None:
    """FM-28, FM-29: the boundaries that will be captured are not those the draft was trained on; 29 where all are off by the same one."""
    capture, trained = _first(audit), audit.aux_boundaries
    if capture is None or trained is None or capture.lost or capture.source.startswith("eagle_config.use_aux"):
        return None
    if capture.boundaries is None:
        return _unread_without_target(audit, capture) if capture.unread else None
    if capture.boundaries == tuple(sorted(set(trained))):
        return None
    shifted = off_by_one(sorted(trained), capture.boundaries)
    title = f"will capture boundaries {_listed(capture.boundaries)}, trained for {_listed(trained)}"
    return Finding(
        "FM-29" if shifted else "FM-28",
        Severity.WARNING if shifted else Severity.ERROR,
        f"{audit.engine} {audit.engine_version} {title}",
        _why(audit, capture),
        (*_layers(capture, trained), *_other_runners(audit)),
        layer_fix(audit, capture, trained),
        _AGAIN,
    )


def _unread_without_target(audit: Audit, capture: Capture) -> Finding:
    return Finding(
        "FM-28",
        Severity.WARNING,
        f"{audit.engine} {audit.engine_version} does not read the layer ids of this config and takes its default",
        _why(audit, capture) + " Whether the default is what the draft was trained on depends on the target's number of blocks.",
        (*_layers(capture, audit.aux_boundaries or ()), *_other_runners(audit)),
        "Give the target (--target TARGET) to compare; " + layer_fix(audit, capture, audit.aux_boundaries or ()),
        _AGAIN,
    )


def _why(audit: Audit, capture: Capture) -> str:
    runner = f" ({capture.runner} runner)" if capture.runner else ""
    if capture.source == DEFAULT:
        unread = (
            f"{' and '.join(capture.unread)} {'are' if len(capture.unread) > 1 else 'is'} not read"
            if capture.unread
            else "no ids are configured"
        )
        return f"{audit.engine} {audit.engine_version}{runner} takes its default, since {unread}."
    target = f" for a {capture.target_class}" if capture.target_class else ""
    return f"The ids come from {capture.source}; {audit.engine} {audit.engine_version}{runner} takes them with this rule{target}: {capture.offset}."


def _layers(capture: Capture, trained: tuple[int, ...]) -> tuple[Evidence, ...]:
    found = "the default of the target" if capture.boundaries is None else _listed(capture.boundaries)
    evidence = [Evidence("boundaries captured", found, _listed(trained) or None, capture.read_from)]
    if capture.ids is not None:
        evidence.append(Evidence("ids", _listed(capture.ids), None, capture.source))
    return (*evidence, *(Evidence("not read", key, None, "config") for key in capture.unread))


def _other_runners(audit: Audit) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            f"the {c.runner} runner would capture", "its default" if c.boundaries is None else _listed(c.boundaries), None, c.read_from
        )
        for c in audit.captures[1:]
    )


def layer_fix(audit: Audit, capture: Capture, trained: tuple[int, ...]) -> str:
    """How this version is told to capture these boundaries."""
    if audit.engine == "vllm":
        if Version.parse(audit.engine_version) < Version.parse("0.11.1"):
            ids = f"eagle_aux_hidden_state_layer_ids: {sorted(trained)}"
            return f"upgrade to vLLM 0.11.1 or newer, which reads {ids} at the top level of the draft's config; this version takes no ids."
        return f"put eagle_aux_hidden_state_layer_ids: {sorted(trained)} at the top level of the draft's config (vLLM takes boundaries)."
    if audit.engine == "tensorrt-llm":
        return f"pass eagle3_layers_to_capture={[b - 1 for b in sorted(trained)]} in the speculative config (outputs of blocks)."
    if capture.offset == "one is added if the first is 1" and trained and min(trained) != 2:
        return f"write eagle_config.eagle_aux_hidden_state_layer_ids: {sorted(trained)}: with this target SGLang takes them as they are."
    if Version.parse(audit.engine_version) < Version.parse("0.4.9"):
        return "upgrade to SGLang 0.4.9 or newer: this version takes no ids."
    return f"write eagle_config.eagle_aux_hidden_state_layer_ids: {[b - 1 for b in sorted(trained)]} (SGLang adds one)."


def lost_layer(audit: Audit) -> Finding | None:
    """FM-30: a boundary that this target's class never captures, so that fc is fed too few states."""
    capture = _first(audit)
    blocks = audit.facts.target.n_layers if audit.facts.target is not None else None
    lost = (
        tuple(b for b in capture.lost if b >= 0 and (blocks is None or b <= blocks)) if capture is not None else ()
    )  # others do not exist: C2
    if capture is None or not lost:
        return None
    return Finding(
        "FM-30",
        Severity.ERROR,
        f"boundary {_listed(lost)} is never captured by {audit.engine} {audit.engine_version} for this target",
        "Capture happens before each block, so the output of the last one (and, in older versions, the embedding) is out of reach: one state "
        "too few arrives, and fc ends with a shape error.",
        _layers(capture, audit.aux_boundaries or ()),
        "Use an engine version or target class that captures it, or train on lower layers.",
        _AGAIN,
    )


def other_order(audit: Audit) -> Finding | None:
    """FM-33: ids in another order than ascending; engines concatenate in ascending order whatever the config says."""
    trained = audit.aux_boundaries
    if trained is None or len(set(trained)) != len(trained) or trained == tuple(sorted(trained)):
        return None
    return Finding(
        "FM-33",
        Severity.WARNING,
        f"the config lists boundaries as {_listed(trained)}, engines feed them in ascending order",
        "States are collected while the blocks run, so their order is that of the layers. If the draft was trained in the listed order, fc "
        "reads each block for another.",
        (Evidence("order fed", _listed(tuple(sorted(trained))), _listed(trained), "config"),),
        "Permute the column blocks of fc.weight to ascending order, and sort the ids.",
        "Replay with the blocks in both orders.",
    )


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


#: When a bug of an engine matters, by the words of its row: from the audit and the launch command to a severity, or None.
SHOWS: dict[str, Callable[[Audit, Launch | None], Severity | None]] = {
    "configured ids differ from the default, graphs on": lambda audit, launch: _graphs(audit, launch),
    "several steps": lambda audit, launch: None if launch is not None and launch.steps == 1 else Severity.NOTE,
    "DeepSeek or Kimi target, tensor parallel": lambda audit, launch: _partial_sums(audit, launch),
    "reduced vocabulary": lambda audit, launch: Severity.ERROR if reduced(audit) and audit.vocabulary is not None else None,
    "tree": lambda audit, launch: Severity.NOTE if launch is not None and (launch.topk or 1) > 1 else None,
}


def _graphs(audit: Audit, launch: Launch | None) -> Severity | None:
    capture = _first(audit)
    off = launch is not None and (launch.has("disable-cuda-graph") or launch.get("device") == "cpu")
    if capture is None or capture.ids is None or off:
        return None
    if capture.boundaries is None or audit.default_boundaries is None:
        return Severity.NOTE
    return None if capture.boundaries == audit.default_boundaries else Severity.WARNING


def _partial_sums(audit: Audit, launch: Launch | None) -> Severity | None:
    capture = _first(audit)
    ranks = {"tp-size", "tp", "tensor-parallel-size"}
    size = next((v for k, v in (launch.arguments if launch else {}).items() if k.replace("_", "-") in ranks), "1")
    latent = capture is not None and (capture.target_class or "").startswith(("Deepseek", "Kimi"))
    return Severity.WARNING if latent and size.isdecimal() and int(size) > 1 else None


def known_bug(bug: Bug, audit: Audit, launch: Launch | None) -> Finding | None:
    """A fault of the engine version itself, where its condition holds."""
    if Version.parse(audit.engine_version or "0") not in bug.versions:
        return None
    severity = SHOWS[bug.shows](audit, launch)
    if severity is None:
        return None
    evidence = (Evidence("engine version", audit.engine_version, f"not {bug.versions}", bug.source),)
    return Finding(bug.fault, severity, bug.title, bug.because, evidence, bug.fix, "Measure the accept length again after it.")


def known_bugs(audit: Audit, launch: Launch | None = None) -> list[Finding]:
    """All that apply."""
    return [found for bug in ENGINES[audit.engine].bugs if (found := known_bug(bug, audit, launch)) is not None]


#: What an audit alone says.
JUDGES = (
    unknown_engine, refused, shapes_end_start, whole_head_borrowed, unfilled_bias, unserved_field, unsupported_target, lost_layer,
    other_order, other_layers,
)  # fmt: skip


def detect(case: Case) -> list[Finding]:
    """What the audit of a case says of its engine. A live dump shows what was captured: the prediction of layers then stands back."""
    if case.audit is None:
        return []
    captured = {other_layers, lost_layer, other_order}
    judges = [judge for judge in JUDGES if case.live is None or judge not in captured]
    return [found for judge in judges if (found := judge(case.audit)) is not None] + known_bugs(case.audit, case.launch)


__all__ = ["JUDGES", "SHOWS", "detect", "known_bug", "known_bugs"]
