"""Ranking: the members of a set in the order of their targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Exponential, Gumbel

from setwise._math.integration_axis import recentred
from setwise._math.order_probability import log_ordered
from setwise._math.pair_differences import equal_within
from setwise.aggregates.rank import Rank
from setwise.distributions import Continuous, double, map_parameters, parameters
from setwise.distributions.special import log_sigmoid
from setwise.likelihood import Aggregate, Order, Targets, by_size, evaluate, likelihood
from setwise.numerics import logcumsumexp
from setwise.sets import Sets

__all__ = ["Ranking"]


@dataclass(frozen=True)
class Ranking(Aggregate):
    """The order of the members: each set lists them best first, z₁ > z₂ > … > z_K; y is None.

    For Gumbel targets with one scale, and for Exponential targets counted from the last, this is
    the model of Plackett and Luce. Other targets are integrated one after another:
    G_k(x) = ∫_{−∞}^x p_k(s) G_{k+1}(s) ds with G_{K+1} = 1, and p = G₁(∞).

    `observe` returns the same sets with their members reordered.

    >>> Ranking().observe([3.0, 5.0, 4.0], [[0, 1, 2]]).sets[0].tolist()
    [1, 2, 0]

    Plackett, "The analysis of permutations", Applied Statistics 1975.
    """

    symmetric = False

    def arrange(self, z: Tensor, sets: Sets) -> Sets:
        """The sets with their members in decreasing order of the targets."""
        order = np.lexsort((-z.numpy(), sets.set_ids))
        return sets.reorder(order)

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> None:
        """None: the order of the members says it all."""

    def outcome(self, targets: Targets, size: int | None) -> Order:
        return Order()


def _plackett_luce(utility: Tensor) -> Tensor:
    """Σ_k log(e^u_k / Σ_{l≥k} e^u_l) along dimension 1."""
    rest = logcumsumexp(utility.flip(1), 1).flip(1)[:, 1:]
    return log_sigmoid(utility[:, :-1] - rest).sum(1)


@likelihood(Ranking, Gumbel)
@by_size
def _gumbel(aggregate: Ranking, distribution: Gumbel, sets: Sets, y: None) -> Tensor:
    """Plackett–Luce where the scale is one for all members, otherwise integrals."""
    if not equal_within(distribution.scale, sets):
        return _continuous(aggregate, distribution, sets, y)
    utility = sets.dense(distribution.loc.double() / distribution.scale.double())
    return _plackett_luce(utility).to(distribution.loc.dtype)


@likelihood(Ranking, Exponential)
@by_size
def _exponential(aggregate: Ranking, distribution: Exponential, sets: Sets, y: None) -> Tensor:
    """Plackett–Luce from the smallest up: the smallest of all is k with probability ∝ rate."""
    utility = sets.dense(distribution.rate.double().log()).flip(1)
    return _plackett_luce(utility).to(distribution.rate.dtype)


@likelihood(Ranking, Continuous, exact=False)
@by_size
def _continuous(aggregate: Ranking, distribution: Distribution, sets: Sets, y: None) -> Tensor:
    """Running integrals: relative error about 1e-11, 1e-8 where scales differ by many orders."""
    first = next(iter(parameters(distribution).values()))
    if sets.size == 1:
        return 0 * sets.dense(first)[:, 0]
    if sets.size == 2:
        return evaluate(Rank(), distribution, sets, torch.ones(len(sets), dtype=first.dtype))
    d = recentred(map_parameters(double(distribution), sets.dense))
    return log_ordered(d).to(first.dtype)
