"""Train the sample EAGLE-3 draft: training-time test over the target's own answers, in plain torch.

    python train.py --target DIR --train train.pt --held-out held_out.pt --out DIR [--epochs 8]
    python train.py --target DIR --train train.pt more.pt --held-out held_out.pt --out DIR --start DIR/epoch_8 --epochs 2 --peak 6e-4

The method is EAGLE-3's (arXiv 2503.01840): the draft is unrolled ``STEPS`` times over the same slots, each step fed with the
draft's own previous output, the label being the target's distribution over the draft vocabulary. At slot ``t`` and step ``k`` the
draft embeds ``x[t+1+k]``, sits at RoPE position ``t+k``, attends to the step-0 keys of slots ``<= t`` and to its own keys of steps
``1..k``, and predicts ``x[t+2+k]``. With forced tokens this equals the serving chain, so the joint accuracy of steps ``0..k``
on greedy answers *is* the acceptance to expect.

What it writes suits every engine: residual before the norm, no norm before fc, pre-norm state carried on, SafeAILab names.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

STEPS = 4
STEP_DECAY = 0.8
DRAFT_VOCAB = 8192
BATCH = 16
SEED = 20

Record = dict[str, Tensor]


class Draft(nn.Module):
    """One EAGLE-3 layer; parameter names are the checkpoint's."""

    def __init__(self, config: dict[str, int | float]) -> None:
        super().__init__()
        h, inner = int(config["hidden_size"]), int(config["intermediate_size"])
        self.heads, self.kv_heads = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
        self.head_dim = h // self.heads
        self.eps, theta = float(config["rms_norm_eps"]), float(config["rope_theta"])

        def linear(rows: int, columns: int) -> nn.Linear:
            return nn.Linear(columns, rows, bias=False)  # PyTorch's default start, as EAGLE and SpecForge have it

        self.fc = linear(h, 3 * h)
        self.q_proj = linear(self.heads * self.head_dim, 2 * h)
        self.k_proj = linear(self.kv_heads * self.head_dim, 2 * h)
        self.v_proj = linear(self.kv_heads * self.head_dim, 2 * h)
        self.o_proj = linear(h, h)
        self.gate_proj, self.up_proj, self.down_proj = linear(inner, h), linear(inner, h), linear(h, inner)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm, self.norm = (nn.Parameter(torch.ones(h)) for _ in range(4))
        self.lm_head = linear(DRAFT_VOCAB, h)
        self.register_buffer("frequency", theta ** (-torch.arange(0, self.head_dim, 2) / self.head_dim), persistent=False)

    def rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), weight, self.eps)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Neox-style rotation of ``x [B, T, heads, head_dim]`` at ``positions [B, T]``."""
        angle = positions[..., None, None].float() * self.frequency
        cos, sin = angle.cos(), angle.sin()
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    def keys_values(self, mixed: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values ``[B, T, heads, head_dim]``, grouped heads already repeated."""
        group = self.heads // self.kv_heads
        k = self.rotate(self.k_proj(mixed).unflatten(-1, (self.kv_heads, self.head_dim)), positions)
        v = self.v_proj(mixed).unflatten(-1, (self.kv_heads, self.head_dim))
        return k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)

    def mix(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return torch.cat([self.rms(embedded, self.input_layernorm), self.rms(hidden, self.hidden_norm)], -1)

    def unroll(self, embedding: Tensor, ids: Tensor, aux: Tensor, slots: Tensor) -> Iterator[Tensor]:
        """Yield, for each step, the pre-norm output ``[B, A, H]`` at ``slots [B, A]`` of ``ids [B, T]``, ``aux [B, T, 3H]``."""
        everywhere = torch.arange(ids.shape[1] - 1).expand(len(ids), -1)
        hidden = self.fc(aux)
        k0, v0 = self.keys_values(self.mix(embedding[ids[:, 1:]], hidden[:, :-1]), everywhere)
        causal = everywhere[:, None, :] <= slots[:, :, None]
        hidden = hidden.gather(1, slots[..., None].expand(-1, -1, hidden.shape[-1]))
        own: list[tuple[Tensor, Tensor]] = []
        for step in range(STEPS):
            token = ids.gather(1, (slots + 1 + step).clamp(max=ids.shape[1] - 1))
            mixed = self.mix(embedding[token], hidden)
            q = self.rotate(self.q_proj(mixed).unflatten(-1, (self.heads, self.head_dim)), slots + step) / math.sqrt(self.head_dim)
            if step:
                own.append(self.keys_values(mixed, slots + step))
            score = torch.einsum("bqhd,bkhd->bqhk", q, k0).float().masked_fill(~causal[:, :, None, :], -torch.inf)
            score = torch.cat([score, *((q * k).sum(-1, keepdim=True).float() for k, _ in own)], -1).softmax(-1)
            attended = torch.einsum("bqhk,bkhd->bqhd", score[..., : k0.shape[1]].to(v0.dtype), v0)
            for i, (_, v) in enumerate(own):
                attended = attended + score[..., k0.shape[1] + i, None].to(v.dtype) * v
            hidden = hidden + self.o_proj(attended.flatten(-2))
            mixed = self.rms(hidden, self.post_attention_layernorm)
            hidden = hidden + self.down_proj(F.silu(self.gate_proj(mixed)) * self.up_proj(mixed))
            yield hidden


def batches(records: list[Record], draw: random.Random) -> Iterator[dict[str, Tensor]]:
    """Batches of answers of like length, in random order, right-padded."""
    order = sorted(range(len(records)), key=lambda i: len(records[i]["ids"]) + draw.random() * 16)
    groups = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
    draw.shuffle(groups)
    for group in groups:
        members = [records[i] for i in group]
        lengths = torch.tensor([len(r["ids"]) for r in members])
        # Slots whose prediction is an answer token and that a server drafts from: the last prompt token onward.
        first = torch.stack([r["prompt"] for r in members]) - 1
        count = int((lengths - 2 - first).max())
        slots = (first[:, None] + torch.arange(count)).clamp(max=int(lengths.max()) - 2)
        pad = torch.nn.utils.rnn.pad_sequence
        yield {
            "ids": pad([r["ids"] for r in members], batch_first=True),
            "aux": pad([r["aux"] for r in members], batch_first=True),
            "final": pad([r["final"] for r in members], batch_first=True),
            "slots": slots,
            # The label of step k is the target's distribution at slot + 1 + k, about token slot + 2 + k, which must exist.
            "room": lengths[:, None] - 2 - torch.arange(count) - first[:, None],
        }


def forward(draft: Draft, batch: dict[str, Tensor], embedding: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield per step: draft logits ``[N, Vd]``, the label's slot ``[N]`` and token ``[N]``, both for the ``N`` slots that have a label."""
    slots, ids = batch["slots"], batch["ids"]
    width = ids.shape[1]
    row = torch.arange(len(ids))[:, None] * width
    for step, hidden in enumerate(draft.unroll(embedding, ids, batch["aux"], slots)):
        valid = (batch["room"] > step).flatten().nonzero()[:, 0]
        label = (row + slots + 1 + step).flatten()[valid]
        yield draft.lm_head(draft.rms(hidden.flatten(0, 1)[valid], draft.norm)), label, ids.flatten()[label + 1]


def loss_of(draft: Draft, batch: dict[str, Tensor], embedding: Tensor, wanted: Tensor, to_draft: Tensor) -> Tensor:
    """Soft cross-entropy per step, weighted by ``STEP_DECAY**k``; slots whose true token the draft cannot say are left out."""
    with torch.no_grad():  # once for all steps: step k at slot t and step 0 at slot t + k have the same label
        target = F.linear(batch["final"].flatten(0, 1).to(wanted.dtype), wanted).softmax(-1)
    total = torch.zeros(())
    for step, (logits, label, truth) in enumerate(forward(draft, batch, embedding)):
        sayable = to_draft[truth] >= 0
        per_slot = logits.float().logsumexp(-1) - (target[label] * logits).sum(-1, dtype=torch.float32)
        total = total + STEP_DECAY**step * (per_slot * sayable).sum() / sayable.sum()
    return total


@torch.inference_mode()
def accuracy(draft: Draft, records: list[Record], embedding: Tensor, draft_ids: Tensor) -> dict[str, list[float]]:
    """Per step: ``acc`` (this step right) and ``joint`` (this and all earlier steps right), over every slot of the answers."""
    right, joint, count = torch.zeros(STEPS), torch.zeros(STEPS), torch.zeros(STEPS)
    for batch in batches(records, random.Random(0)):
        so_far = torch.ones(batch["ids"].numel(), dtype=torch.bool)  # by the slot drafted from
        with torch.autocast("cpu", torch.bfloat16):
            for step, (logits, label, truth) in enumerate(forward(draft, batch, embedding)):
                hit = draft_ids[logits.argmax(-1)] == truth
                so_far[label - step] &= hit
                right[step] += hit.sum()
                joint[step] += so_far[label - step].sum()
                count[step] += len(label)
    return {"acc": (right / count).tolist(), "joint": (joint / count).tolist()}


def vocabulary(records: list[Record]) -> Tensor:
    """The ``DRAFT_VOCAB`` most frequent answer tokens, ascending; ties and unseen tokens go to the lower id."""
    counts = torch.zeros(int(max(r["ids"].max() for r in records)) + 1, dtype=torch.long)
    for r in records:
        answer = r["ids"][int(r["prompt"]) :]
        counts.index_add_(0, answer, torch.ones_like(answer))
    return counts.argsort(descending=True, stable=True)[:DRAFT_VOCAB].sort().values


def stored_names(draft: Draft) -> dict[str, str]:
    """Parameter name to the checkpoint's name, which is SafeAILab's."""
    attention, mlp = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
    place = {n: f"midlayer.self_attn.{n}" for n in attention} | {n: f"midlayer.mlp.{n}" for n in mlp}
    place |= {n: f"midlayer.{n}" for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}
    stems = {name: name.removesuffix(".weight") for name in draft.state_dict()}
    return {name: f"{place.get(stem, stem)}.weight" for name, stem in stems.items()}


def checkpoint(draft: Draft, draft_ids: Tensor, vocab: int) -> dict[str, Tensor]:
    """The draft in bf16, with ``d2t`` (offsets) and ``t2d``."""
    state = draft.state_dict()
    tensors = {stored: state[name].to(torch.bfloat16).contiguous() for name, stored in stored_names(draft).items()}
    tensors["d2t"] = draft_ids - torch.arange(len(draft_ids))
    tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, draft_ids, True)
    return tensors


def draft_config(target: dict[str, object]) -> dict[str, object]:
    keep = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "vocab_size", "hidden_act")
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **{key: target[key] for key in keep},
        "head_dim": int(target["hidden_size"]) // int(target["num_attention_heads"]),  # type: ignore[call-overload]
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCAB,
        "max_position_embeddings": target["max_position_embeddings"],
        "rope_theta": target.get("rope_theta") or target["rope_parameters"]["rope_theta"],  # type: ignore[index]
        "bos_token_id": target["bos_token_id"],
        "eos_token_id": target["eos_token_id"],
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        # Output ids, as SGLang reads them: id i is boundary i + 1.
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 26], "use_aux_hidden_state": True},
    }


def train(
    draft: Draft, records: list[Record], epochs: int, embedding: Tensor, wanted: Tensor, to_draft: Tensor, peak: float
) -> Iterator[int]:
    """Train for ``epochs``; yields the epoch's number (from 1) after each."""
    slow = [draft.fc.weight, draft.lm_head.weight]  # fc: wide fan-in; head: starts from the target's rows
    names = {id(p) for p in slow}
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in draft.parameters() if id(p) not in names], "lr": peak}, {"params": slow, "lr": peak / 4}],
        betas=(0.9, 0.95),
        weight_decay=0.01,
    )
    total, warm = epochs * math.ceil(len(records) / BATCH), 60
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / warm, 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(s / total, 1.0))))
    )
    draw, start, step = random.Random(SEED), time.time(), 0
    for epoch in range(1, epochs + 1):
        for batch in batches(records, draw):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(draft, batch, embedding, wanted, to_draft)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step % 20 == 0:
                print(f"epoch {epoch} step {step}/{total} loss {loss.item():.3f} {time.time() - start:.0f} s", flush=True)
        yield epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--train", type=Path, nargs="+", required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="go on from this checkpoint; epochs are counted on")
    parser.add_argument("--keep-vocabulary", action="store_true", help="with --start: keep its draft vocabulary, instead of choosing anew")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--peak", type=float, default=1.5e-3, help="peak learning rate; fc and the head get a quarter")
    args = parser.parse_args()
    torch.manual_seed(SEED)

    config = json.loads((args.target / "config.json").read_text())
    embedding = load_file(args.target / "model.safetensors")["model.embed_tokens.weight"].float()
    final_norm = load_file(args.target / "model.safetensors")["model.norm.weight"].float()
    # Mapped, not read: gigabytes of features that the page cache may drop again.
    records: list[Record] = [r for path in args.train for r in torch.load(path, weights_only=True, mmap=True)]
    held_out: list[Record] = torch.load(args.held_out, weights_only=True, mmap=True)
    start = load_file(args.start / "model.safetensors") if args.start else None
    known_ids = start["d2t"] + torch.arange(DRAFT_VOCAB) if start is not None else torch.empty(0, dtype=torch.long)
    draft_ids = known_ids if args.keep_vocabulary else vocabulary(records)
    to_draft = torch.full((len(embedding),), -1).index_copy_(0, draft_ids, torch.arange(len(draft_ids)))
    wanted = embedding[draft_ids].to(torch.bfloat16)
    seen = torch.cat([r["ids"][int(r["prompt"]) :] for r in held_out])
    print(
        f"{len(records)} answers; the draft vocabulary covers {(to_draft[seen] >= 0).float().mean():.4f} of held-out answer tokens",
        flush=True,
    )

    written = draft_config(config)
    draft = Draft(written)  # type: ignore[arg-type]
    log, done = [], 0
    with torch.no_grad():  # the head's rows and its norm start as the target's own
        draft.norm.copy_(final_norm)
        head = embedding[draft_ids]
        if start is not None:  # rows of tokens that stay keep what they learned
            draft.load_state_dict({name: start[stored].float() for name, stored in stored_names(draft).items()})
            learned = torch.full((len(embedding),), -1).index_copy_(0, known_ids, torch.arange(len(known_ids)))[draft_ids]
            head[learned >= 0] = start["lm_head.weight"].float()[learned[learned >= 0]]
            log = json.loads((args.start.parent / "training.json").read_text())["epochs"]
            done = len(log)
        draft.lm_head.weight.copy_(head)
    for epoch in train(draft, records, args.epochs, embedding, wanted, to_draft, args.peak):
        epoch += done
        result = {"epoch": epoch, "answers": len(records), **accuracy(draft, held_out, embedding, draft_ids)}
        result["accept_length"] = 1 + sum(result["joint"])
        log.append(result)
        print(json.dumps(result), flush=True)
        folder = args.out / f"epoch_{epoch}"
        folder.mkdir(parents=True, exist_ok=True)
        save_file(checkpoint(draft, draft_ids, len(embedding)), folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")
        (args.out / "training.json").write_text(json.dumps({"steps": STEPS, "epochs": log}, indent=2) + "\n")


if __name__ == "__main__":
    main()
