"""One run of the real SGLang engine on CPU: what the draft was fed (the recorder), and what the target was asked to verify (a hook here).

    PYTHONPATH=tools/sglang_cpu/shims:tools/sglang_cpu:tests/engines:. python tests/engines/sglang_rounds.py \
        --target DIR --draft DIR --prompts FILE --steps 4 --topk 1 --slots 5 --out FOLDER

``FOLDER`` then holds the dump ``live``, ``verified.jsonl`` (one line a forward) and ``result.json`` (the engine's own counts).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def overhear(config: Mapping[str, Any]) -> Callable[[Any, tuple[Any, ...], Any], None]:
    """Hook factory: writes down every prompt's arrival and every verification of the target (the draft, which has an ``fc``, is left out)."""

    def hook(module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ids, positions, batch = inputs[:3]
        mode = batch.forward_mode.name
        if not hasattr(module, "fc") and mode in ("EXTEND", "TARGET_VERIFY"):
            row = {"mode": mode, "rids": list(batch.rids), "ids": ids.tolist(), "positions": positions.tolist()}
            with Path(str(config["out"])).open("a") as file:
                file.write(json.dumps(row) + "\n")

    return hook


def main() -> None:
    import serve

    from eagle3diag.capture.sglang import hooks

    parser = serve.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--topk", type=int, default=1)
    parser.add_argument("--slots", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()

    given.out.mkdir(parents=True, exist_ok=True)
    prompts = serve.read_prompts(given.prompts, given.limit)
    chain = serve.Chain("EAGLE3", given.steps, given.topk, given.slots)
    wanted = hooks(str(given.out / "live"), target=given.target, limit=len(prompts))
    config = {"out": str(given.out / "verified.jsonl")}
    wanted.append({"name": "verified", "target_modules": ["model"], "hook_factory": "sglang_rounds:overhear", "config": config})
    options = serve.engine_options(given.target, given.draft, chain, wanted)
    options |= {"dtype": given.dtype, "watchdog_timeout": 3600}  # a busy machine is slow, not stuck
    result = serve.run(options, prompts, given.max_new, farewell=True)
    (given.out / "result.json").write_text(json.dumps({"acceptance": serve.acceptance(result, chain), **result}))


if __name__ == "__main__":
    import serve

    os.environ.update({name: os.environ.get(name, value) for name, value in serve.ENVIRONMENT.items()})
    main()
