"""One draft served by the real vLLM engine on CPU and recorded: launch command, counts, and the live dump with its rounds.

The folder is laid out as ``tools/sglang_cpu/record.py`` lays out SGLang's. Run by ``benchmarks/real_engine.py`` in vLLM's environment.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

STEPS = 4
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "passive",
}
LAUNCH = """vllm serve SmolLM2-135M-Instruct --dtype bfloat16 --max-model-len 512 --max-num-seqs 8 --enforce-eager --no-enable-prefix-caching \\
  --speculative-config '{"method": "eagle3", "model": "draft", "num_speculative_tokens": %d}'
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("target", "draft", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--max-new", type=int, required=True)
    given = parser.parse_args()
    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    import vllm

    prompts = [json.loads(line)["prompt_ids"] for line in Path("data_samples/prompts.jsonl").read_text().splitlines()]
    new = given.out.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    llm = vllm.LLM(
        str(given.target), skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16", max_model_len=512, max_num_seqs=8,
        max_num_batched_tokens=512, disable_log_stats=False, enable_prefix_caching=False, seed=0,
        speculative_config={"method": "eagle3", "model": str(given.draft), "num_speculative_tokens": STEPS},
        worker_extension_cls="eagle3diag.capture.vllm.WorkerExtension",
    )  # fmt: skip
    options = {"out": str(new / "live"), "target": str(given.target), "target_name": "SmolLM2-135M-Instruct", "limit": len(prompts)}
    llm.collective_rpc("eagle3diag_start", args=({**options, "final": False},))
    sampling = vllm.SamplingParams(temperature=0, max_tokens=given.max_new, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
    llm.collective_rpc("eagle3diag_stop")

    counts: dict[str, Any] = {m.name.removeprefix("vllm:spec_decode_num_"): m for m in llm.get_metrics() if "spec_decode_num" in m.name}
    rounds, accepted = counts["drafts"].value, counts["accepted_tokens"].value
    reached = [rounds, *counts["accepted_tokens_per_pos"].values, 0]
    acceptance = {
        "engine": "vllm",
        "engine_version": vllm.__version__.partition("+")[0],
        "steps": STEPS,
        "rounds": rounds,
        "accepted": accepted,
        "accept_length": 1 + accepted / rounds,
        "histogram": [a - b for a, b in pairwise(reached)],
    }
    (new / "acceptance.json").write_text(json.dumps(acceptance, indent=1) + "\n")
    (new / "launch.txt").write_text(LAUNCH % STEPS)
    rows = [{"prompt_ids": ids, "output_ids": list(a.outputs[0].token_ids)} for ids, a in zip(prompts, answers, strict=True)]
    (new / "outputs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    new.rename(given.out)


if __name__ == "__main__":
    main()
