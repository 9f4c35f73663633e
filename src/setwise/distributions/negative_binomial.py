"""The negative binomial distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import softplus

from setwise.distributions.base import Count
from setwise.distributions.links import Choice
from setwise.distributions.parametric import NonNegative
from setwise.distributions.special import log_sigmoid
from setwise.distributions.tails import beta_log_density, log_beta_tail
from setwise.numerics import log1mexp

__all__ = ["NegativeBinomial"]


@dataclass(frozen=True)
class NegativeBinomial(NonNegative):
    """Overdispersed counts: P(z) = Γ(r + z) / (Γ(r) z!) (1 − p)ʳ pᶻ, total_count r = exp(raw).

    `logits` = log(p / (1 − p)) is "shared" (one for all rows, so that sums are negative binomial
    again), "predicted" or a number. The mean is r·exp(logits).

    >>> NegativeBinomial(logits=0.0)(torch.tensor([[0.0]])).mean
    tensor([1.])
    """

    logits: Choice = "shared"
    distribution: ClassVar = torch.distributions.NegativeBinomial
    peaked: ClassVar[bool] = True
    kind: ClassVar = Count
    links: ClassVar = {"total_count": "log_total_count", "logits": "logits"}
    shape_varies: ClassVar[bool] = True
    log_mean: ClassVar[bool] = True

    def respread(self, raw: Tensor, shared: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Other logits, and a total count that keeps the mean."""
        sign = raw.new_tensor([-1.0, 1.0][: raw.shape[1]])
        return raw + sign * change, shared + change[: len(shared)]

    def start(self, mean: float, deviation: float) -> dict[str, tuple[float, float]]:
        """exp(logits) is the excess of the variance over the mean, relative to the mean."""
        excess = max(deviation**2 / mean - 1.0, 0.1)
        return {
            "log_total_count": (math.log(mean / excess), 1.0),
            "logits": (math.log(excess), 1.0),
        }

    @staticmethod
    def log_tail(d: Any, x: Tensor, *, upper: bool) -> Tensor:
        """log P(Z ≤ x) = log P(Beta(r, x + 1) ≤ 1 − p)."""
        out = log_beta_tail(d.total_count, x + 1, -d.logits, upper=upper)
        return out.to(d.logits.dtype)

    @staticmethod
    def log_density(d: Any, x: Tensor) -> Tensor:
        """log Γ(r + x) − log Γ(r) − log x! + r log(1 − p) + x log p."""
        inside = (x >= 0) & (x == x.floor()) & x.isfinite()
        k = torch.where(inside, x.double(), 0.0)
        r, logits = d.total_count.double(), d.logits.double()
        r, k, logits = torch.broadcast_tensors(r, k, logits)
        out = beta_log_density(r, k + 1, -logits) - log_sigmoid(logits) - (r + k).log()
        return torch.where(inside, out.to(d.logits.dtype), -math.inf)

    @staticmethod
    def centre_width(d: Any) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation."""
        r, logits = d.total_count.detach(), d.logits.detach()
        mean = (r.log() + logits).exp()
        return mean, (0.5 * (r.log() + logits + softplus(logits))).exp()

    @classmethod
    def quantile(cls, d: Any, p: float) -> Tensor:
        """The smallest count k with P(Z ≤ k) ≥ p."""
        success = torch.sigmoid(-d.logits).numpy()
        return torch.from_numpy(stats.nbinom.ppf(p, d.total_count.numpy(), success))

    @staticmethod
    def natural(d: Any) -> tuple[Tensor, Callable[[Tensor], Distribution]]:
        """log p."""
        return log_sigmoid(d.logits).unsqueeze(1), lambda eta: torch.distributions.NegativeBinomial(
            d.total_count, logits=eta[:, 0] - log1mexp(eta[:, 0]), validate_args=False
        )

    @staticmethod
    def cgf(d: Any, s: Tensor) -> Tensor:
        """r (log(1 − p) − log(1 − p·eˢ))."""
        rare = d.logits < 0
        odds = torch.where(rare, d.logits, -1.0).exp()
        low = -torch.log1p(-odds * torch.where(rare, s, 0.0).expm1())
        logits = torch.where(rare, 1.0, d.logits)
        v = torch.where(rare, -1.0, s + log_sigmoid(logits))
        out: Tensor = d.total_count * torch.where(
            rare, low, log_sigmoid(-logits) - (-v.expm1()).log()
        )
        return out

    @staticmethod
    def cgf_slope(d: Any, s: Tensor) -> Tensor:
        """r / (exp(−log p − s) − 1)."""
        out: Tensor = d.total_count / torch.expm1(softplus(-d.logits) - s)
        return out

    @staticmethod
    def cgf_domain(d: Any) -> tuple[Tensor, Tensor]:
        """(−∞, −log p)."""
        return torch.full_like(d.logits, -math.inf), softplus(-d.logits)
