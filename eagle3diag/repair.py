"""What is certainly meant by a checkpoint whose names or map are off: the draft that the trainer had in hand."""

from __future__ import annotations

import re

import torch

from eagle3diag.checkpoints import LAYER_PARAMETERS, Draft

_LAYER_END = re.compile(r"^(?P<prefix>.*?)(?P<rest>" + "|".join(re.escape(p) for p in LAYER_PARAMETERS) + r")$")


def layer_prefix(draft: Draft) -> str | None:
    """The unknown prefix under which all parameters of one decoder layer lie, such as ``draft_layers.0.``; None when the layer has a
    known name, or when no prefix, or more than one, holds all of them."""
    canonical = draft.canonical()
    if all(f"layers.0.{p}" in canonical for p in LAYER_PARAMETERS):
        return None
    held: dict[str, set[str]] = {}
    for name in draft.tensors:
        if match := _LAYER_END.match(name):
            held.setdefault(match["prefix"], set()).add(match["rest"])
    whole = [prefix for prefix, parts in held.items() if parts >= set(LAYER_PARAMETERS)]
    return whole[0] if len(whole) == 1 else None


def map_is_absolute(draft: Draft) -> bool:
    """Whether ``d2t`` holds absolute ids (FM-12, test K5): read so it agrees with ``t2d`` everywhere and rises, read as offsets not."""
    vocabulary = draft.vocabulary
    if vocabulary is None or vocabulary.t2d is None:
        return False
    ids, marked = vocabulary.d2t.long(), vocabulary.t2d.bool()
    inside = (ids >= 0) & (ids < len(marked))
    offsets = vocabulary.draft_ids
    return bool(
        inside.all()
        and (ids.diff() > 0).all()
        and marked[ids].all()
        and not (((offsets >= 0) & (offsets < len(marked))).all() and marked[offsets.clamp(0, len(marked) - 1)].all())
    )


def map_from_marks(draft: Draft) -> torch.Tensor | None:
    """The offsets that ``t2d`` implies (draft ids in ascending order of target ids), int64 [Vd]; None when the counts disagree."""
    names = draft.canonical()
    if "t2d" not in names:
        return None
    marked = draft.weight("t2d").bool().nonzero()[:, 0]
    return marked - torch.arange(len(marked)) if len(marked) == draft.config.draft_vocab_size else None


def repaired(draft: Draft) -> Draft:
    """The draft with layer names, absolute or ``arange`` map, and a map missing beside its ``t2d`` set right, in memory."""
    prefix = layer_prefix(draft)
    if prefix is not None:
        draft = draft.replace(rename=lambda name: "midlayer." + name.removeprefix(prefix) if _LAYER_END.match(name) else name)
    vocabulary = draft.vocabulary
    if vocabulary is not None and map_is_absolute(draft):
        stored = draft.canonical()["d2t"]
        draft = draft.replace(tensors={stored: vocabulary.d2t.long() - torch.arange(len(vocabulary.d2t))})
    elif map_is_lost(draft):
        offsets = map_from_marks(draft)
        if offsets is not None:
            draft = draft.replace(tensors={draft.canonical().get("d2t", "d2t"): offsets})
    return draft


def map_is_lost(draft: Draft) -> bool:
    """Whether a reduced vocabulary has no map, or ``arange`` in its place: what the head's rows stand for is then in no tensor."""
    vocabulary = draft.vocabulary
    if draft.config.draft_vocab_size == draft.config.vocab_size:
        return False
    return vocabulary is None or bool((vocabulary.d2t.long() == torch.arange(len(vocabulary.d2t))).all())
