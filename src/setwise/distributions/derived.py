"""What a family has without writing it: quantiles and information."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from setwise.distributions.base import Family

__all__ = ["information_from_draws", "quantile_by_bisection"]

DRAWS = 4096  # of targets, over all rows together


def quantile_by_bisection(family: type[Family], d: Any, p: float) -> Tensor:
    """The smallest x with P(Z ≤ x) ≥ p, to rounding, from the smaller of the two tails."""

    def too_low(u: Tensor) -> Tensor:
        x = u.exp() if family.positive else u
        if p > 0.5:
            return family.log_survival(d, x) > math.log1p(-p)
        return family.log_cdf(d, x) < math.log(p)

    centre, width = family.centre_width(d)
    low, high = centre - width, centre + width
    for _ in range(64):  # the ends move out, twice as far each time
        left, right = ~too_low(low), too_low(high)
        if not (left | right).any():
            break
        reach = high - low
        low, high = torch.where(left, low - reach, low), torch.where(right, high + reach, high)
    for _ in range(128):
        middle = (low + high) / 2
        if ((middle <= low) | (middle >= high)).all():
            break
        below = too_low(middle)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high.exp() if family.positive else high


def information_from_draws(family: Family, raw: Tensor, shared: Tensor, seed: int) -> Tensor:
    """E[(∂ log p(z)/∂raw)²] of each row, over a few thousand draws of z."""
    copies = max(1, DRAWS // len(raw))
    leaf = raw.detach().repeat(copies, 1).requires_grad_()
    d = family(leaf, shared)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        z = d.sample()
    (slope,) = torch.autograd.grad(family.log_density(d, z).sum(), leaf)
    return slope.square().reshape(copies, *raw.shape).mean(0)
