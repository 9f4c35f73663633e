"""The gamma distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from scipy import special
from torch import Tensor

from setwise.distributions.links import Choice
from setwise.distributions.parametric import RateFamily
from setwise.distributions.tails import gamma_log_density, log_gamma_tail

__all__ = ["Gamma"]


@dataclass(frozen=True)
class Gamma(RateFamily):
    """Gamma targets, z > 0: density rateᵃ zᵃ⁻¹ exp(−rate·z) / Γ(a), concentration a = exp(raw).

    `rate` is "shared" (one for all rows, so that sums are gamma again), "predicted" or a number.

    >>> Gamma(rate=2.0)(torch.tensor([[0.0]])).mean
    tensor([0.5000])
    """

    rate: Choice = "shared"
    distribution: ClassVar = torch.distributions.Gamma
    peaked: ClassVar[bool] = True
    links: ClassVar = {"concentration": "log_concentration", "rate": "log_rate"}
    unit: ClassVar[str] = "log_rate"
    shape_varies: ClassVar[bool] = True

    def respread(self, raw: Tensor, shared: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Concentration and rate in the same proportion, which is the mean."""
        return raw + change, shared + change[: len(shared)]

    def start(self, mean: float, deviation: float) -> dict[str, tuple[float, float]]:
        """The concentration and rate that have this mean and standard deviation."""
        rate = mean / deviation**2
        return {
            "log_concentration": (math.log(mean * rate), 1.0),
            "log_rate": (math.log(rate), 1.0),
        }

    @staticmethod
    def log_tail(d: Any, x: Tensor, *, upper: bool) -> Tensor:
        """The regularised incomplete gamma function, or its complement."""
        return log_gamma_tail(d.concentration, *_standard(d, x), upper=upper).to(d.rate.dtype)

    @staticmethod
    def log_density(d: Any, x: Tensor) -> Tensor:
        """a log rate + (a − 1) log x − rate·x − log Γ(a)."""
        inside = (x > 0) & x.isfinite()
        u, t = _standard(d, torch.where(inside, x.double(), 1.0))
        out = gamma_log_density(d.concentration.double(), u, t) - u + d.rate.double().log()
        return torch.where(inside, out.to(d.rate.dtype), -math.inf)

    @staticmethod
    def centre_width(d: Any) -> tuple[Tensor, Tensor]:
        """On the line u = log z, with density ∝ exp(a·u − rate·eᵘ): its mode and spread."""
        a, rate = d.concentration.detach(), d.rate.detach()
        return a.log() - rate.log(), (1 / a + 1 / a**2).sqrt()

    @classmethod
    def quantile(cls, d: Any, p: float) -> Tensor:
        """The inverse of the regularised incomplete gamma function, over the rate."""
        out: Tensor = torch.from_numpy(special.gammaincinv(d.concentration.numpy(), p)) / d.rate
        return out

    @staticmethod
    def cgf(d: Any, s: Tensor) -> Tensor:
        """−a log(1 − s/rate)."""
        out: Tensor = -d.concentration * torch.log1p(-s / d.rate)
        return out

    @staticmethod
    def cgf_slope(d: Any, s: Tensor) -> Tensor:
        """a / (rate − s)."""
        out: Tensor = d.concentration / (d.rate - s)
        return out


def _standard(d: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """log(rate·x) and rate·x, in float64."""
    rate = d.rate.double()
    return rate.log() + x.log(), rate * x
