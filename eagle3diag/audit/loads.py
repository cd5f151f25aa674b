"""What a named engine version would load of a draft, tensor by tensor, without running it."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3diag.checkpoints import LAYER_PARAMETERS, Draft
from eagle3diag.checkpoints.names import canonical
from eagle3diag.checkpoints.tensors import Tensors
from eagle3diag.engines import rules_of
from eagle3diag.engines.rules import Version


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


def predict(draft: Draft, version: Version, engine: str) -> tuple[TensorLoad, ...]:
    """One :class:`TensorLoad` for every tensor of the file, and for every parameter that none fills."""
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
