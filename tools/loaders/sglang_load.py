"""Loads the checkpoints of a folder through a real SGLang's draft classes, without its kernels, and writes what happened as JSON.

    python tools/loaders/sglang_load.py CASES OUT.json

Every version from 0.4.5 on is meant; what stands in for missing kernel packages is in :mod:`absent`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import absent
import torch
import watch

absent.install()

import sglang  # noqa: E402
from sglang.srt import distributed  # noqa: E402


def start(target: Path) -> None:
    """Set up the globals that model classes ask for: server arguments, and a group of one process."""
    arguments = server_arguments(target)
    try:
        from sglang.srt import runtime_context
        from sglang.srt.runtime_context import SpawnRanks
    except ImportError:
        runtime_context = None
    if runtime_context is not None and hasattr(runtime_context, "publish"):
        runtime_context.publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0))
    else:
        publish_old(arguments)
    file = tempfile.mktemp()
    distributed.init_distributed_environment(world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=f"file://{file}")
    distributed.initialize_model_parallel()
    try:
        from sglang.srt.layers import dp_attention

        if hasattr(dp_attention, "initialize_dp_attention"):
            watch.attempt(lambda: dp_attention.initialize_dp_attention(arguments, SimpleNamespace(hidden_size=32, dtype=torch.float32)))
    except ImportError:
        pass


def own_norm() -> None:
    """Without CUDA, SGLang up to 0.4.9 takes vLLM's RMSNorm in place of its own, which lies beside it in the same file."""
    from sglang.srt.layers import layernorm

    if layernorm.RMSNorm.__module__ != layernorm.__name__:
        kinds = [torch.nn.Module]
        for kind in kinds:
            kinds += kind.__subclasses__()
        layernorm.RMSNorm = next(k for k in kinds if (k.__module__, k.__name__) == (layernorm.__name__, "RMSNorm"))


def server_arguments(target: Path) -> Any:
    """The real ``ServerArgs``, or a namespace of what model classes ask for where it cannot be made without a GPU."""
    from sglang.srt.server_args import ServerArgs

    made: list[Any] = []
    raised = watch.attempt(lambda: made.append(ServerArgs(model_path=str(target), device="cpu", skip_tokenizer_init=True)))
    if raised is not None:
        print(f"ServerArgs: {raised}", file=sys.stderr)
        fields = {name: field.default for name, field in ServerArgs.__dataclass_fields__.items()}
        made.append(SimpleNamespace(**fields | {"model_path": str(target), "device": "cpu"}))
    return made[0]


def publish_old(arguments: Any) -> None:
    """0.4.5 to 0.5.15: the arguments are a global of ``server_args``, ``managers.schedule_batch``, or both."""
    from sglang.srt import server_args
    from sglang.srt.managers import schedule_batch

    for place, name in (
        (server_args, "set_global_server_args_for_scheduler"),
        (server_args, "set_global_server_args"),
    ):
        if hasattr(place, name):
            getattr(place, name)(arguments)
    if hasattr(schedule_batch, "global_server_args_dict"):
        schedule_batch.global_server_args_dict.update({k: v for k, v in vars(arguments).items()})


def build(folder: Path) -> torch.nn.Module:
    """The class that the config's architecture names, as the engine's registry resolves it."""
    from sglang.srt.models.registry import ModelRegistry

    config = read_config()(str(folder), trust_remote_code=False)
    torch.set_default_dtype(torch.float32)
    names = {"LlamaForCausalLMEagle3": "llama_eagle3", "Eagle3DeepseekV2ForCausalLM": "kimi_k25_eagle3"}
    name = config.architectures[0]
    if name in names:  # the registry imports every model file, which takes a minute and fails where a kernel is missing
        module = __import__(f"sglang.srt.models.{names[name]}", fromlist=[name])
        return getattr(module, name)(config)  # type: ignore[no-any-return]
    found, _ = ModelRegistry.resolve_model_cls([name])
    return found(config)  # type: ignore[no-any-return]


def read_config() -> Any:
    """The engine's own ``get_config``, which knows model types that Transformers does not; it moved in 0.5.4."""
    try:
        from sglang.srt.utils.hf_transformers_utils import get_config
    except ImportError:
        from sglang.srt.hf_transformers_utils import get_config
    return get_config


def extras(model: torch.nn.Module) -> dict[str, Any]:
    """What the worker asks of a draft after loading."""
    hot = getattr(model, "hot_token_id", None)
    return {
        "hot_token_id": None if hot is None else (hot - torch.arange(len(hot))).tolist(),
        "load_lm_head_from_target": getattr(model, "load_lm_head_from_target", False),
    }


class Inner:
    """The model inside a target class, as far as setting the layers to capture touches it."""

    def __init__(self, blocks: int) -> None:
        self.layers = [SimpleNamespace() for _ in range(blocks)]
        self.layers_to_capture: list[int] = []

    def set_eagle3_layers_to_capture(self, layers: list[int]) -> None:
        self.layers_to_capture = list(layers)


def captured(module: str, name: str, blocks: int, ids: list[int] | None) -> list[int] | None:
    """What the target class ``name`` sets for configured ``ids``, sorted; None where it has no such code or cannot be imported."""
    try:
        target = getattr(importlib.import_module(f"sglang.srt.models.{module}"), name)
        method = target.set_eagle3_layers_to_capture
    except (ImportError, AttributeError):
        return None
    sizes = SimpleNamespace(num_hidden_layers=blocks)
    inner = Inner(blocks)
    stub = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True),
        config=SimpleNamespace(num_hidden_layers=blocks, text_config=sizes),
        model=inner,
        capture_aux_hidden_states=False,
    )
    if "layer_ids" in inspect.signature(method).parameters:
        method(stub, ids)
    else:  # up to 0.4.8
        method(stub)
    return sorted(inner.layers_to_capture)


if __name__ == "__main__":
    root, out = Path(sys.argv[1]), Path(sys.argv[2])
    start(root / "target")
    own_norm()
    asked = json.loads((root / "targets.json").read_text())
    layers = [captured(*question) for question in asked]
    watch.write(out, {"version": sglang.__version__, "cases": watch.observe_all(root, build, extras), "captures": layers})
