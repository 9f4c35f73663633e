"""The Gumbel distribution (of the largest of many)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions.links import Choice
from setwise.distributions.location import LocationScale
from setwise.distributions.logistic import LogisticDistribution
from setwise.distributions.special import lgamma, log1mexpexp, saturating_exp

__all__ = ["Gumbel"]


@dataclass(frozen=True)
class Gumbel(LocationScale):
    """Gumbel targets: cdf exp(−exp(−(z − loc) / scale)).

    The largest of a set of Gumbels with one scale is Gumbel again, and which member is the largest
    has softmax probabilities.

    >>> Gumbel(scale=1.0)(torch.tensor([[0.5]])).loc
    tensor([0.5000])
    """

    scale: Choice = "shared"
    distribution: ClassVar = torch.distributions.Gumbel
    one_scale: ClassVar[bool] = True

    @staticmethod
    def standard_log_cdf(d: Any, z: Tensor) -> Tensor:
        """−e⁻ᶻ."""
        return -saturating_exp(-z)

    @staticmethod
    def standard_log_survival(d: Any, z: Tensor) -> Tensor:
        """log(1 − exp(−e⁻ᶻ))."""
        return log1mexpexp(-z)

    @staticmethod
    def standard_log_density(d: Any, z: Tensor) -> Tensor:
        """−z − e⁻ᶻ."""
        return -z - saturating_exp(-z)

    @staticmethod
    def difference(gap: Tensor, scale: Tensor, other: Tensor) -> Distribution:
        """Logistic, where the scales are equal."""
        return LogisticDistribution(gap, scale, validate_args=False)

    @staticmethod
    def jumps(d: Any, x: Tensor) -> tuple[Tensor, ...]:
        """1 / (eˣ − 1), up only."""
        return (torch.expm1(x).reciprocal().unsqueeze(1),)

    @staticmethod
    def cgf(d: Any, s: Tensor) -> Tensor:
        """loc·s + log Γ(1 − scale·s)."""
        out: Tensor = d.loc * s + lgamma(1 - d.scale * s)
        return out

    @staticmethod
    def cgf_domain(d: Any) -> tuple[Tensor, Tensor]:
        """(−∞, 1/scale)."""
        end = d.scale.reciprocal()
        return torch.full_like(end, -math.inf), end
