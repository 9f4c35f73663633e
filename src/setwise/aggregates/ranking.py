"""The order of the members of a set: who is first (Choice), or all of it (Ranking)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution, Exponential, Gumbel

from setwise._math.groups import piecewise
from setwise._math.integration_axis import Line, recentred
from setwise._math.order_probability import log_ordered
from setwise._math.pair_differences import equal_within
from setwise._math.quadrature import rebuild
from setwise._math.tied_orders import MOST_TIED, Sizes, largest_middle
from setwise.aggregates.pairs import Rank
from setwise.distributions import (
    Continuous,
    double,
    log_cdf,
    log_density,
    log_survival,
    map_parameters,
    parameters,
)
from setwise.distributions.special import log_sigmoid
from setwise.errors import SetError
from setwise.likelihood import Aggregate, Order, Position, Targets, by_size, evaluate, likelihood
from setwise.numerics import gather, log1mexp, logaddexp, logcumsumexp, logsumexp
from setwise.sets import Sets

__all__ = ["Choice", "Ranking"]

_FEW = 6  # tied members up to which subsets are quicker than an integral


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
    return _ahead(d, log_cdf).to(values[0].dtype)


def _ahead(distribution: Distribution, log_tail: Callable[..., Tensor]) -> Tensor:
    """log P(the first member is above all others), or below them all, by members (sets, K)."""
    d = recentred(distribution, 0)
    line = Line.of(d)
    way = 1.0 if log_tail is log_cdf else -1.0
    # the integrand has a bump where the first member is; the others only make steps
    line = line.outermost(16, way)
    gap = way * (line.centres[:, :1] - line.centres[:, 1:])
    sure = gap.amin(1) > line.widths.amax(1)

    def integral(at: Tensor, beaten: bool) -> Tensor:
        """Of the first member's density times P(all others beside), or times the complement."""

        def integrand(x: Tensor, *tensors: Tensor) -> Tensor:
            first = rebuild(d, (t[:, :1] for t in tensors))
            others = rebuild(d, (t[:, 1:].unsqueeze(1) for t in tensors))
            beside = log_tail(others, x.unsqueeze(2)).sum(2)
            return log_density(first, x) + (log1mexp(beside) if beaten else beside)

        part = [gather(p, at) for p in parameters(d).values()]
        return line.take(at).integral(integrand, part, cost=4 * d.batch_shape[1])

    return piecewise(
        (~sure, lambda at: integral(at, False)), (sure, lambda at: log1mexp(integral(at, True)))
    )


@dataclass(frozen=True)
class Ranking(Aggregate):
    """The order of the members: each set lists them best first, z₁ > z₂ > … > z_K; y is None.

    With `top=k` the first k are in order, and all others behind them, in an order that is not
    known. With levels as y (for each set a list, 1 for the best, equal numbers for members of which
    it is not known who is ahead) the order in which members are listed does not matter. Such ties
    are gaps in what was seen, not equal targets: p is the sum over all orders that agree with it.

    For Gumbel targets with one scale, and for Exponential targets counted from the last, this is
    the model of Plackett and Luce, and any number may be tied. Other targets are
    integrated one after another: G_k(x) = ∫_{−∞}^x p_k(s) G_{k+1}(s) ds with G_{K+1} = 1, and
    p = G₁(∞). There, up to 10 may be tied between others; at both ends there is no limit.

    `observe` returns the same sets with their members reordered.

    >>> Ranking().observe([3.0, 5.0, 4.0], [[0, 1, 2]]).sets[0].tolist()
    [1, 2, 0]
    >>> import setwise as sw
    >>> sw.Observations(Ranking(), [[0, 1, 2, 3]], [[2, 1, 7, 2]]).y.tolist()
    [[2.0, 1.0, 4.0, 2.0]]

    Plackett, "The analysis of permutations", Applied Statistics 1975. Turner et al., "Modelling
    rankings in R: the PlackettLuce package", Computational Statistics 2020.
    """

    top: int | None = None

    symmetric = False

    def __post_init__(self) -> None:
        if self.top is not None and not (isinstance(self.top, int) and self.top >= 1):
            raise ValueError(
                f"top is how many of the first are in order, 1 or more (None: all), got {self.top}"
            )

    def arrange(self, z: Tensor, sets: Sets) -> Sets:
        """The sets with their members in decreasing order of the targets."""
        order = np.lexsort((-z.numpy(), sets.set_ids))
        if self.top is not None:  # the others as they were listed
            place = np.arange(len(order)) - sets.offsets[:-1][sets.set_ids]
            late = np.where(place < self.top, place - len(order), order)
            order = order[np.lexsort((late, sets.set_ids))]
        return sets.reorder(order)

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> None:
        """None: the order of the members says it all."""

    def outcome(self, targets: Targets, size: int | None) -> Order:
        return Order(self.top)

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return [cls(), cls(top=1)]


def _in_order(
    aggregate: Ranking, distribution: Distribution, sets: Sets, y: Tensor | None
) -> tuple[Any, NDArray[np.bool_]]:
    """Members as (sets, K), best first, and which of them are tied with the one before."""
    d, size = map_parameters(double(distribution), sets.dense), sets.size
    assert size is not None
    if y is None:
        first = size if aggregate.top is None else min(aggregate.top, size)
        return d, np.tile(np.arange(size) > first, (len(sets), 1))
    level, order = y[:, :size].double().sort(dim=1, stable=True)
    tied = np.diff(level.cpu().numpy(), axis=1, prepend=-1.0) == 0
    return map_parameters(d, lambda p: p.gather(1, order)), tied


def _plackett_luce(utility: Tensor, tied: NDArray[np.bool_]) -> Tensor:
    """log P of choosing without replacement with odds e^u: members (sets, K), the first one first.

    A group of tied members is chosen, in whatever order, before the rest.
    """
    n, size = utility.shape
    rest = logcumsumexp(utility.flip(1), 1).flip(1)
    last = ~np.roll(tied, -1, 1)  # of their groups
    begin = np.maximum.accumulate(np.where(tied, 0, np.arange(size)), 1)
    length = np.where(last, np.arange(size) + 1 - begin, 0)
    length[:, -1] = 0  # nobody is left after the last group
    out = utility.new_zeros(n)
    for k in np.unique(length[length > 0]).tolist():
        which, end = (torch.as_tensor(at, device=out.device) for at in (length == k).nonzero())
        group = utility[which.unsqueeze(1), end.unsqueeze(1) - torch.arange(k, device=out.device)]
        first = _first_by_subsets if k <= _FEW else _first_by_integral
        out = out.index_add(0, which, first(group, rest[which, end + 1]))
    return out


def _first_by_subsets(group: Tensor, rest: Tensor) -> Tensor:
    """log P that all of a group, (n, K), come before the rest: by who of them come first, 2ᴷ."""
    every = range(group.shape[1])
    left: dict[tuple[int, ...], Tensor] = {(): rest}
    done: dict[tuple[int, ...], Tensor] = {(): torch.zeros_like(rest)}
    for some in chain.from_iterable(combinations(every, k + 1) for k in every):
        left[some] = logaddexp(left[some[:-1]], group[:, some[-1]])
    for some in chain.from_iterable(combinations(every, k + 1) for k in every):
        others = left[tuple(k for k in every if k not in some)]
        ways = [
            done[some[:j] + some[j + 1 :]] + log_sigmoid(group[:, k] - others)
            for j, k in enumerate(some)
        ]
        done[some] = ways[0] if len(ways) == 1 else logsumexp(torch.stack(ways), 0)
    return done[tuple(every)]


def _first_by_integral(group: Tensor, rest: Tensor) -> Tensor:
    """The same as the probability that as many Gumbel variables are larger than one other."""
    loc = torch.cat([rest.unsqueeze(1), group], 1)
    return _ahead(Gumbel(loc, torch.ones_like(loc), validate_args=False), log_survival)


@likelihood(Ranking, Gumbel)
@by_size
def _order_of_gumbels(
    aggregate: Ranking, distribution: Gumbel, sets: Sets, y: Tensor | None
) -> Tensor:
    """Plackett–Luce where the scale is one for all members, otherwise integrals."""
    if not equal_within(distribution.scale, sets):
        return _order(aggregate, distribution, sets, y)
    d, tied = _in_order(aggregate, distribution, sets, y)
    return _plackett_luce(d.loc / d.scale, tied).to(distribution.loc.dtype)


@likelihood(Ranking, Exponential)
@by_size
def _order_of_exponentials(
    aggregate: Ranking, distribution: Exponential, sets: Sets, y: Tensor | None
) -> Tensor:
    """Plackett–Luce from the smallest up: the smallest of all is k with probability ∝ rate."""
    d, tied = _in_order(aggregate, distribution, sets, y)
    tied = np.roll(tied[:, ::-1], 1, 1)
    return _plackett_luce(d.rate.log().flip(1), tied).to(distribution.rate.dtype)


@likelihood(Ranking, Continuous, exact=False)
@by_size
def _order(aggregate: Ranking, distribution: Distribution, sets: Sets, y: Tensor | None) -> Tensor:
    """Running integrals: relative error about 1e-11, 1e-8 where scales differ by many orders."""
    d, tied = _in_order(aggregate, distribution, sets, y)
    first = next(iter(parameters(distribution).values()))
    patterns, which = np.unique(tied, axis=0, return_inverse=True)

    def of(pattern: NDArray[np.bool_], at: Tensor) -> Tensor:
        groups = np.diff(np.flatnonzero(np.append(~pattern, True)))
        return _log_order(map_parameters(d, lambda p: gather(p, at)), tuple(groups.tolist()), at)

    each = torch.as_tensor(which.reshape(-1), device=first.device)
    cases = ((each == i, partial(of, pattern)) for i, pattern in enumerate(patterns))
    return piecewise(*cases).to(first.dtype)


def _log_order(d: Any, tied: Sizes, numbers: Tensor) -> Tensor:
    """log P of the order of members, (sets, K), best first, in groups of these sizes."""
    first = next(iter(parameters(d).values()))
    if len(tied) == 1:
        return 0 * first[:, 0]
    if tied == (1, 1):
        pairs = Sets(np.arange(first.numel()).reshape(first.shape))
        flat = map_parameters(d, lambda p: p.reshape(-1))
        return evaluate(Rank(), flat, pairs, torch.ones(len(first), dtype=first.dtype))
    if (most := largest_middle(tied)) > MOST_TIED:
        raise SetError(
            int(numbers[0]),
            f"has {most} members tied between others: up to {MOST_TIED} can be, but for the first "
            f"and the last of all; Gumbel targets with one scale have no such limit",
        )
    return log_ordered(recentred(d), tied)
