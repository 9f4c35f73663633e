"""The Cauchy distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions.links import Choice
from setwise.distributions.location import LocationScale
from setwise.distributions.special import log1p_square, polynomial
from setwise.numerics import log1mexp

__all__ = ["Cauchy"]


@dataclass(frozen=True)
class Cauchy(LocationScale):
    """Cauchy targets: density 1 / (π scale (1 + ((z − loc)/scale)²)); there is no mean.

    >>> Cauchy(scale=1.0)(torch.tensor([[0.5]])).loc
    tensor([0.5000])
    """

    scale: Choice = "shared"
    distribution: ClassVar = torch.distributions.Cauchy
    symmetric: ClassVar[bool] = True

    @staticmethod
    def standard_log_cdf(d: Any, z: Tensor) -> Tensor:
        """log(½ + atan(z)/π)."""
        left = z < 0
        tail = _log_tail(torch.where(left, -z, z))
        return torch.where(left, tail, log1mexp(tail))

    @staticmethod
    def standard_log_density(d: Any, z: Tensor) -> Tensor:
        """−log(1 + z²) − log π."""
        return -log1p_square(z) - math.log(math.pi)

    @staticmethod
    def difference(gap: Tensor, scale: Tensor, other: Tensor) -> Distribution:
        """Cauchy: the scales add up."""
        return torch.distributions.Cauchy(gap, scale + other, validate_args=False)


def _log_tail(z: Tensor) -> Tensor:
    """log P(W > z) for z ≥ 0; far out a series in 1/z, whose derivatives do not cancel."""
    far = z > 10
    near = torch.where(far, 1.0, z)
    w = torch.where(far, z, 10.0).reciprocal()
    q = w * w
    series = q * polynomial(-q, [1 / (2 * n + 1) for n in range(1, 10)])  # 1 − atan(w)/w
    out_far = w.log() + torch.log1p(-series)
    out = torch.where(far, out_far, torch.atan2(torch.ones_like(near), near).log())
    return out - math.log(math.pi)
