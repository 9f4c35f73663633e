"""The Poisson distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions.base import Count
from setwise.distributions.parametric import NonNegative
from setwise.distributions.tails import gamma_log_density, log_gamma_tail

__all__ = ["Poisson"]


@dataclass(frozen=True)
class Poisson(NonNegative):
    """Poisson counts: P(z) = rateᶻ exp(−rate) / z!, with rate = exp(raw).

    >>> Poisson()(torch.tensor([[0.0]])).mean
    tensor([1.])
    """

    distribution: ClassVar = torch.distributions.Poisson
    kind: ClassVar = Count
    links: ClassVar = {"rate": "log_rate"}
    log_mean: ClassVar[bool] = True

    def start(self, mean: float, deviation: float) -> dict[str, tuple[float, float]]:
        """The rate is the mean."""
        return {"log_rate": (math.log(mean), 1.0)}

    @staticmethod
    def log_tail(d: Any, x: Tensor, *, upper: bool) -> Tensor:
        """log P(Z ≤ x) = log P(Gamma(x + 1) > rate)."""
        return log_gamma_tail(x + 1, *_rate(d), upper=not upper).to(d.rate.dtype)

    @staticmethod
    def log_density(d: Any, x: Tensor) -> Tensor:
        """x log rate − rate − log x!"""
        inside = (x >= 0) & (x == x.floor()) & x.isfinite()
        k = torch.where(inside, x.double(), 0.0)
        u, rate = _rate(d)
        out = gamma_log_density(*torch.broadcast_tensors(k + 1, u, rate)) - u
        return torch.where(inside, out.to(d.rate.dtype), -math.inf)

    @staticmethod
    def centre_width(d: Any) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation."""
        rate = d.rate.detach()
        return rate, rate.sqrt()

    @classmethod
    def quantile(cls, d: Any, p: float) -> Tensor:
        """The smallest count k with P(Z ≤ k) ≥ p."""
        return torch.from_numpy(stats.poisson.ppf(p, d.rate.numpy()))

    @staticmethod
    def natural(d: Any) -> tuple[Tensor, Callable[[Tensor], Distribution]]:
        """log rate."""
        return d.rate.log().unsqueeze(1), lambda eta: torch.distributions.Poisson(
            eta[:, 0].exp(), validate_args=False
        )

    @staticmethod
    def cgf(d: Any, s: Tensor) -> Tensor:
        """rate (eˢ − 1)."""
        out: Tensor = d.rate * torch.expm1(s)
        return out


def _rate(d: Any) -> tuple[Tensor, Tensor]:
    """log rate and rate in float64; a rate of 0 is taken for a tiny positive one."""
    rate = d.rate.double()
    rate = rate.detach().clamp_min(1e-300) + (rate - rate.detach())
    return rate.log(), rate
