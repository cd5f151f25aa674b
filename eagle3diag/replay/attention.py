"""Attention of a draft, grouped or latent: what a row asks, what it leaves for later rows, and what it gathers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from eagle3diag.replay.rope import stretch_of_scores

if TYPE_CHECKING:
    from eagle3diag.replay.net import Net

#: Keys [N, kv_heads, width] and values [N, kv_heads, width] of N rows.
Keys: TypeAlias = "tuple[Tensor, Tensor]"


@dataclass(frozen=True)
class Grouped:
    """Multi-head attention with shared key heads; q/k norms and biases are applied where the checkpoint has them."""

    heads: int
    kv_heads: int
    head_dim: int

    def scale(self, net: Net) -> float:
        """What scores are multiplied with."""
        return float(self.head_dim**-0.5)

    def queries(self, net: Net, at: str, mixed: Tensor, positions: Tensor) -> Tensor:
        """[N, heads, head_dim]."""
        return net.rope.turn(self._heads(net, f"{at}q", mixed), positions)

    def keys(self, net: Net, at: str, mixed: Tensor, positions: Tensor) -> Keys:
        """Each [N, kv_heads, head_dim]."""
        values = net.linear(mixed, f"{at}v_proj").unflatten(-1, (self.kv_heads, self.head_dim))
        return net.rope.turn(self._heads(net, f"{at}k", mixed), positions), values

    def _heads(self, net: Net, name: str, mixed: Tensor) -> Tensor:
        flat, norm = net.linear(mixed, f"{name}_proj"), f"{name}_norm.weight"
        if norm in net.weights and len(net.weights[norm]) != self.head_dim:  # one weight for all heads side by side (OLMo 2)
            flat = net.rms(flat, norm)
        heads = flat.view(len(flat), -1, self.head_dim)
        if norm in net.weights and len(net.weights[norm]) == self.head_dim:  # one for every head (Qwen3)
            heads = net.rms(heads, norm)
        return heads

    def values(self, net: Net, at: str, gathered: Tensor) -> Tensor:
        """Gathered [N, heads, head_dim] to what ``o_proj`` takes."""
        return gathered.flatten(1)


@dataclass(frozen=True)
class Latent:
    """DeepSeek's multi-head latent attention, absorbed as engines run it: one key head of ``kv_rank + turned`` channels for all heads.

    Source: arXiv 2405.04434, section 2.1; SGLang ``kimi_k25_eagle3.py`` and vLLM ``deepseek_eagle3.py`` build drafts of it.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    plain: int
    turned: int
    value: int

    kv_heads = 1

    def scale(self, net: Net) -> float:
        """Grown by the square of YaRN's ``mscale_all_dim``, which the rotation's own factor leaves out."""
        scaling = net.rope.scaling or {}
        stretch = 1.0
        if scaling.get("mscale_all_dim") and scaling.get("rope_type") in ("yarn", "deepseek_yarn"):
            stretch = stretch_of_scores(net.rope.number("factor"), net.rope.number("mscale_all_dim"))
        return float((self.plain + self.turned) ** -0.5 * stretch**2)

    def queries(self, net: Net, at: str, mixed: Tensor, positions: Tensor) -> Tensor:
        """[N, heads, kv_rank + turned]: the plain part already carried into the latent space."""
        if self.q_rank is None:
            q = net.linear(mixed, f"{at}q_proj")
        else:
            q = net.linear(net.rms(net.linear(mixed, f"{at}q_a_proj"), f"{at}q_a_layernorm.weight"), f"{at}q_b_proj")
        plain, turned = q.unflatten(-1, (self.heads, -1)).split([self.plain, self.turned], -1)
        return torch.cat([torch.einsum("nhp,hpr->nhr", plain, self._up(net, at)[:, : self.plain]), net.rope.turn(turned, positions)], -1)

    def keys(self, net: Net, at: str, mixed: Tensor, positions: Tensor) -> Keys:
        """Keys [N, 1, kv_rank + turned] and values [N, 1, kv_rank]: the latent itself is both."""
        latent, turned = net.linear(mixed, f"{at}kv_a_proj_with_mqa").split([self.kv_rank, self.turned], -1)
        latent = net.rms(latent, f"{at}kv_a_layernorm.weight")[:, None]
        return torch.cat([latent, net.rope.turn(turned[:, None], positions)], -1), latent

    def values(self, net: Net, at: str, gathered: Tensor) -> Tensor:
        """Gathered latents [N, heads, kv_rank] to what ``o_proj`` takes."""
        return torch.einsum("nhr,hvr->nhv", gathered, self._up(net, at)[:, self.plain :]).flatten(1)

    def _up(self, net: Net, at: str) -> Tensor:
        weight = net.weights[f"{at}kv_b_proj.weight"].to(net.dtype)
        return weight.view(self.heads, self.plain + self.value, self.kv_rank)


def gather(queries: Tensor, prefix: Keys, visible: Tensor, own: list[Keys], scale: float) -> Tensor:
    """Softmax attention over the record's keys and over the row's own ones, scores in float32.

    Parameters
    ----------
    queries: [N, heads, d]. prefix: keys and values [T, kv_heads, d], the same for all rows; ``visible`` [N, T]: which of them a row sees.
    own: keys and values [N, kv_heads, d], each seen by its own row alone.

    Returns
    -------
    [N, heads, d of the values], in the dtype of ``queries``.
    """
    keys, values = prefix
    n, kv = len(queries), keys.shape[1]
    q = queries.float().unflatten(1, (kv, -1)) * scale  # [N, kv, group, d]
    flat = q.transpose(0, 1).flatten(1, 2)
    score = (flat @ keys.float().permute(1, 2, 0)).unflatten(1, (n, -1))  # [kv, N, group, T]
    score.masked_fill_(~visible[None, :, None, :], -torch.inf)
    mine = [(q * k.float()[:, :, None]).sum(-1).transpose(0, 1)[..., None] for k, _ in own]
    share = torch.cat([score, *mine], -1).softmax(-1)
    out = (share[..., : len(keys)].flatten(1, 2) @ values.float().transpose(0, 1)).unflatten(1, (n, -1))
    for i, (_, value) in enumerate(own):
        out = out + share[..., len(keys) + i, None] * value.float().transpose(0, 1)[:, :, None]
    gathered: Tensor = out.transpose(0, 1).flatten(1, 2)
    return gathered.to(queries.dtype)


def attend(queries: Tensor, own: Keys, visible: Tensor, scale: float) -> Tensor:
    """The same where every row has keys of its own.

    Parameters
    ----------
    queries: [N, heads, d]. own: keys and values [N, kv_heads, T, d], float32; ``visible`` [N, T]: which of them the row sees.
    """
    keys, values = own
    q = queries.float().unflatten(1, (keys.shape[1], -1)) * scale  # [N, kv, group, d]
    share = (q @ keys.transpose(2, 3)).masked_fill_(~visible[:, None, None], -torch.inf).softmax(-1)
    gathered: Tensor = (share @ values).flatten(1, 2)
    return gathered.to(queries.dtype)
