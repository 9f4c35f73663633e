"""A term for pairs whose observation depends on the difference of two locations only.

Who of two is larger says nothing of where they both are. So the loss is a function of one number
per set, whose derivatives are numbers too: several times less work than derivatives at the members.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from setwise.distributions import Family
from setwise.objective.terms import General, Point
from setwise.observations import Observations

__all__ = ["Differences", "depends_on_differences"]


def depends_on_differences(family: Family, observations: Observations) -> bool:
    """Whether the likelihood is one of differences: pairs, told by locations alone."""
    return observations.aggregate.of_differences and family.outputs == ("loc",)


class Differences(General):
    """−Σ weight · log p(y), as a function of d = loc₁ − loc₂ of each pair."""

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The rows of the first and the second members."""
        first, second = torch.from_numpy(self.sets.indices).reshape(-1, 2).T.int().contiguous()
        return first, second

    def between(self, raw: Tensor) -> Tensor:
        """The differences of a column of rows."""
        first, second = self.ends
        return raw[:, 0].index_select(0, first) - raw[:, 0].index_select(0, second)

    def at(self, raw: Tensor, shared: Tensor) -> Point:
        """Everything of first and second order at these parameters."""
        return _DifferencesPoint(self, raw, shared)


class _DifferencesPoint(Point):
    """The set's derivative in d goes to the first member, and with a minus to the second."""

    def __init__(self, term: Differences, raw: Tensor, shared: Tensor) -> None:
        self.term = term
        with torch.enable_grad():
            self.d = term.between(raw.detach()).requires_grad_()
            self.own = shared.detach().clone().requires_grad_()
            members = torch.stack([self.d, torch.zeros_like(self.d)], 1).reshape(-1, 1)
            each = term.at_members(members, self.own)
            loss = -(each * torch.from_numpy(term.weight)).sum()
            self.value = float(loss.detach())
            self.slope, self.own_slope = self._grad(loss, create_graph=True)
        self.raw = self._rows(self.slope.detach(), -1.0)
        self.shared = self.own_slope.detach()

    def _grad(self, value: Tensor, create_graph: bool = False) -> tuple[Tensor, Tensor]:
        leaves = (self.d, self.own)
        if not value.requires_grad:
            return torch.zeros_like(self.d), torch.zeros_like(self.own)
        found = torch.autograd.grad(
            value, leaves, create_graph=create_graph, retain_graph=True, allow_unused=True
        )
        a, b = (torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True))
        return a, b

    def _rows(self, each: Tensor, sign: float) -> Tensor:
        """Sums over the pairs of each row, with a sign where it is the second."""
        first, second = self.term.ends
        n = self.term.n_rows
        out = torch.bincount(first, each, n) + sign * torch.bincount(second, each, n)
        return out.unsqueeze(1)

    @cached_property
    def bend(self) -> Tensor:
        """The second derivative in d of each pair."""
        return self._grad(self.slope.sum())[0]

    @cached_property
    def cross(self) -> tuple[Tensor, Tensor]:
        """Second derivatives in each shared number and d, (shared, pairs), and in two of them."""
        found = [self._grad(one) for one in self.own_slope]
        if not found:
            return self.d.new_zeros((0, len(self.d))), self.d.new_zeros((0, 0))
        return torch.stack([f[0] for f in found]), torch.stack([f[1] for f in found])

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        along = self.term.between(raw)
        mixed, square = self.cross
        pairs = self.bend * along + mixed.T @ shared
        return self._rows(pairs, -1.0), mixed @ along + square @ shared

    def shared_curvature(self) -> Tensor:
        return self.cross[1].diagonal()

    def curvature(self) -> Tensor:
        return self._rows(self.bend, 1.0)

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor:
        first, second = (leaf.index_select(0, end) for end in self.term.ends)
        pair = torch.bincount(first * n_leaves + second, self.bend, n_leaves**2)
        pair = pair.reshape(n_leaves, -1)
        both = pair + pair.T
        return (pair.sum(0) + pair.sum(1)).diag() - both
