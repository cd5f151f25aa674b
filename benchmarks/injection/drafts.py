"""Two more drafts for the matrix, grown out of the sample draft by a short training: two layers on two states, and one of latent attention.

    python -m benchmarks.injection.drafts --target DIR --train train.pt --out DIR --kind {two layers,latent} [--updates 80]

They have to be of other shape and to draft well enough that a fault shows, no more; so both start from the sample draft's own weights.
``train.pt`` is what ``tools/samples/features.py`` writes: ids, prompt length, the three aux states, the final state.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.injection.engine import Held, Latent, held
from eagle3diag.checkpoints import open_draft, open_target

STEPS, DECAY, BATCH, ROWS = 4, 0.8, 8, 4096
Record = dict[str, Tensor]


def two_layers(base: Held, records: list[Record]) -> Held:
    """Reads the second and third state, normed together; the norm starts at their usual size, the second layer as one that changes nothing."""
    h, w = base.embedding.shape[1], dict(base.weights)
    w["fc.weight"] = w["fc.weight"][:, h:].clone()
    usual = torch.cat([r["aux"][4:, h:].float().pow(2).mean(-1).sqrt() for r in records[:8]]).median()
    w["input_norm.weight"] = usual.repeat(2 * h)
    for name in [n for n in w if n.startswith("layers.0.")]:
        deep = w[name].clone()
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            deep = deep[:, h:].clone()
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            deep = deep * 0.02
        w[name.replace("layers.0.", "layers.1.")] = deep
    del w["layers.1.input_layernorm.weight"]
    return base.but(weights=w, layers=2, norm_before_fc=True, head=base.head[:ROWS].clone(), ids=base.ids[:ROWS])


def latent(base: Held, records: list[Record]) -> Held:
    """Keys and values of the sample draft as one latent; what was rotated is not, and a few rotated channels start at random."""
    w, at = dict(base.weights), "layers.0.self_attn."
    k, v, q = (w.pop(f"{at}{x}_proj.weight") for x in "kvq")
    m = Latent(len(k) + len(v), base.heads and 64, 32, 64)
    g = torch.Generator().manual_seed(0)
    w[f"{at}kv_a_proj_with_mqa.weight"] = torch.cat([k, v, torch.randn(m.turned, k.shape[1], generator=g) * 0.02])
    w[f"{at}kv_a_layernorm.weight"] = torch.ones(m.kv_rank)
    up, group = torch.zeros(base.heads, m.plain + m.value, m.kv_rank), base.heads // base.kv_heads
    for head in range(base.heads):
        own = head // group * 64
        up[head, : m.plain, own : own + 64] = torch.eye(64)
        up[head, m.plain :, len(k) + own : len(k) + own + 64] = torch.eye(64)
    w[f"{at}kv_b_proj.weight"] = up.flatten(0, 1)
    low, _, right = torch.linalg.svd(q, full_matrices=False)  # q = low . diag . right, cut to its rank
    rank = 384
    scale = torch.linalg.svdvals(q)[:rank].sqrt()
    w[f"{at}q_a_proj.weight"] = scale[:, None] * right[:rank]
    w[f"{at}q_a_layernorm.weight"] = torch.ones(rank)
    plain = (low[:, :rank] * scale).view(base.heads, 64, rank) * math.sqrt(96 / 64)
    w[f"{at}q_b_proj.weight"] = torch.cat([plain, torch.randn(base.heads, m.turned, rank, generator=g) * 0.02], 1).flatten(0, 1)
    return base.but(weights=w, latent=m, neighbours=True, head=base.head[:ROWS].clone(), ids=base.ids[:ROWS])


KINDS = {"two layers": two_layers, "latent": latent}


def unroll(net: Held, ids: Tensor, fed: Tensor, rows: Tensor) -> list[Tensor]:
    """Training-time test: logits of every step [N, Vd] at the rows that a server drafts from, along the text."""
    cache, raw = net.read(ids, fed)
    out, own, made = raw[rows], net.no_keys(), []
    for number in range(1, STEPS + 1):
        made.append(net.logits(out))
        if number < STEPS:
            out = net.step(number, ids[(rows + 1 + number).clamp(max=len(ids) - 1)], net.carried(out), rows, cache, own)
    return made


def loss_of(net: Held, r: Record, blocks: slice, wanted: Tensor, to_draft: Tensor) -> tuple[Tensor, list[int]]:
    ids, fed = r["ids"][:160], r["aux"][:160, blocks].float()
    rows = torch.arange(int(r["prompt"]) - 1, len(ids) - 2)
    teacher = F.linear(r["final"][:160].float(), wanted)
    total, right = torch.zeros(()), []
    for number, logits in enumerate(unroll(net, ids, fed, rows)):
        there = rows + 1 + number < len(ids) - 1
        label = (rows + 1 + number)[there]
        sayable = to_draft[ids[label + 1]] >= 0
        cross = -(teacher[label].softmax(-1) * logits[there].log_softmax(-1)).sum(-1)
        total = total + DECAY**number * (cross * sayable).sum() / sayable.sum().clamp(min=1)
        right.append(int((net.ids[logits[there].argmax(-1)] == ids[label + 1]).sum()))
    return total, [*right, len(rows)]


def train(net: Held, records: list[Record], blocks: slice, wanted: Tensor, updates: int, peak: float, minutes: float) -> Held:
    weights = {n: w.clone().requires_grad_() for n, w in net.weights.items()}
    head = net.head.clone().requires_grad_()
    net = net.but(weights=weights, head=head)
    to_draft = torch.full((len(net.embedding),), -1).index_copy_(0, net.ids, torch.arange(len(net.ids)))
    fresh = [w for n, w in weights.items() if "layers.1." in n or "_a_" in n or "_b_" in n or n == "input_norm.weight"]
    held_ids = {id(w) for w in fresh}
    slow = [w for w in weights.values() if id(w) not in held_ids] + [head]
    optimizer = torch.optim.AdamW([{"params": fresh, "lr": peak}, {"params": slow, "lr": peak / 4}], betas=(0.9, 0.95), weight_decay=0.0)
    draw, start, tally = random.Random(0), time.time(), [0] * (STEPS + 1)
    for n in range(updates):
        done = max(n / updates, (time.time() - start) / (60 * minutes))
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group.setdefault("top", group["lr"])
            group["lr"] = group["top"] * min((n + 1) / 8, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))
        optimizer.zero_grad(set_to_none=True)
        for r in draw.sample(records, BATCH):
            loss, right = loss_of(net, r, blocks, wanted, to_draft)
            (loss / BATCH).backward()
            tally = [a + b for a, b in zip(tally, right, strict=True)]
        torch.nn.utils.clip_grad_norm_([*weights.values(), head], 1.0)
        optimizer.step()
        if n % 5 == 4:
            print(
                f"update {n + 1}: loss {loss.item():.2f}, right {[round(x / tally[-1], 3) for x in tally[:-1]]}, {time.time() - start:.0f} s",
                flush=True,
            )
            tally = [0] * (STEPS + 1)
    return net.but(weights={n: w.detach() for n, w in weights.items()}, head=head.detach())


def config_of(net: Held, base: dict[str, object]) -> dict[str, object]:
    raw = {**base, "draft_vocab_size": len(net.ids), "num_hidden_layers": net.layers}
    if net.latent is None:
        ids = {"eagle_aux_hidden_state_layer_ids": [14, 26], "use_aux_hidden_state": True, "norm_before_fc": True}
        return raw | {"num_aux_hidden_states": 2, "norm_before_fc": True, "eagle_config": ids}
    m = net.latent
    sizes = {
        "q_lora_rank": 384,
        "kv_lora_rank": m.kv_rank,
        "qk_nope_head_dim": m.plain,
        "qk_rope_head_dim": m.turned,
        "v_head_dim": m.value,
    }
    raw = {n: v for n, v in raw.items() if n != "head_dim"}
    return raw | sizes | {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "num_key_value_heads": net.heads}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--base", type=Path, default=Path("data_samples/draft"))
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--updates", type=int, default=80)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--peak", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    target, draft = open_target(args.target), open_draft(args.base)
    base = held(draft, target)
    records: list[Record] = torch.load(args.train, weights_only=True, mmap=True)
    net = KINDS[args.kind](base, records)
    h = net.embedding.shape[1]
    blocks = slice(h, 3 * h) if args.kind == "two layers" else slice(0, 3 * h)
    net = train(net, records, blocks, target.head().float()[net.ids], args.updates, args.peak, args.minutes)
    args.out.mkdir(parents=True, exist_ok=True)
    tensors = {n: w.to(torch.bfloat16).contiguous() for n, w in net.weights.items()} | {"lm_head.weight": net.head.to(torch.bfloat16)}
    tensors |= {
        "d2t": net.ids - torch.arange(len(net.ids)),
        "t2d": torch.zeros(len(net.embedding), dtype=torch.bool).index_fill_(0, net.ids, True),
    }
    save_file(tensors, args.out / "model.safetensors")
    (args.out / "config.json").write_text(json.dumps(config_of(net, dict(draft.config.raw)), indent=2) + "\n")


if __name__ == "__main__":
    main()
