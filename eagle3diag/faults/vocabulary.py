"""Faults of the vocabulary and its map: FM-11 (missing or never filled), FM-12 (misread), FM-13 (of another run), FM-15 (wrong set),
FM-16 (padded sizes); tests K5 (ids that are none) and K8 (tokens that cannot be said)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from eagle3diag.audit import Audit, MapCheck
from eagle3diag.audit.checks import padded
from eagle3diag.case import Case
from eagle3diag.faults.base import IN_FILES, Fault, in_files, on_audit
from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.replay import Change, Net

AGREE = 0.999
"""Share of draft ids whose target id must be marked in t2d for a reading of d2t to be the right one: a sound map agrees everywhere,
the wrong reading of a real one in about draft/target of the cases (0.45 on the sample draft)."""

ELSEWHERE = 0.5
"""Share of a head's rows that are another token's from which the map is not the head's: a map of another run of the same data shares up to
half of its places with the right one, a right map has a few doublets of spelling."""

_AGAIN = "`eagle3diag audit` must show every id inside the vocabulary, distinct, and marked in t2d."


def reduced(audit: Audit) -> bool:
    """Whether the draft speaks fewer tokens than the target, padding aside."""
    return audit.draft_vocab_size < audit.vocab_size and not padded(audit.draft_vocab_size, audit.vocab_size)


def missing_map(audit: Audit) -> Finding | None:
    """FM-11: a reduced vocabulary without ``d2t``, or with one that is zero throughout: draft ids are taken for target ids."""
    m = audit.vocabulary
    if not reduced(audit) or (m is not None and not _unfilled(m)):
        return None
    sizes: tuple[Evidence, ...] = (
        Evidence("draft vocabulary", audit.draft_vocab_size, None, "config"),
        Evidence("target vocabulary", audit.vocab_size, None, "config"),
    )
    title = "d2t is not in the checkpoint, so draft ids are read as target ids"
    found = Evidence("d2t", "missing", f"[{audit.draft_vocab_size}] offsets", "checkpoint")
    if m is not None:
        title = "d2t was never filled: it is zero throughout, so draft ids are read as target ids"
        found = Evidence("entries of d2t that are not zero", 0, f"nearly all of {m.length}", "d2t")
        if m.marked is not None:
            sizes += (Evidence("ids marked in t2d", m.marked, f"{m.declared}; zero offsets would need the first {m.length}", "t2d"),)
    return Finding(
        "FM-11",
        Severity.ERROR,
        title,
        f"The draft speaks {audit.draft_vocab_size} of {audit.vocab_size} tokens; without the map the engine assumes they are the first ones.",
        (found, *sizes),
        "Save d2t and t2d with the weights (register them as persistent buffers); the trainer keeps them beside its data.",
        "`eagle3diag audit` must show d2t loaded and in agreement with t2d.",
    )


def _unfilled(m: MapCheck) -> bool:
    """All zero, and t2d does not say that the first ids are really meant: buffers start as zeros (SpecForge, AngelSlim, vLLM)."""
    return m.length > 0 and m.all_zero and not (m.marked_first and m.marked == m.length)


def misread_map(audit: Audit) -> Finding | None:
    """FM-12: ``d2t`` holds absolute ids, or ``arange``, where offsets are expected."""
    m = audit.vocabulary
    if m is None or not reduced(audit) or not _misread(m):
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
        "Rebuild d2t from t2d: d2t = nonzero(t2d) - arange."
        if m.arange
        else "Store offsets: d2t = d2t - arange(len(d2t)); eagle3diag convert does it in a copy.",
        "`eagle3diag audit` must show every id marked in t2d when read as an offset.",
    )


def _misread(m: MapCheck) -> bool:
    absolute = m.agree_absolute is not None and m.agree_absolute >= AGREE and m.agree_offset is not None and m.agree_offset < AGREE
    unmarked = m.agree_offset is None and m.in_range_offset < 1 <= m.in_range_absolute and m.unique_absolute == 1
    arange = m.arange and not (m.agree_offset == 1 and m.marked == m.length)  # every second token may be meant: then t2d says so
    return (absolute or unmarked or arange) and not m.all_zero


def foreign_map(audit: Audit) -> Finding | None:
    """FM-13: ``d2t`` and ``t2d`` name different tokens, whichever way ``d2t`` is read: one of the two is another run's."""
    m = audit.vocabulary
    if m is None or not reduced(audit) or _misread(m) or _unfilled(m) or m.agree_offset is None or m.agree_offset >= AGREE:
        return None
    if m.in_range_offset < 1 or m.unique_offset < 1:  # no map at all: K5
        return None
    return Finding(
        "FM-13",
        Severity.ERROR,
        f"d2t and t2d come from different runs: {1 - m.agree_offset:.0%} of the draft's tokens are not marked in t2d",
        "The head's rows mean what they meant in the run that trained them. A map that was made again, from other data or on resume, gives "
        "them other meanings; the trainer's accuracy uses the new map and does not notice.",
        (
            Evidence("draft ids whose target id is marked in t2d", m.agree_offset, "1", "d2t, t2d"),
            Evidence("the same, if the two were unrelated", (m.marked or 0) / max(1, audit.vocab_size), None, "t2d"),
            Evidence(
                "the same, d2t read as absolute ids", m.agree_absolute if m.agree_absolute is not None else "unknown", None, "d2t, t2d"
            ),
        ),
        "Take d2t and t2d from the run that trained lm_head; when fine-tuning, keep the parent's map.",
        _AGAIN + " Then replay: the right map is the one that gives acceptance.",
    )


def head_of_another(audit: Audit) -> Finding | None:
    """FM-13, where ``d2t`` and ``t2d`` agree with each other and not with the head: its rows are the target's of other tokens (K7)."""
    like = audit.facts.like("lm_head.weight")
    m = audit.vocabulary
    if like is None or like.elsewhere is None or like.elsewhere <= ELSEWHERE or m is None or _misread(m) or _unfilled(m):
        return None
    if foreign_map(audit) is not None or broken_ids(audit) is not None:  # said there
        return None
    return Finding(
        "FM-13",
        Severity.ERROR,
        "the head's rows are not those of the tokens that d2t names",
        "Each row was trained from the target's row of one token and still resembles it; d2t names another. The map was made again, from other "
        "data or on resume, after the head was.",
        (
            Evidence(
                "share of rows that resemble another token's row of the target's head", like.elsewhere, "0", "lm_head against the target's"
            ),
            Evidence("median cosine with the target's row that d2t names", like.cosine, "0.1 to 1", f"{like.rows} rows of lm_head"),
            Evidence("the same, with another token's row", like.other, None, f"{like.rows} rows of lm_head"),
        ),
        "Take d2t and t2d from the run that trained lm_head; when fine-tuning, keep the parent's map.",
        _AGAIN + " Then replay: the right map is the one that gives acceptance.",
    )


def wrong_set(audit: Audit) -> Finding | None:
    """FM-15: the draft vocabulary is simply the first ids of the target's."""
    m = audit.vocabulary
    if m is None or not reduced(audit) or not m.first or _unfilled(m) or m.length < 2:
        return None
    return Finding(
        "FM-15",
        Severity.WARNING,
        f"the draft vocabulary is the first {m.length} ids of the target's, not its most frequent tokens",
        "A default slice (t2d[:N] = True) was kept, or the corpus was too small to fill a map. Loss and accuracy are computed inside the slice "
        "and look fine; every token outside it ends the chain.",
        (
            Evidence("target ids", f"0 to {m.length - 1}, in order", "spread over the vocabulary", "d2t"),
            Evidence("target vocabulary", audit.vocab_size, None, "config"),
        ),
        "Count tokens in the target's own answers, keep the most frequent, train the head again.",
        "replay: the share of tokens that the draft cannot say must be a few per cent.",
    )


def broken_ids(audit: Audit) -> Finding | None:
    """K5: entries that name no token, or one token twice; a dtype that cannot hold ids; a ``t2d`` of another count."""
    m = audit.vocabulary
    if m is None or not m.length or _misread(m) or _unfilled(m):
        return None
    evidence = []
    if m.in_range_offset < 1:
        evidence.append(Evidence("ids inside the vocabulary", m.in_range_offset, "1", "d2t"))
    if m.unique_offset < 1:
        evidence.append(Evidence("distinct ids", m.unique_offset, "1", "d2t"))
    if not m.dtype.startswith(("int", "uint")):
        evidence.append(Evidence("dtype of d2t", m.dtype, "int64", "checkpoint"))
    serious = bool(evidence)
    if serious and m.agree_offset is not None:
        evidence.append(Evidence("ids marked in t2d", m.agree_offset, "1", "d2t, t2d"))
    # Several that share a target id make the counts differ as well; then that is said once.
    if m.marked is not None and reduced(audit) and m.marked != m.length and m.unique_offset == 1 and (m.agree_offset or 0) >= AGREE:
        evidence.append(Evidence("ids marked in t2d", m.marked, f"{m.length}, as many as d2t has entries", "t2d"))
    if not evidence:
        return None
    return Finding(
        "K5",
        Severity.ERROR if serious else Severity.WARNING,
        "d2t does not name one token of the target for every row of the head" if serious else "t2d does not mark as many tokens as d2t has",
        "An id outside the vocabulary ends in a device assert or in a garbage token, a repeated one loses another; bfloat16 and float16 cannot "
        "even hold ids above 256 and 2048 exactly."
        if serious
        else "Engines read d2t only, so serving is not affected; but one of the two is not what the trainer had, and a resumed training reads t2d.",
        tuple(evidence),
        "Export d2t (int64, target id minus draft id) and t2d from the run that trained lm_head.",
        _AGAIN,
    )


def unsaid_ends(audit: Audit) -> Finding | None:
    """K8, the part that needs no corpus: tokens that end an answer or a turn and that the draft has no row for."""
    target = audit.facts.target
    m = audit.vocabulary
    if target is None or not target.unsaid or not target.ends_unsaid or m is None or _misread(m) or _unfilled(m) or m.in_range_offset < 1:
        return None
    if foreign_map(audit) is not None or head_of_another(audit) is not None:  # of a map that is not the draft's nothing follows
        return None
    every = target.ends_unsaid == target.ends
    return Finding(
        "K8",
        Severity.WARNING if every else Severity.NOTE,
        "the draft cannot say any token that ends an answer" if every else "the draft cannot say some of the tokens that end an answer",
        "They are in every answer of the target, so a map counted on its answers holds them; each answer loses its last draft, and a map "
        "without them was counted on something else."
        if every
        else "Targets list several, and a chat uses one or two of them; it matters only if this one is used.",
        (
            Evidence("tokens that end an answer", target.ends, None, "generation_config.json"),
            Evidence("of these without a row", target.ends_unsaid, "0", "d2t"),
            Evidence("without a row", ", ".join(target.unsaid[:6]), None, "d2t, tokenizer_config.json"),
        ),
        "Count the draft vocabulary on the target's own answers, end tokens included." if every else "",
        "replay: the share of tokens that the draft cannot say." if every else "",
    )


def padded_sizes(audit: Audit) -> Finding | None:
    """FM-16: two sizes of one vocabulary, apart by padding only."""
    facts = audit.facts
    pairs = [("the draft's vocab_size", audit.vocab_size, "its draft_vocab_size", audit.draft_vocab_size)]
    if facts.target is not None:
        pairs.append(("the target's vocab_size", facts.target.vocab_size, "the draft's", audit.vocab_size))
    rows = {s.name: s for s in audit.shapes}
    for name in ("lm_head.weight", "embed_tokens.weight"):
        if name in rows and rows[name].found[1:] == rows[name].expected[1:]:
            pairs.append((f"rows of {name}", rows[name].found[0], "the config's", rows[name].expected[0]))
    differ = [p for p in pairs if padded(p[1], p[3])]
    if not differ:
        return None
    full = not reduced(audit)
    return Finding(
        "FM-16",
        Severity.ERROR if full or any(p[0].startswith("rows") for p in differ) else Severity.NOTE,
        "vocabularies that differ by padding only: " + "; ".join(f"{a} {x}, {b} {y}" for a, x, b, y in differ),
        "An engine that compares sizes takes the difference for a reduced vocabulary: it allocates a head of the draft's own, or looks for a map."
        if full
        else "The draft vocabulary is reduced by far more than that, so the map decides and the padding does no harm.",
        tuple(Evidence(a, x, f"{y}, {b}", "config") for a, x, b, y in differ),
        "Set vocab_size and draft_vocab_size to the target's own number of rows, and pad or cut lm_head to it." if full else "",
        "`eagle3diag audit` must show one size." if full else "",
    )


def larger_than_target(audit: Audit) -> Finding | None:
    """C8: a draft vocabulary above the target's."""
    if audit.draft_vocab_size <= audit.vocab_size or padded(audit.draft_vocab_size, audit.vocab_size):
        return None
    return Finding(
        "C8",
        Severity.ERROR,
        "draft_vocab_size is larger than the vocabulary of the target",
        "Every row of the head stands for a token of the target; there cannot be more of them.",
        (Evidence("draft_vocab_size", audit.draft_vocab_size, f"at most {audit.vocab_size}", "config"),),
        "Set draft_vocab_size to the rows of lm_head and vocab_size to the target's.",
        "`eagle3diag audit` must list no shape error.",
    )


def _map_lost(case: Case) -> Iterator[Change]:
    yield Change("FM-11", "draft ids read as target ids", net=lambda net: replace(net, draft_ids=torch.arange(len(net.head))))


def _map_misread(case: Case) -> Iterator[Change]:
    def absolute(net: Net) -> Net:
        return replace(net, draft_ids=(net.draft_ids + torch.arange(len(net.head))).clamp(max=len(net.embedding) - 1))

    def arange(net: Net) -> Net:
        return replace(net, draft_ids=(2 * torch.arange(len(net.head))).clamp(max=len(net.embedding) - 1))

    yield Change("FM-12", "absolute ids read as offsets", net=absolute)
    yield Change("FM-12", "arange read as offsets", net=arange)


def _map_of_another(case: Case) -> Iterator[Change]:
    """The file's own d2t, where the healthy replay goes by t2d: it costs nothing when t2d is the foreign one, which no engine reads."""
    vocabulary = None if case.draft is None else case.draft.vocabulary
    if vocabulary is not None:
        ids = vocabulary.draft_ids
        yield Change("FM-13", "the map of the other run", net=lambda net: replace(net, draft_ids=ids.clamp(0, len(net.embedding) - 1)))


FAULTS = (
    Fault("FM-11", on_audit(missing_map), _map_lost, IN_FILES, (1.0, 1.15)),
    Fault("FM-12", on_audit(misread_map), _map_misread, IN_FILES, (1.0, 1.15)),
    in_files("FM-13", lambda audit: foreign_map(audit) or head_of_another(audit), _map_of_another, (1.0, 1.15)),
    in_files("FM-15", wrong_set),
    in_files("FM-16", padded_sizes),
)
GENERAL = (broken_ids, unsaid_ends, larger_than_target)
JUDGES = (missing_map, misread_map, foreign_map, head_of_another, wrong_set, padded_sizes, *GENERAL)
