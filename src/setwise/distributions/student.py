"""Student's t distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions.base import Continuous
from setwise.distributions.links import Choice
from setwise.distributions.location import LocationScale
from setwise.distributions.special import log1p_square
from setwise.distributions.tails import beta_log_density, log_beta_tail

__all__ = ["StudentT"]


@dataclass(frozen=True)
class StudentT(LocationScale):
    """Student's t targets: heavy tails with `df` degrees of freedom, fixed by the user.

    >>> StudentT(df=3.0, scale=1.0)(torch.tensor([[0.5]])).mean
    tensor([0.5000])
    """

    df: float = 4.0
    scale: Choice = "shared"
    distribution: ClassVar = torch.distributions.StudentT
    kind: ClassVar = Continuous

    def __post_init__(self) -> None:
        super().__post_init__()
        good = isinstance(self.df, int | float) and not isinstance(self.df, bool)
        if not (good and math.isfinite(self.df) and self.df > 0):
            raise ValueError(f"StudentT: df must be a positive number, got {self.df!r}")

    def build(self, loc: Tensor, scale: Tensor) -> Distribution:
        """The torch distribution with this location and scale; df is one number for all rows."""
        df = loc.new_full((), self.df).expand(loc.shape)
        return torch.distributions.StudentT(df, loc, scale, validate_args=False)

    @staticmethod
    def standard_log_cdf(d: Any, z: Tensor) -> Tensor:
        """log P(Beta(ν/2, ν/2) ≤ sigmoid(w)) with w = 2 asinh(z/√ν)."""
        half, w = _logit(d, z)
        return log_beta_tail(half, half, w, upper=False).to(z.dtype)

    @staticmethod
    def standard_log_survival(d: Any, z: Tensor) -> Tensor:
        """The log-cdf at −z."""
        return StudentT.standard_log_cdf(d, -z)

    @staticmethod
    def standard_log_density(d: Any, z: Tensor) -> Tensor:
        """−((ν + 1)/2) log(1 + z²/ν) + log Γ((ν + 1)/2) − log Γ(ν/2) − log √(νπ)."""
        half, w = _logit(d, z)
        root = d.df.double().sqrt()
        change = math.log(2) - root.log() - 0.5 * log1p_square(z.double() / root)  # log dw/dz
        out: Tensor = (beta_log_density(half, half, w) + change).to(z.dtype)
        return out


def _logit(d: Any, z: Tensor) -> tuple[Tensor, Tensor]:
    df = d.df.double()
    w = 2 * torch.asinh(z.double() / df.sqrt())
    return (0.5 * df).expand(w.shape), w
