"""What is repairable in a checkpoint without its trainer: the draft that the trainer had in hand, and the list of what was set right."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from eagle3diag.checkpoints import Draft, DraftConfig
from eagle3diag.checkpoints.names import layer_numbers
from eagle3diag.checkpoints.shapes import Shape, expected_shapes, required

#: Trainers whose draft ids rise with the target ids, so that ``t2d`` alone gives the map. Model-Optimizer and Automodel order by frequency.
ASCENDING = ("EAGLE", "SpecForge", "AngelSlim", "speculators")


@dataclass(frozen=True)
class Repair:
    """One thing set right: the catalogue's id, the tensor or field, what was there and what is now, why; ``certain`` where nothing else
    can have been meant (what is not certain is good for a replay, not for a copy that somebody serves)."""

    fault: str
    what: str
    before: str
    after: str
    why: str
    certain: bool = True


Step = Callable[[Draft], tuple[Draft, Repair] | None]


def repaired(draft: Draft) -> Draft:
    """The draft with everything repairable set right, in memory."""
    return repairs(draft)[0]


def repairs(draft: Draft, *, only_certain: bool = False) -> tuple[Draft, tuple[Repair, ...], tuple[Repair, ...]]:
    """The repaired draft, what was done, and what was left out for not being certain. Drafts of other kinds stay as they are."""
    done: list[Repair] = []
    left: list[Repair] = []
    for step in _STEPS if draft.config.kind == "eagle3" else ():
        found = step(draft)
        if found is None:
            continue
        if only_certain and not found[1].certain:
            left.append(found[1])
        else:
            draft = found[0]
            done.append(found[1])
    return draft, tuple(done), tuple(left)


def with_raw(draft: Draft, raw: Mapping[str, Any]) -> Draft:
    """The same tensors under another config."""
    return Draft.from_tensors(draft.tensors, raw, path=draft.path)


def layer_prefix(draft: Draft) -> str | None:
    """The unknown prefix under which all parameters of one decoder layer lie, such as ``draft_layers.0.``; None when the layer has a
    known name, or when no prefix, or more than one, holds all of them."""
    wanted, canonical, ending = _layer_parameters(draft), draft.canonical(), _layer_end(draft)
    if all(f"layers.0.{p}" in canonical for p in wanted):
        return None
    held: dict[str, set[str]] = {}
    for name in draft.tensors:
        if match := ending.match(name):
            held.setdefault(match["prefix"], set()).add(match["rest"])
    whole = [prefix for prefix, parts in held.items() if parts >= wanted]
    return whole[0] if len(whole) == 1 else None


def _layer_parameters(draft: Draft) -> set[str]:
    return {n.removeprefix("layers.0.") for n in required(draft.config) if n.startswith("layers.0.")}


def _layer_end(draft: Draft) -> re.Pattern[str]:
    return re.compile(r"^(?P<prefix>.*?)(?P<rest>" + "|".join(re.escape(p) for p in sorted(_layer_parameters(draft))) + r")$")


def map_is_absolute(draft: Draft) -> bool:
    """Whether ``d2t`` holds absolute ids (FM-12, test K5): read so it agrees with ``t2d`` everywhere and rises, read as offsets not."""
    vocabulary = draft.vocabulary
    if vocabulary is None or vocabulary.t2d is None:
        return False
    offsets, marked = vocabulary.draft_ids, vocabulary.t2d.flatten().bool()
    ids = offsets - torch.arange(len(offsets))
    inside = (ids >= 0) & (ids < len(marked))
    return bool(
        len(ids)
        and inside.all()
        and (ids.diff() > 0).all()
        and marked[ids].all()
        and not (((offsets >= 0) & (offsets < len(marked))).all() and marked[offsets.clamp(0, len(marked) - 1)].all())
    )


def map_from_marks(draft: Draft) -> torch.Tensor | None:
    """The offsets that ``t2d`` implies (draft ids in ascending order of target ids), int64 [Vd]; None when the counts disagree."""
    names = draft.canonical()
    if "t2d" not in names:
        return None
    marked = draft.weight("t2d").flatten().bool().nonzero()[:, 0]
    return marked - torch.arange(len(marked)) if len(marked) == draft.config.draft_vocab_size else None


def map_is_lost(draft: Draft) -> bool:
    """Whether a reduced vocabulary has no map, or ``arange`` or zeros in its place: what the head's rows stand for is then in no tensor.
    Zeros are a map where ``t2d`` says that the first ids are meant."""
    vocabulary = draft.vocabulary
    if draft.config.draft_vocab_size == draft.config.vocab_size:
        return False
    if vocabulary is None or not vocabulary.size:
        return True
    place = torch.arange(vocabulary.size)
    offsets = vocabulary.draft_ids - place
    marks = map_from_marks(draft)
    if marks is not None and torch.equal(marks, offsets):
        return False
    return not bool(offsets.any()) or bool((offsets == place).all())


def _name_layer(draft: Draft) -> tuple[Draft, Repair] | None:
    prefix = layer_prefix(draft)
    if prefix is None:
        return None
    ending = _layer_end(draft)

    def rename(name: str) -> str:
        rest = name.removeprefix(prefix)
        return "midlayer." + rest if name != rest and ending.match(name) else name

    return draft.replace(rename=rename), Repair(
        "FM-05", "names of the decoder layer", f"{prefix}*", "midlayer.*", "no engine knows the prefix, and exactly one holds a whole layer"
    )


def misnamed(config: DraftConfig, tensors: Mapping[str, Shape]) -> dict[str, str]:
    """Parameters that no tensor of the file is named for, each with the one tensor of no known name that has its shape (canonical names). Only
    for the head of a reduced vocabulary and fc, whose shapes nothing else has."""
    known = expected_shapes(config)
    reduced = config.draft_vocab_size != config.vocab_size
    found = {}
    for name in ("fc.weight", *(("lm_head.weight",) if reduced and not config.tie_word_embeddings else ())):
        alone = [n for n, shape in tensors.items() if shape == known[name] and n not in known and not n.startswith("layers.")]
        if name not in tensors and len(alone) == 1:
            found[name] = alone[0]
    return found


def _name_others(draft: Draft) -> tuple[Draft, Repair] | None:
    names = draft.canonical()
    wrong = {names[old]: new for new, old in misnamed(draft.config, {n: draft.tensors.info(s).shape for n, s in names.items()}).items()}
    if not wrong:
        return None
    return draft.replace(rename=lambda name: wrong.get(name, name)), Repair(
        "FM-06" if "lm_head.weight" in wrong.values() else "K1",
        "names",
        ", ".join(wrong),
        ", ".join(wrong.values()),
        "nothing else in the file has this shape, and nothing has this name",
    )


def _subtract_places(draft: Draft) -> tuple[Draft, Repair] | None:
    if draft.vocabulary is None or not map_is_absolute(draft):
        return None
    ids = draft.vocabulary.draft_ids - torch.arange(draft.vocabulary.size)
    return draft.replace(tensors={draft.canonical()["d2t"]: ids - torch.arange(len(ids))}), Repair(
        "FM-12",
        "d2t",
        "absolute ids",
        "offsets",
        "read as absolute ids it names exactly the tokens that t2d marks, read as offsets it does not",
    )


def _rebuild_map(draft: Draft) -> tuple[Draft, Repair] | None:
    offsets = map_from_marks(draft) if map_is_lost(draft) else None
    if offsets is None:
        return None
    before = "missing" if draft.vocabulary is None else "zeros" if not bool(draft.vocabulary.d2t.any()) else "arange"
    known = draft.config.trainer in ASCENDING
    why = (
        f"t2d marks {len(offsets)} tokens, and {draft.config.trainer} numbers draft ids in ascending order of target ids"
        if known
        else f"t2d marks {len(offsets)} tokens; that draft ids rise with target ids is an assumption for this trainer"
    )
    return draft.replace(tensors={draft.canonical().get("d2t", "d2t"): offsets}), Repair(
        "FM-11" if before != "arange" else "FM-12", "d2t", before, "rebuilt from t2d", why, known
    )


def map_is_foreign(draft: Draft) -> bool:
    """Whether ``d2t`` and ``t2d`` name different tokens, whichever way ``d2t`` is read (FM-13)."""
    vocabulary = draft.vocabulary
    if vocabulary is None or vocabulary.t2d is None or map_is_absolute(draft) or map_is_lost(draft):
        return False
    ids, marked = vocabulary.draft_ids, vocabulary.t2d.flatten().bool()
    inside = (ids >= 0) & (ids < len(marked))
    return bool(len(marked) and not (inside & marked[ids.clamp(0, len(marked) - 1)]).all())


def _map_of_marks(draft: Draft) -> tuple[Draft, Repair] | None:
    offsets = map_from_marks(draft) if map_is_foreign(draft) else None
    if offsets is None:
        return None
    return draft.replace(tensors={draft.canonical()["d2t"]: offsets}), Repair(
        "FM-13",
        "d2t",
        "tokens that t2d does not mark",
        "rebuilt from t2d",
        "only a replay tells which of the two belongs to the head's run",
        False,
    )


def _share_head(draft: Draft) -> tuple[Draft, Repair] | None:
    """FM-08: nothing is reduced, no head is shipped, and a map makes the draft look as if it owned one."""
    c, names = draft.config, draft.canonical()
    if "lm_head.weight" in names or c.draft_vocab_size != c.vocab_size or c.tie_word_embeddings or c.raw.get("draft_vocab_size") is None:
        return None
    kept = draft.replace(tensors={names[n]: None for n in ("d2t", "t2d") if n in names})
    return with_raw(kept, {**draft.config.raw, "draft_vocab_size": None}), Repair(
        "FM-08" if "d2t" in names else "FM-06",
        "draft_vocab_size",
        str(c.draft_vocab_size),
        "null",
        "no lm_head in the file and the whole vocabulary: it was trained with the target's head, which null borrows",
    )


def _field(fault: str, name: str, value: Any, why: str, wrong: Callable[[Draft], bool], *, nested: bool = False) -> Step:
    """A repair that sets one field of the config where ``wrong`` holds; ``nested``: of the layer, where speculators keeps it apart.
    ``value``: the value, or a function of the draft; None takes the field out."""

    def step(draft: Draft) -> tuple[Draft, Repair] | None:
        if not wrong(draft):
            return None
        new = value(draft) if callable(value) else value
        raw, inner = draft.config.raw, draft.config.raw.get("transformer_layer_config")
        holder = inner if nested and isinstance(inner, Mapping) else raw
        before = holder.get(name, "absent")
        changed = {k: v for k, v in {**holder, name: new}.items() if k != name or v is not None}
        repaired = with_raw(draft, {**raw, "transformer_layer_config": changed} if holder is inner else changed)
        return repaired, Repair(fault, name, _short(before), _short("absent" if new is None else new), why)

    return step


def _short(value: object) -> str:
    words = {None: "null", True: "true", False: "false"}.get(value) if isinstance(value, bool | None) else None
    return words or ("..." if isinstance(value, Mapping) else str(value)[:80])


def _rows(draft: Draft, name: str) -> int:
    shape = draft.shape(name)
    return shape[0] if shape and len(shape) == 2 else 0


def _dense_head_dim(draft: Draft) -> int:
    """The width of a head by the projections: 0 unless q, k and o agree on another than the config's."""
    c = draft.config
    q, k, o = (draft.shape(f"layers.0.self_attn.{name}_proj.weight") or () for name in "qko")
    if c.latent is not None or not len(q) == len(k) == len(o) == 2 or q[0] % c.num_heads:
        return 0
    if draft.shape("layers.0.mlp.gate_proj.weight") != (c.intermediate_size, c.hidden_size):  # then it is a cut save, not another width
        return 0
    dim = q[0] // c.num_heads
    return dim if dim != c.head_dim and k[0] == c.num_kv_heads * dim and o[1] == q[0] else 0


def _own_reduced_head(draft: Draft) -> bool:
    return 0 < _rows(draft, "lm_head.weight") < draft.config.vocab_size


def _fewer_layers(draft: Draft) -> bool:
    held = layer_numbers(draft.tensors)
    return 0 < len(held) < draft.config.num_layers and held == tuple(range(len(held)))


def _plain_weights(draft: Draft) -> bool:
    floats = ("bfloat16", "float16", "float32", "float64")
    weights = [n for n in draft.tensors if n.endswith(".weight")]
    return bool(weights) and len(weights) + 2 >= len(draft.tensors) and all(draft.tensors.info(n).dtype in floats for n in weights)


_STEPS: tuple[Step, ...] = (
    _name_layer,
    _name_others,
    _field("K1", "num_hidden_layers", lambda d: len(layer_numbers(d.tensors)), "as many layers as the file holds", _fewer_layers, nested=True),
    _field("FM-18", "head_dim", _dense_head_dim, "q, k and o agree on it", lambda d: _dense_head_dim(d) > 0, nested=True),
    _field("FM-20", "norm_before_fc", True, "the file holds input_norm, which only this flag builds",
           lambda d: "input_norm.weight" in d and not d.config.norm_before_fc),
    _field("FM-20", "fc_norm", True, "the file holds fc_norm.*, which only this flag builds",
           lambda d: "fc_norm.0.weight" in d and not d.config.fc_norm),
    _field("FM-10", "tie_word_embeddings", False, "the file holds a head of fewer rows than the embedding",
           lambda d: d.config.tie_word_embeddings and _own_reduced_head(d)),
    _field("FM-07", "draft_vocab_size", lambda d: _rows(d, "lm_head.weight"), "the file holds a head of this many rows",
           lambda d: d.config.raw.get("draft_vocab_size") is None and _own_reduced_head(d)),
    _field("FM-23", "quantization_config", None, "every weight is a plain float without a scale",
           lambda d: "quantization_config" in d.config.raw and _plain_weights(d)),
    _share_head,
    _subtract_places,
    _rebuild_map,
    _map_of_marks,
)  # fmt: skip


__all__ = [
    "Repair",
    "layer_prefix",
    "map_from_marks",
    "map_is_absolute",
    "map_is_foreign",
    "map_is_lost",
    "misnamed",
    "repaired",
    "repairs",
    "with_raw",
]
