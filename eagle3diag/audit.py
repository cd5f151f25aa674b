"""The static check of a draft: what a named engine version would load of it, and whether its parts fit, without running anything."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from eagle3diag.checkpoints import LAYER_PARAMETERS, Draft, Target, open_draft, open_target
from eagle3diag.checkpoints.names import canonical
from eagle3diag.checkpoints.tensors import Tensors
from eagle3diag.engines import known_version, rules_of, split_engine
from eagle3diag.engines.rules import Version
from eagle3diag.errors import MismatchedInputs
from eagle3diag.findings import Finding, Result

__all__ = ["Audit", "MapCheck", "ShapeCheck", "TensorLoad", "audit"]


@dataclass(frozen=True)
class TensorLoad:
    """What becomes of one tensor, or of one parameter that no tensor fills.

    ``outcome``: ``loaded``, ``dropped`` (no parameter of that name, nothing said), ``missing`` (parameter left as allocated),
    ``borrowed`` (the target's is used), ``overwritten`` (loaded, then replaced by the target's), ``ignored`` (not used in serving),
    ``raises`` (start-up ends).
    """

    name: str
    canonical: str
    outcome: str
    into: str | None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    note: str = ""


@dataclass(frozen=True)
class ShapeCheck:
    """One shape that the config promises, against what the file holds."""

    name: str
    expected: tuple[int, ...]
    found: tuple[int, ...]


@dataclass(frozen=True)
class MapCheck:
    """Facts of ``d2t``, counted under both readings: as offsets (the convention) and as absolute ids.

    ``agree_*``: share of the draft ids whose target id is marked in ``t2d`` (None without ``t2d``). ``in_range_*``: share inside the
    vocabulary. ``unique_*``: share of distinct target ids.
    """

    length: int
    declared: int
    in_range_offset: float
    in_range_absolute: float
    unique_offset: float
    unique_absolute: float
    agree_offset: float | None
    agree_absolute: float | None
    all_zero: bool
    arange: bool
    marked: int | None


@dataclass(frozen=True)
class Audit(Result):
    """What the running draft would consist of, and what does not fit.

    ``needs_target_width``: fc's width in units of the target's hidden size: the number of aux states it was trained on.
    """

    draft: str
    engine: str
    engine_version: str
    engine_known: bool
    loads: tuple[TensorLoad, ...]
    shapes: tuple[ShapeCheck, ...]
    vocabulary: MapCheck | None
    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    target_hidden_size: int
    needs_target_width: float
    aux_boundaries: tuple[int, ...] | None
    default_boundaries: tuple[int, ...] | None
    tie_word_embeddings: bool
    norm_before_residual: bool
    assumed: tuple[str, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        from eagle3diag.faults import judge

        return judge(self)

    def outcome(self, outcome: str) -> tuple[TensorLoad, ...]:
        """All loads of one outcome."""
        return tuple(load for load in self.loads if load.outcome == outcome)

    @property
    def missing_layer(self) -> tuple[str, ...]:
        """Decoder-layer parameters that would be left uninitialised."""
        return tuple(load.name for load in self.outcome("missing") if load.name.startswith("layers."))


def audit(
    draft: str | os.PathLike[str] | Draft,
    *,
    engine: str = "sglang==0.5.23",
    target: str | os.PathLike[str] | Target | None = None,
) -> Audit:
    """Predict, tensor by tensor, what ``engine`` would load, and check shapes and vocabulary map.

    Only headers and the two small maps are read. The rules and their sources are in :mod:`eagle3diag.engines`.

    Raises
    ------
    BadArgument: no facts about that engine. MismatchedInputs: ``target`` is not the one the draft fits (hidden size, vocabulary).
    """
    opened = open_draft(draft)
    name, wanted = split_engine(engine)
    version, known = known_version(name, wanted)
    config = opened.config
    base = None if target is None else open_target(target)
    if base is not None:
        _check_target(opened, base)
    tensors = Tensors.of(opened.tensors)
    shapes = {canonical: tensors.info(stored).shape for canonical, stored in opened.canonical().items()}
    fc = shapes.get("fc.weight", (0, 0))
    rules = rules_of(name)
    return Audit(
        draft=opened.name,
        engine=name,
        engine_version=str(version),
        engine_known=known,
        loads=_loads(opened, version, name),
        shapes=_shapes(opened, shapes),
        vocabulary=_map_check(opened),
        vocab_size=config.vocab_size,
        draft_vocab_size=config.draft_vocab_size,
        hidden_size=config.hidden_size,
        target_hidden_size=config.target_hidden_size,
        needs_target_width=fc[-1] / config.target_hidden_size if config.target_hidden_size else float("nan"),
        aux_boundaries=config.aux_boundaries,
        default_boundaries=None if base is None else rules.default_boundaries(base.n_layers),
        tie_word_embeddings=config.tie_word_embeddings,
        norm_before_residual=config.norm_before_residual,
        assumed=config.assumed,
    )


def _check_target(draft: Draft, target: Target) -> None:
    for what, ours, theirs in (
        ("hidden size", draft.config.target_hidden_size, target.hidden_size),
        ("vocabulary", draft.config.vocab_size, target.vocab_size),
    ):
        if ours != theirs:
            raise MismatchedInputs(
                f"the draft was made for a target of {what} {ours}, this one has {theirs}",
                where=f"{draft.name} and {target.name}",
                hint="give the target that the draft was trained for",
            )


def _loads(draft: Draft, version: Version, engine: str) -> tuple[TensorLoad, ...]:
    rules = rules_of(engine)
    own_embedding = draft.config.target_hidden_size != draft.config.hidden_size
    loads, filled = [], set()
    tensors = Tensors.of(draft.tensors)
    for name in tensors:
        into, info = rules.destination(name, version), tensors.info(name)
        outcome, note = "loaded", ""
        if into is None:
            outcome, note = ("raises" if rules.raises_on_unknown(name, version) else "dropped"), "no parameter of this name"
        elif into == "t2d":
            outcome, note = "ignored", "used in training only"
        elif into == "embed_tokens.weight" and not own_embedding:
            outcome, note = "overwritten", "the target's embedding takes its place"
        else:
            filled.add(into)
        loads.append(TensorLoad(name, canonical(name), outcome, into if outcome == "loaded" else None, info.shape, info.dtype, note))
    for parameter in _parameters(draft):
        if parameter in filled:
            continue
        if parameter == "embed_tokens.weight" and not own_embedding:
            outcome, note = "borrowed", "shared by design"
        elif parameter == "lm_head.weight" and _borrows_head(draft):
            outcome, note = "borrowed", "draft_vocab_size is null or the embedding is tied"
        else:
            note = "default initialisation" if parameter == "fc.weight" else "ones" if "norm" in parameter else "whatever memory held"
            outcome = "missing"
        loads.append(TensorLoad(parameter, parameter, outcome, parameter, note=note))
    return tuple(loads)


def _parameters(draft: Draft) -> list[str]:
    layers = [f"layers.{i}.{p}" for i in range(max(1, draft.config.num_layers)) for p in LAYER_PARAMETERS]
    return ["embed_tokens.weight", "fc.weight", *layers, "norm.weight", "lm_head.weight"]


def _borrows_head(draft: Draft) -> bool:
    """SGLang ``load_lm_head_from_target``: the config's ``draft_vocab_size`` is present and null; or the head is the tied embedding."""
    raw = draft.config.raw
    return draft.config.tie_word_embeddings or ("draft_vocab_size" in raw and raw["draft_vocab_size"] is None)


def _shapes(draft: Draft, found: dict[str, tuple[int, ...]]) -> tuple[ShapeCheck, ...]:
    c = draft.config
    h, q, kv = c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    expected = {
        "layers.0.self_attn.q_proj.weight": (q, 2 * h),
        "layers.0.self_attn.k_proj.weight": (kv, 2 * h),
        "layers.0.self_attn.v_proj.weight": (kv, 2 * h),
        "layers.0.self_attn.o_proj.weight": (h, q),
        "layers.0.mlp.gate_proj.weight": (c.intermediate_size, h),
        "layers.0.mlp.up_proj.weight": (c.intermediate_size, h),
        "layers.0.mlp.down_proj.weight": (h, c.intermediate_size),
        "norm.weight": (h,),
        "lm_head.weight": (c.draft_vocab_size, h),
        "fc.weight": (h, c.n_aux * c.target_hidden_size),
        "d2t": (c.draft_vocab_size,),
        "t2d": (c.vocab_size,),
    }
    return tuple(ShapeCheck(name, shape, found[name]) for name, shape in expected.items() if name in found and found[name] != shape)


def _map_check(draft: Draft) -> MapCheck | None:
    vocabulary = draft.vocabulary
    if vocabulary is None:
        return None
    d2t, t2d, n = vocabulary.d2t.long().flatten(), vocabulary.t2d, draft.config.vocab_size
    place = torch.arange(len(d2t))

    def share(hits: torch.Tensor) -> float:
        return float(hits.double().mean()) if len(hits) else float("nan")

    def agree(ids: torch.Tensor) -> float | None:
        if t2d is None:
            return None
        inside = (ids >= 0) & (ids < len(t2d))
        return share(inside & t2d.bool()[ids.clamp(0, len(t2d) - 1)])

    offset, absolute = place + d2t, d2t
    return MapCheck(
        length=len(d2t),
        declared=draft.config.draft_vocab_size,
        in_range_offset=share((offset >= 0) & (offset < n)),
        in_range_absolute=share((absolute >= 0) & (absolute < n)),
        unique_offset=len(offset.unique()) / max(1, len(offset)),
        unique_absolute=len(absolute.unique()) / max(1, len(absolute)),
        agree_offset=agree(offset),
        agree_absolute=agree(absolute),
        all_zero=bool((d2t == 0).all()),
        arange=bool(len(d2t) > 1 and (d2t == place).all()),
        marked=None if t2d is None else int(t2d.bool().sum()),
    )
