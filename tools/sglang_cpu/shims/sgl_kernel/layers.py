"""Norms, activation, linear and rotary embedding; call sites in ``sglang/srt/layers`` (layernorm, activation, unquant, base rotary)."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rmsnorm_cpu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last axis; computed in float32, returned in the dtype of ``x``."""
    return _normalised(x.float(), weight, eps).to(x.dtype)


def fused_add_rmsnorm_cpu(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """``residual += x`` and ``x = rmsnorm(residual)``, both in place; the norm sees the float32 sum, not its rounded copy."""
    total = x.float() + residual.float()
    residual.copy_(total)
    x.copy_(_normalised(total, weight, eps))


def _normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.float()


def silu_and_mul_cpu(x: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``x = [gate, up]`` ``[..., 2n]`` -> ``[..., n]``."""
    gate, up = x.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype)


def convert_weight_packed(weight: Tensor) -> Tensor:
    """The real build re-orders the weight for AMX tiles; here a packed weight is the weight."""
    return weight


def weight_packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, is_vnni: bool) -> Tensor:
    """``x @ weight.T + bias`` with a weight from :func:`convert_weight_packed`."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def rotary_embedding_cpu(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool
) -> tuple[Tensor, Tensor]:
    """Rotary embedding of ``query`` and ``key`` ``[n, heads * head_size]``; ``cos_sin_cache`` rows are ``[cos, sin]``.

    ``is_neox``: the two halves of a head are rotated against each other; else even against odd channels.
    """
    cos, sin = cos_sin_cache[positions.flatten()].float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]

    def rotated(x: Tensor) -> Tensor:
        heads = x.reshape(cos.shape[0], -1, head_size).float()
        turning, rest = heads[..., : 2 * cos.shape[-1]], heads[..., 2 * cos.shape[-1] :]
        if is_neox:
            first, second = turning.chunk(2, dim=-1)
            turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        else:
            first, second = turning[..., ::2], turning[..., 1::2]
            turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
        return torch.cat([turned, rest], dim=-1).to(x.dtype).reshape(x.shape)

    return rotated(query), rotated(key)
