"""Hidden states of finished answers out of the real vLLM on CPU: its own ``extract_hidden_states`` over prompt and answer.

    PYTHONPATH=tests/fixtures/dumps .venv-vllm/bin/python tools/samples/vllm_states.py --target DIR --answers answers.jsonl --out DIR

``--skip`` and ``--limit`` choose answers. The dump has the aux states 2, 15, 27 and the last block's.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--limit", type=int, default=24)
    args = parser.parse_args()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_PLUGINS": ""}
    from vllm import LLM, SamplingParams
    from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import load_hidden_states

    rows = [json.loads(line) for line in args.answers.open()][args.skip : args.skip + args.limit]
    layers = json.loads(Path(args.target, "config.json").read_text())["num_hidden_layers"]
    llm = LLM(
        args.target, skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16", max_model_len=1024, max_num_seqs=4, enable_prefix_caching=False,
        speculative_config={"method": "extract_hidden_states", "num_speculative_tokens": 1,
                            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 15, 27, layers]}}},
        kv_transfer_config={"kv_connector": "OnCPU", "kv_connector_module_path": "vllm_connector", "kv_role": "kv_producer",
                            "kv_connector_extra_config": {"shared_storage_path": str(args.out)}},
    )  # fmt: skip
    asked = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    made = llm.generate([{"prompt_token_ids": r["prompt_ids"] + r["output_ids"]} for r in rows], asked)
    llm.generate([{"prompt_token_ids": [1, 2]}], asked)  # files are written in the step that follows the end of a request
    for one in made:
        load_hidden_states(one.kv_transfer_params["hidden_states_path"])  # waits for the lock
    for lock in args.out.glob("*.lock"):
        lock.unlink()


if __name__ == "__main__":
    main()
