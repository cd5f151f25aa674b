"""Let the target answer prompts greedily; write one JSON line per answer: ``prompt_ids`` and ``output_ids``.

    python generate.py --target DIR --split train --out answers.jsonl [--max-new 128] [--batch 64]

Answers are the target's own: a draft trained on other text learns to predict a model that is not there (FM-67).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import prompts
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

SPLITS = {
    "train": prompts.training_prompts,
    "more": prompts.more_prompts,
    "further": prompts.further_prompts,
    "held_out": prompts.held_out_prompts,
}


@torch.inference_mode()
def answer(model: torch.nn.Module, batch: list[list[int]], pad: int, stop: int, max_new: int) -> list[list[int]]:
    """Greedy continuations of left-padded ``batch``, each cut after its first ``stop`` token (kept)."""
    width = max(map(len, batch))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in batch])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch])
    out = model.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=max_new, pad_token_id=pad, eos_token_id=stop)
    answers = []
    for row in out[:, width:].tolist():
        answers.append(row[: row.index(stop) + 1] if stop in row else row)
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--split", choices=list(SPLITS), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-new", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.target)
    model = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.bfloat16).eval()
    texts = SPLITS[args.split]()[: args.limit]
    rows = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False)
        for text in texts
    ]
    start, tokens = time.time(), 0
    with args.out.open("w") as file:
        for at in range(0, len(rows), args.batch):
            batch = rows[at : at + args.batch]
            for row, answer_ids in zip(
                batch, answer(model, batch, tokenizer.pad_token_id, tokenizer.eos_token_id, args.max_new), strict=True
            ):
                file.write(json.dumps({"prompt_ids": list(row), "output_ids": answer_ids}) + "\n")
                tokens += len(answer_ids)
            file.flush()
            print(f"{at + len(batch)}/{len(rows)} answers, {tokens} tokens, {tokens / (time.time() - start):.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
