"""What a server says of itself: its launch command, its log, and what was accepted."""

from eagle3diag.serving.acceptance import Acceptance, read_acceptance, strict_from_biased
from eagle3diag.serving.launch import Launch, parse_launch, read_launch
from eagle3diag.serving.log import LogLine, LogSeries, read_log

__all__ = [
    "Acceptance",
    "Launch",
    "LogLine",
    "LogSeries",
    "parse_launch",
    "read_acceptance",
    "read_launch",
    "read_log",
    "strict_from_biased",
]
