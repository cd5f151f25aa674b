"""A draft's ``config.json``, whichever trainer wrote it, as one normalised :class:`DraftConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3diag.checkpoints.fields import Fields, dtype_of, rope
from eagle3diag.checkpoints.latent import LatentAttention, read_latent
from eagle3diag.checkpoints.names import canonical_names, layer_numbers
from eagle3diag.checkpoints.recognise import EAGLE3, KIND_WORDS, Marks, kind_of, trainer_of
from eagle3diag.checkpoints.tensors import Tensors

#: No target has as many blocks; a number above it is damage, and would only cost memory.
MOST_LAYERS = 1000

#: speculators' ``transformer_layer_config`` holds only what differs from these (``to_diff_dict``).
#: Source: Transformers 5.24, ``models/{llama,qwen3}/configuration_*.py``.
_CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "LlamaConfig": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
    },
    "Qwen3Config": {
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
    },
}

_WORDS = ("model_type", "transformer_layer_config.model_type", "speculators_model_type")


@dataclass(frozen=True)
class DraftConfig:
    """What an engine needs to build the draft, with one meaning per field.

    Attributes
    ----------
    aux_boundaries: boundaries that the config says the draft consumes, in the listed order; None when it says nothing.
    n_aux: how many aux states ``fc`` takes: its width over ``target_hidden_size`` when the tensors are there, else what the config says.
    rope_scaling: None for the plain rotation, else the raw object with ``rope_type`` set.
    latent: the sizes of multi-head latent attention; None for the dense kind. ``head_dim`` is then the width of a query head.
    sliding_window: tokens that the draft's layers look back; None where they see everything.
    quantization: the scheme that the config names for the weights, such as ``"fp8"``; None when it names none.
    use_aux_hidden_state: false for a draft that reads the target's final state only, and has no ``fc``.
    style: ``"flat"`` (SafeAILab, SpecForge, Model-Optimizer, ...) or ``"speculators"``.
    kind: ``"eagle3"``, or what else it is: see :data:`~eagle3diag.checkpoints.recognise.KIND_WORDS`. Of other kinds only what the file
        says is filled in, sizes that it does not name are 0.
    trainer: whose layout it is, such as ``"SpecForge"``; ``"unknown"`` when no sign is seen. ``assumed`` tells the grounds of both.
    assumed: everything that the file did not say and that was filled in, one sentence each.
    raw: the file as it was read.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    max_position_embeddings: int | None
    hidden_act: str
    aux_boundaries: tuple[int, ...] | None
    n_aux: int
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    tie_word_embeddings: bool
    attention_bias: bool
    latent: LatentAttention | None
    sliding_window: int | None
    quantization: str | None
    use_aux_hidden_state: bool
    dtype: str | None
    architecture: str
    style: str
    kind: str
    trainer: str
    assumed: tuple[str, ...]
    raw: Mapping[str, Any]


def read_config(raw: Mapping[str, Any], tensors: Tensors | None = None, *, where: object = "config.json") -> DraftConfig:
    """Normalise ``raw``; ``tensors`` (headers are enough) settle what the config leaves open.

    Raises
    ------
    MissingPart: a field that is needed is absent and cannot be derived.
    UnreadableFile: a field has the wrong type.
    """
    marks = Marks.of(raw, tensors)
    speculators = marks.speculators
    top = Fields(raw, where)
    kind, trainer = _recognised(marks, top)
    lenient = kind not in EAGLE3
    for name in _WORDS:  # engines look them up as they stand
        top.text(name)
    nested = speculators and not (lenient and raw.get("transformer_layer_config") is None)
    layer = Fields(_layer_config(top), where) if nested else top
    layer.assumed = top.assumed  # one list of notes, in the order of reading
    shapes = _Shapes(tensors)

    def needed(found: int | None, name: str, meaning: str) -> int:
        if found is None and not lenient:
            raise layer.missing(name, meaning)
        return found or 0

    hidden = needed(
        layer.integer("hidden_size") or (shapes.of("norm.weight", 0) if speculators else None), "hidden_size", "the width of the draft"
    )
    heads = needed(layer.integer("num_attention_heads"), "num_attention_heads", "how many query heads the draft has")
    target_hidden = top.integer("target_hidden_size") or hidden
    vocab = layer.integer("vocab_size") or shapes.of("t2d", 0) or shapes.of("embed_tokens.weight", 0)
    vocab = needed(vocab, "vocab_size", "the size of the target's vocabulary")
    latent = read_latent(layer, heads, shapes.of) if not lenient and _is_latent(marks) else None
    theta, scaling = rope(layer)
    boundaries = _aux_boundaries(top, speculators, latent is not None)
    return DraftConfig(
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        intermediate_size=needed(_intermediate(layer, shapes), "intermediate_size", "the inner width of the draft's MLP"),
        num_heads=heads,
        num_kv_heads=_kv_heads(layer, heads),
        head_dim=latent.qk_head_dim if latent else needed(_head_dim(layer, hidden, heads, shapes), "head_dim", "the width of a head"),
        num_layers=_layers(layer, tensors),
        vocab_size=vocab,
        draft_vocab_size=_draft_vocab(top, vocab, shapes),
        rms_norm_eps=_eps(layer),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=layer.integer("max_position_embeddings"),
        hidden_act=layer.text("hidden_act") or "silu",
        aux_boundaries=boundaries,
        n_aux=_n_aux(top, boundaries, target_hidden, shapes),
        norm_before_residual=_norm_before_residual(top, speculators),
        # Nested first: SGLang and vLLM read eagle_config before the top level (reference: engines' config tables).
        norm_before_fc=top.flag("eagle_config.norm_before_fc", "norm_before_fc"),
        fc_norm=top.flag("fc_norm") or top.flag("use_aux_norm"),
        norm_output=top.flag("norm_output", "eagle_config.return_hidden_post_norm"),
        tie_word_embeddings=top.flag("tie_word_embeddings"),
        attention_bias=layer.flag("attention_bias"),
        latent=latent,
        sliding_window=_window(layer),
        quantization=_quantization(top),
        use_aux_hidden_state=top.flag("eagle_config.use_aux_hidden_state", "use_aux_hidden_state", default=True),
        dtype=dtype_of(top) or dtype_of(layer),
        architecture=marks.architecture,
        style="speculators" if speculators else "flat",
        kind=kind,
        trainer=trainer,
        assumed=tuple(top.assumed[:1] if lenient else top.assumed),  # of another kind, only what it is
        raw=raw,
    )


class _Shapes:
    """Tensor shapes by canonical name; everything is None without tensors."""

    def __init__(self, tensors: Tensors | None) -> None:
        self.tensors = tensors
        self.names = canonical_names(tensors) if tensors is not None else {}

    def of(self, name: str, axis: int) -> int | None:
        """The length of one axis, None when the tensor is not there or has no such axis."""
        if self.tensors is None or name not in self.names:
            return None
        shape = self.tensors.info(self.names[name]).shape
        return shape[axis] or None if axis < len(shape) else None


def _layer_config(top: Fields) -> Mapping[str, Any]:
    """speculators' nested config, completed from the defaults of the class that wrote it."""
    nested = top.raw.get("transformer_layer_config")
    if not isinstance(nested, Mapping):
        raise top.missing("transformer_layer_config", "the shape of the draft's layer, in speculators' format")
    model_type = nested.get("model_type")
    name = "Qwen3Config" if isinstance(model_type, str) and model_type.startswith("qwen3") else "LlamaConfig"
    if not isinstance(model_type, str):
        top.note("transformer_layer_config has no model_type: llama, as vLLM assumes (speculators >= 0.7 assumes qwen3)")
    filled = {k: v for k, v in _CLASS_DEFAULTS[name].items() if nested.get(k) is None}
    if filled:
        top.note(f"transformer_layer_config leaves out {', '.join(sorted(filled))}: {name}'s defaults, of which it is a difference")
    return {**nested, **filled}


def _aux_boundaries(top: Fields, speculators: bool, latent: bool) -> tuple[int, ...] | None:
    """Flat configs list OUTPUT ids in ``eagle_config`` (boundary = id + 1); speculators and vLLM list STATE ids at the top (= boundary).

    MLA drafts (DeepSeek, Kimi) exist with either: a list that starts at 1 holds output ids, any other one state ids. That is how their
    published heads were trained, and how SGLang reads them since 0.5.13 (``deepseek_v2.py``, PR #25454).
    """
    outputs = None if speculators else top.numbers("eagle_config.eagle_aux_hidden_state_layer_ids")
    if outputs is not None and latent and outputs[0] != 1:
        top.note("aux layer ids of an MLA draft that do not start at 1: read as state ids, as SGLang reads them since 0.5.13")
        return outputs
    if outputs is not None:
        return tuple(i + 1 for i in outputs)
    states = top.numbers("eagle_aux_hidden_state_layer_ids")
    if states is not None:
        if not speculators:
            top.note("aux layer ids only at the top level: read as state ids, as vLLM reads them (SGLang ignores them there)")
        return states
    angelslim = top.numbers("aux_hidden_states_layer_ids")
    if angelslim is not None:
        top.note("aux_hidden_states_layer_ids (AngelSlim's name): output ids, which no engine reads")
        return tuple(i + 1 for i in angelslim)
    top.note("no aux layer ids: engines take their default, boundaries 2, n_layers // 2, n_layers - 3 of the target")
    return None


def _n_aux(top: Fields, boundaries: tuple[int, ...] | None, target_hidden: int, shapes: _Shapes) -> int:
    said = top.integer("num_aux_hidden_states", most=MOST_LAYERS) or (len(boundaries) if boundaries else None)
    width = shapes.of("fc.weight", 1)
    if width is not None and target_hidden and width % target_hidden == 0 and width // target_hidden <= MOST_LAYERS:
        return width // target_hidden
    if width is not None:
        top.note(f"fc takes {width} columns, which is not a multiple of the target's hidden size {target_hidden}: n_aux is the config's")
    if said is None:
        said = 3
        top.note("nothing says how many aux states there are: 3, as EAGLE-3 has")
    return said


def _intermediate(layer: Fields, shapes: _Shapes) -> int | None:
    found = layer.integer("intermediate_size")
    if found is None and (found := shapes.of("layers.0.mlp.gate_proj.weight", 0)) is not None:
        layer.note(f"no intermediate_size: {found}, the rows of gate_proj")
    return found


def _kv_heads(layer: Fields, heads: int) -> int:
    found = layer.integer("num_key_value_heads")
    if found is None:
        layer.note(f"no num_key_value_heads: {heads}, as many as query heads")
    return found or heads


def _head_dim(layer: Fields, hidden: int, heads: int, shapes: _Shapes) -> int | None:
    found = layer.integer("head_dim")
    if found is not None or not heads:
        return found
    if hidden % heads == 0:
        layer.note(f"no head_dim: {hidden // heads} = hidden_size / num_attention_heads")
        return hidden // heads
    rows = shapes.of("layers.0.self_attn.q_proj.weight", 0)
    if rows is None or rows % heads:
        return None
    layer.note(f"no head_dim: {rows // heads} = rows of q_proj / num_attention_heads")
    return rows // heads


def _layers(layer: Fields, tensors: Tensors | None) -> int:
    found = layer.integer("num_hidden_layers", most=MOST_LAYERS)
    if found is None:
        found = len(layer_numbers(tensors or ())) or 1
        layer.note(f"no num_hidden_layers: {found}" + (", as many as the checkpoint holds" if tensors is not None else ""))
    return found


def _draft_vocab(top: Fields, vocab: int, shapes: _Shapes) -> int:
    found = top.integer("draft_vocab_size")
    if found is None:
        found = shapes.of("d2t", 0) or shapes.of("lm_head.weight", 0) or vocab
        top.note(f"no draft_vocab_size: {found}")
    return found


def _eps(layer: Fields) -> float:
    found = layer.number("rms_norm_eps")
    if found is None:
        found = 1e-6
        layer.note("no rms_norm_eps: 1e-06, LlamaConfig's default")
    return found


def _norm_before_residual(top: Fields, speculators: bool) -> bool:
    if speculators and top.value("norm_before_residual") is None:
        top.note("no norm_before_residual: true, as vLLM takes it for a speculators config")
        return True
    return top.flag("norm_before_residual")


def _recognised(marks: Marks, top: Fields) -> tuple[str, str]:
    """Kind and trainer, with their grounds noted."""
    kind, grounds = kind_of(marks)
    if kind != "eagle3":
        top.note(f"this is {KIND_WORDS[kind]}, as seen by {grounds}")
        return kind, "speculators" if marks.speculators else "unknown"
    trainer, words = trainer_of(marks)
    top.note(words)
    return kind, trainer


def _is_latent(marks: Marks) -> bool:
    """By the tensors where there are any: a config inherited from a DeepSeek target names MLA's sizes for a dense draft too."""
    if marks.names:
        return marks.named(r"self_attn\.kv_a_proj_with_mqa\.")
    return "Deepseek" in marks.architecture and "kv_lora_rank" in marks.raw


def _window(layer: Fields) -> int | None:
    """The window that the draft's own layers have: ``layer_types`` decides, and only where it is as long as the draft has layers; a longer
    one is the target's. Without it ``use_sliding_window`` decides, which Qwen's configs carry as false beside a number."""
    types, layers = layer.value("layer_types"), layer.value("num_hidden_layers")
    window = layer.value("sliding_window")
    if type(window) is not int or window <= 0:
        return None
    if isinstance(types, list):
        return window if len(types) == layers and "sliding_attention" in types else None
    return window if layer.value("use_sliding_window") is True else None


def _quantization(top: Fields) -> str | None:
    found = top.value("quantization_config", "compression_config")
    if found is None:
        return None
    method = found.get("quant_method") if isinstance(found, Mapping) else found
    return method if isinstance(method, str) else "unnamed"


__all__ = ["DraftConfig", "read_config"]
