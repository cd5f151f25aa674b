"""Hidden states out of a running model, as a dump: ``with capture(model, boundaries=[2, 15, 27]) as tape: ...``."""

from eagle3diag.capture.tape import Tape, capture

__all__ = ["Tape", "capture"]
