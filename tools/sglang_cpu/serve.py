"""One run of the real SGLang engine on CPU over token-id prompts, greedy, with or without a draft; prints what was accepted as JSON.

    PYTHONPATH=tools/sglang_cpu/shims:. OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python tools/sglang_cpu/serve.py \
        --target DIR --draft DIR --prompts held.jsonl --limit 100 --max-new 96

``prompts``: one ``{"prompt_ids": [...]}`` a line. ``--hooks`` is a JSON list as SGLang's ``--forward-hooks`` takes it. The result goes
to standard output, or to ``--out``; the engine's log goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

# The kernels of the shims folder run on SGLang's CPU engine; compiling graphs would cost half a minute and gain nothing here.
ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}
#: The recorder writes on a thread of its own, and shutting the engine down kills it.
FAREWELL_SECONDS = 5


@dataclass(frozen=True)
class Chain:
    """How the engine drafts: ``topk`` 1 is a chain, and then ``num_draft_tokens = steps + 1``."""

    algorithm: str = "EAGLE3"
    steps: int = 4
    topk: int = 1
    num_draft_tokens: int = 5


def engine_options(target: str, draft: str | None, chain: Chain, hooks: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Arguments of ``sglang.Engine``: small, eager, no prefix cache, so that every token passes through the hooks once."""
    options: dict[str, Any] = {
        "model_path": target,
        "device": "cpu",
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "context_length": 512,
        "max_total_tokens": 4096,
        "max_running_requests": 8,
        "mem_fraction_static": 0.9,  # the tokens above are what is allocated; memory that others take meanwhile counts against this
        "random_seed": 0,
        "disable_radix_cache": True,
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "log_level": "info",
        "decode_log_interval": 10,
    }
    if draft:
        options |= {
            "speculative_algorithm": chain.algorithm,
            "speculative_draft_model_path": draft,
            "speculative_num_steps": chain.steps,
            "speculative_eagle_topk": chain.topk,
            "speculative_num_draft_tokens": chain.num_draft_tokens,
        }
    if hooks:
        options["forward_hooks"] = hooks
    return options


def launch_command(options: dict[str, Any]) -> str:
    """The ``python -m sglang.launch_server`` line that starts a server with the same options (hooks left out)."""
    words = ["python -m sglang.launch_server"]
    for name, value in options.items():
        if name != "forward_hooks" and value is not False:
            words.append(f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}"))
    return " \\\n  ".join(words) + "\n"


def run(options: dict[str, Any], prompts: Sequence[Sequence[int]], max_new: int, farewell: bool = False) -> dict[str, Any]:
    """Start an engine, generate greedily for all prompts, stop it.

    ``farewell`` sends one more short request at the end: a recorder learns that a request has ended when a later round runs without it.
    Returns ``{"engine", "engine_version", "seconds", "outputs": [{"prompt_ids", "output_ids", "meta_info"}]}``.
    """
    import sglang

    engine = sglang.Engine(**options)
    try:
        started = perf_counter()
        outputs = engine.generate(input_ids=[list(ids) for ids in prompts], sampling_params={"max_new_tokens": max_new, "temperature": 0})
        seconds = perf_counter() - started
        if farewell:
            engine.generate(input_ids=[list(prompts[0])[:4]], sampling_params={"max_new_tokens": 2, "temperature": 0, "ignore_eos": True})
            sleep(FAREWELL_SECONDS)
    finally:
        engine.shutdown()
    return {
        "engine": "sglang",
        "engine_version": sglang.__version__,
        "seconds": round(seconds, 1),
        "outputs": [
            {"prompt_ids": list(prompt), "output_ids": list(output["output_ids"]), "meta_info": output["meta_info"]}
            for prompt, output in zip(prompts, outputs, strict=True)
        ],
    }


def acceptance(result: dict[str, Any], chain: Chain) -> dict[str, Any]:
    """What was accepted, from the engine's own counts per request (``meta_info``), summed.

    ``histogram[k]``: verify rounds that accepted ``k`` drafts; ``p[i]``: share of rounds that accepted at least ``i + 1``.
    """
    histogram = [0] * (chain.steps + 1)
    per_request = []
    for output in result["outputs"]:
        meta = output["meta_info"]
        for accepted, rounds in enumerate(meta.get("spec_correct_drafts_histogram", [])):
            histogram[accepted] += rounds
        counts = {"rounds": meta.get("spec_verify_ct", 0), "accepted": meta.get("spec_num_correct_drafts", 0)}
        per_request.append({"tokens": len(output["output_ids"]), **counts})
    rounds, accepted = (sum(request[name] for request in per_request) for name in ("rounds", "accepted"))
    return {
        "engine": result["engine"],
        "engine_version": result["engine_version"],
        **asdict(chain),
        "temperature": 0,
        "rounds": rounds,
        "accepted": accepted,
        "accept_length": 1 + accepted / rounds if rounds else None,
        "accept_rate": accepted / (rounds * chain.steps) if rounds else None,
        "histogram": histogram,
        "p": [sum(histogram[i:]) / rounds for i in range(1, chain.steps + 1)] if rounds else [],
        "requests": per_request,
        "seconds": result["seconds"],
    }


def read_prompts(path: Path, limit: int) -> list[list[int]]:
    """The ``prompt_ids`` of the first ``limit`` lines."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["prompt_ids"] for line, _ in zip(lines, range(limit), strict=False)]


def arguments(description: str | None = __doc__) -> argparse.ArgumentParser:
    """The options that all scripts of this folder share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="folder of the target")
    parser.add_argument("--draft", help="folder of the draft; without it the target runs alone")
    parser.add_argument("--prompts", required=True, type=Path)
    parser.add_argument("--limit", type=int, default=8, help="how many prompts")
    parser.add_argument("--max-new", type=int, default=48, help="new tokens per prompt")
    return parser


def main() -> None:
    parser = arguments()
    parser.add_argument("--algorithm", default="EAGLE3", choices=["EAGLE", "EAGLE3"])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--topk", type=int, default=1)
    parser.add_argument("--slots", type=int, help="default: steps + 1, as a chain has it")
    parser.add_argument("--hooks", type=Path, help="JSON file: SGLang's --forward-hooks list")
    parser.add_argument("--out", type=Path, help="write everything here, outputs included; default: print the acceptance only")
    given = parser.parse_args()

    chain = Chain(given.algorithm, given.steps, given.topk, given.slots or given.steps + 1)
    hooks = json.loads(given.hooks.read_text()) if given.hooks else None
    options = engine_options(given.target, given.draft, chain, hooks)
    result = run(options, read_prompts(given.prompts, given.limit), given.max_new, farewell=bool(hooks))
    summary = acceptance(result, chain) if given.draft else {}
    if given.out:
        given.out.write_text(json.dumps({"acceptance": summary, **result}), encoding="utf-8")
    else:
        sys.stdout.write(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    main()
