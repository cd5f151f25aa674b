"""The draft in plain torch: what one forward computes, with every switch that an engine or a trainer may set differently."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3diag.errors import MismatchedInputs
from eagle3diag.replay.attention import Grouped, Keys, Latent
from eagle3diag.replay.rope import Rope

#: Bytes that one batch of rows may take beside the weights: scores, logits, inner states.
BUDGET = 256 * 1024 * 1024

#: Rows that a processor works on at once at most. Products gain nothing from more, and attention loses: rows of several records look at the keys
#: of all of them, masked. 48 records of 100 tokens took 1.85 s with 128 to 512 rows, 2.5 s with 1024, 4.9 s all at once.
ON_CPU = 512

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@dataclass(frozen=True, eq=False)
class Net:
    """One EAGLE-3 draft ready to run. Frozen: a counterfactual is ``dataclasses.replace`` of one field.

    Weights may be kept in another dtype than ``dtype``, the one that is computed in: they are then converted a block at a time.

    Attributes
    ----------
    weights: canonical names to tensors (``fc.weight`` [H, n*H], ``layers.0.*``, ``norm.weight``); biases and q/k norms act if present.
    embedding [V, H], head [Vd, H], draft_ids [Vd]: target id of each draft id.
    windows: how far back each layer sees, None for everything; one entry a layer.
    residual: what the first layer adds to: the ``raw`` fused state (SGLang, always), the ``normed`` one (``norm_before_residual``), or,
        wrongly, the ``embedding``.
    norm_before_fc: one norm over all features before fc. fc_norm: one norm per aux state before fc.
    norm_output: the normed state is carried to the next step instead of the raw one.
    deep_norm: the norm that layers after the first apply: ``hidden_norm`` (SGLang) or ``input_layernorm`` (vLLM).
    budget: bytes that a batch of rows may take beside the weights.
    """

    weights: Mapping[str, Tensor]
    embedding: Tensor
    head: Tensor
    draft_ids: Tensor
    attention: Grouped | Latent
    rope: Rope
    eps: float
    windows: tuple[int | None, ...] = (None,)
    residual: Literal["raw", "normed", "embedding"] = "raw"
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    deep_norm: str = "hidden_norm"
    activation: str = "silu"
    dtype: torch.dtype = torch.float32
    budget: int = BUDGET

    @property
    def device(self) -> torch.device:
        return self.head.device

    @property
    def layers(self) -> int:
        return len(self.windows)

    def for_length(self, tokens: int) -> Net:
        """The same draft where the longest sequence has so many tokens: what dynamic and longrope rotations go by."""
        return replace(self, rope=replace(self.rope, length=tokens))

    def rows_at_once(self, span: int, wide: int = 1) -> int:
        """Rows that fit the budget when each attends to ``span`` keys; ``wide``: forwards that one row stands for."""
        inner = self.weights["layers.0.mlp.gate_proj.weight"].shape[0]
        # scores, their mask and softmax; features' mixture; gate, up and their product; a block of logits (see :meth:`_head_blocks`)
        row = 4 * (3 * self.attention.heads * span + 8 * self.embedding.shape[1] + 3 * inner + 4096)
        rows = self.budget // row
        return max(1, (min(rows, ON_CPU) if self.device.type == "cpu" else rows) // wide)

    def linear(self, x: Tensor, name: str) -> Tensor:
        bias = self.weights.get(f"{name}.bias")
        return self._product(x, self.weights[f"{name}.weight"], None if bias is None else bias.to(x.dtype))

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.dtype == x.dtype:
            return F.linear(x, weight, bias)
        block = max(1, self.budget // (8 * weight.shape[1] * x.element_size()))
        out = torch.cat([F.linear(x, part.to(x.dtype)) for part in weight.split(block)], -1)
        return out if bias is None else out + bias

    def rms(self, x: Tensor, name: str) -> Tensor:
        """RMSNorm in float32, weight included, as SGLang and vLLM compute it, back in the dtype of ``x``."""
        return F.rms_norm(x.float(), (x.shape[-1],), self.weights[name].float(), self.eps).to(x.dtype)

    def fuse(self, features: Tensor) -> Tensor:
        """Features [T, W] to hidden [T, H]. As in every engine, rows that are already H wide pass by fc untouched.

        Source: ``models/llama_eagle3.py::LlamaModel.forward`` (SGLang 0.4.5 to 0.5.23): norms and fc run iff the widths differ.
        """
        features = features.to(self.device, self.dtype)
        if features.shape[-1] == self.embedding.shape[1]:
            return features
        fc = self.weights["fc.weight"]
        if features.shape[-1] != fc.shape[1]:
            raise MismatchedInputs(
                f"the features are {features.shape[-1]} wide, fc takes {fc.shape[1]}", where="fc", hint="was the dump made for this draft?"
            )
        if self.norm_before_fc:
            features = self.rms(features, "input_norm.weight")
        if self.fc_norm:
            norms = [n for n in self.weights if n.startswith("fc_norm.")]
            features = torch.cat([self.rms(x, f"fc_norm.{i}.weight") for i, x in enumerate(features.chunk(len(norms), -1))], -1)
        return self.linear(features, "fc")

    def embed(self, tokens: Tensor) -> Tensor:
        """[N, H]. An id outside the table, which a broken vocabulary map gives, reads the nearest row of it."""
        return self.embedding[tokens.clamp(0, len(self.embedding) - 1)].to(self.dtype)

    def mix(self, layer: int, tokens: Tensor, hidden: Tensor) -> Tensor:
        """What attention reads: in the first layer [N, 2H], the normed embedding first, the normed state second; then [N, H]."""
        at = f"layers.{layer}."
        if layer:
            return self.rms(hidden, f"{at}{self.deep_norm}.weight")
        return torch.cat([self.rms(self.embed(tokens), f"{at}input_layernorm.weight"), self.rms(hidden, f"{at}hidden_norm.weight")], -1)

    def queries(self, layer: int, mixed: Tensor, positions: Tensor) -> Tensor:
        """[N, heads, width]."""
        return self.attention.queries(self, f"layers.{layer}.self_attn.", mixed, positions)

    def keys(self, layer: int, mixed: Tensor, positions: Tensor) -> Keys:
        """Keys and values, each [N, kv_heads, width]."""
        return self.attention.keys(self, f"layers.{layer}.self_attn.", mixed, positions)

    def finish(self, layer: int, tokens: Tensor, hidden: Tensor, gathered: Tensor) -> Tensor:
        """The rest of a layer: its input [N, H] and what attention gathered [N, heads, width] to its raw output [N, H]."""
        at = f"layers.{layer}."
        if layer == 0 and self.residual != "raw":
            hidden = self.rms(hidden, f"{at}hidden_norm.weight") if self.residual == "normed" else self.embed(tokens)
        values = self.attention.values(self, f"{at}self_attn.", gathered)
        hidden = hidden + self.linear(values, f"{at}self_attn.o_proj")
        x = self.rms(hidden, f"{at}post_attention_layernorm.weight")
        gate = ACTIVATIONS[self.activation](self.linear(x, f"{at}mlp.gate_proj"))
        return hidden + self.linear(gate * self.linear(x, f"{at}mlp.up_proj"), f"{at}mlp.down_proj")

    def speak(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Raw output [N, H] to the drafted target ids [N] and the state carried on [N, H]."""
        normed = self.rms(raw, "norm.weight")
        return self.draft_ids[self.best(normed, 1)[1][:, 0]], normed if self.norm_output else raw

    def best(self, normed: Tensor, k: int, *, shares: bool = False) -> tuple[Tensor, Tensor]:
        """The ``k`` highest logits [N, k], float32, descending, and their draft ids; of equal first ones the lowest id, as argmax has it.

        ``shares``: the logarithm of each one's softmax share over the draft vocabulary instead of its logit.
        """
        values, ids = normed.new_empty(len(normed), 0, dtype=torch.float32), self.draft_ids.new_empty(len(normed), 0)
        total = normed.new_full((len(normed), 1), -torch.inf, dtype=torch.float32)
        for start, logits in self._logits(normed):
            top, at = _top(logits, k)
            values, order = _top(torch.cat([values, top], -1), k)
            ids = torch.cat([ids, at + start], -1).gather(1, order)
            if shares:
                total = torch.logaddexp(total, logits.logsumexp(-1, keepdim=True))
        return (values - total if shares else values), ids

    def shares_of(self, normed: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
        """Softmax shares [N, C] of draft ids [N, C] at a temperature; an id that is not there has none."""
        chosen = torch.full(ids.shape, -torch.inf, device=self.device)
        total = normed.new_full((len(normed), 1), -torch.inf, dtype=torch.float32)
        for start, logits in self._logits(normed):
            logits = logits / temperature
            here = (ids >= start) & (ids < start + logits.shape[1])
            chosen = torch.where(here, logits.gather(1, (ids - start).clamp(0, logits.shape[1] - 1)), chosen)
            total = torch.logaddexp(total, logits.logsumexp(-1, keepdim=True))
        return (chosen - total).exp()

    def _logits(self, normed: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Logits in float32, a block of the head's rows at a time, with the draft id that the block starts at."""
        block = max(1024, self.budget // (16 * max(len(normed), 1)))
        for i, rows in enumerate(self.head.split(block)):
            yield i * block, self._product(normed, rows).float()


def _top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return tuple(x.max(-1, keepdim=True)) if k == 1 else tuple(x.topk(min(k, x.shape[-1]), -1))  # type: ignore[return-value]
