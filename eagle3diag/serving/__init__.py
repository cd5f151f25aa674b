"""What a server says of itself: its launch command, its log, and what was accepted."""

from eagle3diag.serving.acceptance import Acceptance, read_acceptance
from eagle3diag.serving.launch import Launch, parse_launch, read_launch
from eagle3diag.serving.lines import Window
from eagle3diag.serving.log import LogSeries, Note, read_log
from eagle3diag.serving.rates import RATES, length_of, rate_of, strict_from_biased

__all__ = [
    "RATES",
    "Acceptance",
    "Launch",
    "LogSeries",
    "Note",
    "Window",
    "length_of",
    "parse_launch",
    "rate_of",
    "read_acceptance",
    "read_launch",
    "read_log",
    "strict_from_biased",
]
