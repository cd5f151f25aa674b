"""Where tensors are worked on: the device that a caller names, tried before anything is read."""

from __future__ import annotations

import torch

from eagle3diag.errors import BadArgument

CPU = torch.device("cpu")


def usable(device: str | torch.device) -> torch.device:
    """The device as torch knows it. What the calling thread has queued on it is done afterwards: other threads may read its results.

    Raises
    ------
    BadArgument: torch does not find it, or it holds no values (``meta``).
    """
    try:
        torch.ones(1, device=device).item()
        return torch.device(device)
    except (RuntimeError, AssertionError, TypeError) as error:  # torch's own words differ by build
        raise BadArgument(f"device {str(device)!r} cannot be used", hint="cpu, or a device that this torch finds") from error


def has_float64(device: torch.device) -> bool:
    """Whether it computes in float64, as Apple's (``mps``) does not."""
    try:
        torch.ones(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):
        return False
    return True
