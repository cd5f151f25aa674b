"""Faults in the files: FM-05 (layer names dropped), FM-06 (head missing), FM-11 and FM-12 (vocabulary map missing or misread)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from eagle3diag.audit import Audit
from eagle3diag.case import Case
from eagle3diag.faults.base import Fault
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.replay import Change, Net

AGREE = 0.999
"""Share of draft ids whose target id must be marked in t2d for a reading of d2t to be the right one: a sound map agrees everywhere,
the wrong reading of a real one in about draft/target of the cases (0.45 on the sample draft)."""

SEED = 0  # of every random replacement, so that the same case gives the same numbers


def dropped_names(audit: Audit) -> Finding | None:
    """FM-05: parameters of the decoder layer that nothing fills, while the file has names that the engine does not know."""
    missing = audit.missing_layer
    lost = audit.outcome("dropped") + audit.outcome("raises")
    if not missing:
        return None
    examples = ", ".join(load.name for load in lost[:2]) or "none: the layer is not in the file"
    raises = any(load.outcome == "raises" for load in lost)
    return Finding(
        "FM-05",
        Severity.ERROR,
        f"{len(missing)} decoder-layer parameters stay uninitialised: the engine drops their names",
        f"{audit.engine} {audit.engine_version} looks for the layer under other names than the file has, and "
        + ("ends with a KeyError." if raises else "skips what it does not know without a message: the layer keeps whatever memory held."),
        (
            Evidence("layer parameters without a value", len(missing), "0", "audit"),
            Evidence("tensors dropped", len(lost), "0", "audit"),
            Evidence("for example", examples, "midlayer.*", "checkpoint"),
        ),
        "Rename the layer's tensors to midlayer.* in a copy of the checkpoint (layers.0.* also loads since SGLang 0.5.12).",
        "`eagle3diag audit` must list no missing parameter; then measure again, since faults come in series.",
    )


def missing_head(audit: Audit) -> Finding | None:
    """FM-06: no head in the file although the config promises one, so that a fresh one is allocated."""
    if not any(load.name == "lm_head.weight" for load in audit.outcome("missing")):
        return None
    return Finding(
        "FM-06",
        Severity.ERROR,
        "the draft has no lm_head and the engine leaves a random one",
        f"The config declares draft_vocab_size {audit.draft_vocab_size}, so a head of that size is allocated; nothing in the file fills it, "
        "and no loader reports names that are missing.",
        (
            Evidence("lm_head.weight", "missing", f"[{audit.draft_vocab_size}, {audit.hidden_size}]", "checkpoint"),
            Evidence("draft_vocab_size", audit.draft_vocab_size, "null, if the target's head is to be borrowed", "config"),
        ),
        "Add the trained lm_head, or set draft_vocab_size to null so that the target's head is borrowed.",
        "`eagle3diag audit` must list lm_head.weight as loaded or borrowed.",
    )


def missing_map(audit: Audit) -> Finding | None:
    """FM-11: a reduced vocabulary without ``d2t``: draft ids are taken for target ids."""
    if audit.vocabulary is not None or audit.draft_vocab_size >= audit.vocab_size:
        return None
    return Finding(
        "FM-11",
        Severity.ERROR,
        "d2t is not in the checkpoint, so draft ids are read as target ids",
        f"The draft speaks {audit.draft_vocab_size} of {audit.vocab_size} tokens; without the map the engine assumes they are the first ones.",
        (
            Evidence("d2t", "missing", f"[{audit.draft_vocab_size}] offsets", "checkpoint"),
            Evidence("draft vocabulary", audit.draft_vocab_size, None, "config"),
            Evidence("target vocabulary", audit.vocab_size, None, "config"),
        ),
        "Save d2t and t2d with the weights (register them as persistent buffers); the trainer keeps them beside its data.",
        "`eagle3diag audit` must show d2t loaded and in agreement with t2d.",
    )


def misread_map(audit: Audit) -> Finding | None:
    """FM-12: ``d2t`` holds absolute ids, or ``arange``, where offsets are expected."""
    m = audit.vocabulary
    if m is None or audit.draft_vocab_size >= audit.vocab_size:
        return None
    absolute = m.agree_absolute is not None and m.agree_absolute >= AGREE and m.agree_offset is not None and m.agree_offset < AGREE
    unmarked = m.agree_offset is None and m.in_range_offset < 1 <= m.in_range_absolute and m.unique_absolute == 1
    if not (absolute or unmarked or m.arange) or m.all_zero:
        return None
    evidence = [
        Evidence("ids inside the vocabulary, read as offsets", m.in_range_offset, "1", "d2t"),
        Evidence("ids inside the vocabulary, read as absolute", m.in_range_absolute, None, "d2t"),
    ]
    if m.agree_offset is not None and m.agree_absolute is not None:
        evidence += [
            Evidence("ids marked in t2d, read as offsets", m.agree_offset, "1", "d2t, t2d"),
            Evidence("ids marked in t2d, read as absolute", m.agree_absolute, None, "d2t, t2d"),
        ]
    what = "0, 1, 2, ... (arange)" if m.arange else "absolute target ids"
    return Finding(
        "FM-12",
        Severity.ERROR,
        f"d2t holds {what}, engines read offsets",
        "Engines compute target id = draft id + d2t[draft id]. With "
        + ("arange every id is doubled." if m.arange else "absolute ids, id is added twice."),
        tuple(evidence),
        "Rebuild d2t from t2d: d2t = nonzero(t2d) - arange." if m.arange else "Store offsets: d2t = d2t - arange(len(d2t)).",
        "`eagle3diag audit` must show every id marked in t2d when read as an offset.",
    )


def _on_audit(judge: Callable[[Audit], Finding | None]) -> Callable[[Case], Finding | None]:
    def detect(case: Case) -> Finding | None:
        return judge(case.audit) if case.audit is not None else None

    return detect


def _layer_lost(case: Case) -> Iterator[Change]:
    """The layer as fresh memory most often is (zeros), and as a module's default start: an allocator gives either, or anything."""

    def zeros(net: Net) -> Net:
        return _relayer(net, lambda w: torch.ones_like(w) if w.dim() == 1 else torch.zeros_like(w))

    def random(net: Net) -> Net:
        draw = torch.Generator().manual_seed(SEED)

        def fresh(w: torch.Tensor) -> torch.Tensor:
            return torch.ones_like(w) if w.dim() == 1 else (torch.rand(w.shape, generator=draw) * 2 - 1) / w.shape[1] ** 0.5

        return _relayer(net, fresh)

    yield Change("FM-05", "decoder layer not loaded, memory zero", net=zeros)
    yield Change("FM-05", "decoder layer not loaded, memory random", net=random)


def _relayer(net: Net, fresh: Callable[[torch.Tensor], torch.Tensor]) -> Net:
    return replace(net, weights={n: fresh(w) if n.startswith("layers.") else w for n, w in net.weights.items()})


def _head_lost(case: Case) -> Iterator[Change]:
    def net(healthy: Net) -> Net:
        draw = torch.Generator().manual_seed(SEED)
        return replace(healthy, head=torch.randn(healthy.head.shape, generator=draw) * 0.02)

    yield Change("FM-06", "random head", net=net)


def _map_lost(case: Case) -> Iterator[Change]:
    yield Change("FM-11", "draft ids read as target ids", net=lambda net: replace(net, draft_ids=torch.arange(len(net.head))))


def _map_misread(case: Case) -> Iterator[Change]:
    def absolute(net: Net) -> Net:
        return replace(net, draft_ids=(net.draft_ids + torch.arange(len(net.head))).clamp(max=len(net.embedding) - 1))

    def arange(net: Net) -> Net:
        return replace(net, draft_ids=(2 * torch.arange(len(net.head))).clamp(max=len(net.embedding) - 1))

    yield Change("FM-12", "absolute ids read as offsets", net=absolute)
    yield Change("FM-12", "arange read as offsets", net=arange)


IN_FILES = (("draft",),)  # the checkpoint alone shows these

FAULTS = (
    Fault("FM-05", "decoder-layer keys dropped by the loader", _on_audit(dropped_names), _layer_lost, IN_FILES, (1.0, 1.2)),
    Fault("FM-06", "head missing from the checkpoint and left random", _on_audit(missing_head), _head_lost, IN_FILES, (1.0, 1.02)),
    Fault("FM-11", "d2t not saved", _on_audit(missing_map), _map_lost, IN_FILES, (1.0, 1.15)),
    Fault("FM-12", "d2t holds absolute ids, or arange", _on_audit(misread_map), _map_misread, IN_FILES, (1.0, 1.15)),
)
