"""The logistic distribution, which torch does not have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all

from setwise.distributions.base import Continuous
from setwise.distributions.links import Choice
from setwise.distributions.location import LocationScale
from setwise.distributions.special import log_sigmoid, log_w_over_sin

__all__ = ["Logistic", "LogisticDistribution"]


class LogisticDistribution(Distribution):
    """The logistic distribution: cdf sigmoid((x − loc) / scale).

    >>> LogisticDistribution(0.0, 1.0).cdf(torch.tensor(0.0))
    tensor(0.5000)
    """

    arg_constraints: ClassVar[dict[str, Any]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> LogisticDistribution:
        """The same distribution with a larger batch shape."""
        new: LogisticDistribution = self._get_checked_instance(  # type: ignore[no-untyped-call]
            LogisticDistribution, _instance
        )
        shape = torch.Size(batch_shape)
        new.loc, new.scale = self.loc.expand(shape), self.scale.expand(shape)
        Distribution.__init__(new, shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """The location."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The location."""
        return self.loc

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

    def cdf(self, value: Tensor) -> Tensor:
        """sigmoid((value − loc) / scale)."""
        if self._validate_args:
            self._validate_sample(value)
        return torch.sigmoid((value - self.loc) / self.scale)

    def icdf(self, value: Tensor) -> Tensor:
        """loc + scale · logit(value)."""
        return self.loc + self.scale * torch.logit(value)

    def entropy(self) -> Tensor:
        """2 + log scale."""
        return 2 + self.scale.log()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws that can be differentiated in the parameters."""
        shape = self._extended_shape(sample_shape)
        finfo = torch.finfo(self.loc.dtype)
        u = torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.icdf(u.clamp(finfo.tiny, 1 - finfo.eps))


@dataclass(frozen=True)
class Logistic(LocationScale):
    """Logistic targets: cdf 1 / (1 + exp(−(z − loc) / scale)).

    >>> Logistic(scale=1.0)(torch.tensor([[0.5]])).mean
    tensor([0.5000])
    """

    scale: Choice = "shared"
    distribution: ClassVar = LogisticDistribution
    kind: ClassVar = Continuous

    def build(self, loc: Tensor, scale: Tensor) -> Distribution:
        """The torch distribution with this location and scale."""
        return LogisticDistribution(loc, scale, validate_args=False)

    @staticmethod
    def standard_log_cdf(d: Any, z: Tensor) -> Tensor:
        """log sigmoid(z)."""
        return log_sigmoid(z)

    @staticmethod
    def standard_log_survival(d: Any, z: Tensor) -> Tensor:
        """log sigmoid(−z)."""
        return log_sigmoid(-z)

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
