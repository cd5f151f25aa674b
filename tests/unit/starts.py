"""Seeded random weights for the tests: starts, slight trainings, and a small draft made of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def start(law: str, shape: tuple[int, int], g: torch.Generator) -> Tensor:
    rows, columns = shape
    w = torch.empty(rows, columns)
    if law == "uniform_fan_in":
        return w.uniform_(-(columns**-0.5), columns**-0.5, generator=g)
    if law == "xavier_uniform":
        return w.uniform_(-math.sqrt(6 / (rows + columns)), math.sqrt(6 / (rows + columns)), generator=g)
    return w.normal_(0, {"normal_0.02": 0.02, "xavier_normal": math.sqrt(2 / (rows + columns))}[law], generator=g)


def low_rank(w: Tensor, rank: int, share: float, g: torch.Generator) -> Tensor:
    """``w`` plus a signal of this rank with this share of its energy."""
    signal = torch.randn(w.shape[0], rank, generator=g) @ torch.randn(rank, w.shape[1], generator=g)
    return w + signal * (share * w.square().sum() / signal.square().sum()).sqrt()


def adam(w: Tensor, steps: int, rate: float, g: torch.Generator) -> Tensor:
    """``w`` after so many AdamW steps towards a teacher of rank 4, on correlated inputs."""
    w = w.clone().requires_grad_()
    rows, columns = w.shape
    teacher = torch.randn(rows, 4, generator=g) @ torch.randn(4, columns, generator=g) / columns**0.5
    mix = torch.randn(columns // 4, columns, generator=g) / (columns // 4) ** 0.5
    optimiser = torch.optim.AdamW([w], lr=rate, weight_decay=0.01)
    for _ in range(steps):
        x = torch.randn(32, columns // 4, generator=g) @ mix
        loss = (x @ w.T - x @ teacher.T).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return w.detach()


def draft(g: torch.Generator, train: bool = True) -> dict[str, Tensor]:
    """A small draft under canonical names, trained or at torch's default start."""
    shapes = {
        "fc.weight": (96, 288),
        "layers.0.self_attn.q_proj.weight": (96, 192),
        "layers.0.self_attn.o_proj.weight": (96, 96),
        "layers.0.mlp.gate_proj.weight": (256, 96),
        "layers.0.mlp.down_proj.weight": (96, 256),
        "lm_head.weight": (400, 96),
    }
    tensors = {name: start("uniform_fan_in", shape, g) for name, shape in shapes.items()}
    if train:
        tensors = {name: low_rank(w, 3, 0.3, g).bfloat16() for name, w in tensors.items()}
    norm = 1 + 0.1 * torch.randn(96, generator=g)
    return tensors | {"norm.weight": norm, "layers.0.hidden_norm.weight": norm.clone(), "d2t": torch.arange(400)}
