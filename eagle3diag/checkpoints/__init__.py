"""Drafts and targets on disk, read lazily into one normalised form."""

from eagle3diag.checkpoints.config import DraftConfig
from eagle3diag.checkpoints.draft import LAYER_PARAMETERS, Draft, open_draft
from eagle3diag.checkpoints.target import Target, open_target
from eagle3diag.checkpoints.tensors import TensorFiles, TensorInfo
from eagle3diag.checkpoints.vocabulary import VocabularyMap

__all__ = [
    "LAYER_PARAMETERS",
    "Draft",
    "DraftConfig",
    "Target",
    "TensorFiles",
    "TensorInfo",
    "VocabularyMap",
    "open_draft",
    "open_target",
]
