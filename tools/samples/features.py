"""Run the target over its own answers; keep what a draft trains on: aux states and the final normed state.

    python features.py --target DIR --answers answers.jsonl --out features.pt [--boundaries 2,15,27]

Boundary ``b`` is ``hidden_states[b]`` of Transformers (0 = embedding); its last entry is already normed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


@torch.inference_mode()
def extract(model: torch.nn.Module, rows: list[dict[str, list[int]]], boundaries: list[int], batch: int) -> list[dict[str, torch.Tensor]]:
    """One record per answer, in the order of ``rows``: ``ids [T]``, ``prompt`` (length), ``aux [T, n*H]``, ``final [T, H]`` (bf16)."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["prompt_ids"]) + len(rows[i]["output_ids"]))
    records: list[dict[str, torch.Tensor]] = [{} for _ in rows]
    for at in range(0, len(order), batch):
        members = order[at : at + batch]
        sequences = [rows[i]["prompt_ids"] + rows[i]["output_ids"] for i in members]
        width = max(map(len, sequences))
        ids = torch.tensor([s + [0] * (width - len(s)) for s in sequences])  # right padding: causal, so it changes nothing
        states = model.model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        aux, final = torch.cat([states[b] for b in boundaries], -1), states[-1]
        for row, (i, sequence) in enumerate(zip(members, sequences, strict=True)):
            records[i] = {
                "ids": torch.tensor(sequence),
                "prompt": torch.tensor(len(rows[i]["prompt_ids"])),
                "aux": aux[row, : len(sequence)].clone(),
                "final": final[row, : len(sequence)].clone(),
            }
        if at // batch % 10 == 0:
            print(f"{at + len(members)}/{len(rows)} answers", flush=True)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--boundaries", default="2,15,27")
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.answers.open()]
    model = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.bfloat16).eval()
    torch.save(extract(model, rows, [int(b) for b in args.boundaries.split(",")], args.batch), args.out)


if __name__ == "__main__":
    main()
