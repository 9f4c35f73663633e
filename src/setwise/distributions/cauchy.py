"""The Cauchy distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions.base import Continuous
from setwise.distributions.links import Choice
from setwise.distributions.location import LocationScale
from setwise.distributions.special import log1p_square
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
    kind: ClassVar = Continuous

    def build(self, loc: Tensor, scale: Tensor) -> Distribution:
        """The torch distribution with this location and scale."""
        return torch.distributions.Cauchy(loc, scale, validate_args=False)

    @staticmethod
    def standard_log_cdf(d: Any, z: Tensor) -> Tensor:
        """log(½ + atan(z)/π)."""
        left = z < 0
        tail = _log_tail(torch.where(left, -z, z))
        return torch.where(left, tail, log1mexp(tail))

    @staticmethod
    def standard_log_survival(d: Any, z: Tensor) -> Tensor:
        """log(½ − atan(z)/π)."""
        return Cauchy.standard_log_cdf(d, -z)

    @staticmethod
    def standard_log_density(d: Any, z: Tensor) -> Tensor:
        """−log(1 + z²) − log π."""
        return -log1p_square(z) - math.log(math.pi)


def _log_tail(z: Tensor) -> Tensor:
    """log P(W > z) for z ≥ 0; far out a series in 1/z, whose derivatives do not cancel."""
    far = z > 10
    near = torch.where(far, 1.0, z)
    w = torch.where(far, z, 10.0).reciprocal()
    series = torch.zeros_like(w)
    for n in range(9, 0, -1):  # atan(w)/w = 1 − w²/3 + w⁴/5 − …
        series = w * w * (1 / (2 * n + 1) - series)
    out_far = w.log() + torch.log1p(-series)
    out = torch.where(far, out_far, torch.atan2(torch.ones_like(near), near).log())
    return out - math.log(math.pi)
