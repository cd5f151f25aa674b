"""A real vLLM engine on CPU that is recorded: by the worker's extension with the truth kept beside it, or by the plugin in its own process.

python run_vllm.py extension|plugin TARGET DRAFT WORK [OPTIONS AS JSON]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

PROMPTS = [
    [1, 4093, 198, 19161, 253, 6634, 826, 253, 3743, 2, 198, 1, 520, 9531, 198],
    [1, 4093, 198, 19161, 253, 17099, 2, 198, 1, 520, 9531, 198],
    [1, 4093, 198, 28, 338, 253],
]
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}


def main(how: str, target: str, draft: str, work: Path, options: dict[str, Any]) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        target,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config={"method": "eagle3", "model": draft, "num_speculative_tokens": 4},
        **({"worker_extension_cls": "eagle3diag.capture.vllm.WorkerExtension"} if how == "extension" else {}),
    )
    if how == "extension":
        keep_truth(llm, work / "truth")
        llm.collective_rpc("eagle3diag_start", args=({"out": str(work / "live"), "target": target, **options},))
    # lengths differ, so that requests end while others run
    lengths = [40, 24, 32]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False) for n in lengths]
    answers = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params, use_tqdm=False)
    (work / "answers.json").write_text(json.dumps([list(a.outputs[0].token_ids) for a in answers]))
    counts = {m.name: m.value for m in llm.get_metrics() if m.name.startswith("vllm:spec_decode") and hasattr(m, "value")}
    (work / "counts.json").write_text(json.dumps(counts))
    if how == "extension":
        llm.collective_rpc("eagle3diag_stop")
    else:
        import time

        time.sleep(3)  # the plugin's thread writes on its own time, and leaving ends the engine


def keep_truth(llm: Any, folder: Path) -> None:
    """What the draft's fusion is called with, call by call, kept without the library."""
    from safetensors.torch import save_file

    folder.mkdir()
    draft = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.drafter.model
    original, calls = draft.combine_hidden_states, []

    def combine_hidden_states(rows: Any) -> Any:
        calls.append(rows)
        save_file({"rows": rows.clone()}, folder / f"{len(calls):05d}.safetensors")
        return original(rows)

    draft.combine_hidden_states = combine_hidden_states


if __name__ == "__main__":
    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    if sys.argv[1] == "extension":
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), json.loads(sys.argv[5]) if len(sys.argv) > 5 else {})
