"""Loads the checkpoints of a folder through a real vLLM's draft classes on CPU, and writes what happened as JSON.

    VLLM_ENABLE_V1_MULTIPROCESSING=0 python tools/loaders/vllm_load.py CASES OUT.json

``CASES/target`` is the target that the drafts are for.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import vllm
import watch
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model


class Loader:
    """Builds the draft of one folder the way a server's worker does."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.config: Any = None

    def build(self, folder: Path) -> torch.nn.Module:
        draft = {"method": "eagle3", "model": str(folder), "num_speculative_tokens": 2}
        arguments = EngineArgs(
            model=str(self.target),
            dtype="float32",
            enforce_eager=True,
            max_model_len=64,
            skip_tokenizer_init=True,
            speculative_config=draft,
        )
        self.config = arguments.create_engine_config()
        with set_current_vllm_config(self.config):
            start()
            return initialize_model(self.config, model_config=self.config.speculative_config.draft_model_config)  # type: ignore[no-any-return]

    def extras(self, model: torch.nn.Module) -> dict[str, Any]:
        """What the proposer asks of a draft after loading, and where the V1 runner finds aux layer ids."""
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        ids = GPUModelRunner._get_eagle3_aux_layers_from_config(self.config_holder)
        return {
            "own_embedding": bool(getattr(model, "has_own_embed_tokens", False)),
            "own_head": bool(getattr(model, "has_own_lm_head", False)),
            "v1_ids": None if ids is None else list(ids),
            "v2_ids": v2_ids(self.config.speculative_config),
        }

    @property
    def config_holder(self) -> Any:
        """As much of a runner as the look-up of ids touches."""
        return type("Runner", (), {"speculative_config": self.config.speculative_config})()


def v2_ids(config: Any) -> list[int] | None:
    """The V2 runner's look-up, where this version has one."""
    try:
        from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config
    except ImportError:
        return None
    found = get_eagle3_aux_layers_from_config(config)
    return None if found is None else list(found)


def start() -> None:
    """One process is the whole group; made once."""
    if torch.distributed.is_initialized():
        return
    file = tempfile.mktemp()
    init_distributed_environment(world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=f"file://{file}")
    initialize_model_parallel()


if __name__ == "__main__":
    root, out = Path(sys.argv[1]), Path(sys.argv[2])
    loader = Loader(root / "target")
    watch.write(out, {"version": vllm.__version__, "cases": watch.observe_all(root, loader.build, loader.extras)})
