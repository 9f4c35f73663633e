"""The logistic distribution, which torch does not have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import AffineTransform, SigmoidTransform, Uniform, constraints
from torch.distributions.transformed_distribution import TransformedDistribution
from torch.distributions.utils import broadcast_all

from setwise.distributions.links import Choice
from setwise.distributions.location import LocationScale
from setwise.distributions.special import log_sigmoid, log_w_over_sin

__all__ = ["Logistic", "LogisticDistribution"]


class LogisticDistribution(TransformedDistribution):
    """The logistic distribution: cdf sigmoid((x − loc) / scale).

    >>> LogisticDistribution(0.0, 1.0).cdf(torch.tensor(0.0))
    tensor(0.5000)
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}  # noqa: RUF012
    support = constraints.real

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        uniform = Uniform(torch.zeros_like(self.loc), torch.ones_like(self.loc), validate_args)
        moves = [SigmoidTransform().inv, AffineTransform(self.loc, self.scale)]
        super().__init__(uniform, moves, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> LogisticDistribution:
        """The same distribution with a larger batch shape."""
        loc, scale = self.loc.expand(batch_shape), self.scale.expand(batch_shape)
        return LogisticDistribution(loc, scale, self._validate_args)

    @property
    def mean(self) -> Tensor:
        """The location."""
        return self.loc

    mode = mean

    @property
    def variance(self) -> Tensor:
        """scale²π²/3."""
        return (self.scale * math.pi) ** 2 / 3

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density."""
        if self._validate_args:
            self._validate_sample(value)
        z = (value - self.loc) / self.scale
        return log_sigmoid(z) + log_sigmoid(-z) - self.scale.log()

    def entropy(self) -> Tensor:
        """2 + log scale."""
        return 2 + self.scale.log()


@dataclass(frozen=True)
class Logistic(LocationScale):
    """Logistic targets: cdf 1 / (1 + exp(−(z − loc) / scale)).

    >>> Logistic(scale=1.0)(torch.tensor([[0.5]])).mean
    tensor([0.5000])
    """

    scale: Choice = "shared"
    distribution: ClassVar = LogisticDistribution
    symmetric: ClassVar[bool] = True

    @staticmethod
    def standard_log_cdf(d: Any, z: Tensor) -> Tensor:
        """log sigmoid(z)."""
        return log_sigmoid(z)

    @staticmethod
    def standard_log_density(d: Any, z: Tensor) -> Tensor:
        """log sigmoid(z) + log sigmoid(−z)."""
        return log_sigmoid(z) + log_sigmoid(-z)

    @staticmethod
    def jumps(d: Any, x: Tensor) -> tuple[Tensor, ...]:
        """1 / (eˣ − 1), up and down."""
        side = torch.expm1(x).reciprocal().unsqueeze(1)
        return side, side

    @staticmethod
    def cgf(d: Any, s: Tensor) -> Tensor:
        """loc·s + log(w / sin w) with w = π·scale·s."""
        out: Tensor = d.loc * s + log_w_over_sin(math.pi * d.scale * s)
        return out

    @staticmethod
    def cgf_domain(d: Any) -> tuple[Tensor, Tensor]:
        """(−1/scale, 1/scale)."""
        end = d.scale.reciprocal()
        return -end, end
