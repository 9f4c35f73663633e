"""Order statistics: the smallest, the largest, the k-th smallest, the median."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from setwise._math.median_of_even_sets import log_mean_of_middle
from setwise._math.order_statistic_density import (
    Sides,
    after,
    before,
    log_one_mark,
    log_one_mark_of_few,
    log_one_mark_of_many,
)
from setwise._math.padding import Padded
from setwise.distributions import (
    Continuous,
    Discrete,
    double,
    log_cdf,
    log_density,
    log_survival,
    map_parameters,
)
from setwise.likelihood import Aggregate, ClassLabel, Number, SetSizes, Targets, by_size, likelihood
from setwise.likelihood.registry import in_parts
from setwise.numerics import log1mexp, logsumexp
from setwise.sets import Sets

__all__ = ["Max", "Median", "Min", "OrderStatistic"]

Ints = NDArray[np.int64]

_FEW = 16  # members on one side of y that are counted one by one


class _Ordered(Aggregate):
    """A number at a certain place among the members' targets in increasing order."""

    identity_at_one: ClassVar[bool] = True

    @abstractmethod
    def ranks(self, size: int) -> tuple[int, int]:
        """Positions, from 0, of the two members whose mean is observed; they are mostly equal."""

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> NDArray[np.float64]:
        out = np.empty(len(sets))
        for which, part in sets.by_size():
            ordered = part.dense(z).double().sort(1).values
            low, high = self.ranks(ordered.shape[1])
            out[which] = 0.5 * ordered[:, low] + 0.5 * ordered[:, high]
        return out

    def outcome(self, targets: Targets, size: int | None) -> Number | ClassLabel:
        n = targets.n_classes
        if n is None:
            return Number()
        low, high = (0, 0) if size is None else self.ranks(size)
        if low == high:
            return ClassLabel(n, named=False)
        return Number([v / 2 for v in range(2 * n - 1)])


@dataclass(frozen=True)
class Min(_Ordered):
    """The smallest target of the set: y = min_k Z_k.

    p(y) = Σ_j f_j(y) Π_{i≠j} S_i(y), with densities f and survival functions S = P(Z > y). Where
    targets can tie, the sum runs over the first member that attains y.

    >>> Min().observe([3.0, 1.0, 2.0], [[0, 1], [0, 2]]).y.tolist()
    [1.0, 2.0]

    H. A. David & H. N. Nagaraja, "Order Statistics", 2003.
    """

    def ranks(self, size: int) -> tuple[int, int]:
        return 0, 0


@dataclass(frozen=True)
class Max(_Ordered):
    """The largest target of the set: y = max_k Z_k.

    p(y) = Σ_j f_j(y) Π_{i≠j} F_i(y), with densities f and distribution functions F. Where targets
    can tie, the sum runs over the last member that attains y.

    >>> Max().observe([3.0, 1.0, 2.0], [[0, 1], [1, 2]]).y.tolist()
    [3.0, 2.0]

    H. A. David & H. N. Nagaraja, "Order Statistics", 2003.
    """

    def ranks(self, size: int) -> tuple[int, int]:
        return size - 1, size - 1


@dataclass(frozen=True)
class OrderStatistic(_Ordered):
    """The k-th smallest target of the set; k = 1 is the smallest. Sets need k members or more.

    p(y) = Σ_j f_j(y) [x^{k−1}] Π_{i≠j} (S_i(y) + F_i(y) x): member j is at y, and k − 1 of the
    others are below it. Where targets can tie, members at y stand in the order of the set.

    >>> OrderStatistic(2).observe([3.0, 1.0, 2.0], [[0, 1, 2]]).y.tolist()
    [2.0]

    H. A. David & H. N. Nagaraja, "Order Statistics", 2003.
    """

    k: int

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int | np.integer) or self.k < 1:
            raise ValueError(f"k is a whole number from 1 (the smallest) on, got {self.k!r}")

    def ranks(self, size: int) -> tuple[int, int]:
        if size < self.k:
            raise ValueError(f"{self!r} needs sets of at least {self.k} members, got one of {size}")
        return int(self.k) - 1, int(self.k) - 1

    def set_sizes(self, targets: Targets) -> SetSizes:
        return SetSizes(int(self.k))

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return [cls(1), cls(2)]


@dataclass(frozen=True)
class Median(_Ordered):
    """The median target of the set; for an even number of members the mean of the middle two.

    Odd sizes: the order statistic in the middle. Even sizes, continuous targets only:
    p(y) = 2 ∫₀^∞ g(y − t, y + t) dt, where g(u, w) is the joint density of the middle two: a sum
    over the pairs of members at u and w, with as many of the others below u as above w.

    >>> Median().observe([3.0, 1.0, 2.0, 8.0], [[0, 1, 2], [0, 3]]).y.tolist()
    [2.0, 5.5]

    H. A. David & H. N. Nagaraja, "Order Statistics", 2003.
    """

    def ranks(self, size: int) -> tuple[int, int]:
        return (size - 1) // 2, size // 2

    def set_sizes(self, targets: Targets) -> SetSizes:
        return SetSizes(odd=bool(targets.discrete))


@likelihood(_Ordered, Continuous, counts=True)
@likelihood(_Ordered, Discrete, counts=True)
def _ordered(aggregate: _Ordered, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Sum over the member at y, with the others counted below and above it; O(K)."""
    sizes, which = np.unique(sets.individuals, return_inverse=True)
    low, rank = np.array([aggregate.ranks(int(size)) for size in sizes]).T
    if (low < rank).any():
        at = int((low < rank).argmax())
        raise ValueError(
            f"the median of {sizes[at]} discrete targets is not known (the mean of two that can "
            f"tie); use OrderStatistic({rank[at]}) or sets of odd size"
        )
    members, x, rank = double(distribution), y.double(), rank[which.reshape(-1)]
    largest = bool((rank == sets.individuals - 1).all())
    if largest or (rank == 0).all():  # all others are on one side
        return _extreme(largest, members, sets, x).to(y.dtype)
    if sets.counts is not None and isinstance(members, Discrete):  # ties: one by one
        every = sets.expand()
        members, sets = map_parameters(members, every.members), every.flat
    if sets.counts is not None:
        return _inner_of_many(members, sets, x, rank).to(y.dtype)
    few = np.minimum(rank, sets.sizes - 1 - rank) <= _FEW

    def rule(which: Ints, part: Sets) -> Tensor:
        some = map_parameters(members, part.members)
        return _inner(some, part.flat, x[torch.from_numpy(which).to(x.device)], rank[which])

    if few.all() or sets.size is not None:
        return _inner(members, sets, x, rank).to(y.dtype)
    return in_parts(sets.apart(np.where(few, 0, sets.sizes)), rule).to(y.dtype)


def _sides(members: Any, x: Tensor, side: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """log P of one side of y, for members before the one at y and for those after it.

    Members that tie with it may only stand after it.
    """
    first = side(members, x)
    return first, side(members, x - 1) if isinstance(members, Discrete) else first


def _extreme(largest: bool, members: Any, sets: Sets, y: Tensor) -> Tensor:
    """The smallest or the largest member is at y."""
    x, one = sets.repeat(y), Padded.of(sets)
    first, then = _sides(members, x, log_cdf if largest else log_survival)
    at = log_density(members, x)
    if sets.counts is not None:
        at, first, then = _of_blocks(at, first, then, sets.tensor("counts", x))
    at, left = one.fill(at, -math.inf), one.fill(first, 0.0)
    right = left if then is first else one.fill(then, 0.0)
    return logsumexp(at + before(left) + after(right), 1)


def _of_blocks(
    at: Tensor, first: Tensor, then: Tensor, times: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for the smallest or largest of so many individuals of each member: powers.

    With ties P(it is at y) = Gⁿ − (G − g)ⁿ, where G is the larger one of the two sides.
    """
    if then is first:
        at, first = at + times.log() + _power(first, times - 1), _power(first, times)
        return at, first, first
    whole = torch.maximum(first, then)
    some = at > -math.inf
    share = torch.where(some, at, -1.0) - torch.where(some, whole, 0.0)
    rest = _power(log1mexp(share.clamp_max(0.0)), times)
    block = _power(whole, times) + log1mexp(rest)
    return torch.where(some, block, -math.inf), _power(first, times), _power(then, times)


def _power(log_base: Tensor, times: Tensor) -> Tensor:
    """times · log_base, where 0 · −∞ is 0."""
    none = times == 0
    return torch.where(none, 0.0, times * torch.where(none, 0.0, log_base))


def _inner(members: Any, sets: Sets, y: Tensor, rank: Ints) -> Tensor:
    """A member with others on both sides is at y: a few on one side, or sets of one size."""
    x = sets.repeat(y)
    at = log_density(members, x)
    first, then = map(Sides, *(_sides(members, x, side) for side in (log_cdf, log_survival)))
    if not isinstance(members, Discrete):
        then = first
    if np.minimum(rank, sets.sizes - 1 - rank).max() <= _FEW:
        return log_one_mark_of_few(at, first, then, sets, rank)
    dense = Sides(*map(sets.dense, first))
    later = dense if then is first else Sides(*map(sets.dense, then))
    return log_one_mark(sets.dense(at), dense, later, int(rank[0]))


def _inner_of_many(members: Any, sets: Sets, y: Tensor, rank: Ints) -> Tensor:
    """The same where members stand for several individuals that do not tie."""
    x, one = sets.repeat(y), Padded.of(sets)
    at = one.fill(log_density(members, x), -math.inf)
    sides = Sides(*(one.fill(side(members, x), -0.7) for side in (log_cdf, log_survival)))
    times = one.fill(sets.tensor("counts", x), 0.0)
    return log_one_mark_of_many(at, sides, times, torch.from_numpy(rank).to(x))


@likelihood(Median, Continuous, exact=False, counts=True)
@by_size
def _median(aggregate: Median, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Odd sizes as the middle order statistic; even sizes by adaptive quadrature, to 1e-10."""
    odd = sets.individuals % 2 == 1
    if odd.all():
        return _ordered(aggregate, distribution, sets, y)

    def rule(which: Ints, part: Sets) -> Tensor:
        at = torch.from_numpy(which).to(y.device)
        some = map_parameters(distribution, part.members)
        if odd[which[0]]:
            return _ordered(aggregate, some, part.flat, y[at])
        members = map_parameters(double(some), part.flat.dense)
        times = None if part.counts is None else part.flat.dense(part.tensor("counts", y.double()))
        return log_mean_of_middle(members, y[at].double(), times).to(y.dtype)

    return in_parts(sets.apart(odd), rule)
