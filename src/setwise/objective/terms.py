"""Terms of the loss: one for each `Observations`, with derivatives at the members added per row.

A *term* is a function of the rows' raw parameters and the shared ones; a *point* is all that is
known of it at one place: value, gradient, curvature and products with the Hessian.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.distributions import Family
from setwise.likelihood import evaluate
from setwise.observations import Observations

__all__ = ["General", "GeneralPoint", "Point", "Term", "Together"]

SMALL = 8  # up to this set size whole blocks of the Hessian are computed
PROBES = 16  # Hessian products spent on the diagonal of one set


class Point(ABC):
    """A term of the loss at one place: its value, gradient, and products with its Hessian."""

    value: float
    raw: Tensor  # gradient, (rows, outputs)
    shared: Tensor  # gradient, (number of shared parameters,)

    @abstractmethod
    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """The Hessian times a direction, of the same two shapes."""

    @abstractmethod
    def shared_curvature(self) -> Tensor:
        """The diagonal of the Hessian in the shared parameters."""

    @abstractmethod
    def curvature(self) -> Tensor:
        """The diagonal of the Hessian, (rows, outputs); negative where the loss is not convex.

        Exact for classes, for linear observations of normal targets and for sets of up to 16
        members; in larger sets the members that were probed stand for the others.
        """

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor | None:
        """EᵀHE for the rows' leaves E of one output, or None where products are the cheaper way."""
        return None

    def part(self) -> Point:
        """A point with about the same Hessian, whose products cost less: that of some sets only."""
        return self


class Term(ABC):
    """−Σ weight · log p(y) over the sets of one `Observations`."""

    def __init__(self, family: Family, observations: Observations, n_rows: int) -> None:
        self.family, self.observations, self.n_rows = family, observations, n_rows
        self.sets = observations.sets
        weight = observations.weight
        self.weight = np.ones(len(self.sets)) if weight is None else weight

    @abstractmethod
    def log_likelihood(self, raw: Tensor, shared: Tensor) -> Tensor:
        """log p(y) of each set, differentiable."""

    @abstractmethod
    def at(self, raw: Tensor, shared: Tensor) -> Point:
        """Everything of first and second order at these parameters."""


class General(Term):
    """Any aggregate of any family, by automatic differentiation at the members."""

    @cached_property
    def position(self) -> NDArray[np.int64]:
        """For each member, its place in its set."""
        sets = self.sets
        return np.arange(len(sets.indices)) - np.repeat(sets.offsets[:-1], sets.sizes)

    @cached_property
    def largest(self) -> int:
        return int(self.sets.sizes.max(initial=0))

    def members(self, raw: Tensor) -> Tensor:
        return raw.index_select(0, self.sets.tensor("indices", raw))

    def at_members(self, members: Tensor, shared: Tensor) -> Tensor:
        distribution = self.family(members, shared)
        o = self.observations
        return evaluate(o.aggregate, distribution, self.sets, o.y)

    def log_likelihood(self, raw: Tensor, shared: Tensor) -> Tensor:
        return self.at_members(self.sets.members(raw), shared)

    def at(self, raw: Tensor, shared: Tensor) -> Point:
        return GeneralPoint(self, raw, shared)


class GeneralPoint(Point):
    """A graph from the members to the gradient at them, to be differentiated again."""

    def __init__(self, term: General, raw: Tensor, shared: Tensor) -> None:
        self.term = term
        with torch.enable_grad():
            self.leaf = term.members(raw.detach()).requires_grad_()
            self.leaf_shared = shared.detach().clone().requires_grad_()
            each = term.at_members(self.leaf, self.leaf_shared)
            loss = -(each * torch.from_numpy(term.weight).to(each)).sum()
            self.value = float(loss.detach())
            self.slopes = self._grad(loss, create_graph=True)
        self.raw = self._rows(self.slopes[0].detach())
        self.shared = self.slopes[1].detach()

    def _grad(self, value: Tensor, create_graph: bool = False) -> tuple[Tensor, Tensor]:
        leaves = (self.leaf, self.leaf_shared)
        if not value.requires_grad:
            return torch.zeros_like(leaves[0]), torch.zeros_like(leaves[1])
        found = torch.autograd.grad(
            value, leaves, create_graph=create_graph, retain_graph=True, allow_unused=True
        )
        a, b = (torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True))
        return a, b

    def _rows(self, members: Tensor) -> Tensor:
        index = self.term.sets.tensor("indices", members)
        return members.new_zeros((self.term.n_rows, members.shape[1])).index_add_(0, index, members)

    def _member_product(self, members: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            along = (self.slopes[0] * members).sum() + (self.slopes[1] * shared).sum()
            return self._grad(along)

    def shared_curvature(self) -> Tensor:
        out = torch.zeros_like(self.shared)
        for i in range(len(out)):
            with torch.enable_grad():
                out[i] = self._grad(self.slopes[1][i])[1][i]
        return out

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        members, own = self._member_product(self.term.members(raw), shared)
        return self._rows(members), own

    @cached_property
    def blocks(self) -> Tensor:
        """The Hessian among the members of each set: column j is about the set's member j."""
        position = torch.from_numpy(self.term.position)
        zero = torch.zeros_like(self.leaf_shared)
        columns = []
        for j in range(self.term.largest):
            direction = (position == j).to(self.leaf).unsqueeze(1)
            columns.append(self._member_product(direction, zero)[0][:, 0])
        return torch.stack(columns, 1)

    @property
    def has_blocks(self) -> bool:
        return self.leaf.shape[1] == 1 and self.term.largest <= SMALL

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor | None:
        if not self.has_blocks:
            return None
        sets = self.term.sets
        at = self.term.members(leaf)
        first = torch.from_numpy(np.repeat(sets.offsets[:-1], sets.sizes))
        sizes = torch.from_numpy(np.repeat(sets.sizes, sets.sizes))
        out = torch.zeros(n_leaves * n_leaves, dtype=self.leaf.dtype)
        for j in range(self.term.largest):
            if sets.size is None:
                here = (sizes > j).nonzero()[:, 0]
                pair = at[here] * n_leaves + at[first[here] + j]
                out += torch.bincount(pair, self.blocks[here, j], minlength=len(out))
            else:
                pair = at * n_leaves + at[j :: sets.size].repeat_interleave(sets.size)
                out += torch.bincount(pair, self.blocks[:, j], minlength=len(out))
        return out.reshape(n_leaves, n_leaves)

    def curvature(self) -> Tensor:
        sets, position = self.term.sets, self.term.position
        if self.has_blocks:
            at = torch.from_numpy(position).unsqueeze(1)
            return self._rows(self.blocks.gather(1, at))
        sizes = np.repeat(sets.sizes, sets.sizes)
        out = torch.zeros_like(self.leaf)
        probed = np.zeros(len(position), dtype=bool)
        zero = torch.zeros_like(self.leaf_shared)
        for probe in range(min(PROBES, self.term.largest)):
            place = (probe * np.maximum(sizes / PROBES, 1.0)).astype(np.int64)
            hit = (position == place) & ~probed
            probed |= hit
            where = torch.from_numpy(hit)
            for column in range(out.shape[1]):
                direction = torch.zeros_like(out)
                direction[where, column] = 1.0
                out[where, column] = self._member_product(direction, zero)[0][where, column]
        if not probed.all():
            mean = sets.sum(out) / torch.from_numpy(
                np.add.reduceat(probed, sets.offsets[:-1], dtype=np.float64)
            ).unsqueeze(1)
            out = torch.where(torch.from_numpy(probed).unsqueeze(1), out, sets.repeat(mean))
        return self._rows(out)


def _add(parts: list[Tensor]) -> Tensor:
    """The sum of tensors of one shape; a single one as it is."""
    return torch.stack(parts).sum(0) if parts[1:] else parts[0]


class Together(Point):
    """Several terms together."""

    def __init__(self, points: list[Point]) -> None:
        self.points = points
        self.value = sum(p.value for p in points)
        self.raw = _add([p.raw for p in points])
        self.shared = _add([p.shared for p in points])

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        found = [p.product(raw, shared) for p in self.points]
        return _add([f[0] for f in found]), _add([f[1] for f in found])

    def shared_curvature(self) -> Tensor:
        return _add([p.shared_curvature() for p in self.points])

    def curvature(self) -> Tensor:
        return _add([p.curvature() for p in self.points])

    def part(self) -> Point:
        parts = [p.part() for p in self.points]
        same = all(a is b for a, b in zip(parts, self.points, strict=True))
        return self if same else Together(parts)

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor | None:
        total = torch.zeros(n_leaves, n_leaves, dtype=torch.float64)
        for point in self.points:
            one = point.leaf_hessian(leaf, n_leaves)
            if one is None:
                return None
            total += one
        return total
