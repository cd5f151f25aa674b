"""How long a folder of many files takes to open, beside listing it and beside reading every header.

    python benchmarks/dumps_open.py [--files 100000]

Prints seconds of processor time, which do not depend on what else the machine does. The folder holds one real file of
speculators' layout and links to it, so that the disk holds little.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import process_time

import torch
from safetensors.torch import save_file

from eagle3diag import open_dump


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    count = parser.parse_args().files
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = folder / "hs_0.safetensors"
        save_file({"hidden_states": torch.randn(64, 4, 32).bfloat16(), "token_ids": torch.arange(64)}, first)
        for i in range(1, count):
            (folder / f"hs_{i}.safetensors").symlink_to(first)
        start = process_time()
        listed = sum(1 for _ in folder.iterdir())
        after_listing = process_time()
        dump = open_dump(folder)
        opened = process_time()
        tokens = sum(r.tokens for r in dump[:2000])
        headers = (process_time() - opened) / 2000
    print(f"{listed} files: listed in {after_listing - start:.2f} s, opened in {opened - after_listing:.2f} s;", end=" ")
    print(f"a record takes {1e3 * headers:.2f} ms ({tokens} tokens in the first 2000)")


if __name__ == "__main__":
    main()
