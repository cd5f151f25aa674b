"""The draft in plain torch: what one forward computes, with every switch that an engine or a trainer may set differently."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3diag.checkpoints import Draft, Target
from eagle3diag.errors import BadArgument, MismatchedInputs, MissingPart

Keys: TypeAlias = "tuple[Tensor, Tensor]"

_LAYER = "layers.0."
_NEEDED = (
    "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight",
    "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
    "input_layernorm.weight", "hidden_norm.weight", "post_attention_layernorm.weight",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Net:
    """One EAGLE-3 draft ready to run, float32. Frozen: a counterfactual is ``dataclasses.replace`` of one field.

    Attributes
    ----------
    weights: canonical names to tensors (``fc.weight`` [H, n*H], ``layers.0.*``, ``norm.weight``).
    embedding [V, H], head [Vd, H], draft_ids [Vd]: target id of each draft id.
    norm_before_residual: the residual is taken after ``hidden_norm`` (speculators) instead of before it (SGLang, always).
    norm_output: the normed state is carried to the next step instead of the raw one.
    position_offset: added to the RoPE position of draft steps after the first (1 in SGLang before 0.5.12).
    """

    weights: Mapping[str, Tensor]
    embedding: Tensor
    head: Tensor
    draft_ids: Tensor
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False
    position_offset: int = 0

    def rms(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[name]
        return F.rms_norm(x, (x.shape[-1],), weight, self.eps)

    def fuse(self, features: Tensor) -> Tensor:
        """Features [T, W] to hidden [T, H]. As in every engine, rows that are already H wide pass by fc untouched.

        Source: ``models/llama_eagle3.py::LlamaModel.forward`` (SGLang 0.4.5 to 0.5.23): fc runs iff the widths differ.
        """
        hidden = self.embedding.shape[1]
        if features.shape[-1] == hidden:
            return features
        fc = self.weights["fc.weight"]
        if features.shape[-1] != fc.shape[1]:
            raise MismatchedInputs(
                f"the features are {features.shape[-1]} wide, fc takes {fc.shape[1]}", where="fc", hint="was the dump made for this draft?"
            )
        if self.norm_before_fc:
            features = self.rms(features, "input_norm.weight")
        return F.linear(features, fc)

    def mix(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """What attention reads [N, 2H]: the normed embedding first, the normed hidden state second."""
        embedded = self.rms(self.embedding[tokens].float(), _LAYER + "input_layernorm.weight")
        return torch.cat([embedded, self.rms(hidden, _LAYER + "hidden_norm.weight")], -1)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Neox-style RoPE of ``x`` [N, heads, head_dim] at ``positions`` [N]."""
        frequency = self.rope_theta ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim)
        angle = positions[:, None, None].float() * frequency
        cos, sin = angle.cos(), angle.sin()
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def queries(self, mixed: Tensor, positions: Tensor) -> Tensor:
        """[N, heads, head_dim], already scaled."""
        q = F.linear(mixed, self.weights[_LAYER + "self_attn.q_proj.weight"]).unflatten(-1, (self.heads, self.head_dim))
        return self.rotate(q, positions) / math.sqrt(self.head_dim)

    def keys(self, mixed: Tensor, positions: Tensor) -> Keys:
        """Keys and values, each [N, heads, head_dim], with grouped heads repeated."""
        k = F.linear(mixed, self.weights[_LAYER + "self_attn.k_proj.weight"]).unflatten(-1, (self.kv_heads, self.head_dim))
        v = F.linear(mixed, self.weights[_LAYER + "self_attn.v_proj.weight"]).unflatten(-1, (self.kv_heads, self.head_dim))
        group = self.heads // self.kv_heads
        return self.rotate(k, positions).repeat_interleave(group, 1), v.repeat_interleave(group, 1)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The rest of the layer: hidden [N, H] and attention output [N, heads * head_dim] to the raw output [N, H]."""
        if self.norm_before_residual:
            hidden = self.rms(hidden, _LAYER + "hidden_norm.weight")
        hidden = hidden + F.linear(attended, self.weights[_LAYER + "self_attn.o_proj.weight"])
        x = self.rms(hidden, _LAYER + "post_attention_layernorm.weight")
        gate = F.silu(F.linear(x, self.weights[_LAYER + "mlp.gate_proj.weight"]))
        return hidden + F.linear(
            gate * F.linear(x, self.weights[_LAYER + "mlp.up_proj.weight"]), self.weights[_LAYER + "mlp.down_proj.weight"]
        )

    def speak(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Raw output [N, H] to the drafted target ids [N] and the state carried on [N, H]."""
        normed = self.rms(raw, "norm.weight")
        drafted = self.draft_ids[F.linear(normed, self.head).argmax(-1)]
        return drafted, normed if self.norm_output else raw


def build(draft: Draft, target: Target | None) -> Net:
    """The draft as a healthy engine would run it: its own fc, layer, norm and head; the target's embedding.

    Raises
    ------
    MissingPart: a weight that no engine could borrow is absent, or the embedding must be borrowed and no target was given.
    MismatchedInputs: draft and target do not fit. BadArgument: a draft that the replay does not know yet.
    """
    config = draft.config
    names = draft.canonical()
    if config.num_layers != 1 or any(n.startswith("layers.1.") for n in names):
        raise BadArgument("replay knows drafts of one layer", where=draft.path, hint="audit, weights and compare still work on this draft")
    if config.rope_scaling is not None:
        kind = config.rope_scaling.get("rope_type", config.rope_scaling.get("type"))
        raise BadArgument(f"replay does not know RoPE scaling {kind!r}", where=draft.path, hint="audit, weights and compare still work")
    if config.fc_norm:
        raise BadArgument(
            "replay does not know fc_norm drafts", where=draft.path, hint="audit, weights and compare still work on this draft"
        )
    weights = {_LAYER + name: draft.weight(_LAYER + name).float() for name in _NEEDED}
    weights |= {name: draft.weight(name).float() for name in ("fc.weight", "norm.weight")}
    if config.norm_before_fc:
        weights["input_norm.weight"] = draft.weight("input_norm.weight").float()
    own = "embed_tokens.weight" in names
    if target is None and not own:
        raise MissingPart(
            "the draft ships no embedding (it borrows the target's) and no target was given",
            where=draft.path,
            hint="pass target=FOLDER (--target)",
        )
    embedding = target.embedding() if target is not None else draft.weight("embed_tokens.weight")
    if embedding.shape[1] != config.hidden_size:
        raise MismatchedInputs(
            f"the target's embedding is {embedding.shape[1]} wide, the draft's hidden size is {config.hidden_size}",
            where=draft.path,
            hint="give the target that this draft was trained for",
        )
    head = _head(draft, target)
    vocabulary = draft.vocabulary
    ids = vocabulary.draft_ids if vocabulary is not None else torch.arange(len(head))
    return Net(
        weights=weights,
        embedding=embedding,
        head=head,
        draft_ids=ids,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        eps=config.rms_norm_eps,
        rope_theta=config.rope_theta,
        norm_before_residual=config.norm_before_residual,
        norm_before_fc=config.norm_before_fc,
        norm_output=config.norm_output,
    )


def _head(draft: Draft, target: Target | None) -> Tensor:
    if "lm_head.weight" in draft.canonical():
        return draft.weight("lm_head.weight").float()
    if target is None:
        raise MissingPart(
            "the draft has no head of its own and no target was given", where=draft.path, hint="pass target=FOLDER (--target)"
        )
    rows = target.head()
    vocabulary = draft.vocabulary
    return (rows if vocabulary is None else rows[vocabulary.draft_ids.clamp(0, len(rows) - 1)]).float()
