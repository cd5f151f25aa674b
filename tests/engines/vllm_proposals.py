"""One run of the real vLLM engine on CPU with the proposer overheard: what it was fed, what it drafted, and the engine's own counts.

    VLLM_ENABLE_V1_MULTIPROCESSING=0 python tests/engines/vllm_proposals.py --target DIR --draft DIR --prompts FILE --k 4 --out FOLDER

``FOLDER`` then holds the dump ``live`` (every committed token with the features that the draft was fed) and ``proposals.json``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass
class Heard:
    """One request: tokens and features by position, and each proposal as (row that it was drafted from, drafted tokens)."""

    tokens: dict[int, int] = field(default_factory=dict)
    features: dict[int, torch.Tensor] = field(default_factory=dict)
    proposals: list[tuple[int, list[int]]] = field(default_factory=list)


def overhear(runner: Any, heard: dict[str, Heard]) -> None:
    """Wrap the drafter's ``propose``: vLLM hands it the rows of all requests one after another, rejected ones included."""
    drafter, propose = runner.drafter, runner.drafter.propose

    def wrapped(*args: Any, **kwargs: Any) -> torch.Tensor:
        names = ("num_speculative_tokens", "target_token_ids", "target_positions", "target_hidden_states", "next_token_ids")
        names += ("token_indices_to_sample", "common_attn_metadata")
        given = dict(zip(names, args, strict=False)) | kwargs
        ids, positions = given["target_token_ids"].tolist(), given["target_positions"].tolist()
        features, following = given["target_hidden_states"].clone(), given["next_token_ids"].tolist()
        bounds, last = given["common_attn_metadata"].query_start_loc.tolist(), given["token_indices_to_sample"]
        ends = [b - 1 for b in bounds[1:]] if last is None else last.tolist()
        drafted = propose(*args, **kwargs)
        for i, name in enumerate(runner.input_batch.req_ids):
            request = heard.setdefault(name, Heard())
            for row in range(bounds[i], ends[i] + 1):
                request.tokens[positions[row]], request.features[positions[row]] = ids[row], features[row]
            at = positions[ends[i]]
            request.tokens[at + 1] = following[i]
            request.proposals.append((at, drafted[i].tolist()))
        return drafted

    drafter.propose = wrapped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--target", "--draft", "--prompts", "--out"):
        parser.add_argument(name, required=True)
    parser.add_argument("--k", type=int, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-new", type=int, default=32)
    given = parser.parse_args()

    import vllm

    from eagle3diag.checkpoints import open_draft, open_target
    from eagle3diag.dumps import DumpWriter, TargetIdentity

    draft = open_draft(given.draft)
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    # The ids of the config are SGLang's; the same boundaries as vLLM writes them lie at the top level.
    served = draft.replace(config={"eagle_aux_hidden_state_layer_ids": list(draft.config.aux_boundaries or ())}).save(out / "draft")
    prompts = [json.loads(line)["prompt_ids"] for line in Path(given.prompts).read_text().splitlines()]
    llm = vllm.LLM(
        given.target, skip_tokenizer_init=True, enforce_eager=True, dtype=given.dtype, max_model_len=512, max_num_seqs=8,
        max_num_batched_tokens=4096, disable_log_stats=False, enable_prefix_caching=False, seed=0,
        speculative_config={"method": "eagle3", "model": str(served), "num_speculative_tokens": given.k},
    )  # fmt: skip
    heard: dict[str, Heard] = {}
    overhear(llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner, heard)
    sampling = vllm.SamplingParams(temperature=0, max_tokens=given.max_new, detokenize=False, ignore_eos=True)
    answers = llm.generate([{"prompt_token_ids": p} for p in prompts], sampling, use_tqdm=False)
    metrics = {}
    for metric in llm.get_metrics():
        if metric.name.startswith("vllm:spec_decode"):
            metrics[metric.name] = metric.values if hasattr(metric, "values") else metric.value

    target = open_target(given.target)
    identity = TargetIdentity(target.name, target.config_hash, given.dtype, target.n_layers, target.hidden_size)
    requests = []
    with DumpWriter(out / "live", "live", identity, "vllm", vllm.__version__, boundaries=draft.config.aux_boundaries or ()) as writer:
        for i, (request, answer) in enumerate(zip(heard.values(), answers, strict=True)):
            n = max(request.tokens) + 1
            ids, width = [request.tokens[p] for p in range(n)], next(iter(request.features.values())).shape[-1]
            # The last token was sampled and never run: it has no features.
            features = torch.stack([request.features.get(p, torch.zeros(width)) for p in range(n)])
            whole = [*answer.prompt_token_ids, *answer.outputs[0].token_ids]
            assert ids[: len(whole)] == whole, f"request {i} was not put together right"
            writer.add(name=f"{i:04d}", input_ids=torch.tensor(ids), features=features, prompt_length=len(answer.prompt_token_ids))
            requests.append({"prompt_length": len(answer.prompt_token_ids), "proposals": request.proposals})
    (out / "proposals.json").write_text(
        json.dumps({"k": given.k, "dtype": given.dtype, "version": vllm.__version__, "metrics": metrics, "requests": requests})
    )


if __name__ == "__main__":
    main()
