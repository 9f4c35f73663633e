"""The Laplace distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from setwise.distributions.links import Choice
from setwise.distributions.location import LocationScale

__all__ = ["Laplace"]


@dataclass(frozen=True)
class Laplace(LocationScale):
    """Laplace targets: density exp(−|z − loc| / scale) / 2 scale.

    >>> Laplace(scale=1.0)(torch.tensor([[0.5]])).mean
    tensor([0.5000])
    """

    scale: Choice = "shared"
    distribution: ClassVar = torch.distributions.Laplace
    symmetric: ClassVar[bool] = True
    kinked: ClassVar[bool] = True

    @staticmethod
    def standard_log_cdf(d: Any, z: Tensor) -> Tensor:
        """z − log 2 left of 0, log(1 − e⁻ᶻ/2) right of it."""
        left = z < 0
        low, high = torch.where(left, z, -1.0), torch.where(left, 1.0, z)
        return torch.where(left, low - math.log(2), torch.log1p(-0.5 * (-high).exp()))

    @staticmethod
    def standard_log_density(d: Any, z: Tensor) -> Tensor:
        """−|z| − log 2."""
        return -z.abs() - math.log(2)

    @staticmethod
    def jumps(d: Any, x: Tensor) -> tuple[Tensor, ...]:
        """e⁻ˣ, up and down."""
        side = (-x).exp().unsqueeze(1)
        return side, side

    @staticmethod
    def cgf(d: Any, s: Tensor) -> Tensor:
        """loc·s − log(1 − scale²s²)."""
        t = d.scale * s
        out: Tensor = d.loc * s - torch.log1p(-t) - torch.log1p(t)
        return out

    @staticmethod
    def cgf_domain(d: Any) -> tuple[Tensor, Tensor]:
        """(−1/scale, 1/scale)."""
        end = d.scale.reciprocal()
        return -end, end
