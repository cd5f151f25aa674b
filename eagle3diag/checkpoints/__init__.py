"""Drafts and targets on disk, read lazily into one normalised form."""

from eagle3diag.checkpoints.config import DraftConfig
from eagle3diag.checkpoints.draft import Draft, DraftSource, open_draft
from eagle3diag.checkpoints.target import Target, TargetSource, open_target
from eagle3diag.checkpoints.tensors import TensorFiles, TensorInfo
from eagle3diag.checkpoints.vocabulary import VocabularyMap

__all__ = [
    "Draft",
    "DraftConfig",
    "DraftSource",
    "Target",
    "TargetSource",
    "TensorFiles",
    "TensorInfo",
    "VocabularyMap",
    "open_draft",
    "open_target",
]
