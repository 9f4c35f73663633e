"""The exponential distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions.base import Continuous, Family
from setwise.distributions.links import check_raw, exp_link
from setwise.distributions.special import log1mexpexp, with_ends

__all__ = ["Exponential"]


@dataclass(frozen=True)
class Exponential(Family):
    """Exponential targets, z ≥ 0: density rate · exp(−rate · z); the raw output is the log mean.

    >>> Exponential()(torch.tensor([[0.0]])).mean
    tensor([1.])
    """

    distribution: ClassVar = torch.distributions.Exponential
    kind: ClassVar = Continuous
    positive: ClassVar[bool] = True
    log_mean: ClassVar[bool] = True

    @property
    def outputs(self) -> tuple[str, ...]:
        """("log_mean",)."""
        return ("log_mean",)

    def __call__(self, raw: Tensor, shared: Tensor | None = None) -> Distribution:
        """The distribution of each row: `raw` is (rows, 1)."""
        rate = exp_link(-check_raw(self, raw, shared)["log_mean"])
        return torch.distributions.Exponential(rate, validate_args=False)

    def start(self, mean: float, deviation: float) -> dict[str, tuple[float, float]]:
        """The log mean."""
        return {"log_mean": (math.log(mean), 1.0)}

    @staticmethod
    def log_cdf(d: Any, x: Tensor) -> Tensor:
        """log(1 − exp(−rate · x))."""
        inside = (x > 0) & x.isfinite()
        out = log1mexpexp(torch.where(inside, x.to(d.rate), 1.0).log() + d.rate.log())
        return with_ends(inside, out, x, -math.inf, 0.0)

    @staticmethod
    def log_survival(d: Any, x: Tensor) -> Tensor:
        """−rate · x."""
        inside = (x > 0) & x.isfinite()
        out = -d.rate * torch.where(inside, x.to(d.rate), 0.0)
        return with_ends(inside, out, x, 0.0, -math.inf)

    @staticmethod
    def log_density(d: Any, x: Tensor) -> Tensor:
        """log rate − rate · x."""
        inside = (x >= 0) & x.isfinite()
        out = d.rate.log() - d.rate * torch.where(inside, x.to(d.rate), 0.0)
        return torch.where(inside, out, -math.inf)

    @staticmethod
    def centre_width(d: Any) -> tuple[Tensor, Tensor]:
        """On the line u = log z: the log mean, and 1."""
        centre = -d.rate.detach().log()
        return centre, torch.ones_like(centre)

    @staticmethod
    def natural(d: Any) -> tuple[Tensor, Callable[[Tensor], Distribution]]:
        """−rate."""
        return -d.rate.unsqueeze(1), lambda eta: torch.distributions.Exponential(
            -eta[:, 0], validate_args=False
        )

    @staticmethod
    def cgf(d: Any, s: Tensor) -> Tensor:
        """−log(1 − s/rate)."""
        return -torch.log1p(-s / d.rate)

    @staticmethod
    def cgf_domain(d: Any) -> tuple[Tensor, Tensor]:
        """(−∞, rate)."""
        return torch.full_like(d.rate, -math.inf), d.rate
