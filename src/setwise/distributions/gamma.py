"""The gamma distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from scipy import special
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions.base import Continuous, Family
from setwise.distributions.links import (
    Choice,
    ask,
    check_choice,
    check_raw,
    exp_link,
    positive_parameter,
)
from setwise.distributions.special import with_ends
from setwise.distributions.tails import gamma_log_density, log_gamma_tail

__all__ = ["Gamma"]


@dataclass(frozen=True)
class Gamma(Family):
    """Gamma targets, z > 0: density rateᵃ zᵃ⁻¹ exp(−rate·z) / Γ(a), concentration a = exp(raw).

    `rate` is "shared" (one for all rows, so that sums are gamma again), "predicted" or a number.

    >>> Gamma(rate=2.0)(torch.tensor([[0.0]])).mean
    tensor([0.5000])
    """

    rate: Choice = "shared"
    distribution: ClassVar = torch.distributions.Gamma
    kind: ClassVar = Continuous
    positive: ClassVar[bool] = True
    log_mean: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("Gamma", "rate", self.rate, positive=True)

    @property
    def outputs(self) -> tuple[str, ...]:
        """("log_concentration",), and "log_rate" where the rate is predicted."""
        return ("log_concentration", *ask(self.rate, "predicted", "log_rate"))

    @property
    def shared(self) -> tuple[str, ...]:
        """("log_rate",) where the rate is shared."""
        return ask(self.rate, "shared", "log_rate")

    def __call__(self, raw: Tensor, shared: Tensor | None = None) -> Distribution:
        """The distribution of each row: `raw` is (rows, outputs), `shared` is (len(shared),)."""
        named = check_raw(self, raw, shared)
        rate = positive_parameter(self.rate, named, "log_rate")
        concentration = exp_link(named["log_concentration"])
        return torch.distributions.Gamma(concentration, rate, validate_args=False)

    @property
    def n_spread(self) -> int:
        """One number, unless the rate is fixed."""
        return 0 if isinstance(self.rate, float | int) else 1

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
    def log_cdf(d: Any, x: Tensor) -> Tensor:
        """log P(Z ≤ x), the regularised incomplete gamma function."""
        inside, u, t = _standard(d, x)
        out = log_gamma_tail(d.concentration, u, t, upper=False).to(d.rate.dtype)
        return with_ends(inside, out, x, -math.inf, 0.0)

    @staticmethod
    def log_survival(d: Any, x: Tensor) -> Tensor:
        """log P(Z > x)."""
        inside, u, t = _standard(d, x)
        out = log_gamma_tail(d.concentration, u, t, upper=True).to(d.rate.dtype)
        return with_ends(inside, out, x, 0.0, -math.inf)

    @staticmethod
    def log_density(d: Any, x: Tensor) -> Tensor:
        """a log rate + (a − 1) log x − rate·x − log Γ(a)."""
        inside, u, t = _standard(d, x)
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
    def natural(d: Any) -> tuple[Tensor, Callable[[Tensor], Distribution]]:
        """−rate."""
        return -d.rate.unsqueeze(1), lambda eta: torch.distributions.Gamma(
            d.concentration, -eta[:, 0], validate_args=False
        )

    @staticmethod
    def cgf(d: Any, s: Tensor) -> Tensor:
        """−a log(1 − s/rate)."""
        out: Tensor = -d.concentration * torch.log1p(-s / d.rate)
        return out

    @staticmethod
    def cgf_domain(d: Any) -> tuple[Tensor, Tensor]:
        """(−∞, rate)."""
        return torch.full_like(d.rate, -math.inf), d.rate


def _standard(d: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether x is inside the support, and log(rate·x) and rate·x there, in float64."""
    inside = (x > 0) & x.isfinite()
    rate, x = d.rate.double(), torch.where(inside, x.double(), 1.0)
    return inside, rate.log() + x.log(), rate * x
