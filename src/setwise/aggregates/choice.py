"""Choice: which member of a set has the largest target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Gumbel

from setwise._math.integration_axis import Line, piecewise, recentred
from setwise._math.pair_differences import equal_within
from setwise._math.quadrature import rebuild
from setwise.distributions import Continuous, log_cdf, log_density, parameters
from setwise.distributions.special import log_sigmoid
from setwise.likelihood import Aggregate, Position, Targets, by_size, likelihood
from setwise.numerics import gather, log1mexp
from setwise.sets import Sets

__all__ = ["Choice"]


@dataclass(frozen=True)
class Choice(Aggregate):
    """The position of the member with the largest target, counted from 0.

    p(j) = ∫ p(x | θ_j) ∏_{k≠j} P(Z_k < x) dx. For Gumbel targets with one scale this is the softmax
    (multinomial logit), for Normal targets multinomial probit.

    >>> Choice().observe([3.0, 5.0, 4.0], [[0, 1, 2], [2, 0, 2]]).y.tolist()
    [1, 0]

    McFadden, "Conditional logit analysis of qualitative choice behavior", 1974.
    """

    symmetric = False

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        """The position of the largest target of each set, the first one where several are."""
        top = z == sets.repeat(sets.max(z))
        first = np.flatnonzero(top.numpy())
        _, at = np.unique(sets.set_ids[first], return_index=True)
        return first[at] - sets.offsets[:-1]

    def outcome(self, targets: Targets, size: int | None) -> Position:
        return Position(size)


@likelihood(Choice, Gumbel)
def _gumbel(aggregate: Choice, distribution: Gumbel, sets: Sets, y: Tensor) -> Tensor:
    """Softmax where the scale is one for all members, otherwise an integral."""
    if not equal_within(distribution.scale, sets):
        out: Tensor = _continuous(aggregate, distribution, sets, y)
        return out
    utility = distribution.loc.double() / distribution.scale.double()
    chosen = sets.tensor("offsets", utility)[:-1] + y
    others = sets.logsumexp(utility.index_fill(0, chosen, -math.inf))
    alone = others == -math.inf
    odds = torch.where(alone, 0.0, utility[chosen] - torch.where(alone, 0.0, others))
    return torch.where(alone, 0.0, log_sigmoid(odds)).to(distribution.loc.dtype)


@likelihood(Choice, Continuous)
@by_size
def _continuous(aggregate: Choice, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Integral of the chosen member's density times the others' distribution functions."""
    values = [sets.dense(p) for p in parameters(distribution).values()]
    size = values[0].shape[1]
    if size == 1:
        return 0 * values[0][:, 0]
    # the chosen member first, the others in their order
    place = torch.arange(size, device=y.device)
    order = torch.where(place == 0, y.unsqueeze(1), place - (place <= y.unsqueeze(1)).long())
    d = rebuild(distribution, (p.double().gather(1, order) for p in values))
    d = recentred(d, torch.zeros_like(order[:, :1]))
    # the integrand has a bump where the chosen member is; the others only make steps
    line = Line.of(d).highest(16)
    sure = line.centres[:, 0] > line.centres[:, 1:].amax(1) + line.widths.amax(1)

    def integral(at: Tensor, beaten: bool) -> Tensor:
        part = [gather(p, at) for p in parameters(d).values()]
        return line.take(at).integral(_integrand(d, beaten), part, cost=4 * size)

    out = piecewise(
        (~sure, lambda at: integral(at, False)), (sure, lambda at: log1mexp(integral(at, True)))
    )
    return out.to(values[0].dtype)


def _integrand(d: Distribution, beaten: bool) -> Any:
    """log of the first member's density times P(all others below), or times the complement."""

    def integrand(x: Tensor, *tensors: Tensor) -> Tensor:
        first = rebuild(d, (t[:, :1] for t in tensors))
        others = rebuild(d, (t[:, 1:].unsqueeze(1) for t in tensors))
        below = log_cdf(others, x.unsqueeze(2)).sum(2)
        return log_density(first, x) + (log1mexp(below) if beaten else below)

    return integrand
