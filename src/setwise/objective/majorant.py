"""A sum over sets that touches a joint likelihood at one place, for learning by minibatches.

The gradient of a joint likelihood needs all sets at once. Learners that take many steps between
two looks at all of them learn from a quadratic bound: it has the same value and gradient at the
place where it touches the loss, and is above elsewhere. To make it smaller and then to make
another one is a generalised EM algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from setwise.distributions import Family
from setwise.objective.terms import Floats, Point, Term
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["Majorant", "smallest"]

RESTARTS = 15  # of the Lanczos method, twenty products each


class Majorant(Term):
    """½ Σ precision·(Σ a·loc − target)², and the scale's part to second order, over sets."""

    def __init__(
        self,
        family: Family,
        sets: Sets,
        n_rows: int,
        coefficients: Floats,
        target: Floats,
        precision: Floats,
    ) -> None:
        self.family, self.n_rows = family, n_rows
        self._sets, self.coefficients = sets, coefficients
        self.target, self.precision = target, precision
        self.level = self.slope = self.bend = 0.0  # per set
        self.each = 1.0  # what a set counts
        self.centre: Tensor | None = None

    def touch(
        self, loc: Floats, shared: Tensor, value: float, slope: float, bend: float, weight: float
    ) -> None:
        """Gives the bound this value, and these derivatives in the scale, at these parameters."""
        n = len(self.sets)
        total = np.add.reduceat(self.coefficients * loc[self.sets.indices], self.sets.offsets[:-1])
        own = 0.5 * float((self.precision * (total - self.target) ** 2).sum())
        self.level, self.slope, self.bend = (value - own) / n, slope / n, abs(bend) / n
        self.each, self.centre = weight / n, shared.detach().clone()

    @classmethod
    def suits(cls, family: Family, observations: Observations) -> bool:
        return False  # it is made of another term only

    @property
    def sets(self) -> Sets:
        return self._sets

    @property
    def total_weight(self) -> float:
        return self.each * len(self.sets)

    def weighted(self, each: Tensor) -> Tensor:
        return each

    def _like(self, sets: Sets, n_rows: int, which: Any, members: Any) -> Self:
        out = type(self)(
            self.family, sets, n_rows, self.coefficients[members],
            self.target[which], self.precision[which],
        )  # fmt: skip
        out.level, out.slope, out.bend = self.level, self.slope, self.bend
        out.each, out.centre = self.each, self.centre
        return out

    def take(self, set_numbers: Any) -> Self:
        sets = self._sets
        numbered = Sets._trusted(np.arange(len(sets.indices)), sets.offsets, size=sets.size)
        if isinstance(set_numbers, slice):
            begin, end, _ = set_numbers.indices(len(sets))
            members: Any = slice(int(sets.offsets[begin]), int(sets.offsets[max(begin, end)]))
        else:
            members = numbered.take(set_numbers).indices
        return self._like(sets.take(set_numbers), self.n_rows, set_numbers, members)

    def over(self, place: NDArray[np.int64], n_rows: int) -> Self:
        s = self._sets
        moved = Sets._trusted(place[s.indices], s.offsets, size=s.size)
        return self._like(moved, n_rows, slice(None), slice(None))

    def at_members(self, members: Tensor, shared: Tensor) -> Tensor:
        a, target, precision = (
            torch.from_numpy(x).to(members)
            for x in (self.coefficients, self.target, self.precision)
        )
        rest = self._sets.flat.sum(a * members[:, 0]) - target
        out = -0.5 * precision * rest * rest - self.level
        if len(shared) and self.centre is not None:
            away = (shared - self.centre.to(shared))[0]
            out = out - self.slope * away - 0.5 * self.bend * away * away
        return out

    def at(self, raw: Tensor, shared: Tensor) -> Point:
        raise TypeError("a bound is for learners that need first derivatives only")


def smallest(product: Callable[[Floats], Floats], n: int) -> float:
    """The smallest eigenvalue of a symmetric, positive product; 0 where it is not found."""
    if n < 20:
        return float(np.linalg.eigvalsh(np.column_stack([product(e) for e in np.eye(n)]))[0])
    operator = LinearOperator((n, n), matvec=product, dtype=np.float64)
    try:
        begin = np.random.default_rng(0).normal(size=n)
        found = eigsh(
            operator, 1, which="SA", tol=0.05, maxiter=RESTARTS, v0=begin,
            return_eigenvectors=False,
        )  # fmt: skip
    except ArpackNoConvergence:
        return 0.0
    return float(found[0])
