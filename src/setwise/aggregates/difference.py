"""Difference: how much larger the first target of a pair is than the second."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import (
    Categorical,
    Cauchy,
    Distribution,
    Exponential,
    Gumbel,
    Laplace,
    Normal,
)

from setwise._math.pair_differences import difference_of, laplace_log_density, log_convolution, pair
from setwise.distributions import Continuous, Count, double, log_density, map_parameters
from setwise.likelihood import Aggregate, likelihood
from setwise.numerics import logsumexp
from setwise.sets import Sets

__all__ = ["Difference"]


@dataclass(frozen=True)
class Difference(Aggregate):
    """The first target less the second, y = z₁ − z₂.

    p(y) = ∫ p(x + y | θ₁) p(x | θ₂) dx, a sum for classes and counts. Differences leave a common
    shift of all targets open.

    >>> Difference().observe([3.0, 5.0], [[1, 0]]).y.tolist()
    [2.0]
    """

    size = 2
    symmetric = False
    of_differences = True

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        """z₁ − z₂ of each set."""
        first, second = sets.columns(z)
        return first - second

    def linear(self, sets: Sets) -> tuple[NDArray[np.float64], float]:
        """1 and −1."""
        return np.tile([1.0, -1.0], len(sets)), 0.0


@likelihood(Difference, Normal)
@likelihood(Difference, Cauchy)
def _again(aggregate: Difference, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """The difference has a distribution of the same kind."""
    d = difference_of(distribution, sets)
    assert d is not None
    return log_density(d, y.double()).to(y.dtype)


@likelihood(Difference, Gumbel)
def _gumbel(aggregate: Difference, distribution: Gumbel, sets: Sets, y: Tensor) -> Tensor:
    """Logistic density where the scale is one for all members, otherwise an integral."""
    d = difference_of(distribution, sets)
    if d is None:
        return _convolution(aggregate, distribution, sets, y)
    return log_density(d, y.double()).to(y.dtype)


@likelihood(Difference, Exponential)
def _exponential(aggregate: Difference, distribution: Exponential, sets: Sets, y: Tensor) -> Tensor:
    """Asymmetric Laplace density."""
    a, b = pair(distribution, sets)
    gap = y.double()
    fall = torch.where(gap < 0, -b.rate, a.rate) * gap
    # λ₁λ₂/(λ₁ + λ₂) without products that overflow
    swap = a.rate < b.rate
    large, small = torch.where(swap, b.rate, a.rate), torch.where(swap, a.rate, b.rate)
    return (small.log() - torch.log1p(small / large) - fall).to(y.dtype)


@likelihood(Difference, Laplace)
def _laplace(aggregate: Difference, distribution: Laplace, sets: Sets, y: Tensor) -> Tensor:
    """Closed form: three pieces, each an exponential."""
    a, b = pair(distribution, sets)
    return laplace_log_density(a, b, y.double()).to(y.dtype)


@likelihood(Difference, Continuous)
@likelihood(Difference, Count)
def _convolution(
    aggregate: Difference, distribution: Distribution, sets: Sets, y: Tensor
) -> Tensor:
    """Integral (or sum: Skellam for Poisson) of the product of the densities, to about 1e-12."""
    d = map_parameters(double(distribution), sets.dense)
    return log_convolution(d, y.double()).to(y.dtype)


@likelihood(Difference, Categorical)
def _categorical(aggregate: Difference, distribution: Categorical, sets: Sets, y: Tensor) -> Tensor:
    """Sum over the classes of the second member."""
    first, second = sets.columns(distribution.logits)
    n = first.shape[1]
    there = torch.arange(n, device=y.device) + y.unsqueeze(1)
    inside = (there >= 0) & (there < n) & (there == there.floor())
    first = first.gather(1, torch.where(inside, there, 0.0).long())
    return logsumexp(torch.where(inside, first + second, -math.inf), 1)
