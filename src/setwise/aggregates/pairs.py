"""Comparisons of two targets: by how much they differ (Difference), which is larger (Rank)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
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
    Gamma,
    Gumbel,
    Laplace,
    Normal,
)

from setwise._math.groups import piecewise
from setwise._math.pair_differences import (
    Tails,
    between,
    difference_of,
    laplace_log_density,
    laplace_log_tail,
    log_convolution,
    log_exceeds,
    log_within,
    most,
    pair,
)
from setwise._math.quadrature import rebuild
from setwise.distributions import (
    Continuous,
    Count,
    double,
    log_density,
    map_parameters,
    parameters,
)
from setwise.distributions.special import log_sigmoid
from setwise.distributions.tails import log_beta_tail
from setwise.likelihood import Aggregate, Label, Targets, likelihood
from setwise.numerics import chunked, gather, log1mexp, log_ndtr, logaddexp, logcumsumexp, logsumexp
from setwise.sets import Sets

__all__ = ["Difference", "Rank"]

# Counts below 128 are tabulated together, counts below 512 too; larger ones are summed.
_SHORT, _LARGE = 128, 512


@dataclass(frozen=True)
class Difference(Aggregate):
    """The first target less the second, y = z₁ − z₂.

    p(y) = ∫ p(x + y | θ₁) p(x | θ₂) dx, a sum for classes and counts. Differences do
    not determine a common shift of all targets.

    >>> Difference().observe([3.0, 5.0], [[1, 0]]).y.tolist()
    [2.0]
    """

    size = 2
    symmetric = False
    of_differences = True
    distinct = True

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        first, second = sets.columns(z)
        return first - second

    def linear(self, sets: Sets) -> tuple[NDArray[np.float64], float]:
        return np.tile([1.0, -1.0], len(sets)), 0.0

    def mirrored(self, y: NDArray[Any]) -> NDArray[Any]:
        return -y


def _closed_form(distribution: Distribution, sets: Sets) -> Tails | None:
    """The distribution of Z₁ − Z₂, where it has a closed form."""
    if isinstance(distribution, Laplace):
        a, b = pair(distribution, sets)
        cdf, survival = (partial(laplace_log_tail, a, b, upper=upper) for upper in (False, True))
        return Tails(cdf, survival, partial(laplace_log_density, a, b))
    d = difference_of(distribution, sets)
    return None if d is None else Tails.of(d)


@likelihood(Difference, Normal)
@likelihood(Difference, Cauchy)
@likelihood(Difference, Laplace)
@likelihood(Difference, Gumbel)
def _difference_closed(
    aggregate: Difference, distribution: Distribution, sets: Sets, y: Tensor
) -> Tensor:
    """Closed form; for Gumbel only where members have one scale, otherwise an integral."""
    tails = _closed_form(distribution, sets)
    if tails is None:
        return _convolution(aggregate, distribution, sets, y)
    return tails.density(y.double()).to(y.dtype)


@likelihood(Difference, Exponential)
def _difference_exponential(
    aggregate: Difference, distribution: Exponential, sets: Sets, y: Tensor
) -> Tensor:
    """Asymmetric Laplace density."""
    a, b = pair(distribution, sets)
    gap = y.double()
    fall = torch.where(gap < 0, -b.rate, a.rate) * gap
    # λ₁λ₂/(λ₁ + λ₂) without products that overflow
    swap = a.rate < b.rate
    large, small = torch.where(swap, b.rate, a.rate), torch.where(swap, a.rate, b.rate)
    return (small.log() - torch.log1p(small / large) - fall).to(y.dtype)


@likelihood(Difference, Continuous)
@likelihood(Difference, Count)
def _convolution(
    aggregate: Difference, distribution: Distribution, sets: Sets, y: Tensor
) -> Tensor:
    """Integral (or sum: Skellam for Poisson) of the product of the densities, to about 1e-12."""
    d = map_parameters(double(distribution), sets.dense)
    return log_convolution(d, y.double()).to(y.dtype)


@likelihood(Difference, Categorical)
def _difference_categorical(
    aggregate: Difference, distribution: Categorical, sets: Sets, y: Tensor
) -> Tensor:
    """Sum over the classes of the second member."""
    first, second = sets.columns(distribution.logits)
    n = first.shape[1]
    there = torch.arange(n, device=y.device) + y.unsqueeze(1)
    inside = (there >= 0) & (there < n) & (there == there.floor())
    first = first.gather(1, torch.where(inside, there, 0.0).long())
    return logsumexp(torch.where(inside, first + second, -math.inf), 1)


_SPOKEN = {
    **dict.fromkeys(("win", "won", "w", "larger", "greater", "higher", "better", ">", "1-0"), 1.0),
    **dict.fromkeys(("loss", "lost", "l", "smaller", "less", "lower", "worse", "<", "0-1"), 0.0),
}
_NEVER = {
    0.5: "a tie, which continuous targets have only within a margin: use Rank(tie_margin=…), the "
    "largest difference that counts as a tie"
}


@dataclass(frozen=True)
class Rank(Aggregate):
    """Which of two targets is larger: y = 1 if z₁ > z₂, 0 if z₁ < z₂, 0.5 for a tie.

    Targets tie where |z₁ − z₂| ≤ `tie_margin`. With margin 0 continuous targets never tie (y = 0.5
    has log-likelihood −inf), classes and counts tie where they are equal. For Gumbel targets with
    one scale this is the model of Bradley and Terry, for Normal targets that of Thurstone.

    p(1) = ∫ p(x | θ₂) P(Z₁ > x + margin) dx.

    >>> Rank().observe([3.0, 5.0, 5.0], [[0, 1], [1, 0], [1, 2]]).y.tolist()
    [0.0, 1.0, 0.5]

    Bradley and Terry, "Rank analysis of incomplete block designs", Biometrika 1952. Thurstone, "A
    law of comparative judgment", Psychological Review 1927.
    """

    tie_margin: float = 0.0

    size = 2
    symmetric = False
    of_differences = True
    distinct = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tie_margin) and self.tie_margin >= 0):
            raise ValueError(f"tie_margin must be a finite number from 0 on, got {self.tie_margin}")

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        first, second = sets.columns(z)
        gap = (first - second).double()
        return torch.where(gap.abs() <= self.tie_margin, 0.5, (gap > 0).double())

    def outcome(self, targets: Targets, size: int | None) -> Label:
        may_tie = targets.discrete is not False or self.tie_margin > 0
        ties = {0.5: "a tie"} if may_tie else {}
        return Label(
            {0.0: "the second is larger", **ties, 1.0: "the first is larger"},
            spoken=_SPOKEN,
            members=(1.0, 0.0),
            never={} if may_tie else _NEVER,
        )

    def mirrored(self, y: NDArray[Any]) -> NDArray[Any]:
        return 1 - y

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return [cls(), cls(tie_margin=1.0)]


# ---- closed forms


def _select(y: Tensor, less: Tensor, tie: Tensor | float, greater: Tensor) -> Tensor:
    tie = torch.as_tensor(tie, dtype=less.dtype, device=less.device)
    return torch.where(y == 1, greater, torch.where(y == 0, less, tie)).to(y.dtype)


@likelihood(Rank, Normal)
def _normal(aggregate: Rank, distribution: Normal, sets: Sets, y: Tensor) -> Tensor:
    """Normal distribution function of the scaled difference (Thurstone)."""
    if aggregate.tie_margin > 0:
        return _rank_closed(aggregate, distribution, sets, y)
    (a, b), (s, t) = sets.columns(distribution.loc), sets.columns(distribution.scale)
    gap = (a - b) * torch.addcmul(s * s, t, t).rsqrt()
    sign = y + y - 1
    return log_ndtr(gap * sign).masked_fill(sign == 0, -math.inf)


@likelihood(Rank, Cauchy)
@likelihood(Rank, Laplace)
@likelihood(Rank, Gumbel)
def _rank_closed(aggregate: Rank, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Tails of the difference; for Gumbel only with one scale (Bradley–Terry), else an integral."""
    tails = _closed_form(distribution, sets)
    if tails is None:
        return _continuous(aggregate, distribution, sets, y)
    margin = torch.full_like(y, aggregate.tie_margin, dtype=torch.float64)
    tie = between(tails, -margin, margin) if aggregate.tie_margin > 0 else -math.inf
    return _select(y, tails.cdf(-margin), tie, tails.survival(margin))


@likelihood(Rank, Exponential)
def _rank_exponential(aggregate: Rank, distribution: Exponential, sets: Sets, y: Tensor) -> Tensor:
    """Closed form: the ratio of the rates, and exponential tails."""
    a, b = pair(distribution, sets)
    odds = b.rate.log() - a.rate.log()
    first, second = log_sigmoid(odds), log_sigmoid(-odds)
    margin = aggregate.tie_margin
    greater, less = first - margin * a.rate, second - margin * b.rate
    if margin == 0:
        return _select(y, less, -math.inf, greater)
    tie = logaddexp(first + log1mexp(-margin * a.rate), second + log1mexp(-margin * b.rate))
    return _select(y, less, _better(tie, logaddexp(greater, less)), greater)


def _better(value: Tensor, rest: Tensor) -> Tensor:
    """A log probability, taken from its complement where it is more than one half."""
    likely = (value > -math.log(2)).detach()
    return torch.where(likely, log1mexp(torch.where(likely, rest, -1.0)), value)


@likelihood(Rank, Gamma)
def _gamma(aggregate: Rank, distribution: Gamma, sets: Sets, y: Tensor) -> Tensor:
    """Beta tail: one target's share of the sum is a beta variable; with a margin, an integral."""
    if aggregate.tie_margin > 0:
        return _continuous(aggregate, distribution, sets, y)
    d = _larger_first(map_parameters(double(distribution), sets.dense), y)
    (a, b), (rate_a, rate_b) = (p.unbind(1) for p in (d.concentration, d.rate))
    out = log_beta_tail(b, a, rate_b.log() - rate_a.log(), upper=False)
    return torch.where(y == 0.5, -math.inf, out).to(y.dtype)


def _larger_first(d: Distribution, y: Tensor) -> Any:
    """The members' distributions, (sets, 2), that of the larger target first."""
    turn = (y == 0).unsqueeze(1)
    return map_parameters(d, lambda p: torch.where(turn, p.flip(1), p))


# ---- integrals and sums


@likelihood(Rank, Continuous)
def _continuous(aggregate: Rank, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Integral of one density times the other's tail, to 1e-10 or better."""
    d = map_parameters(double(distribution), sets.dense)
    return _ranked(_larger_first(d, y), y, aggregate.tie_margin).to(y.dtype)


def _ranked(d: Distribution, y: Tensor, margin: float) -> Tensor:
    """log p(y); d is (sets, 2), the larger target first."""

    def part(at: Tensor) -> Distribution:
        return map_parameters(d, lambda p: gather(p, at))

    return piecewise(
        (y != 0.5, lambda at: log_exceeds(part(at), margin)),
        (y == 0.5, lambda at: log_within(part(at), margin)),
    )


@likelihood(Rank, Count)
def _count(aggregate: Rank, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Sum of one member's probabilities times the other's tail."""
    d = _larger_first(map_parameters(double(distribution), sets.dense), y)
    values = list(parameters(d).values())
    margin = math.floor(aggregate.tie_margin)
    bound = most(d) + margin

    def tabulated(at: Tensor) -> Tensor:
        n = int(bound[at].max()) + 1
        k = torch.arange(n, device=y.device, dtype=torch.float64)[:, None]

        def table(y: Tensor, *values: Tensor) -> Tensor:
            logits = log_density(rebuild(d, (v.unsqueeze(1) for v in values)), k)
            return _ranked_table(logits[..., 0], logits[..., 1], (1 + (y != 0.5)).long(), margin)

        return chunked(table, y[at], *(gather(v, at) for v in values), cost=20 * n)

    def summed(at: Tensor) -> Tensor:
        return _ranked(map_parameters(d, lambda p: gather(p, at)), y[at], margin)

    short, large = bound < _SHORT, bound >= _LARGE
    return piecewise((short, tabulated), (~short & ~large, tabulated), (large, summed)).to(y.dtype)


@likelihood(Rank, Categorical)
def _rank_categorical(aggregate: Rank, distribution: Categorical, sets: Sets, y: Tensor) -> Tensor:
    """Sum over the classes of the second member, in their order."""
    first, second = sets.columns(distribution.logits)
    return _ranked_table(first, second, (2 * y).long(), math.floor(aggregate.tie_margin))


def _ranked_table(first: Tensor, second: Tensor, outcome: Tensor, margin: int) -> Tensor:
    """log P(outcome) from log probabilities of 0, …, n − 1, (sets, n) each.

    Outcomes are 0: first less than second, 1: tie, 2: first greater.
    """
    n = first.shape[1]
    margin = min(margin, n)
    nothing = torch.full_like(first, -math.inf)

    def exceeds(a: Tensor, b: Tensor) -> Tensor:
        at_least = logcumsumexp(a.flip(1), 1).flip(1)
        return logsumexp(b + torch.cat([at_least, nothing, nothing], 1)[:, margin + 1 :][:, :n], 1)

    shifted = torch.cat([nothing, first, nothing], 1)
    steps = range(n - margin, n + margin + 1)
    tie = logsumexp(torch.stack([logsumexp(shifted[:, s:][:, :n] + second, 1) for s in steps]), 0)
    every = torch.stack([exceeds(second, first), tie, exceeds(first, second)], 1)
    at = outcome.unsqueeze(1)
    rest = logsumexp(every.scatter(1, at, -math.inf), 1)
    return _better(every.gather(1, at).squeeze(1), rest)
