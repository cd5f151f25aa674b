"""Every per-token number of a pair of states in one go over rows that fit into the processor's cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from eagle3diag.compare.metrics import ChannelMoments, rows_cosine, rows_largest, rows_norm, rows_relative_error

#: Below this the squares of a row are recomputed with the row scaled, above the largest float they would be infinite.
_TINY = 1e-30


@dataclass(frozen=True)
class Scale:
    """How train blocks are standardised: ``high + low`` is the mean [n, H] (``low`` None where float32 is enough), ``inverse`` 1 / std."""

    high: Tensor
    low: Tensor | None
    inverse: Tensor

    @classmethod
    def of(cls, moments: Sequence[ChannelMoments]) -> Scale:
        mean, inverse = torch.stack([m.mean for m in moments]), torch.stack([m.inverse for m in moments])
        high = mean.float()
        low = (mean - high.double()).float()
        matters = bool((low.abs() * inverse > 1e-4).any())
        return cls(high, low if matters else None, inverse)


@dataclass(frozen=True)
class RowValues:
    """Per token and block [T, n], float32. Rows that are zero or not finite on either side have no cosine.

    ``centred``: cosine after the train mean is taken off both; ``standardised``: over the train deviation too, ``error`` the root mean
    square over channels of the difference in that scale. ``largest``: of ``|live - train|``.
    """

    cosine: Tensor
    centred: Tensor
    standardised: Tensor
    train_norm: Tensor
    live_norm: Tensor
    relative_error: Tensor
    error: Tensor
    largest: Tensor
    zero: Tensor
    nonfinite_train: Tensor
    nonfinite_live: Tensor

    def __getitem__(self, rows: Tensor | slice) -> RowValues:
        return RowValues(*(getattr(self, f.name)[rows] for f in fields(self)))

    @classmethod
    def join(cls, parts: Sequence[RowValues]) -> RowValues:
        return cls(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(cls)))


def compare_rows(x: Tensor, y: Tensor, scale: Scale) -> RowValues:
    """``x`` (train) and ``y`` (live), both [T, n, H] in any floating dtype."""
    x, y = x.float(), y.float()
    d = y - x
    xx, yy, xy, dd = _dot(x, x), _dot(y, y), _dot(x, y), _dot(d, d)
    largest = d.abs().amax(-1)
    c = x - scale.high
    if scale.low is not None:
        c -= scale.low
    e = c + d
    cc, ee, ce = _dot(c, c), _dot(e, e), _dot(c, e)
    c *= scale.inverse
    d *= scale.inverse
    torch.add(c, d, out=e)
    zz, ww, zw, dz = _dot(c, c), _dot(e, e), _dot(c, e), _dot(d, d)
    values = RowValues(
        cosine=_cosine(xy, xx, yy),
        centred=_cosine(ce, cc, ee),
        standardised=_cosine(zw, zz, ww),
        train_norm=xx.sqrt(),
        live_norm=yy.sqrt(),
        relative_error=(dd / xx).sqrt(),
        error=(dz / x.shape[-1]).sqrt(),
        largest=largest,
        zero=yy == 0,
        nonfinite_train=~xx.isfinite(),
        nonfinite_live=~yy.isfinite(),
    )
    small = (xx < _TINY) | (yy < _TINY)
    odd = small | values.nonfinite_train | values.nonfinite_live | ~dz.isfinite()
    if bool(odd.any()):
        _redo(values, x, y, scale, odd.nonzero())
    return values


def _redo(values: RowValues, x: Tensor, y: Tensor, scale: Scale, at: Tensor) -> None:
    """The same for single rows that over- or underflow when squared, or are not finite: scaled first, slower."""
    t, n = at.unbind(1)
    a, b = x[t, n], y[t, n]
    largest_x, largest_y = rows_largest(a), rows_largest(b)
    dead = (largest_x == 0) | (largest_y == 0) | ~largest_x.isfinite() | ~largest_y.isfinite()
    high, inverse = scale.high[n], scale.inverse[n]
    low = 0 if scale.low is None else scale.low[n]
    c, e = a - high - low, b - high - low
    nothing = torch.full_like(largest_x, float("nan"))
    values.cosine[t, n] = rows_cosine(a, b)
    values.centred[t, n] = torch.where(dead, nothing, rows_cosine(c, e))
    values.standardised[t, n] = torch.where(dead, nothing, rows_cosine(c * inverse, e * inverse))
    values.train_norm[t, n], values.live_norm[t, n] = rows_norm(a).float(), rows_norm(b).float()
    values.relative_error[t, n] = rows_relative_error(a, b).float()
    values.error[t, n] = torch.where(dead, nothing, rows_norm((b - a) * inverse).float() / a.shape[-1] ** 0.5)
    values.zero[t, n] = largest_y == 0
    values.nonfinite_train[t, n], values.nonfinite_live[t, n] = ~largest_x.isfinite(), ~largest_y.isfinite()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


def _cosine(xy: Tensor, xx: Tensor, yy: Tensor) -> Tensor:
    return (xy / (xx.sqrt() * yy.sqrt())).clamp(-1.0, 1.0)
