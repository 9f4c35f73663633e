"""A term for pairs whose observation depends on the difference of two locations only.

The loss is then a function of one number per set, whose derivatives are numbers too: several times
less work than derivatives at the members.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from setwise.distributions import Family
from setwise.objective.autodiff import AutodiffPoint, AutodiffTerm
from setwise.objective.terms import Point
from setwise.observations import Observations

__all__ = ["DifferenceTerm"]


class DifferenceTerm(AutodiffTerm):
    """−Σ weight · log p(y), as a function of d = loc₁ − loc₂ of each pair."""

    @classmethod
    def suits(cls, family: Family, observations: Observations) -> bool:
        return observations.aggregate.of_differences and family.outputs == ("loc",)

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The rows of the first and the second members."""
        first, second = torch.from_numpy(self.sets.indices).reshape(-1, 2).T.int().contiguous()
        return first, second

    def at(self, raw: Tensor, shared: Tensor) -> Point:
        return _DifferencePoint(self, raw, shared)


class _DifferencePoint(AutodiffPoint):
    """The set's derivative in d goes to the first member, and with a minus to the second."""

    term: DifferenceTerm

    def _gather(self, raw: Tensor) -> Tensor:
        first, second = self.term.ends
        return raw[:, 0].index_select(0, first) - raw[:, 0].index_select(0, second)

    def _log_likelihood(self) -> Tensor:
        members = torch.stack([self.leaf, torch.zeros_like(self.leaf)], 1).reshape(-1, 1)
        return self.term.at_members(members, self.leaf_shared)

    def _rows(self, each: Tensor, sign: float = -1.0) -> Tensor:
        """Sums over the pairs of each row, with a sign where it is the second."""
        first, second = self.term.ends
        n = self.term.n_rows
        out = torch.bincount(first, each, n) + sign * torch.bincount(second, each, n)
        return out.unsqueeze(1)

    @cached_property
    def bend(self) -> Tensor:
        """The second derivative in d of each pair."""
        return self._derivatives(self.slopes[0].sum())[0]

    @cached_property
    def cross(self) -> tuple[Tensor, Tensor]:
        """Second derivatives in each shared number and d, (shared, pairs), and in two of them."""
        found = [self._derivatives(one) for one in self.slopes[1]]
        if not found:
            return self.leaf.new_zeros((0, len(self.leaf))), self.leaf.new_zeros((0, 0))
        return torch.stack([f[0] for f in found]), torch.stack([f[1] for f in found])

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        along = self._gather(raw)
        mixed, square = self.cross
        pairs = self.bend * along + mixed.T @ shared
        return self._rows(pairs), mixed @ along + square @ shared

    def curvature(self) -> Tensor:
        return self._rows(self.bend, 1.0)

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor:
        first, second = (leaf.index_select(0, end) for end in self.term.ends)
        pair = torch.bincount(first * n_leaves + second, self.bend, n_leaves**2)
        pair = pair.reshape(n_leaves, -1)
        both = pair + pair.T
        return (pair.sum(0) + pair.sum(1)).diag() - both
