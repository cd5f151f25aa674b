"""Faults of names, head and embedding: FM-05 (layer names dropped), FM-06 and FM-08 (head missing), FM-07 (own head or embedding replaced),
FM-09 (an embedding that is no one's), FM-10 (tied)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from eagle3diag.audit import Audit
from eagle3diag.audit.checks import padded
from eagle3diag.audit.rows import RowsCheck
from eagle3diag.case import Case
from eagle3diag.faults.base import IN_FILES, Fault, in_files, on_audit
from eagle3diag.faults.shapes import other_architecture
from eagle3diag.faults.vocabulary import reduced
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.repair import misnamed
from eagle3diag.replay import Change, Net

COPIED = 0.99
"""Share of rows that are the target's within rounding, from which a table is its copy: a fine-tuned or padded target moves a few."""

UNRELATED = 0.1
"""K6: median centred cosine below which rows have nothing of the target's; random ones have 0 within 1 / sqrt(H) each, far less in the
median of a thousand."""

SEED = 0  # of every random replacement, so that the same case gives the same numbers


def dropped_names(audit: Audit) -> Finding | None:
    """FM-05: parameters of the decoder layer that nothing fills, while the file has names that the engine does not know."""
    missing = audit.missing_layer
    lost = audit.outcome("dropped") + audit.outcome("raises")
    if not any(name.startswith("layers.0.") for name in missing) or other_architecture(audit) is not None:
        return None  # layers that the file never had are K1's; the names of another class are no fault of theirs
    ends = [load.name for load in audit.outcome("raises")]
    engine, n = f"{audit.engine} {audit.engine_version}", len(missing)
    left = f"{n} decoder-layer parameter{'s stay' if n > 1 else ' stays'} uninitialised"
    examples = ", ".join(load.name for load in lost[:2]) or "none: what is missing is not in the file"
    also = " (layers.0.* also loads since SGLang 0.5.12)" if audit.engine == "sglang" else ""
    convert = f"`eagle3diag convert DRAFT COPY --to {audit.engine}=={audit.engine_version}`"
    return Finding(
        "FM-05",
        Severity.ERROR,
        f"{engine} does not start: it ends with an error at {ends[0]}, and {n} decoder-layer parameter{'s have' if n > 1 else ' has'} no tensor"
        if ends
        else f"{left}: {'the engine drops their names' if lost else 'no tensor of the file is theirs'}",
        f"{engine} looks for the layer under other names than the file has, and "
        + (
            "is strict about names that it does not know."
            if ends
            else "skips what it does not know without a message: the layer keeps whatever memory held."
        )
        if lost
        else f"{engine} reports unexpected names, not missing ones: the layer keeps whatever memory held.",
        (
            Evidence("layer parameters without a value", n, "0", "audit"),
            Evidence("tensors that end the start" if ends else "tensors dropped", len(ends or lost), "0", "audit"),
            Evidence("for example", examples, "midlayer.*", "checkpoint"),
        ),
        f"Rename the layer's tensors to midlayer.* in a copy of the checkpoint{also}: {convert}."
        if lost
        else "Export the checkpoint again with the whole layer.",
        "`eagle3diag audit` must list no missing parameter; then measure again, since faults come in series.",
    )


def _headless(audit: Audit) -> bool:
    return any(load.name == "lm_head.weight" for load in audit.outcome("missing"))


def _owns_idle_map(audit: Audit) -> bool:
    """A map although nothing is reduced: the buffer by which some engines decide that the head is the draft's own."""
    return audit.vocabulary is not None and not reduced(audit)


def wrong_names(audit: Audit) -> dict[str, str]:
    """Of the head and fc, where the file has them under names of no parameter: canonical name to the one in the file."""
    loads = {load.canonical: load.name for load in audit.loads}
    # SGLang knows model.lm_head.weight by no name either, though its ending is right
    dropped = {
        load.canonical: load.name
        for load in audit.outcome("dropped")
        if load.canonical in ("lm_head.weight", "fc.weight") and load.name != load.canonical
    }
    return dropped | {
        new: loads[old] for new, old in misnamed(audit.facts.config, {n: t.shape for n, t in audit.facts.tensors.items()}).items()
    }


def misnamed_tensors(audit: Audit) -> Finding | None:
    """FM-06, and K1 of fc: the tensor is there, under a name that no engine knows."""
    wrong = wrong_names(audit)
    if not wrong:
        return None
    engine = f"{audit.engine} {audit.engine_version}"
    ends = any(load.name in wrong.values() for load in audit.outcome("raises"))
    renames = ", ".join(f"{old} to {new}" for new, old in wrong.items())
    return Finding(
        "FM-06" if "lm_head.weight" in wrong else "K1",
        Severity.ERROR,
        f"{' and '.join(wrong)} {'are' if len(wrong) > 1 else 'is'} in the file under another name: {', '.join(wrong.values())}",
        f"It has the shape that the config promises, and nothing else has. {engine} "
        + ("ends with an error at this name." if ends else "drops this name, and uses what it allocated or the target's instead."),
        tuple(Evidence(old, str(list(_shape(audit, old))), new, "checkpoint") for new, old in wrong.items()),
        f"Rename {renames} in a copy: `eagle3diag convert DRAFT COPY --to {audit.engine}=={audit.engine_version}`.",
        "`eagle3diag audit` must list it as loaded.",
    )


def _shape(audit: Audit, name: str) -> tuple[int, ...]:
    return next((load.shape or () for load in audit.loads if load.name == name), ())


def missing_head(audit: Audit) -> Finding | None:
    """FM-06: no head in the file although the config promises one, so that a fresh one is allocated."""
    if not _headless(audit) or _owns_idle_map(audit) or "lm_head.weight" in wrong_names(audit):
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


def unshared_head(audit: Audit) -> Finding | None:
    """FM-08: the target's head should be borrowed, and a map that nobody needs makes the engine allocate one."""
    if not _headless(audit) or not _owns_idle_map(audit):
        return None
    return Finding(
        "FM-08",
        Severity.ERROR,
        "the target's head should be shared, but the checkpoint looks as if the draft owned one",
        "The draft speaks the whole vocabulary and ships no lm_head, so it was trained with the target's. The map in the file, and a "
        "draft_vocab_size that is not null, say the opposite; the engine then leaves a random head.",
        (
            Evidence("lm_head.weight", "missing", "borrowed from the target", "checkpoint"),
            Evidence("d2t", audit.vocabulary.length if audit.vocabulary else 0, "absent: nothing is reduced", "checkpoint"),
            Evidence("draft_vocab_size", audit.draft_vocab_size, f"null ({audit.vocab_size} is the whole vocabulary)", "config"),
        ),
        "Set draft_vocab_size to null and leave d2t and t2d out; eagle3diag convert does it in a copy.",
        "`eagle3diag audit` must list lm_head.weight as borrowed.",
    )


def replaced_head(audit: Audit) -> Finding | None:
    """FM-07: a head in the file that the config gives away. SGLang ``load_lm_head_from_target``: ``draft_vocab_size`` present and null; vLLM
    builds a head for the whole vocabulary also where the field is absent."""
    facts = audit.facts
    if "lm_head.weight" not in facts or facts.config.tie_word_embeddings:
        return None
    if facts.config.raw.get("draft_vocab_size", 0 if audit.engine == "sglang" else None) is not None:
        return None
    rows = facts.shape("lm_head.weight")[0]
    own = rows < audit.vocab_size and not padded(rows, audit.vocab_size)
    fatal = any(load.canonical == "lm_head.weight" for load in audit.outcome("shape_error"))
    if audit.engine != "sglang" and not fatal:  # a whole head of its own is kept
        return None
    return Finding(
        "FM-07",
        Severity.ERROR if own else Severity.WARNING,
        "the config discards the draft's own head" if fatal else "the draft's own head is replaced by the target's",
        "Without a draft_vocab_size the engine makes a head for the whole vocabulary, or borrows the target's; "
        + ("this one does not fit it, and start-up ends. " if fatal else "the one in the file is loaded and thrown away. ")
        + ("It has fewer rows than the target's, so it was trained." if own else "That is right only if it is a copy of the target's."),
        (
            Evidence("draft_vocab_size", "null" if "draft_vocab_size" in facts.config.raw else "absent", str(rows), "config"),
            Evidence("rows of lm_head", rows, f"absent, or {audit.vocab_size} copied from the target", "checkpoint"),
        ),
        f"Set draft_vocab_size to {rows}." if own else f"If the head was trained, set draft_vocab_size to {rows}; if not, leave it out.",
        "`eagle3diag audit` must list lm_head.weight as loaded.",
    )


def replaced_embedding(audit: Audit) -> Finding | None:
    """FM-07: an embedding in the file that was trained, under an engine that puts the target's in its place (K6)."""
    like = audit.facts.like("embed_tokens.weight")
    if like is None or like.copied >= COPIED or like.cosine < UNRELATED or not _overwritten(audit):
        return None
    return Finding(
        "FM-07",
        Severity.WARNING,
        "the draft's own embedding is replaced by the target's",
        f"The embedding in the file is not a copy: it was trained further from the target's. {audit.engine} {audit.engine_version} loads it and then "
        "shares the target's, whatever the file holds.",
        _compared(like, "1, where the target's may stand in for it"),
        "Serve with an engine that keeps what the file holds (vLLM since 0.11.1), or train with the target's embedding frozen.",
        "`eagle3diag replay DRAFT train/ --target TARGET --engine vllm`, and the same with sglang: the difference is what it costs.",
    )


def stray_embedding(audit: Audit) -> Finding | None:
    """FM-09: an embedding in the file that has nothing of the target's: a fresh one, or another model's (K6)."""
    like = audit.facts.like("embed_tokens.weight")
    if like is None or like.copied >= COPIED or like.cosine >= UNRELATED:
        return None
    harmless = _overwritten(audit)
    return Finding(
        "FM-09",
        Severity.NOTE if harmless else Severity.ERROR,
        "the embedding in the file is unrelated to the target's",
        "An exporter that leaves out the frozen embedding, builds a fresh model and loads it without strictness writes random numbers. "
        + (
            f"{audit.engine} {audit.engine_version} puts the target's in its place, so nothing is lost here."
            if harmless
            else f"{audit.engine} {audit.engine_version} uses what the file holds."
        ),
        _compared(like, "1, or of a trained one above 0.5"),
        "Leave embed_tokens out of the file, or copy the target's.",
        "`eagle3diag audit DRAFT --target TARGET` must be silent about it.",
    )


def _overwritten(audit: Audit) -> bool:
    return any(load.canonical == "embed_tokens.weight" for load in audit.outcome("overwritten"))


def _compared(like: RowsCheck, expected: str) -> tuple[Evidence, ...]:
    return (
        Evidence("rows that are the target's within rounding", like.copied, expected, f"{like.rows} rows of {like.tensor}"),
        Evidence("median cosine with the target's row", like.cosine, None, f"{like.rows} rows of {like.tensor}"),
        Evidence("the same, with another token's row", like.other, None, f"{like.rows} rows of {like.tensor}"),
    )


def tied_by_mistake(audit: Audit) -> Finding | None:
    """FM-10: ``tie_word_embeddings`` true, as small targets have it, in a draft that has a head of its own or a smaller vocabulary."""
    facts = audit.facts
    if not audit.tie_word_embeddings or ("lm_head.weight" not in facts and not reduced(audit)):
        return None
    return Finding(
        "FM-10",
        Severity.ERROR if reduced(audit) else Severity.WARNING,
        "tie_word_embeddings is true, so the head becomes the embedding",
        "The flag is the target's. A tied head has a row for every token of the target and is the target's embedding once that is shared: "
        + (
            f"the {audit.draft_vocab_size} rows that the draft was trained with are lost, and draft ids point at other tokens."
            if reduced(audit)
            else "the head in the file is lost, unless it is a copy of the embedding."
        ),
        (
            Evidence("tie_word_embeddings", "true", "false", "config"),
            Evidence("lm_head.weight", "in the file" if "lm_head.weight" in facts else "missing", None, "checkpoint"),
            Evidence("draft vocabulary", audit.draft_vocab_size, f"{audit.vocab_size} for a tied head", "config"),
        ),
        "Set tie_word_embeddings to false in the draft's config; eagle3diag convert does it in a copy.",
        "`eagle3diag audit` must list lm_head.weight as loaded.",
    )


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
    yield Change("FM-05", "decoder layer not loaded, memory random", net=random, one_of_many=True)


def _relayer(net: Net, fresh: Callable[[torch.Tensor], torch.Tensor]) -> Net:
    return replace(net, weights={n: fresh(w) if n.startswith("layers.") else w for n, w in net.weights.items()})


def _random_head(healthy: Net) -> Net:
    draw = torch.Generator().manual_seed(SEED)
    return replace(healthy, head=torch.randn(healthy.head.shape, generator=draw) * 0.02)


def _head_lost(case: Case) -> Iterator[Change]:
    yield Change("FM-06", "random head", net=_random_head, one_of_many=True)


def _head_not_shared(case: Case) -> Iterator[Change]:
    yield Change("FM-08", "random head", net=_random_head, one_of_many=True)


def _replaced(audit: Audit) -> Finding | None:
    return replaced_head(audit) or replaced_embedding(audit)


def _head_replaced(case: Case) -> Iterator[Change]:
    """The target's head over the whole vocabulary, of which the engine reads every row as that token."""
    target = case.target
    if target is not None and case.audit is not None and replaced_head(case.audit) is not None:
        rows = target.head()
        ids = torch.arange(len(rows))
        yield Change("FM-07", "the target's head in place of the draft's", net=lambda net: replace(net, head=rows.float(), draft_ids=ids))


def _head_tied(case: Case) -> Iterator[Change]:
    """The first rows of the embedding, read through the draft's map: a tied head of which the engine uses draft_vocab_size columns."""
    yield Change("FM-10", "the embedding as head", net=lambda net: replace(net, head=net.embedding[: len(net.head)].float()))


FAULTS = (
    Fault("FM-05", on_audit(dropped_names), _layer_lost, IN_FILES, (1.0, 1.2)),
    Fault("FM-06", on_audit(missing_head), _head_lost, IN_FILES, (1.0, 1.02)),
    in_files("FM-07", _replaced, _head_replaced, (1.0, 1.4)),
    in_files("FM-08", unshared_head, _head_not_shared, (1.0, 1.02)),
    in_files("FM-09", stray_embedding),
    in_files("FM-10", tied_by_mistake, _head_tied, (1.0, 1.15)),
)
JUDGES = (dropped_names, missing_head, replaced_head, replaced_embedding, unshared_head, stray_embedding, tied_by_mistake)
