"""What a checkpoint, its config and the target's config say, beside what an engine would load: the facts that the checks compare."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3diag.audit.rows import RowsCheck, rows_checks
from eagle3diag.checkpoints import Draft, DraftConfig, Target, TensorInfo
from eagle3diag.checkpoints.names import layer_numbers

SMALL = 1 << 18
"""Elements up to which a floating tensor is read: norms and biases are thousands long, the smallest projections of real drafts millions."""


@dataclass(frozen=True)
class SmallTensor:
    """A norm or a bias, read: how many entries are not finite, and whether all are zero."""

    name: str
    canonical: str
    size: int
    nonfinite: int
    zero: bool


@dataclass(frozen=True)
class TargetFacts:
    """The target's config, as far as a draft must agree with it. ``rotated``: the word in its quantisation that tells of a rotated residual
    stream. ``unsaid``: tokens that end an answer or mark turns, as ``id word``, that the draft vocabulary lacks; ``ends``: how many tokens
    end an answer, ``ends_unsaid``: how many of them the draft vocabulary lacks."""

    name: str
    n_layers: int
    vocab_size: int
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    max_position_embeddings: int | None
    rms_norm_eps: float
    dtype: str | None
    quantization: str | None
    rotated: str | None
    ends: int
    ends_unsaid: int
    unsaid: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """The config as it was read, every tensor by canonical name, the numbers of the layers in the file, its small tensors, and, where a target
    was given, its side and ``rows``: the draft's embedding and head against its own."""

    config: DraftConfig
    tensors: Mapping[str, TensorInfo]
    layers: tuple[int, ...]
    small: tuple[SmallTensor, ...]
    target: TargetFacts | None
    rows: tuple[RowsCheck, ...] = ()

    def __contains__(self, canonical: str) -> bool:
        return canonical in self.tensors

    def shape(self, canonical: str) -> tuple[int, ...]:
        """Of a tensor of the file; empty when it is not there."""
        return self.tensors[canonical].shape if canonical in self.tensors else ()

    def like(self, canonical: str) -> RowsCheck | None:
        """How the rows of an embedding or a head are like the target's; None where that was not looked at."""
        return next((check for check in self.rows if check.tensor == canonical), None)

    def zero(self, canonical: str) -> bool:
        """Whether this is a small tensor of zeros."""
        return any(t.zero for t in self.small if t.canonical == canonical)


def gather(draft: Draft, target: Target | None) -> Facts:
    """Read headers, norms and biases, and of a target the config, ``generation_config.json``, ``tokenizer_config.json`` and some rows."""
    names = draft.canonical()
    small = []
    for canonical, stored in names.items():
        info = draft.tensors.info(stored)
        if info.dtype in ("bfloat16", "float16", "float32", "float64") and info.count <= SMALL and len(info.shape) == 1:
            tensor = draft.tensors[stored]
            finite = tensor.isfinite()
            small.append(SmallTensor(stored, canonical, info.count, int((~finite).sum()), bool(len(tensor) and not tensor.any())))
    return Facts(
        config=draft.config,
        tensors={c: draft.tensors.info(stored) for c, stored in names.items()},
        layers=layer_numbers(draft.tensors),
        small=tuple(small),
        target=None if target is None else _target(target, draft),
        rows=rows_checks(draft, target),
    )


#: Schemes that turn the residual stream (QuaRot, SpinQuant) name themselves or their Hadamard matrices. Reference: FM-38, test C7.
_ROTATIONS = ("quarot", "spinquant", "hadamard", "rotation", "rotate")


def _target(target: Target, draft: Draft) -> TargetFacts:
    theta, scaling = target.rope
    scheme = target.quantization
    words = json.dumps(scheme, default=str).lower()
    said = _speakable(draft)
    ends = [i for i in target.end_tokens if i < target.vocab_size]
    marks = target.special_tokens
    unsaid = [] if said is None else [i for i in dict.fromkeys([*ends, *marks]) if i not in said]
    return TargetFacts(
        name=target.name,
        n_layers=target.n_layers,
        vocab_size=target.vocab_size,
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        dtype=target.dtype,
        quantization=str(scheme.get("quant_method", "unnamed")) if scheme else None,
        rotated=next((word for word in _ROTATIONS if word in words), None),
        ends=len(ends),
        ends_unsaid=sum(i in unsaid for i in ends),
        unsaid=tuple(f"{i} {marks.get(i, 'end of answer')}" for i in unsaid),
    )


def _speakable(draft: Draft) -> frozenset[int] | None:
    """The target ids that the draft has a row for; None where it has all, or where no map says."""
    vocabulary = draft.vocabulary
    if vocabulary is None or draft.config.draft_vocab_size >= draft.config.vocab_size:
        return None
    return frozenset(vocabulary.draft_ids.tolist())


__all__ = ["Facts", "SmallTensor", "TargetFacts", "gather"]
