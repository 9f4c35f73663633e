"""The order of the members of a set: who is first (Choice), or all of it (Ranking)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Exponential, Gumbel

from setwise._math.groups import piecewise
from setwise._math.integration_axis import Line, recentred
from setwise._math.order_probability import log_ordered
from setwise._math.pair_differences import equal_within
from setwise._math.quadrature import rebuild
from setwise.aggregates.pairs import Rank
from setwise.distributions import (
    Continuous,
    double,
    log_cdf,
    log_density,
    map_parameters,
    parameters,
)
from setwise.distributions.special import log_sigmoid
from setwise.likelihood import Aggregate, Order, Position, Targets, by_size, evaluate, likelihood
from setwise.numerics import gather, log1mexp, logcumsumexp
from setwise.sets import Sets

__all__ = ["Choice", "Ranking"]


@dataclass(frozen=True)
class Choice(Aggregate):
    """The position of the member with the largest target, counted from 0.

    p(j) = ∫ p(x | θ_j) ∏_{k≠j} P(Z_k < x) dx. For Gumbel targets with one scale this is the softmax
    (multinomial logit), for Normal targets multinomial probit.

    >>> Choice().observe([3.0, 5.0, 4.0], [[0, 1, 2], [2, 0]]).y.tolist()
    [1, 0]

    McFadden, "Conditional logit analysis of qualitative choice behavior", 1974.
    """

    symmetric = False

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        top = z == sets.repeat(sets.max(z))
        first = np.flatnonzero(top.numpy())
        _, at = np.unique(sets.set_ids[first], return_index=True)
        return first[at] - sets.offsets[:-1]

    def outcome(self, targets: Targets, size: int | None) -> Position:
        return Position(size)


@likelihood(Choice, Gumbel)
def _best_of_gumbels(aggregate: Choice, distribution: Gumbel, sets: Sets, y: Tensor) -> Tensor:
    """Softmax where the scale is one for all members, otherwise an integral."""
    if not equal_within(distribution.scale, sets):
        return _best(aggregate, distribution, sets, y)
    utility = distribution.loc.double() / distribution.scale.double()
    chosen = sets.tensor("offsets", utility)[:-1] + y
    others = sets.logsumexp(utility.index_fill(0, chosen, -math.inf))
    alone = others == -math.inf
    odds = torch.where(alone, 0.0, utility[chosen] - torch.where(alone, 0.0, others))
    return torch.where(alone, 0.0, log_sigmoid(odds)).to(distribution.loc.dtype)


@likelihood(Choice, Continuous)
@by_size
def _best(aggregate: Choice, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Integral of the chosen member's density times the others' distribution functions."""
    values = [sets.dense(p) for p in parameters(distribution).values()]
    size = values[0].shape[1]
    if size == 1:
        return 0 * values[0][:, 0]
    # the chosen member first, the others in their order
    place = torch.arange(size, device=y.device)
    order = torch.where(place == 0, y.unsqueeze(1), place - (place <= y.unsqueeze(1)).long())
    d = rebuild(distribution, (p.double().gather(1, order) for p in values))
    d = recentred(d, 0)
    # the integrand has a bump where the chosen member is; the others only make steps
    line = Line.of(d).highest(16)
    sure = line.centres[:, 0] > line.centres[:, 1:].amax(1) + line.widths.amax(1)

    def integral(at: Tensor, beaten: bool) -> Tensor:
        """Of the first member's density times P(all others below), or times the complement."""

        def integrand(x: Tensor, *tensors: Tensor) -> Tensor:
            first = rebuild(d, (t[:, :1] for t in tensors))
            others = rebuild(d, (t[:, 1:].unsqueeze(1) for t in tensors))
            below = log_cdf(others, x.unsqueeze(2)).sum(2)
            return log_density(first, x) + (log1mexp(below) if beaten else below)

        part = [gather(p, at) for p in parameters(d).values()]
        return line.take(at).integral(integrand, part, cost=4 * size)

    out = piecewise(
        (~sure, lambda at: integral(at, False)), (sure, lambda at: log1mexp(integral(at, True)))
    )
    return out.to(values[0].dtype)


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
def _order_of_gumbels(aggregate: Ranking, distribution: Gumbel, sets: Sets, y: None) -> Tensor:
    """Plackett–Luce where the scale is one for all members, otherwise integrals."""
    if not equal_within(distribution.scale, sets):
        return _order(aggregate, distribution, sets, y)
    utility = sets.dense(distribution.loc.double() / distribution.scale.double())
    return _plackett_luce(utility).to(distribution.loc.dtype)


@likelihood(Ranking, Exponential)
@by_size
def _order_of_exponentials(
    aggregate: Ranking, distribution: Exponential, sets: Sets, y: None
) -> Tensor:
    """Plackett–Luce from the smallest up: the smallest of all is k with probability ∝ rate."""
    utility = sets.dense(distribution.rate.double().log()).flip(1)
    return _plackett_luce(utility).to(distribution.rate.dtype)


@likelihood(Ranking, Continuous, exact=False)
@by_size
def _order(aggregate: Ranking, distribution: Distribution, sets: Sets, y: None) -> Tensor:
    """Running integrals: relative error about 1e-11, 1e-8 where scales differ by many orders."""
    first = next(iter(parameters(distribution).values()))
    if sets.size == 1:
        return 0 * sets.dense(first)[:, 0]
    if sets.size == 2:
        return evaluate(Rank(), distribution, sets, torch.ones(len(sets), dtype=first.dtype))
    d = recentred(map_parameters(double(distribution), sets.dense))
    return log_ordered(d).to(first.dtype)
