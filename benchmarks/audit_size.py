"""What a static audit of a large draft costs: time and peak memory on a synthetic checkpoint of Kimi's size, in shards.

    python benchmarks/audit_size.py [--seconds 2] [--megabytes 300]

The files are sparse: their headers and the vocabulary maps are real, the rest are holes. Only those are read, which is the point. The
audit runs in a process of its own, once cold and once warm; exit status 1 above either limit.
"""

from __future__ import annotations

import argparse
import json
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

H, INNER, HEADS, HEAD, VOCABULARY, DRAFT = 7168, 18432, 64, 128, 163840, 32000
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": H, "intermediate_size": INNER,
    "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD, "num_hidden_layers": 1, "vocab_size": VOCABULARY,
    "draft_vocab_size": DRAFT, "rms_norm_eps": 1e-6, "rope_theta": 50000.0, "max_position_embeddings": 4096, "dtype": "bfloat16",
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 57]},
}  # fmt: skip
WEIGHTS = {
    "fc.weight": [H, 3 * H], "norm.weight": [H], "lm_head.weight": [DRAFT, H], "midlayer.self_attn.q_proj.weight": [HEADS * HEAD, 2 * H],
    "midlayer.self_attn.k_proj.weight": [HEADS * HEAD, 2 * H], "midlayer.self_attn.v_proj.weight": [HEADS * HEAD, 2 * H],
    "midlayer.self_attn.o_proj.weight": [H, HEADS * HEAD], "midlayer.mlp.gate_proj.weight": [INNER, H],
    "midlayer.mlp.up_proj.weight": [INNER, H], "midlayer.mlp.down_proj.weight": [H, INNER], "midlayer.input_layernorm.weight": [H],
    "midlayer.hidden_norm.weight": [H], "midlayer.post_attention_layernorm.weight": [H],
}  # fmt: skip


def write(folder: Path) -> int:
    """Three shards, an index and a config; returns the bytes that the files claim."""
    ids = np.sort(np.random.default_rng(0).choice(VOCABULARY, DRAFT, replace=False))
    maps = {
        "d2t": ("I64", [DRAFT], (ids - np.arange(DRAFT)).astype("<i8").tobytes()),
        "t2d": ("BOOL", [VOCABULARY], np.isin(np.arange(VOCABULARY), ids).tobytes()),
    }
    names = [*WEIGHTS, *maps]
    shards = [names[:2], names[2:8], names[8:]]
    place, total = {}, 0
    for number, inside in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header: dict[str, object] = {}
        written, end = [], 0
        for name in inside:
            dtype, shape, data = maps.get(name, ("BF16", WEIGHTS.get(name, []), b""))
            size = len(data) or 2 * int(np.prod(shape))
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
            written.append((end, data))
            end += size
            place[name] = file
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            start = out.tell()
            for offset, data in written:
                out.seek(start + offset)
                out.write(data)
            out.truncate(start + end)
        total += end
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return total


def child(folder: str) -> None:
    """Audit, and print seconds without imports and the peak of the process in bytes, before and after."""
    from eagle3diag.audit import audit

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    result = audit(folder)
    findings = [f.fault for f in result.findings]
    print(
        json.dumps([time.perf_counter() - start, before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, findings, len(result.loads)])
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--megabytes", type=float, default=300.0, help="what the audit adds to the memory of a process that has torch")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        total = write(Path(folder))
        print(f"checkpoint of {total / 1e9:.1f} GB in three shards")
        worst = [0.0, 0.0]
        for run in ("cold", "warm"):
            done = subprocess.run([sys.executable, __file__, "--child", folder], capture_output=True, text=True, check=True)
            seconds, before, after, findings, loads = json.loads(done.stdout)
            added = (after - before) / 1024
            print(
                f"{run}: {seconds:.2f} s, {after / 1024:.0f} MB at the peak, {added:.0f} MB of it for the audit, {loads} loads, findings {findings}"
            )
            worst = [max(worst[0], seconds), max(worst[1], added)]
    return int(worst[0] > given.seconds or worst[1] > given.megabytes)


if __name__ == "__main__":
    sys.exit(main())
