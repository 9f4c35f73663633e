"""What one of several processes holds of an objective.

Each process has some of the sets and every row that these name. Its point has the loss of all sets
and, for the rows that it owns, the whole derivative: a row that sets of several processes name has
one owner, with whom the derivatives are added up, and a gradient of zero at the others.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise._peers import Peers
from setwise.objective.objective import Objective
from setwise.objective.terms import Point

__all__ = ["Held", "Part", "Whole"]


class Whole(NamedTuple):
    """Facts of the objective of all processes together."""

    quadratic: bool
    separable: bool
    of_classes: bool
    n_sets: int
    total_weight: float
    rows: int  # that sets name

    @classmethod
    def of(cls, objective: Objective, rows: int) -> Self:
        """Those of an objective whose sets name so many rows."""
        o = objective
        return cls(o.quadratic, o.separable, o.of_classes, o.n_sets, o.total_weight, rows)


class Held(NamedTuple):
    """The rows of a process: which it owns, and which others hold too."""

    own: NDArray[np.bool_]
    here: NDArray[np.int64]  # rows that others hold too
    there: NDArray[np.int64]  # their numbers among all such rows
    n: int  # of such rows

    def over(self, rows: NDArray[np.int64]) -> Held:
        """The same in another order."""
        place = np.empty(len(rows), np.int64)
        place[rows] = np.arange(len(rows))
        return self._replace(own=self.own[rows], here=place[self.here])


class Part(Objective):
    """A process's own terms, with the facts and the sums of all."""

    def __init__(self, own: Objective, whole: Whole, held: Held, peers: Peers) -> None:
        self.__dict__.update(own.__dict__)
        self.whole, self.held, self.peers = whole, held, peers

    @property
    def n_sets(self) -> int:
        return self.whole.n_sets

    @property
    def total_weight(self) -> float:
        return self.whole.total_weight

    @property
    def quadratic(self) -> bool:
        return self.whole.quadratic

    @property
    def separable(self) -> bool:
        return self.whole.separable

    @property
    def of_classes(self) -> bool:
        return self.whole.of_classes

    def over(self, rows: NDArray[np.int64]) -> Part:
        return Part(super().over(rows), self.whole, self.held.over(rows), self.peers)

    def mean(self, rows: Tensor) -> Tensor:
        return self.peers.sum(self.owned(rows).sum(0)) / self.whole.rows

    def owned(self, rows: Tensor) -> Tensor:
        return rows * torch.from_numpy(self.held.own).to(rows).unsqueeze(1)

    def completed(self, rows: Tensor) -> Tensor:
        """Sums over all sets at the rows that are owned, from those over the own sets."""
        held = self.held
        if not held.n:
            return rows
        both, here, there = rows.new_zeros((held.n, rows.shape[1])), held.here, held.there
        both[there] = rows[here]
        rows = rows.clone()
        rows[here] = self.peers.sum(both)[there]
        return self.owned(rows)

    def at(self, raw: Tensor, shared: Tensor | None = None) -> Point:
        return _PartPoint(super().at(raw, shared), self)


class _PartPoint(Point):
    """A place that all processes are at, each with rows of its own."""

    def __init__(self, own: Point, part: Part) -> None:
        self.own, self.whole, self.peers = own, part, part.peers
        self.gradient = part.completed(own.gradient)
        numbers = torch.tensor([own.value, *own.shared_gradient.tolist()], dtype=torch.float64)
        total = self.peers.sum(numbers)
        self.value, self.shared_gradient = float(total[0]), total[1:]

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """Of the own sets: sums over leaves of all processes are those of all sets."""
        return self.own.product(raw, shared)

    def shared_curvature(self) -> Tensor:
        return self.peers.sum(self.own.shared_curvature())

    def curvature(self) -> Tensor:
        return self.whole.completed(self.own.curvature())

    def part(self) -> Point:
        some = self.own.part()
        parts = self.peers.sum(torch.tensor([float(some is not self.own)]))
        return _PartPoint(some, self.whole) if parts else self

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor | None:
        found = self.own.leaf_hessian(leaf, n_leaves)
        flat = torch.zeros(n_leaves**2 + 1, dtype=torch.float64)
        if found is None:
            flat[-1] = 1.0
        else:
            flat[:-1] = found.reshape(-1)
        flat = self.peers.sum(flat)
        return None if flat[-1] else flat[:-1].reshape(n_leaves, -1)
