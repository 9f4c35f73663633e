"""Student's t distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import special
from torch import Tensor

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
    slow_tails: ClassVar[bool] = True
    symmetric: ClassVar[bool] = True
    links: ClassVar = {"df": "df", "loc": "loc", "scale": "log_scale"}
    reach: ClassVar[int] = 12

    def __post_init__(self) -> None:
        good = isinstance(self.df, int | float) and not isinstance(self.df, bool)
        if not (good and math.isfinite(self.df) and self.df > 0):
            raise ValueError(f"StudentT: df must be a positive number, got {self.df!r}")
        super().__post_init__()

    @staticmethod
    def standard_log_cdf(d: Any, z: Tensor) -> Tensor:
        """log P(Beta(ν/2, ν/2) ≤ sigmoid(w)) with w = 2 asinh(z/√ν)."""
        half, w = _logit(d, z)
        return log_beta_tail(half, half, w, upper=False).to(z.dtype)

    @staticmethod
    def standard_log_density(d: Any, z: Tensor) -> Tensor:
        """−((ν + 1)/2) log(1 + z²/ν) + log Γ((ν + 1)/2) − log Γ(ν/2) − log √(νπ)."""
        half, w = _logit(d, z)
        root = d.df.double().sqrt()
        change = math.log(2) - root.log() - 0.5 * log1p_square(z.double() / root)  # log dw/dz
        out: Tensor = (beta_log_density(half, half, w) + change).to(z.dtype)
        return out

    @classmethod
    def quantile(cls, d: Any, p: float) -> Tensor:
        """loc + scale · the quantile of W."""
        out: Tensor = d.loc + d.scale * torch.from_numpy(special.stdtrit(d.df.numpy(), p))
        return out

    @staticmethod
    def jumps(d: Any, x: Tensor) -> tuple[Tensor, ...]:
        """(2/π²) ∫ exp(−x t/√ν) / (t (J² + Y²)(t)) dt, Bessel functions of order ν/2.

        E. Grosswald, "The Student t-distribution of any degree of freedom is infinitely
        divisible", 1976.
        """
        df, which = np.unique(d.df.numpy(), return_inverse=True)
        u = np.linspace(-30, 14, 700)
        t = np.exp(u)
        tables = []
        for nu in df:
            with np.errstate(all="ignore"):
                modulus = special.jv(nu / 2, t) ** 2 + special.yv(nu / 2, t) ** 2
            decay = np.exp(-x.numpy()[:, None] * t / math.sqrt(nu))
            tables.append(2 / math.pi**2 * (decay / modulus).sum(1) * (u[1] - u[0]))
        side = torch.from_numpy(np.stack(tables, 1)[:, which])
        return side, side


def _logit(d: Any, z: Tensor) -> tuple[Tensor, Tensor]:
    df = d.df.double()
    w = 2 * torch.asinh(z.double() / df.sqrt())
    return (0.5 * df).expand(w.shape), w
