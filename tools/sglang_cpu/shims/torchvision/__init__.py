"""Lets PyPI's torchvision, a CUDA build, be imported beside a CPU torch: declares the operators its own library cannot and steps aside."""

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import torch

_here = Path(__file__).resolve().parents[1]

# torchvision registers shape functions for these at import, and that needs the operators to exist. Nothing here calls them.
_operators = torch.library.Library("torchvision", "FRAGMENT")
for _schema in (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
):
    _operators.define(_schema)
torch._torchvision_operators = _operators  # type: ignore[attr-defined]  # declarations live as long as their Library object

_spec = PathFinder.find_spec("torchvision", [entry for entry in sys.path if Path(entry or ".").resolve() != _here])
if _spec is None or _spec.loader is None:
    raise ModuleNotFoundError("torchvision is not installed")
_real = importlib.util.module_from_spec(_spec)
sys.modules["torchvision"] = _real  # the import statement returns what it finds here once this module has run
_spec.loader.exec_module(_real)
