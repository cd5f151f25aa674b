"""What a draft took from its target: tensors copied from it, and leading directions that meet those of its embedding and head."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.checkpoints import Target
from eagle3diag.errors import MissingPart
from eagle3diag.weights.opened import Opened
from eagle3diag.weights.pairs import pair_sums
from eagle3diag.weights.values import leading

SAMPLE_ROWS = 64
DIRECTIONS, VOCABULARY_DIRECTIONS, VOCABULARY_ROWS = 16, 64, 8192

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)$")


@dataclass(frozen=True)
class Origin:
    """The tensor of the target, of all that have the draft's shape and role, that a draft's tensor resembles most.

    ``source`` is the target's name for it, ``layer`` its block (None outside the blocks); ``part`` says which columns of the draft's
    tensor were compared (``"columns H:"`` where it is twice as wide). ``relative_change`` is ``|draft - target| / |target|``, ``equal`` the
    share of entries that are the same number, ``cosine`` that of the flattened tensors (norm weights all have a high one). ``next_cosine``
    is the runner-up's, on 64 evenly spaced rows; None without one. ``candidates`` were looked at.
    """

    tensor: str
    source: str
    layer: int | None
    part: str
    relative_change: float
    equal: float
    cosine: float
    next_cosine: float | None
    candidates: int


@dataclass(frozen=True)
class Overlap:
    """Mean squared cosine between the 16 leading directions of a draft's tensor, on its ``side`` of the residual stream (what it ``"reads"``
    or ``"writes"``), and the 64 leading ones of the target's ``source`` (embedding or head). ``by_chance`` with its std ``chance_error`` is
    what random directions give."""

    tensor: str
    side: str
    source: str
    overlap: float
    by_chance: float
    chance_error: float


@dataclass(frozen=True, eq=False)
class _Candidate:
    source: str
    layer: int | None
    tensor: Tensor


def origins(draft: Opened, target: Target) -> tuple[Origin, ...]:
    """Compare every floating tensor of the draft with every tensor of the target that has its role and shape."""
    blocks = [(name, int(m[1]), m[2]) for name in target.tensors if (m := _LAYER.search(name))]
    found = []
    for name in sorted(draft.names):
        tensor = draft.weight(name)
        if tensor is None or not tensor.is_floating_point() or tensor.numel() == 0:
            continue
        candidates = list(_candidates(name, tensor, draft, target, blocks))
        if candidates:
            found.append(_closest(name, tensor.detach(), candidates))
    return tuple(found)


def _candidates(name: str, tensor: Tensor, draft: Opened, target: Target, blocks: list[tuple[str, int, str]]) -> Iterator[_Candidate]:
    whole = {"embed_tokens.weight": target.embedding, "norm.weight": target.final_norm, "lm_head.weight": target.head}
    if name in whole:
        try:
            source = whole[name]()
        except MissingPart:
            return
        if name == "lm_head.weight" and source.shape[0] != tensor.shape[0]:
            vocabulary = draft.draft.vocabulary if draft.draft is not None else None
            if vocabulary is None or len(vocabulary.draft_ids) != tensor.shape[0]:
                return
            source = source[vocabulary.draft_ids.clamp(0, len(source) - 1)]
        if source.is_floating_point() and source.shape == tensor.shape:
            yield _Candidate({"embed_tokens.weight": "the embedding", "norm.weight": "the final norm"}.get(name, "the head"), None, source)
        return
    role = _LAYER.search(name)
    if role is None:
        return
    wanted = {role[2]} | ({"input_layernorm.weight"} if role[2] == "hidden_norm.weight" else set())
    for stored, layer, suffix in blocks:
        if suffix not in wanted:
            continue
        info = target.tensors.info(stored)
        same = info.shape == tuple(tensor.shape)
        doubled = tensor.dim() == 2 and len(info.shape) == 2 and (info.shape[0], 2 * info.shape[1]) == tuple(tensor.shape)
        if (same or doubled) and info.dtype in ("bfloat16", "float16", "float32"):
            yield _Candidate(stored, layer, target.tensors[stored])


def _closest(name: str, tensor: Tensor, candidates: list[_Candidate]) -> Origin:
    tries = []
    for candidate in candidates:
        width = candidate.tensor.shape[-1]
        parts = [("", tensor)] if tensor.shape[-1] == width else [("columns :H", tensor[:, :width]), ("columns H:", tensor[:, width:])]
        for part, mine in parts:
            tries.append((_cosine(_sample(mine), _sample(candidate.tensor)), candidate, part, mine))
    tries.sort(key=lambda t: -t[0])
    _, best, part, mine = tries[0]
    sums = pair_sums(mine, best.tensor)
    following = next((t[0] for t in tries[1:] if t[1] is not best), None)
    return Origin(name, best.source, best.layer, part, sums.relative, sums.equal, sums.cosine, following, len(candidates))


def _sample(t: Tensor) -> Tensor:
    if t.dim() > 1:
        t = t[torch.linspace(0, len(t) - 1, min(SAMPLE_ROWS, len(t)), dtype=torch.float64).round().long()]
    return t.double().nan_to_num(0.0, 0.0, 0.0)


def _cosine(a: Tensor, b: Tensor) -> float:
    product = float(a.norm() * b.norm())
    return float((a * b).sum()) / product if product > 0 else 0.0


def overlaps(draft: Opened, target: Target) -> tuple[Overlap, ...]:
    """Where the leading directions of the draft's matrices meet the target's vocabulary: what fc, o_proj and down_proj write against the
    head that will read it, what q, k and v read of the token's embedding against the embedding, what the draft's head reads against the
    target's head."""
    sources: dict[str, Tensor] = {}
    for label, read in (("the head", target.head), ("the embedding", target.embedding)):
        try:
            table = read()
        except MissingPart:
            continue
        if table.is_floating_point() and table.dim() == 2:
            sources[label] = _directions(table.detach())
    found = []
    for name in sorted(draft.names):
        tensor = draft.weight(name)
        role = _role(name)
        if role is None or tensor is None or tensor.dim() != 2 or not tensor.is_floating_point() or role[1] not in sources:
            continue
        side, label = role
        theirs = sources[label]
        hidden = len(theirs)
        matrix = tensor.detach()
        if side == "reads" and matrix.shape[1] == 2 * hidden:
            matrix = matrix[:, :hidden]
        if matrix.shape[0 if side == "writes" else 1] != hidden or min(matrix.shape) < 2 or not bool(matrix.isfinite().all()):
            continue
        k = min(DIRECTIONS, min(matrix.shape))
        mine = leading(matrix, k)[0 if side == "writes" else 2]
        other = theirs.shape[1]
        chance = other / hidden
        # of k independent random directions; the squared projection of one on `other` of `hidden` is Beta distributed
        error = math.sqrt(2 * chance * (1 - chance) / (hidden + 2) / k)
        found.append(Overlap(name, side, label, float((theirs.T @ mine).square().sum()) / k, chance, error))
    return tuple(found)


def _role(name: str) -> tuple[str, str] | None:
    if name == "fc.weight" or name.endswith((".o_proj.weight", ".down_proj.weight")):
        return "writes", "the head"
    if name == "lm_head.weight":
        return "reads", "the head"
    return ("reads", "the embedding") if name.endswith((".q_proj.weight", ".k_proj.weight", ".v_proj.weight")) else None


def _directions(table: Tensor) -> Tensor:
    """Leading directions ``[H, k]`` of the rows of ``table [V, H]``, from at most 8192 evenly spaced ones."""
    rows = table[:: max(1, len(table) // VOCABULARY_ROWS)].float()
    k = max(1, min(VOCABULARY_DIRECTIONS, rows.shape[1] // 8))
    return leading(rows, k)[2]
