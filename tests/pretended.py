"""A device that is not there: its tensors have their values on the CPU, say that they are elsewhere, and refuse what a real one refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

_MADE = {torch.empty, torch.zeros, torch.ones, torch.full, torch.arange, torch.tensor, torch.linspace, torch.randn}
_MOVED = {Tensor.to, Tensor.cuda, Tensor.cpu}
_INDEXED = ("aten.index.", "aten.index_put")
#: What they give, or its shape, depends on values: the program waits until the device has them.
_WAITED = ("aten._local_scalar_dense.", "aten.nonzero.", "aten.masked_select.", "aten.equal.", "aten.is_nonzero.", "aten._unique2")


class Device(TorchFunctionMode):
    """While it is entered, ``cuda`` (or another ``name``) is a device of this kind, in the thread that entered it.

    ``crossed`` counts tensors that came ``there`` and went ``back``, and how often the program had to ``wait`` for a value; ``most`` the
    values of the largest. What a real device refuses is an error here too: two devices in one operation, ``numpy()``, a dtype of ``lacks``.
    """

    def __init__(self, name: str = "cuda", lacks: tuple[torch.dtype, ...] = ()) -> None:
        super().__init__()
        self.device, self.lacks = torch.device(name, 0), lacks
        self.crossed: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def count(self, way: str, tensor: Tensor) -> None:
        self.crossed[way] += 1
        self.most[way] = max(self.most[way], tensor.numel())

    def made(self, tensor: Tensor) -> There:
        if tensor.dtype in self.lacks:
            raise TypeError(f"{self.device.type} does not support {tensor.dtype}")
        return There(tensor, self)

    def is_meant(self, device: object) -> bool:
        return (isinstance(device, str) or isinstance(device, torch.device)) and torch.device(device).type == self.device.type

    def __torch_function__(self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _MADE and self.is_meant(kwargs.get("device")):
            del kwargs["device"]
            return self.made(func(*args, **kwargs))
        if func in _MOVED:
            return self._moved(func, *args, **kwargs)
        if func is Tensor.tolist and isinstance(args[0], There):
            self.count("back", args[0])
            return args[0].bare.tolist()
        if func is Tensor.numpy and isinstance(args[0], There):
            raise TypeError(f"can't convert {self.device} device type tensor to numpy")
        return func(*args, **kwargs)

    def _moved(self, func: Callable[..., Any], tensor: Tensor, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        """``to``, ``cpu`` and ``cuda``, to another device, to another dtype, or both."""
        named = ["cpu" if func is Tensor.cpu else self.device if func is Tensor.cuda else device]
        named += [a for a in args if isinstance(a, (str, torch.device))]
        to = next((d for d in named if d is not None), tensor.device)
        rest = [a for a in args if not isinstance(a, (str, torch.device))]
        values = tensor.bare if isinstance(tensor, There) else tensor
        changed = values.to(*rest, **kwargs) if rest or kwargs else values
        if self.is_meant(to):
            if isinstance(tensor, There):
                return tensor if changed is values else self.made(changed)
            self.count("there", tensor)
            return self.made(changed.contiguous().clone())
        if torch.device(to).type != "cpu":
            elsewhere: Tensor = func(tensor, *args, device=device, **kwargs)
            return elsewhere
        if isinstance(tensor, There):
            self.count("back", tensor)
            return changed.clone()
        return changed


class There(Tensor):
    """A tensor of the device."""

    bare: Tensor
    of: Device

    @staticmethod
    def __new__(cls, values: Tensor, of: Device) -> There:
        size, stride, start = values.shape, values.stride(), values.storage_offset()
        made: There = Tensor._make_wrapper_subclass(cls, size, strides=stride, storage_offset=start, dtype=values.dtype)
        made.bare, made.of = values, of
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.of.device

    def __repr__(self) -> str:  # type: ignore[override]
        return f"There({self.bare!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Iterable[type], args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        name, flat = str(func), [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, Tensor)]
        there = [t for t in flat if isinstance(t, There)]
        here = [t for t in flat if not isinstance(t, There) and t.dim()]
        of = there[0].of
        if here and name.startswith("aten.copy_."):
            of.count("back" if here[0] is args[0] else "there", args[1])
        elif here and name.startswith(_INDEXED) and isinstance(args[0], There):
            of.count("there", here[0])
        elif here:
            raise RuntimeError(f"{name}: expected all tensors on one device, found one on {of.device} and one on cpu")
        picked = name.startswith(_INDEXED) and any(t.dtype in (torch.bool, torch.uint8) for t in there if t is not args[0])
        if picked or name.startswith(_WAITED):
            of.count("wait", flat[0])
        held = {id(t.bare): t for t in there}

        def bared(value: Any) -> Any:
            return value.bare if isinstance(value, There) else value

        def clad(value: Any) -> Any:
            if not isinstance(value, Tensor) or any(value is t for t in here):
                return value
            return held[id(value)] if id(value) in held else of.made(value)

        return tree_map(clad, func(*tree_map(bared, args), **tree_map(bared, kwargs or {})))
