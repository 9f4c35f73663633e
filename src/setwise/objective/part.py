"""The part of an objective that one of several processes holds.

Each process owns some of the rows and has some of the sets. A row that its sets name and another
process owns is a guest: its parameters are asked for before the sets are computed, and its
derivatives are sent home afterwards. So a part is a function of the rows that a process owns, with
the value, and the derivatives, of the objective of all.
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

__all__ = ["Guests", "Part", "Whole"]


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
        """The facts of an objective whose sets name so many rows."""
        o = objective
        return cls(o.quadratic, o.separable, o.of_classes, o.n_sets, o.total_weight, rows)


class Guests(NamedTuple):
    """Rows of this process that are guests elsewhere, and its own guests, which come last."""

    n_own: int
    away: NDArray[np.int64]  # own rows that others ask for, one process after another
    to: list[int]  # how many of them go to each process
    of: list[int]  # how many guests come from each process
    total: int  # guests of all processes: without any, there is nothing to exchange

    def over(self, rows: NDArray[np.int64]) -> Guests:
        """The same where the own rows are in another order."""
        place = np.empty(len(rows), np.int64)
        place[rows] = np.arange(len(rows))
        return self._replace(away=place[self.away])


class Part(Objective):
    """The objective of all processes, as a function of the rows that this one owns."""

    def __init__(self, own: Objective, whole: Whole, guests: Guests, peers: Peers) -> None:
        self.__dict__.update(own.__dict__)
        self.own_sets, self.facts, self.guests, self.peers = own, whole, guests, peers
        self.n_rows = guests.n_own

    @property
    def n_sets(self) -> int:
        return self.facts.n_sets

    @property
    def total_weight(self) -> float:
        return self.facts.total_weight

    @property
    def quadratic(self) -> bool:
        return self.facts.quadratic

    @property
    def separable(self) -> bool:
        return self.facts.separable

    @property
    def of_classes(self) -> bool:
        return self.facts.of_classes

    @property
    def times_named(self) -> NDArray[np.int64]:
        times = self.own_sets.times_named[: self.n_rows]
        return times + np.bincount(self.guests.away, minlength=self.n_rows)

    def over(self, rows: NDArray[np.int64]) -> Part:
        """The same, with the own rows in another order."""
        own = self.own_sets
        every = np.concatenate([rows, np.arange(self.n_rows, own.n_rows)])
        return Part(own.over(every), self.facts, self.guests.over(rows), self.peers)

    def mean(self, rows: Tensor) -> Tensor:
        return self.peers.sum(rows.sum(0)) / self.facts.rows

    def with_guests(self, rows: Tensor) -> Tensor:
        """Values at the own rows, followed by those at the guests."""
        guests = self.guests
        if not guests.total:
            return rows
        here = self.peers.trade(rows[torch.from_numpy(guests.away)], guests.to, guests.of)
        return torch.cat([rows, here])

    def sent_home(self, rows: Tensor) -> Tensor:
        """Sums over all sets at the own rows, from those over the own sets."""
        guests = self.guests
        if not guests.total:
            return rows
        back = self.peers.trade(rows[guests.n_own :], guests.of, guests.to)
        return rows[: guests.n_own].index_add(0, torch.from_numpy(guests.away), back)

    def at(self, raw: Tensor, shared: Tensor | None = None) -> Point:
        return _PartPoint(self.own_sets.at(self.with_guests(raw), shared), self)


class _PartPoint(Point):
    """A point that all processes evaluate, each for its own rows."""

    def __init__(self, own: Point, part: Part) -> None:
        self.own, self.of, self.peers = own, part, part.peers
        numbers = torch.tensor([own.value, *own.shared_gradient.tolist()], dtype=torch.float64)
        total = self.peers.sum(numbers)
        self.value, self.shared_gradient = float(total[0]), total[1:]
        self.gradient = part.sent_home(own.gradient)

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        rows, own = self.own.product(self.of.with_guests(raw), shared)
        return self.of.sent_home(rows), self.peers.sum(own)

    def shared_curvature(self) -> Tensor:
        return self.peers.sum(self.own.shared_curvature())

    def curvature(self) -> Tensor:
        return self.of.sent_home(self.own.curvature())

    def part(self) -> Point:
        some = self.own.part()
        parts = self.peers.sum(torch.tensor([float(some is not self.own)]))
        return _SomePoint(some, self.of) if parts else self

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor | None:
        leaf = self.of.with_guests(leaf.unsqueeze(1)).squeeze(1)
        found = self.own.leaf_hessian(leaf, n_leaves)
        flat = torch.zeros(n_leaves**2 + 1, dtype=torch.float64)
        if found is None:
            flat[-1] = 1.0
        else:
            flat[:-1] = found.reshape(-1)
        flat = self.peers.sum(flat)
        return None if flat[-1] else flat[:-1].reshape(n_leaves, -1)


class _SomePoint(_PartPoint):
    """The same point for a sample of the sets: only its Hessian is used."""

    def __init__(self, own: Point, part: Part) -> None:
        self.own, self.of, self.peers = own, part, part.peers
        self.value, self.gradient = own.value, own.gradient
        self.shared_gradient = own.shared_gradient
