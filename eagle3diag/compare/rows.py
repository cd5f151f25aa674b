"""Every per-token number of a pair of states in one go over rows that fit into the processor's cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from eagle3diag.compare.metrics import ChannelMoments, rows_cosine, rows_largest, rows_norm, rows_relative_error
from eagle3diag.compare.sampling import chunks
from eagle3diag.devices import CPU

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

    def to(self, device: torch.device) -> Scale:
        """The same there."""
        return Scale(self.high.to(device), None if self.low is None else self.low.to(device), self.inverse.to(device))


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


#: Rows of one pair, by their numbers, on a device: those of train [R, n, H] and of live [R, n, H] (or [R, 1, H], which stands for all n), in
#: any dtype.
ReadRows = Callable[[Tensor | slice, torch.device], tuple[Tensor, Tensor]]


def compare_rows(read: ReadRows, tokens: int, at_once: int, scale: Scale, device: torch.device = CPU) -> RowValues:
    """All rows of a pair, of which ``at_once`` are worked on in one go: that changes memory, not results.

    They are summed up on ``device``, which nothing waits for before the last row: then the sums come back, twelve numbers a block and token.
    """
    n, h = scale.high.shape
    sums, work = torch.empty(12, tokens, n, device=device), torch.empty(4, min(at_once, tokens), n, h, device=device)
    there = scale.to(device)
    for part in chunks(tokens, at_once):
        _add_up(*read(part, device), there, work[:, : part.stop - part.start], sums[:, part])
    largest, xx, yy, xy, dd, cc, ee, ce, zz, ww, zw, vv = sums.cpu()
    values = RowValues(
        cosine=_cosine(xy, xx, yy),
        centred=_cosine(ce, cc, ee),
        standardised=_cosine(zw, zz, ww),
        train_norm=xx.sqrt(),
        live_norm=yy.sqrt(),
        relative_error=(dd / xx).sqrt(),
        error=(vv / h).sqrt(),
        largest=largest,
        zero=yy == 0,
        nonfinite_train=~xx.isfinite(),
        nonfinite_live=~yy.isfinite(),
    )
    small = (xx < _TINY) | (yy < _TINY)
    odd = small | values.nonfinite_train | values.nonfinite_live | ~vv.isfinite()
    rows = odd.any(-1).nonzero().flatten()
    for part in chunks(len(rows), at_once):
        _redo(values, *read(rows[part], CPU), scale, rows[part], odd[rows[part]])
    return values


def _add_up(x: Tensor, y: Tensor, scale: Scale, work: Tensor, out: Tensor) -> None:
    """Into ``out`` [12, R, n] the largest difference and the sums of all products of a few rows, in ``work`` [4, R, n, H]. Memory that is
    there already stays in the cache; and threads that take and give back megabytes at a time wait for the system."""
    x, y, d, product = work[0].copy_(x), work[1].copy_(y), work[2], work[3]

    def dots(*wanted: tuple[Tensor, Tensor, Tensor]) -> None:
        for to, a, b in wanted:
            torch.sum(torch.mul(a, b, out=product), -1, out=to)

    largest, xx, yy, xy, dd, cc, ee, ce, zz, ww, zw, vv = out
    torch.sub(y, x, out=d)
    torch.amax(torch.abs(d, out=product), -1, out=largest)
    dots((xx, x, x), (yy, y, y), (xy, x, y), (dd, d, d))
    c = x.sub_(scale.high)
    if scale.low is not None:
        c -= scale.low
    e = torch.add(c, d, out=y)
    dots((cc, c, c), (ee, e, e), (ce, c, e))
    z, v = c.mul_(scale.inverse), d.mul_(scale.inverse)
    w = torch.add(z, v, out=e)
    dots((zz, z, z), (ww, w, w), (zw, z, w), (vv, v, v))


def _redo(values: RowValues, x: Tensor, y: Tensor, scale: Scale, rows: Tensor, odd: Tensor) -> None:
    """The same for blocks of ``rows`` that are ``odd`` [R, n]: over- or underflow when squared, or not finite. Scaled first, slower."""
    r, n = odd.nonzero().unbind(1)
    a, b, t = x[r, n].float(), y.expand_as(x)[r, n].float(), rows[r]
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


def _cosine(xy: Tensor, xx: Tensor, yy: Tensor) -> Tensor:
    return (xy / (xx.sqrt() * yy.sqrt())).clamp(-1.0, 1.0)
