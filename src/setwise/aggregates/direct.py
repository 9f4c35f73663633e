"""Observations of single targets: the target itself, one of several, or an interval around it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Distribution

from setwise.distributions import (
    Continuous,
    Discrete,
    double,
    has_mean,
    log_cdf,
    log_density,
    log_survival,
    point_estimate,
)
from setwise.errors import SetError
from setwise.likelihood import (
    Aggregate,
    Bounds,
    ClassLabel,
    Number,
    Targets,
    likelihood,
)
from setwise.numerics import logsubexp, logsumexp
from setwise.sets import Sets

__all__ = ["Direct", "Interval", "PrimaryInstance"]


def check_classes(distribution: Distribution, y: Tensor) -> None:
    """Raises where y names a class that the distribution does not have."""
    if not isinstance(distribution, Categorical):
        return
    n = distribution.logits.shape[-1]
    bad = (y >= n) | (y < 0) | (y != y.floor())
    if bad.any():
        at = int(bad.reshape(len(y), -1).any(1).nonzero()[0])
        raise SetError(at, f"has y = {y[at].item():g}, but the classes are 0 to {n - 1}")


@dataclass(frozen=True)
class Direct(Aggregate):
    """The target itself: ordinary supervision, y = z of a set of one.

    log p(y) is the distribution's own. Mixed with other observations it settles what they leave
    open.

    >>> Direct().observe([3.0, 5.0], [[1]]).y.tolist()
    [5.0]
    """

    size = 1
    identity_at_one = True

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        return z

    def linear(self, sets: Sets) -> tuple[NDArray[np.float64], float]:
        return np.ones(len(sets)), 0.0

    def outcome(self, targets: Targets, size: int | None) -> Number | ClassLabel:
        return Number() if targets.n_classes is None else ClassLabel(targets.n_classes)


@likelihood(Direct, Distribution)
def _direct(aggregate: Direct, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """The log density or log probability itself."""
    check_classes(distribution, y)
    return log_density(distribution, y)


@dataclass(frozen=True)
class PrimaryInstance(Aggregate):
    """The target of one unknown member, all members equally likely (multiple-instance regression).

    p(y) = 1/K Σ_k p(y | θ_k).

    >>> PrimaryInstance().observe([3.0, 3.0], [[0, 1]]).y.tolist()
    [3.0]

    Ray and Page, "Multiple instance regression", ICML 2001.
    """

    identity_at_one = True

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        return z[sets.offsets[:-1] + rng.integers(0, sets.sizes)]

    def outcome(self, targets: Targets, size: int | None) -> Number | ClassLabel:
        return Number() if targets.n_classes is None else ClassLabel(targets.n_classes)

    def expected(self, members: Distribution, sets: Sets) -> Tensor | None:
        """The mean of the members' means, where they have means."""
        return sets.mean(point_estimate(members)) if has_mean(members) else None


@likelihood(PrimaryInstance, Distribution)
def _primary(
    aggregate: PrimaryInstance, distribution: Distribution, sets: Sets, y: Tensor
) -> Tensor:
    """Mean of the members' densities at y."""
    check_classes(distribution, y)
    densities = log_density(distribution, sets.repeat(y))
    return sets.logsumexp(densities) - sets.tensor("sizes", y).to(y.dtype).log()


@dataclass(frozen=True)
class Interval(Aggregate):
    """The target lies between two numbers: y = (low, high), ±inf allowed (censoring).

    p(y) = P(low ≤ Z ≤ high). `edges` are the cell borders that `observe` uses, by default the
    deciles of the targets.

    >>> Interval(edges=(0.0, 10.0)).observe([3.0, 12.0], [[0], [1]]).y.tolist()
    [[0.0, 10.0], [10.0, inf]]
    """

    edges: tuple[float, ...] | None = None

    size = 1

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        values = z.double().numpy()
        edges = self.edges
        inner = np.quantile(values, np.linspace(0.1, 0.9, 9)) if edges is None else edges
        borders = np.concatenate([[-np.inf], np.unique(np.asarray(inner, float)), [np.inf]])
        cell = np.searchsorted(borders, values, side="left")
        low, high = borders[cell - 1], borders[cell]
        if not z.is_floating_point():  # whole numbers: both ends belong to the interval
            low, high = np.floor(low) + 1, np.floor(high)
        return np.stack([low, high], axis=1)

    def outcome(self, targets: Targets, size: int | None) -> Bounds:
        return Bounds()

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return [cls(edges=(-1.0, 0.5, 1.0, 2.5))]


def _end(function: Any, d: Any, x: Tensor, at_minus: float, at_plus: float) -> Tensor:
    """A distribution function with its limits at ±inf put in by hand (gradient zero there)."""
    inner = function(d, torch.where(x.isfinite(), x, 0.0))
    return torch.where(x.isfinite(), inner, torch.where(x < 0, at_minus, at_plus))


def _between(d: Distribution, low: Tensor, high: Tensor) -> Tensor:
    """log P(low < Z ≤ high) from whichever tail keeps the digits."""
    cdf_low = _end(log_cdf, d, low, -math.inf, 0.0)
    cdf_high = _end(log_cdf, d, high, -math.inf, 0.0)
    above_low = _end(log_survival, d, low, 0.0, -math.inf)
    above_high = _end(log_survival, d, high, 0.0, -math.inf)
    upper = (cdf_low > above_low).detach()
    return logsubexp(
        torch.where(upper, above_low, cdf_high), torch.where(upper, above_high, cdf_low)
    )


@likelihood(Interval, Continuous)
def _interval(aggregate: Interval, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Difference of distribution functions, taken in the nearer tail."""
    d = double(distribution)
    low, high = y.double().unbind(1)
    inner = _between(d, low, high)
    # A very narrow interval is a difference of nearly equal numbers: density × width instead.
    finite = low.isfinite() & high.isfinite() & (high > low)
    safe_low, safe_high = torch.where(finite, low, 0.0), torch.where(finite, high, 1.0)
    width = safe_high - safe_low
    density = log_density(d, 0.5 * (safe_low + safe_high)) + width.log()
    tails = torch.minimum(_end(log_cdf, d, high, 0, 0), _end(log_survival, d, low, 0, 0)).detach()
    narrow = finite & (density.detach() - tails < math.log(1e-6)) & density.isfinite()
    return torch.where(narrow, torch.where(narrow, density, 0.0), inner).to(y.dtype)


@likelihood(Interval, Discrete)
def _interval_counts(
    aggregate: Interval, distribution: Distribution, sets: Sets, y: Tensor
) -> Tensor:
    """Difference of distribution functions, both ends included."""
    d = double(distribution)
    low, high = y.double()[:, 0].ceil(), y.double()[:, 1].floor()
    one = low == high
    at = log_density(d, torch.where(one, low, 0.0))
    inner = _between(d, low - 1, high)
    out = torch.where(one, at, inner)
    return torch.where(low > high, -math.inf, out).to(y.dtype)


@likelihood(Interval, Categorical)
def _interval_classes(
    aggregate: Interval, distribution: Categorical, sets: Sets, y: Tensor
) -> Tensor:
    """Sum of the class probabilities within the interval, both ends included."""
    classes = torch.arange(distribution.logits.shape[-1], device=y.device)
    inside = (classes >= y[:, :1]) & (classes <= y[:, 1:])
    return logsumexp(distribution.logits.masked_fill(~inside, -math.inf), -1)
