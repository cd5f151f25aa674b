"""The numbers of a comparison: cosines, norms, channel statistics and quantiles of rows of hidden states. Tensors in, tensors out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Quantiles:
    """Low quantiles, median and mean of a per-token value; NaN where no token had one."""

    p1: float
    p5: float
    median: float
    mean: float

    @classmethod
    def of(cls, values: Tensor) -> Quantiles:
        """Of a 1-D tensor; values that are not finite are left out. Quantiles interpolate linearly, as numpy's do.

        >>> Quantiles.of(torch.tensor([0.0, 1.0, 2.0, float("nan")]))
        Quantiles(p1=0.02, p5=0.1, median=1.0, mean=1.0)
        """
        ordered = _ordered(values)
        p1, p5, middle = (_quantile(ordered, q) for q in (0.01, 0.05, 0.5))
        return cls(p1=p1, p5=p5, median=middle, mean=float(ordered.mean()) if len(ordered) else float("nan"))


def median(values: Tensor) -> float:
    """Median of the finite values (the mean of the two middle ones when their number is even); NaN when there are none."""
    return quantile(values, 0.5)


def quantile(values: Tensor, q: float) -> float:
    """The quantile ``q`` of the finite values, interpolated linearly; NaN when there are none."""
    return _quantile(_ordered(values), q)


def rows_cosine(x: Tensor, y: Tensor) -> Tensor:
    """Cosine of each row of ``x`` [T, W] with the same row of ``y``; NaN where either row is zero or not finite. Float32, [T].

    Each row is first divided by its largest magnitude, so neither huge nor tiny rows over- or underflow when squared.
    """
    x, y = _unit_scale(x), _unit_scale(y)
    value = (x * y).sum(-1) / (x.square().sum(-1).sqrt() * y.square().sum(-1).sqrt())
    return value.clamp(-1.0, 1.0)


def cosine_matrix(xs: Tensor, ys: Tensor) -> Tensor:
    """Cosine of every block of ``xs`` [T, n, H] with every block of ``ys`` [T, m, H], row by row: [T, n, m]; NaN as above."""
    xs, ys = _unit_scale(xs), _unit_scale(ys)
    xs = xs / xs.square().sum(-1, keepdim=True).sqrt()
    ys = ys / ys.square().sum(-1, keepdim=True).sqrt()
    return torch.bmm(xs, ys.transpose(1, 2)).clamp(-1.0, 1.0)


def rows_largest(x: Tensor) -> Tensor:
    """Largest magnitude of each row, float32 [T]: 0 for a row of zeros, not finite when any value is not. One pass says both."""
    return x.float().abs().amax(-1)


def rows_norm(x: Tensor) -> Tensor:
    """Euclidean norm of each row [T, W], float64 [T]; scaled by the largest magnitude first, so that no finite row overflows."""
    largest = rows_largest(x)
    scaled = x.float() / torch.where(largest > 0, largest, torch.ones_like(largest))[:, None]
    return scaled.square().sum(-1).sqrt().double() * largest.double()


def rows_relative_error(x: Tensor, y: Tensor) -> Tensor:
    """``|y - x| / |x|`` of each row; NaN where ``x`` is zero. Float64, [T]."""
    return _ratio(rows_norm(y.float() - x.float()), rows_norm(x))


def rows_norm_ratio(x_norm: Tensor, y_norm: Tensor) -> Tensor:
    """``|y| / |x|``; NaN where ``x`` is zero."""
    return _ratio(y_norm, x_norm)


def rows_rms(x: Tensor, gain: Tensor) -> Tensor:
    """Root mean square of each row of ``x / gain`` [T]; 1 when ``x`` left an RMS norm of that gain (test H8).

    Channels whose gain is below a millionth of the largest are left out: the division would only amplify rounding.
    """
    usable = gain.abs() > 1e-6 * gain.abs().max()
    return (x[:, usable].double() / gain[usable].double()).square().mean(-1).sqrt()


class ChannelMoments:
    """Mean and standard deviation of each channel over rows that come in pieces of any size (Chan's merge, float64).

    Rows with a value that is not finite, and rows of zeros, are left out: one of them would move every channel.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean = torch.zeros(width, dtype=torch.float64)
        self._m2 = torch.zeros(width, dtype=torch.float64)

    def update(self, x: Tensor) -> None:
        """Add the rows of ``x`` [T, W]."""
        largest = rows_largest(x)
        sound = largest.isfinite() & (largest > 0)
        x = (x if bool(sound.all()) else x[sound]).float()
        n = x.shape[0]
        if not n:
            return
        # near the rows' own mean float32 is exact enough, at a quarter of the cost of float64
        near = x.mean(0)
        away = x - near
        off = away.mean(0).double()
        mean = near.double() + off
        m2 = away.square().sum(0).double() - n * off.square()
        delta, total = mean - self.mean, self.count + n
        self.mean = self.mean + delta * (n / total)
        self._m2 = self._m2 + m2.clamp(min=0) + delta.square() * (self.count * n / total)
        self.count = total

    @property
    def std(self) -> Tensor:
        """Population standard deviation per channel, float64 [W]."""
        return (self._m2 / max(self.count, 1)).sqrt()

    @property
    def inverse(self) -> Tensor:
        """One over the standard deviation, float32 [W]; 0 for channels that never varied, for they cannot tell rows apart."""
        std = self.std
        varies = std > 1e-12 * self.mean.abs()
        return torch.where(varies, 1.0 / torch.where(varies, std, torch.ones_like(std)), torch.zeros_like(std)).float()

    @property
    def roundings(self) -> float:
        """Mean over channels of mean square over variance: the squared standardised error of one rounding with a relative error of one. A
        massive channel that hardly varies has much of it."""
        std = self.std
        return float(((self.mean.square() + std.square()) * self.inverse.double().square()).mean())


def _unit_scale(x: Tensor) -> Tensor:
    x = x.float()
    return x / x.abs().amax(-1, keepdim=True)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below > 0, above / below, torch.full_like(below, float("nan")))


def _ordered(values: Tensor) -> Tensor:
    """The finite values, float64, rising. numpy sorts them twice as fast as torch."""
    return torch.from_numpy(np.sort(values[values.isfinite()].double().numpy()))


def _quantile(ordered: Tensor, q: float) -> float:
    if not len(ordered):
        return float("nan")
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (at - low))
