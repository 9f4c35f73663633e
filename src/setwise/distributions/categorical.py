"""The categorical distribution: classes 0, 1, …, C−1, in this order."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from scipy.linalg import helmert
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions.base import Discrete, Family, Repeat, normalised
from setwise.distributions.links import check_raw
from setwise.distributions.special import log_sigmoid, log_sigmoids
from setwise.numerics import logsumexp

__all__ = ["Categorical", "contrasts"]


@dataclass(frozen=True)
class Categorical(Family):
    """Classes 0, …, C−1 with probabilities softmax(raw); distribution functions use their order.

    `labels` are the names of the classes, if they have any.

    >>> Categorical(3)(torch.zeros(1, 3)).probs
    tensor([[0.3333, 0.3333, 0.3333]])
    """

    n_classes: int
    labels: tuple[Any, ...] | None = field(default=None, repr=False, compare=False)
    distribution: ClassVar = torch.distributions.Categorical
    kind: ClassVar = Discrete
    most: ClassVar[int] = 2**20  # classes, each of which has a column of numbers
    spread_about_constant: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.n_classes, bool) or not isinstance(self.n_classes, int):
            raise ValueError(f"Categorical: n_classes must be an integer, got {self.n_classes!r}")
        if not 2 <= self.n_classes <= self.most:
            bound = "least 2" if self.n_classes < 2 else f"most {self.most}"
            raise ValueError(f"Categorical: n_classes must be at {bound}, got {self.n_classes}")
        if self.labels is not None and len(tuple(self.labels)) != self.n_classes:
            raise ValueError(
                f"Categorical: {len(self.labels)} labels given for {self.n_classes} classes"
            )

    @property
    def outputs(self) -> tuple[str, ...]:
        """("logit_0", …), one for each class."""
        return tuple(f"logit_{c}" for c in range(self.n_classes))

    def __call__(self, raw: Tensor, shared: Tensor | None = None) -> Distribution:
        """The distribution of each row: `raw` is (rows, classes)."""
        check_raw(self, raw, shared)
        return normalised(raw.log_softmax(-1))

    @property
    def n_spread(self) -> int:
        """One: how sure probabilities are, the logarithm of a factor of the logits."""
        return 1

    def respread(self, raw: Tensor, shared: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """The same order of the classes in each row, with surer or less sure probabilities."""
        return raw * change.exp(), shared

    def information(self, raw: Tensor, shared: Tensor, seed: int = 0) -> Tensor:
        """p (1 − p) of each class."""
        probs = raw.softmax(-1)
        return probs * (1 - probs)

    @classmethod
    def n_shifts(cls, d: Any) -> int:
        """One for each contrast of two classes."""
        return int(d.logits.shape[-1]) - 1

    @classmethod
    def shifted(cls, d: Any, u: Tensor, repeat: Repeat) -> Distribution:
        """The log odds of any two classes move by a number with the variance of an entry of u.

        For two classes that is u itself, for class 1 against 0.
        """
        own: Tensor = d.logits
        if own.shape[-1] > 2:
            return cls.distribution(logits=own + repeat(u @ contrasts(own)), validate_args=False)
        odds = own[..., 1] - own[..., 0] + repeat(u)[..., 0]
        return normalised(torch.stack(log_sigmoids(odds), -1))

    @classmethod
    def effect(cls, d: Any, u: Tensor) -> Tensor:
        """The shift of the log odds of two classes, or that of each of more logits."""
        return u if u.shape[1] == 1 else u @ contrasts(d.logits)

    @staticmethod
    def log_cdf(d: Any, x: Tensor) -> Tensor:
        """log Σ of the probabilities of the classes up to x."""
        return _log_share(d, x, upper=False)

    @staticmethod
    def log_survival(d: Any, x: Tensor) -> Tensor:
        """log Σ of the probabilities of the classes above x."""
        return _log_share(d, x, upper=True)

    @staticmethod
    def log_density(d: Any, x: Tensor) -> Tensor:
        """The log probability of class x."""
        top = d.logits.shape[-1] - 1
        inside = (x >= 0) & (x <= top) & (x == x.round())
        which = torch.where(inside, x, torch.zeros_like(x)).long()
        shape = torch.broadcast_shapes(x.shape, d.logits.shape[:-1])
        logits = d.logits.expand(*shape, top + 1)
        out = logits.gather(-1, which.expand(shape).unsqueeze(-1)).squeeze(-1)
        return torch.where(inside, out, -math.inf)

    @staticmethod
    def centre_width(d: Any) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the class number."""
        probs = d.logits.detach().exp()
        classes = torch.arange(probs.shape[-1], dtype=probs.dtype, device=probs.device)
        mean = (probs * classes).sum(-1)
        return mean, (probs * (classes - mean.unsqueeze(-1)) ** 2).sum(-1).sqrt()

    @classmethod
    def mean(cls, d: Any) -> Tensor:
        """The mean number of the class."""
        return cls.centre_width(d)[0]

    @staticmethod
    def natural(d: Any) -> tuple[Tensor, Callable[[Tensor], Distribution]]:
        """The logits, each of the indicator of its class."""
        return d.logits, lambda eta: torch.distributions.Categorical(
            logits=eta, validate_args=False
        )

    @staticmethod
    def cgf(d: Any, s: Tensor) -> Tensor:
        """log Σ pᶜ exp(s·c)."""
        classes = torch.arange(d.logits.shape[-1], device=d.logits.device)
        terms = d.logits + s.unsqueeze(-1) * classes
        top = terms.detach().real.amax(-1, keepdim=True)
        out: Tensor = (terms - top).exp().sum(-1).log() + top.squeeze(-1)
        return out


def contrasts(like: Tensor) -> Tensor:
    """From C − 1 independent numbers to shifts of C logits that treat all classes alike.

    Of (C − 1, C); differences of two shifts have the variance of one of the numbers.
    """
    return torch.from_numpy(-helmert(like.shape[-1]) / math.sqrt(2)).to(like)


def _log_share(d: Any, x: Tensor, *, upper: bool) -> Tensor:
    """log P(Z > x) or log P(Z ≤ x), from the odds between the two: accurate for either."""
    classes = torch.arange(d.logits.shape[-1], device=d.logits.device)
    above = classes > x.unsqueeze(-1)
    log_above = logsumexp(torch.where(above, d.logits, -math.inf), -1)
    log_below = logsumexp(torch.where(above, -math.inf, d.logits), -1)
    wanted, other = (log_above, log_below) if upper else (log_below, log_above)
    none, all_ = wanted == -math.inf, other == -math.inf
    odds = torch.where(none | all_, 0.0, wanted) - torch.where(none | all_, 0.0, other)
    return torch.where(none, -math.inf, torch.where(all_, 0.0, log_sigmoid(odds)))
