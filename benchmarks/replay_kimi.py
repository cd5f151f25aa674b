"""Memory and time of replaying a draft of Kimi's shape (hidden size 7168, 1.2 billion parameters), and how much of it is matrix products; on the CPU
weights are left on disk.

    python benchmarks/replay_kimi.py [--tokens 256] [--dtype float32] [--device cuda]

Random weights are written to a temporary folder (3.8 GB with the embedding) first, by a process of their own, so that the peak is the replay's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.profiler import profile

from eagle3diag.checkpoints import open_draft
from eagle3diag.dumps import HiddenStates, TargetIdentity
from eagle3diag.replay import build, run

H, VOCAB, DRAFT_VOCAB, INNER, HEADS = 7168, 98304, 73728, 18432, 64
CONFIG = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"], "hidden_size": H, "intermediate_size": INNER, "num_attention_heads": HEADS,
    "num_hidden_layers": 1, "vocab_size": VOCAB, "draft_vocab_size": DRAFT_VOCAB, "rms_norm_eps": 1e-6, "rope_theta": 50000.0,
    "max_position_embeddings": 131072, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "rope_scaling": {
        "type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
SHAPES = {
    "fc": (H, 3 * H), "midlayer.self_attn.q_a_proj": (1536, 2 * H), "midlayer.self_attn.q_b_proj": (HEADS * 192, 1536),
    "midlayer.self_attn.kv_a_proj_with_mqa": (576, 2 * H), "midlayer.self_attn.kv_b_proj": (HEADS * 256, 512),
    "midlayer.self_attn.o_proj": (H, HEADS * 128), "midlayer.mlp.gate_proj": (INNER, H), "midlayer.mlp.up_proj": (INNER, H),
    "midlayer.mlp.down_proj": (H, INNER), "lm_head": (DRAFT_VOCAB, H), "embed_tokens": (VOCAB, H),
}  # fmt: skip
NORMS = {"norm": H, "midlayer.self_attn.q_a_layernorm": 1536, "midlayer.self_attn.kv_a_layernorm": 512} | {
    f"midlayer.{n}": H for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
}


def write(folder: Path) -> None:
    """One shard a tensor, so that no more than one is ever in memory."""
    places: dict[str, str] = {}

    def save(name: str, tensor: torch.Tensor) -> None:
        places[name] = f"part-{len(places):05d}.safetensors"
        save_file({name: tensor}, folder / places[name])

    for name, (rows, columns) in SHAPES.items():
        pattern = torch.randn(1 << 20, generator=torch.Generator().manual_seed(len(places))).mul_(columns**-0.5).bfloat16()
        save(f"{name}.weight", pattern.repeat(rows * columns // len(pattern) + 1)[: rows * columns].view(rows, columns))
    for name, size in NORMS.items():
        save(f"{name}.weight", torch.ones(size, dtype=torch.bfloat16))
    save("d2t", torch.zeros(DRAFT_VOCAB, dtype=torch.int64))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_text(json.dumps(CONFIG))


PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


def of_products(seen: profile, device: str) -> float:
    """Share of the device's busy time that it multiplies matrices."""
    clock = "self_cpu_time_total" if device == "cpu" else "self_device_time_total"
    spent = {event.key: getattr(event, clock) for event in seen.key_averages()}
    return float(
        sum(spent.get(name, 0.0) for name in PRODUCTS) / sum(t for name, t in spent.items() if device == "cpu" or name.startswith("aten::"))
    )


class Watch:
    """The most memory of its own (anonymous, not pages of mapped files) that this process had, in GiB, looked at every 10 ms."""

    def __init__(self) -> None:
        self.most, self._over = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self.most = max(self.most, own_memory())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def own_memory() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        write(given.write)
        return
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, __file__, "--write", scratch], check=True)
        g = torch.Generator().manual_seed(0)
        record = {"name": "0", "input_ids": torch.randint(VOCAB, (given.tokens,), generator=g), "prompt_length": given.tokens // 4}
        record["features"] = torch.randn(given.tokens, 3 * H, generator=g).bfloat16()
        dump = HiddenStates.from_tensors([record], side="train", target=TargetIdentity("kimi-shaped", "", "bfloat16", 61, H))
        draft = open_draft(scratch)
        parameters = sum(draft.tensors.info(n).count for n in draft.tensors if n not in ("d2t", "embed_tokens.weight"))
        before, began = own_memory(), time.monotonic()
        with Watch() as watch, profile() as seen:
            result = run(build(draft, None, dtype=given.dtype, device=given.device), dump, steps=given.steps)
        print(
            f"{parameters / 1e9:.2f} billion parameters, {given.tokens} tokens, {given.steps} steps, {given.dtype}: {time.monotonic() - began:.0f} s"
        )
        print(f"matrix products: {of_products(seen, given.device):.0%} of the time on {given.device}")
        print(f"memory of its own: {before:.2f} GiB before, {watch.most:.2f} GiB at most")
        print(f"{result.rounds} rounds, accept length {result.accept_length:.2f} (random weights)")


if __name__ == "__main__":
    main()
