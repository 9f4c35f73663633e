"""Orders in which some members are tied, which is to say that their order is not known.

The members come in groups, best first; in each group every order is possible, and P is the sum over
them all. From the last group to the first, G(x) is the probability that the members so far are in
order and below x:

* the last group, of two or more: G(x) = Π_k F_k(x);
* a group in between, by subsets: G_S(x) = ∫_{−∞}^x Σ_{k∈S} p_k(s) G_{S∖k}(s) ds, in 2ⁿ integrals;
* the first group: P = ∫ Σ_k p_k(s) Π_{l≠k} (1 − F_l(s)) G(s) ds, where its smallest is at s.

Nothing is subtracted. A single member is a subset of one. How the integrals are computed is up to
the two ways that there are, `even_nodes` and `order_probability`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import combinations
from typing import Generic, TypeVar

from torch import Tensor

from setwise.numerics import others

__all__ = ["MOST_TIED", "Sizes", "Steps", "integrals", "largest_middle", "log_beside"]

T = TypeVar("T")
Sizes = tuple[int, ...]
MOST_TIED = 10  # members of a group in between


class Steps(ABC, Generic[T]):
    """A way to compute running integrals; T is what it knows of one, at the nodes of each set."""

    @abstractmethod
    def begin(self) -> T:
        """G of no members: 1."""

    @abstractmethod
    def below(self, members: range) -> T:
        """Π F_k over these members."""

    @abstractmethod
    def above_beside(self, members: range, below: T) -> list[T]:
        """For each of these members, `below` times Π (1 − F_l) over the others."""

    @abstractmethod
    def integral(self, terms: Sequence[tuple[int, T]]) -> T:
        """∫_{−∞}^x Σ p_k(s) G_k(s) ds over the pairs of a member k and a function G_k."""

    def walk(self, tied: Sizes) -> T:
        """G of all members, in groups of these sizes; at the end of the line it is P."""
        found, end = self.begin(), sum(tied)
        for i in reversed(range(len(tied))):
            group = range(end - tied[i], end)
            end = group.start
            if i == len(tied) - 1 and len(group) > 1:
                found = self.below(group)
            elif i == 0:
                found = self.integral([*zip(group, self.above_beside(group, found), strict=True)])
            else:
                found = self._any_order(group, found)
        return found

    def _any_order(self, group: range, found: T) -> T:
        """G of a group in between, in whatever order, above what is found already."""
        of: dict[tuple[int, ...], T] = {(): found}
        for n in range(1, len(group) + 1):
            of = {
                some: self.integral([(k, of[some[:j] + some[j + 1 :]]) for j, k in enumerate(some)])
                for some in combinations(group, n)
            }
        return of[tuple(group)]


def integrals(tied: Sizes) -> int:
    """About how many running integrals there are, or functions that cost as much."""
    return tied[0] + sum((1 << n) - 1 for n in tied[1:-1]) + tied[-1]


def largest_middle(tied: Sizes) -> int:
    """The size of the largest group in between."""
    return max(tied[1:-1], default=1)


def log_beside(logs: Tensor) -> Tensor:
    """Σ of all other entries along dimension 0, the members."""
    return others(logs.movedim(0, -1)).movedim(-1, 0)
