"""Is this weight trained, fresh, dead or broken, on what, and how far? Measurements without thresholds."""

from eagle3diag.weights.change import Against, TensorChange
from eagle3diag.weights.grid import Grid
from eagle3diag.weights.moments import Moments, NormSpread
from eagle3diag.weights.nulls import NullDistance, Structure
from eagle3diag.weights.origin import Origin, Overlap
from eagle3diag.weights.printed import FromMoments, from_moments
from eagle3diag.weights.reading import BlockReading, FcReading, Feeding
from eagle3diag.weights.report import WeightReport, weights
from eagle3diag.weights.spectrum import Spectrum, noise_band
from eagle3diag.weights.tensor import BlockWeights, TensorWeights, measure

__all__ = [
    "Against",
    "BlockReading",
    "BlockWeights",
    "FcReading",
    "Feeding",
    "FromMoments",
    "Grid",
    "Moments",
    "NormSpread",
    "NullDistance",
    "Origin",
    "Overlap",
    "Spectrum",
    "Structure",
    "TensorChange",
    "TensorWeights",
    "WeightReport",
    "from_moments",
    "measure",
    "noise_band",
    "weights",
]
