"""The normal distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions.links import Choice
from setwise.distributions.location import LocationScale
from setwise.numerics import log_ndtr

__all__ = ["Normal"]


@dataclass(frozen=True)
class Normal(LocationScale):
    """Normal targets: density exp(−(z − loc)² / 2 scale²) / (scale √2π).

    >>> Normal(scale=2.0)(torch.tensor([[1.0]])).stddev
    tensor([2.])
    """

    scale: Choice = "shared"
    distribution: ClassVar = torch.distributions.Normal
    symmetric: ClassVar[bool] = True

    @staticmethod
    def standard_log_cdf(d: Any, z: Tensor) -> Tensor:
        """log Φ(z)."""
        return log_ndtr(z)

    @staticmethod
    def standard_log_density(d: Any, z: Tensor) -> Tensor:
        """−z²/2 − log √2π."""
        return -0.5 * z * z - 0.5 * math.log(2 * math.pi)

    @staticmethod
    def difference(gap: Tensor, scale: Tensor, other: Tensor) -> Distribution:
        """Normal: the variances add up."""
        return torch.distributions.Normal(gap, torch.hypot(scale, other), validate_args=False)

    @staticmethod
    def natural(d: Any) -> tuple[Tensor, Callable[[Tensor], Distribution]]:
        """0 and −1/(2 scale²), of z − loc and (z − loc)²."""

        def member(eta: Tensor) -> Distribution:
            precision = -2 * eta[:, 1]
            loc = d.loc + eta[:, 0] / precision
            return torch.distributions.Normal(loc, precision.rsqrt(), validate_args=False)

        return torch.stack([torch.zeros_like(d.loc), -0.5 / d.scale**2], 1), member

    @staticmethod
    def cgf(d: Any, s: Tensor) -> Tensor:
        """loc·s + scale²s²/2."""
        out: Tensor = d.loc * s + 0.5 * (d.scale * s) ** 2
        return out
