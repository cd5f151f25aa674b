"""Stands in for the kernel packages that model files import and that building and loading a model never calls."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

#: Packages of kernels without a build for CPU. Those that are installed are left alone.
KERNELS = ("sgl_kernel", "vllm", "flashinfer", "deep_gemm", "deep_ep", "cuda", "pynvml", "triton_kernels")


class Anything(ModuleType):
    """A module in which every name is found: a class that can be called, subclassed, subscripted, and compared with numbers."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Stand,), {"__module__": self.__name__})


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Stand,), {})

    def __call__(cls, *given: Any, **options: Any) -> Any:
        if cls.__module__ == __name__ or _Stand in cls.__bases__:
            return given[0] if len(given) == 1 and callable(given[0]) and not options else object.__new__(cls)
        return super().__call__(*given, **options)


class _Stand(metaclass=_Meta):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Stand,), {})

    def __call__(self, *given: Any, **options: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) and not options else self

    def __class_getitem__(cls, item: Any) -> Any:
        return cls


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name.split(".")[0] in _missing:
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = "99.0"  # type: ignore[attr-defined]


_missing: set[str] = set()


def install() -> None:
    """Make the missing ones of :data:`KERNELS` importable, and torchvision beside a CPU torch."""
    shim = Path(__file__).resolve().parents[1] / "sglang_cpu/shims/torchvision/__init__.py"
    spec = importlib.util.spec_from_file_location("torchvision", shim)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    _old_names()
    _missing.update(name for name in KERNELS if name not in sys.modules and importlib.util.find_spec(name) is None)
    sys.meta_path.append(_Finder())


def _old_names() -> None:
    """Names that SGLang up to 0.4.9 takes from Triton and Torch and that newer ones have no more."""
    import torch
    from triton.runtime import cache

    if not hasattr(torch._C._cpu, "_is_amx_tile_supported"):
        torch._C._cpu._is_amx_tile_supported = lambda: False

    for name in ("default_cache_dir", "default_dump_dir", "default_override_dir"):
        if not hasattr(cache, name):
            setattr(cache, name, lambda: "")
