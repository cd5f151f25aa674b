"""One ``.bin``/``.pt`` file, read by torch's restricted unpickler only: a file that needs more is refused, never run."""

from __future__ import annotations

import io
import pickle
import pickletools
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eagle3diag.errors import UnreadableFile, UnsafeFile

#: Where trainers put the weights when the file holds more than them (SpecForge's ``training_state.pt`` has ``draft_state_dict``).
_NESTED = ("draft_state_dict", "model_state_dict", "state_dict", "module", "model")
_INSTEAD = "save the weights as safetensors where you trust the file: safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"
#: A tensor may say that it is larger than its file (a repeated row); beyond this it was made to exhaust memory.
MAX_REPEATED = 1 << 30
#: Enough for the pickle in front of the tensors' bytes.
_SCANNED = 1 << 24
_AGAIN = "copy or download the file again"


class PickledFile:
    """The tensors of one file. ``entries``: name -> (shape, dtype). Mapped lazily when the file is a zip (torch >= 1.6 writes those)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors = _state_dict(path, load(path))
        for name, tensor in self._tensors.items():
            problem = unusual(tensor)
            if problem:
                raise UnreadableFile(f"tensor {name!r:.100} {problem}", where=path, hint="save plain, contiguous tensors")
        self.entries = {n: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in self._tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        """One tensor; its pages are read from disk when they are touched."""
        return self._tensors[name]


def load(path: Path, data: bytes | None = None) -> Any:
    """What ``path`` holds: tensors and plain containers only. ``data``: its bytes, where they had to be unpacked first.

    Raises
    ------
    UnsafeFile: the pickle names a class or function that torch's ``weights_only`` unpickler does not allow.
    UnreadableFile: truncated, corrupt, or not written by ``torch.save``.
    """
    try:
        with path.open("rb") if data is None else io.BytesIO(data) as file:
            zipped = file.read(4) == b"PK\x03\x04"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of what is turned into an error below
            if data is not None:
                return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        if _wants_code(path, str(error), zipped, data):
            raise UnsafeFile(f"reading it would run code: {_reason(error)}", where=path, hint=_INSTEAD) from error
        raise UnreadableFile(f"the pickle in it is damaged: {_reason(error)}", where=path, hint=_AGAIN) from error
    except Exception as error:  # a damaged pickle or zip ends in whatever the unpickler trips over first: KeyError, EOFError, OSError...
        if "TorchScript" in str(error):
            raise UnsafeFile("is a TorchScript archive, which carries code", where=path, hint=_INSTEAD) from error
        reason = f"{type(error).__name__}: {_reason(error)}"
        raise UnreadableFile(f"is truncated, corrupt, or not written by torch.save ({reason})", where=path, hint=_AGAIN) from error


def unusual(tensor: torch.Tensor) -> str | None:
    """How a tensor is not what it seems: without data, in another layout, or larger than what the file holds of it; None for a plain one."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type != "cpu":
        return "is not a plain tensor"
    size, held = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
    return f"says that it is {size:,} bytes, of which the file holds {held:,}" if size > max(held, MAX_REPEATED) else None


def _wants_code(path: Path, message: str, zipped: bool, data: bytes | None) -> bool:
    """Did the unpickler stop at a class or function, or at damage? Only looked at, never run."""
    if zipped:
        return any(word in message for word in ("GLOBAL", "global", "blocked", "allowlist", "allowed"))
    try:
        with path.open("rb") if data is None else io.BytesIO(data) as file:
            head = io.BytesIO(file.read(_SCANNED))  # from memory: a damaged length cannot ask for more than is there
        return any(opcode.name in ("GLOBAL", "STACK_GLOBAL", "INST", "REDUCE") for opcode, _, _ in pickletools.genops(head))
    except (ValueError, IndexError, EOFError, OSError, UnicodeError):
        return False


def _reason(error: BaseException) -> str:
    """The line of torch's long message that names the thing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "GLOBAL" in line or "Unsupported" in line]
    return (telling or lines or [type(error).__name__])[0][:300]


def _state_dict(path: Path, value: Any) -> dict[str, torch.Tensor]:
    for key in (None, *_NESTED):
        inner = value if key is None else value.get(key) if isinstance(value, Mapping) else None
        if isinstance(inner, Mapping):
            tensors = {str(n): t for n, t in inner.items() if isinstance(t, torch.Tensor)}
            if tensors:
                return tensors
    hint = "expected a state dict: tensor names -> tensors"
    raise UnreadableFile(f"holds a {type(value).__name__} without tensors", where=path, hint=hint)


__all__ = ["PickledFile", "load", "unusual"]
