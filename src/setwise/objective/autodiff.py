"""The term of any aggregate of any family, by automatic differentiation at the members."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.distributions import Family
from setwise.numerics import scatter_sum
from setwise.objective.terms import SMALL, Point, Term, derivatives
from setwise.observations import Observations

__all__ = ["AutodiffPoint", "AutodiffTerm", "of_fixed_steps"]

PROBES = 16  # Hessian products spent on the diagonal of one set


class AutodiffTerm(Term):
    """Any aggregate of any family, by automatic differentiation at the members."""

    fixed_steps: ClassVar[bool] = True

    @classmethod
    def suits(cls, family: Family, observations: Observations) -> bool:
        return True

    @cached_property
    def position(self) -> NDArray[np.int64]:
        """For each member, its place in its set."""
        sets = self.sets
        return np.arange(len(sets.indices)) - np.repeat(sets.offsets[:-1], sets.sizes)

    def at(self, raw: Tensor, shared: Tensor) -> Point:
        return AutodiffPoint(self, raw, shared)


def of_fixed_steps(term: Term, unchecked: bool = False) -> type[Term]:
    """The class of terms with its value and gradient whose steps can be recorded and replayed.

    `unchecked` says that they will be done within `class_posterior.unchecked`.
    """
    fixed = term.fixed_steps or (unchecked and term.of_classes)
    return type(term) if fixed else AutodiffTerm


class AutodiffPoint(Point):
    """A graph from the members to the gradient at them, to be differentiated again."""

    def __init__(self, term: AutodiffTerm, raw: Tensor, shared: Tensor) -> None:
        self.term = term
        with torch.enable_grad():
            self.leaf = self._gather(raw.detach()).requires_grad_()
            self.leaf_shared = shared.detach().clone().requires_grad_()
            loss, self.slopes = self._graph()
        self.value = float(loss.detach())
        self.gradient = self._rows(self.slopes[0].detach())
        self.shared_gradient = self.slopes[1].detach()

    def _gather(self, raw: Tensor) -> Tensor:
        """What the likelihood is a function of, here the members' lines."""
        return self.term.sets.members(raw)

    def _graph(self) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The loss, and its derivatives to differentiate again."""
        loss = -self.term.weighted(self._log_likelihood()).sum()
        return loss, self._derivatives(loss, create_graph=True)

    def _log_likelihood(self) -> Tensor:
        return self.term.at_members(self.leaf, self.leaf_shared)

    def _derivatives(self, value: Tensor, create_graph: bool = False) -> tuple[Tensor, Tensor]:
        at_members, at_shared = derivatives(value, (self.leaf, self.leaf_shared), create_graph)
        return at_members, at_shared

    def _rows(self, members: Tensor) -> Tensor:
        return self.term.sets.to_rows(members, self.term.n_rows)

    def _member_product(self, members: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            along = (self.slopes[0] * members).sum() + (self.slopes[1] * shared).sum()
            return self._derivatives(along)

    def shared_curvature(self) -> Tensor:
        out = torch.zeros_like(self.shared_gradient)
        slot, single = self.term.slot, list(range(len(out)))
        if slot is not None:  # no set has two labellers: one product is enough for all of them
            n = len(slot.kind.unknown)
            for first in range(slot.each.start, min(slot.each.start + n, slot.each.stop)):
                direction = torch.zeros_like(out)
                direction[first : slot.each.stop : n] = 1.0
                found = self._member_product(torch.zeros_like(self.leaf), direction)[1]
                out += direction * found
            single = [i for i in single if not slot.each.start <= i < slot.each.stop]
        for i in single:
            with torch.enable_grad():
                out[i] = self._derivatives(self.slopes[1][i])[1][i]
        return out

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        members, own = self._member_product(self.term.sets.members(raw), shared)
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
        at = self.term.sets.members(leaf)
        first = torch.from_numpy(np.repeat(sets.offsets[:-1], sets.sizes))
        sizes = torch.from_numpy(np.repeat(sets.sizes, sets.sizes))
        out = torch.zeros(n_leaves * n_leaves, dtype=self.leaf.dtype)
        for j in range(self.term.largest):
            here = (sizes > j).nonzero()[:, 0]
            pair = at[here] * n_leaves + at[first[here] + j]
            out += torch.bincount(pair, self.blocks[here, j], minlength=len(out))
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
            ids = sets.tensor("set_ids", out)
            number = np.add.reduceat(probed, sets.offsets[:-1], dtype=np.float64)
            mean = scatter_sum(out, ids, len(sets)) / torch.from_numpy(number).unsqueeze(1)
            out = torch.where(torch.from_numpy(probed).unsqueeze(1), out, sets.repeat(mean))
        return self._rows(out)
