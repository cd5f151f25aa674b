"""Is this weight trained, fresh, dead or broken? Moments, spectra and distances to initialisations, without thresholds."""

from eagle3diag.weights.moments import Moments, Spread
from eagle3diag.weights.nulls import FromMoments, NullDistance, Structure, from_moments
from eagle3diag.weights.report import BlockWeights, TensorWeights, WeightReport, measure, weights
from eagle3diag.weights.spectrum import Spectrum, noise_band

__all__ = [
    "BlockWeights",
    "FromMoments",
    "Moments",
    "NullDistance",
    "Spectrum",
    "Spread",
    "Structure",
    "TensorWeights",
    "WeightReport",
    "from_moments",
    "measure",
    "noise_band",
    "weights",
]
