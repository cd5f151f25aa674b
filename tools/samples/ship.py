"""Put the samples together: the draft, what is kept of two earlier epochs, the prompts, and the training-side dump.

    python ship.py --trained out/train --held-out out/train/held_out.jsonl --target DIR --epoch 8 --keep 1,3 --out data_samples

The training-side dump holds the first ``--sequences`` held-out answers, cut to ``--max-new`` tokens, at the boundaries that the draft was
trained on, and the final normed state; the server recordings are of the same prompts.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from eagle3diag.capture.identity import identify
from eagle3diag.capture.structure import find_decoder
from eagle3diag.dumps import DumpWriter

BOUNDARIES = (2, 15, 27)
KEPT = ("fc.weight", "midlayer.self_attn.q_proj.weight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trained", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True, help="answers as generate.py wrote them")
    parser.add_argument("--target", required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--keep", default="1,3")
    parser.add_argument("--sequences", type=int, default=10)
    parser.add_argument("--max-new", type=int, default=48)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    out: Path = args.out
    for part in ("draft", "epochs", "train"):
        shutil.rmtree(out / part, ignore_errors=True)

    shutil.copytree(args.trained / f"epoch_{args.epoch}", out / "draft")
    for epoch in map(int, args.keep.split(",")):
        folder = out / "epochs" / f"epoch_{epoch}"
        folder.mkdir(parents=True)
        tensors = load_file(args.trained / f"epoch_{epoch}" / "model.safetensors")
        save_file({name: tensors[name] for name in KEPT}, folder / "model.safetensors")
        shutil.copy(args.trained / f"epoch_{epoch}" / "config.json", folder)
    training = json.loads((args.trained / "training.json").read_text())
    (out / "training.json").write_text(json.dumps({"shipped_epoch": args.epoch, **training}, indent=2) + "\n")

    rows = [json.loads(line) for line in args.held_out.open()][: args.sequences]
    for row in rows:
        row["output_ids"] = row["output_ids"][: args.max_new]
    (out / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_dump(args.target, rows, out / "train")


@torch.inference_mode()
def write_dump(target: str, rows: list[dict[str, list[int]]], out: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16).eval()
    who = identify(model, find_decoder(model))
    with DumpWriter(
        out,
        side="train",
        target=type(who)("SmolLM2-135M-Instruct", who.config_hash, who.dtype, who.n_layers, who.hidden_size),
        engine="transformers",
        engine_version=transformers.__version__,
        boundaries=BOUNDARIES,
    ) as writer:
        for i, row in enumerate(rows):
            ids = torch.tensor(row["prompt_ids"] + row["output_ids"])
            states = model.model(input_ids=ids[None], output_hidden_states=True, use_cache=False).hidden_states
            writer.add(
                name=f"{i:04d}",
                input_ids=ids,
                states={b: states[b][0] for b in BOUNDARIES},
                final=states[-1][0],
                prompt_length=len(row["prompt_ids"]),
            )


if __name__ == "__main__":
    main()
