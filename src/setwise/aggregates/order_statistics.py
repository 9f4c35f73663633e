"""Order statistics: the smallest, the largest, the k-th smallest, the median."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from setwise._math.median_of_even_sets import log_mean_of_middle
from setwise._math.order_statistic_density import Sides, after, before, log_one_mark
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
from setwise.numerics import logsumexp
from setwise.sets import Sets

__all__ = ["Max", "Median", "Min", "OrderStatistic"]


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


@likelihood(_Ordered, Continuous)
@likelihood(_Ordered, Discrete)
@by_size
def _ordered(aggregate: _Ordered, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Sum over the member at y, with the others counted below and above it; O(K)."""
    assert sets.size is not None
    low, rank = aggregate.ranks(sets.size)
    if low < rank:
        raise ValueError(
            f"the median of {sets.size} discrete targets is not known (the mean of two that can "
            f"tie); use OrderStatistic({rank}) or sets of odd size"
        )
    members, x = double(distribution), sets.repeat(y.double())
    at = sets.dense(log_density(members, x))
    ties = isinstance(distribution, Discrete)  # members after the one at y may tie with it

    def tail(of: Callable[..., Tensor], x: Tensor) -> Tensor:
        return sets.dense(of(members, x))

    if rank in (0, sets.size - 1):  # all others are on one side
        side = log_survival if rank == 0 else log_cdf
        first = tail(side, x)
        then = tail(side, x - 1) if ties else first
        return logsumexp(at + before(first) + after(then), 1).to(y.dtype)
    sides = Sides(tail(log_cdf, x), tail(log_survival, x))
    later = Sides(tail(log_cdf, x - 1), tail(log_survival, x - 1)) if ties else sides
    return log_one_mark(at, sides, later, rank).to(y.dtype)


@likelihood(Median, Continuous, exact=False)
@by_size
def _median(aggregate: Median, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Odd sizes as the middle order statistic; even sizes by adaptive quadrature, to 1e-10."""
    assert sets.size is not None
    if sets.size % 2:
        return _ordered(aggregate, distribution, sets, y)
    members = map_parameters(double(distribution), sets.dense)
    return log_mean_of_middle(members, y.double()).to(y.dtype)
