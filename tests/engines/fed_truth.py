"""Forward hooks for the contract tests: what a module was given or gave, file by file, with nothing of the library in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from safetensors.torch import save_file


def keep(config: Mapping[str, Any]) -> Callable[..., None]:
    """``what``: ``input``, or ``output`` (its first tensor, of the module without an fc: the target). ``folder``: where to."""
    folder, numbers = Path(config["folder"]), count()
    folder.mkdir(parents=True, exist_ok=True)

    def hook(module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if config["what"] == "output" and hasattr(module, "fc"):
            return
        tensor = inputs[0] if config["what"] == "input" else output[0] if isinstance(output, tuple) else output
        save_file({"rows": tensor.clone()}, folder / f"{next(numbers):05d}.safetensors")

    return hook
