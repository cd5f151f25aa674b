"""Test K1: tensors and parameters that find no place, where no numbered fault says why. One cause is one finding."""

from __future__ import annotations

import re

from eagle3diag.audit import Audit, TensorLoad
from eagle3diag.checkpoints.names import IDLE, SCALES
from eagle3diag.engines.draftclass import HOLDS
from eagle3diag.faults.checkpoint import misnamed_tensors, replaced_head, wrong_names
from eagle3diag.faults.config import AUX_NORM, HEAD_NORM, lost_bias
from eagle3diag.faults.general import layer_count
from eagle3diag.faults.shapes import fc_width
from eagle3diag.faults.vocabulary import reduced
from eagle3diag.findings import Evidence, Finding, Severity


def untold(audit: Audit, outcome: str) -> tuple[TensorLoad, ...]:
    """The loads of one outcome that no other finding is about: of norms FM-20 tells, of biases FM-26, of a head FM-06 and FM-10, of a map
    beside a head that is given away FM-07, of layers that are not promised K1's own count."""
    headless = audit.tie_word_embeddings or any(
        load.name == "lm_head.weight" for load in (*audit.outcome("missing"), *audit.outcome("borrowed"))
    )
    biases = lost_bias(audit) is not None or outcome == "dropped"  # one of zeros may be dropped
    layers = None if layer_count(audit) is None else audit.facts.config.num_layers
    given_away = replaced_head(audit) is not None
    misnamed = wrong_names(audit).values()

    def told(load: TensorLoad) -> bool:
        name = load.canonical
        number = re.match(r"layers\.(\d{1,9})\.", name)
        return (
            name.endswith(IDLE)
            or bool(audit.packed and SCALES.search(name))
            or bool(AUX_NORM.fullmatch(name) or HEAD_NORM.fullmatch(name))
            or (biases and name.endswith(".bias"))
            or (headless and name.endswith("lm_head.weight"))
            or (given_away and name == "d2t")
            or load.name in misnamed
            or (layers is not None and number is not None and int(number[1]) >= layers)
        )

    return tuple(load for load in audit.outcome(outcome) if not told(load))


def lost_tensors(audit: Audit) -> Finding | None:
    """K1, the harmless half: tensors dropped although every parameter has its value."""
    if audit.missing_layer:
        return None
    lost = untold(audit, "dropped")
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


def missing_others(audit: Audit) -> Finding | None:
    """K1: fc or the last norm missing; the layer is FM-05's, the head FM-06's."""
    wanted = {"fc.weight", "norm.weight", "embed_tokens.weight"}
    if fc_width(audit) is not None:  # of a target whose width is not known nothing is shared
        wanted.discard("embed_tokens.weight")
    missing = [load for load in audit.outcome("missing") if load.name in wanted - wrong_names(audit).keys() - audit.packed]
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


def names_end_start(audit: Audit) -> Finding | None:
    """K1, the loud half: names that no parameter takes, in an engine that ends with an error for them; FM-05 where the layer is among them."""
    raising = untold(audit, "raises")
    if not raising or audit.missing_layer:
        return None
    return Finding(
        "K1",
        Severity.ERROR,
        f"{audit.engine} {audit.engine_version} ends with an error at {raising[0].name}",
        "No parameter of the draft class has that name, and this loader is strict about names that it does not know.",
        tuple(Evidence(load.name, "raises", "a name of this class", "audit") for load in raising[:8]),
        "Remove what does not belong to the draft, and set the flag of what does (fc_norm, attention_bias, ...).",
        "`eagle3diag audit` must list no tensor that raises.",
    )


def map_ends_start(audit: Audit) -> Finding | None:
    """K1: no map, which a whole vocabulary does not need, in a version that asks for it all the same."""
    if not any(load.canonical == "d2t" and load.note == HOLDS["unset"] for load in audit.outcome("missing")) or reduced(audit):
        return None
    return Finding(
        "K1",
        Severity.ERROR,
        f"{audit.engine} {audit.engine_version} ends with an AttributeError because there is no d2t",
        "The draft speaks the whole vocabulary, so no map is needed; this version reads one without checking that there is one.",
        (Evidence("d2t", "missing", f"[{audit.vocab_size}] zeros", "checkpoint"),),
        "Upgrade, or add a d2t of zeros: eagle3diag convert does it in a copy.",
        "`eagle3diag audit` must list d2t as loaded.",
    )


JUDGES = (misnamed_tensors, lost_tensors, missing_others, names_end_start, map_ends_start)
