"""Which fault explains the acceptance that is seen: every check that the evidence allows, weighed against replays."""

from eagle3diag.diagnose.result import Counterfactual, Diagnosis, Ranked, Stage, Suspect
from eagle3diag.diagnose.run import diagnose

__all__ = ["Counterfactual", "Diagnosis", "Ranked", "Stage", "Suspect", "diagnose"]
