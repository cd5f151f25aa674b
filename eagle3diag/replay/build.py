"""From a checkpoint to a net: the draft as a healthy engine would run it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from eagle3diag.checkpoints import Draft, Target
from eagle3diag.checkpoints.shapes import expected_shapes
from eagle3diag.checkpoints.tensors import dtype_name
from eagle3diag.devices import usable
from eagle3diag.engines import split_engine
from eagle3diag.errors import BadArgument, MismatchedInputs, MissingPart
from eagle3diag.replay.architecture import attention_of, rope_of, windows_of
from eagle3diag.replay.net import ACTIVATIONS, BUDGET, Net

_MLP = ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight")
_GROUPED = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")
_LATENT = ("self_attn.kv_a_proj_with_mqa.weight", "self_attn.kv_a_layernorm.weight", "self_attn.kv_b_proj.weight")
_OUTSIDE = re.compile(r"fc\.(weight|bias)|norm\.weight|input_norm\.weight|fc_norm\.\d+\.weight")
_PLAIN = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build(
    draft: Draft,
    target: Target | None,
    *,
    engine: str | None = None,
    dtype: str = "float32",
    device: str | torch.device = "cpu",
    budget: int = BUDGET,
) -> Net:
    """The draft ready to run: its own fc, layers, norms and head; the target's embedding, and its head where the draft has none.

    Parameters
    ----------
    engine: ``"vllm"`` keeps an embedding that the draft ships, as vLLM does; all else takes the target's wherever the widths allow, as
        SGLang does. dtype: ``"float32"`` or ``"bfloat16"``, what is computed in. Weights are converted once where all of them fit
        ``budget`` bytes times four, and block by block while they are used where they do not.

    Raises
    ------
    MissingPart: a weight that no engine could borrow is absent, or the embedding must be borrowed and no target was given.
    MismatchedInputs: draft and target do not fit. BadArgument: a draft that the replay does not know.
    """
    config = draft.config
    device = usable(device)
    if dtype not in DTYPES:
        raise BadArgument(f"dtype is {dtype!r}", hint=f"one of {', '.join(DTYPES)}")
    if config.hidden_act not in ACTIVATIONS:
        raise BadArgument(
            f"replay does not know the activation {config.hidden_act!r}", where=draft.path, hint=f"known: {', '.join(ACTIVATIONS)}"
        )
    vllm = engine is not None and split_engine(engine)[0] == "vllm"
    embedding, head = _embedding(draft, target, keep_own=vllm), _head(draft, target)
    weights = {name: draft.weight(name) for name in _names(draft)}
    for name, tensor in (*weights.items(), ("lm_head.weight", head), ("embed_tokens.weight", embedding)):
        if tensor.dtype not in _PLAIN:
            raise BadArgument(
                f"{name} is stored as {dtype_name(tensor)}: replay knows weights that are not quantised",
                where=draft.path,
                hint="dequantise a copy",
            )
    vocabulary = draft.vocabulary
    draft_ids = vocabulary.draft_ids if vocabulary is not None else torch.arange(len(head))
    wrong = next(_misfits(draft, weights, embedding, head, draft_ids), None)
    if wrong:  # the forward would end in an error of torch
        raise BadArgument(wrong, where=draft.path, hint="`eagle3diag audit` lists all that does not fit")
    whole = sum(w.numel() for w in (*weights.values(), head)) * DTYPES[dtype].itemsize

    def placed(tensor: Tensor) -> Tensor:
        return tensor.to(device, DTYPES[dtype]) if whole <= 4 * budget else tensor.to(device)

    both = config.num_layers > 1 and "layers.1.hidden_norm.weight" in weights and "layers.1.input_layernorm.weight" in weights
    rope = rope_of(draft)
    _ = rope.table  # a scaling that is not known, or lacks a field, is said here and not in the middle of a replay
    return Net(
        weights={name: placed(w) for name, w in weights.items()},
        embedding=embedding.to(device),
        head=placed(head),
        draft_ids=draft_ids.to(device),
        attention=attention_of(draft),
        rope=rope,
        eps=config.rms_norm_eps,
        windows=windows_of(draft),
        residual="normed" if config.norm_before_residual else "raw",
        norm_before_fc=config.norm_before_fc,
        fc_norm=config.fc_norm,
        norm_output=config.norm_output,
        deep_norm="input_layernorm" if (both and vllm) or "layers.1.hidden_norm.weight" not in weights else "hidden_norm",
        activation=config.hidden_act,
        dtype=DTYPES[dtype],
        budget=budget,
    )


def _misfits(draft: Draft, weights: Mapping[str, Tensor], embedding: Tensor, head: Tensor, draft_ids: Tensor) -> Iterator[str]:
    """Shapes that the config does not promise, and draft ids without a row; vocabularies may be padded."""
    promised = expected_shapes(draft.config)
    for name, tensor in weights.items():
        if name in promised and tuple(tensor.shape) != promised[name]:
            yield f"{name} is {list(tensor.shape)}, expected {list(promised[name])}"
    for name, tensor in (("the embedding", embedding), ("lm_head.weight", head)):
        if tensor.dim() != 2 or not len(tensor) or tensor.shape[1] != draft.config.hidden_size:
            yield f"{name} is {list(tensor.shape)}, expected [tokens, {draft.config.hidden_size}]"
    if len(draft_ids) != len(head):
        yield f"d2t names {len(draft_ids)} draft tokens, lm_head.weight has {len(head)} rows"
    elif int(draft_ids.min()) < 0 or int(draft_ids.max()) >= len(embedding):
        yield f"d2t leads to the tokens {int(draft_ids.min())} to {int(draft_ids.max())}, the embedding has {len(embedding)} rows"


def _names(draft: Draft) -> list[str]:
    """Canonical names of all that takes part in a forward; raises :class:`~eagle3diag.errors.MissingPart` for the first that is absent."""
    config = draft.config
    own = _LATENT if config.latent else _GROUPED
    needed = ["fc.weight", "norm.weight", "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"]
    needed += [f"layers.{i}.{name}" for i in range(config.num_layers) for name in (*own, *_MLP)]
    needed += ["input_norm.weight"] if config.norm_before_fc else []
    needed += [f"fc_norm.{i}.weight" for i in range(config.n_aux)] if config.fc_norm else []
    layers = tuple(f"layers.{i}." for i in range(config.num_layers))
    return [*needed, *(n for n in draft.canonical() if n not in needed and (n.startswith(layers) or _OUTSIDE.fullmatch(n)))]


def _embedding(draft: Draft, target: Target | None, *, keep_own: bool) -> Tensor:
    own = "embed_tokens.weight" in draft
    width = draft.config.hidden_size
    if own and (keep_own or target is None or target.hidden_size != width):
        return draft.weight("embed_tokens.weight")
    if target is None:
        raise MissingPart(
            "the draft ships no embedding (it borrows the target's) and no target was given",
            where=draft.path,
            hint="pass target=FOLDER (--target)",
        )
    embedding = target.embedding()
    if embedding.shape[1] != width:
        raise MismatchedInputs(
            f"the target's embedding is {embedding.shape[1]} wide, the draft's hidden size is {width}",
            where=draft.path,
            hint="give the target that this draft was trained for",
        )
    return embedding


def _head(draft: Draft, target: Target | None) -> Tensor:
    if "lm_head.weight" in draft:
        return draft.weight("lm_head.weight")
    if target is None:
        raise MissingPart(
            "the draft has no head of its own and no target was given", where=draft.path, hint="pass target=FOLDER (--target)"
        )
    rows, vocabulary = target.head(), draft.vocabulary
    return rows if vocabulary is None else rows[vocabulary.draft_ids.clamp(0, len(rows) - 1)]
