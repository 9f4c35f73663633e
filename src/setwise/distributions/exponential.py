"""The exponential distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions.base import Repeat
from setwise.distributions.links import check_raw, exp_link
from setwise.distributions.parametric import RateFamily
from setwise.distributions.special import log1mexpexp

__all__ = ["Exponential"]


@dataclass(frozen=True)
class Exponential(RateFamily):
    """Exponential targets, z ≥ 0: density rate · exp(−rate · z); the raw output is the log mean.

    >>> Exponential()(torch.tensor([[0.0]])).mean
    tensor([1.])
    """

    distribution: ClassVar = torch.distributions.Exponential
    links: ClassVar = {"rate": "log_mean"}  # rate = exp(−log_mean), see `__call__`
    unit: ClassVar[str] = "log_mean"

    def __call__(self, raw: Tensor, shared: Tensor | None = None) -> Distribution:
        """The distribution of each row: `raw` is (rows, 1)."""
        rate = exp_link(-check_raw(self, raw, shared)["log_mean"])
        return torch.distributions.Exponential(rate, validate_args=False)

    @classmethod
    def shifted(cls, d: Any, u: Tensor, repeat: Repeat) -> Distribution:
        """The log mean moves by u."""
        return super().shifted(d, -u, repeat)

    def start(self, mean: float, deviation: float) -> dict[str, tuple[float, float]]:
        """The log mean."""
        return {"log_mean": (math.log(mean), 1.0)}

    @staticmethod
    def log_tail(d: Any, x: Tensor, *, upper: bool) -> Tensor:
        """−rate · x or log(1 − exp(−rate · x))."""
        x = x.to(d.rate)
        return -d.rate * x if upper else log1mexpexp(x.log() + d.rate.log())

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
    def cgf(d: Any, s: Tensor) -> Tensor:
        """−log(1 − s/rate)."""
        return -torch.log1p(-s / d.rate)
