"""The static check of a draft: what a named engine version would load of it, and whether its parts fit, without running anything."""

from eagle3diag.audit.checks import MapCheck, ShapeCheck
from eagle3diag.audit.loads import TensorLoad
from eagle3diag.audit.report import Audit, audit

__all__ = ["Audit", "MapCheck", "ShapeCheck", "TensorLoad", "audit"]
