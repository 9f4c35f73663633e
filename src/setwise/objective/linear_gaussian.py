"""The term of linear observations of normal targets, in closed form."""

from __future__ import annotations

import math
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from setwise.distributions import Family, Normal
from setwise.objective.terms import SMALL, FirstOrder, Floats, LeastSquares, Point, Term
from setwise.observations import Observations

__all__ = ["GaussianTerm"]

PAIRS = 50  # of members, for each two leaves, that a leaf Hessian is added up from


class _Pairs(NamedTuple):
    """Pairs of members: their rows, their set and the product of their coefficients."""

    first: Tensor
    second: Tensor
    of: Tensor
    product: Tensor  # times the share of the sets that these pairs stand for


class GaussianTerm(Term):
    """Linear observations of normal targets: y ~ N(A·loc, scale²·Σa² + noise), in closed form."""

    quadratic: ClassVar[bool] = True

    @classmethod
    def suits(cls, family: Family, observations: Observations) -> bool:
        if not isinstance(family, Normal) or family.outputs != ("loc",):
            return False
        return observations.aggregate.linear(observations.sets) is not None

    @property
    def separable(self) -> bool:
        return self.noise == 0

    @cached_property
    def linear(self) -> tuple[Floats, float]:
        """The members' coefficients a, and the variance of the noise."""
        found = self.observations.aggregate.linear(self.sets)
        assert found is not None
        return found

    @property
    def noise(self) -> float:
        """The variance of what is added to Σ a·z."""
        return self.linear[1]

    @property
    def y(self) -> Floats:
        """What was observed of each set."""
        assert self.observations.y is not None
        return self.observations.y

    def sums(self, members: Floats) -> Floats:
        """Sums over the members of each set."""
        sets = self.sets
        if sets.size is not None:
            return np.asarray(members.reshape(-1, sets.size).sum(1))
        return np.add.reduceat(members, sets.offsets[:-1]) if len(sets) else np.zeros(0)

    @cached_property
    def squares(self) -> Floats:
        """Σ a² of each set: the variance of y where the scale is 1 and there is no noise."""
        a = self.linear[0]
        return self.sums(a * a)

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """The coefficients, (sets, rows)."""
        sets, n = self.sets, self.n_rows
        # 32 bits halve the memory that products read
        short = np.int32 if max(len(sets.indices), n) < 2**31 else np.int64
        places = (part.astype(short) for part in (sets.indices, sets.offsets))
        return sparse.csr_array((self.linear[0], *places), (len(sets), n))

    @cached_property
    def transpose(self) -> sparse.csr_array:
        """From sets to rows."""
        return self.matrix.T.tocsr()

    @cached_property
    def squared(self) -> sparse.csr_array:
        """The coefficients squared, transposed."""
        a = self.transpose
        return sparse.csr_array((a.data**2, a.indices, a.indptr), a.shape)

    @cached_property
    def unit_curvature(self) -> Floats:
        """The diagonal of the Hessian where the scale is 1 and there is no noise."""
        out: Floats = self.squared @ self.unit_precision
        return out

    @cached_property
    def _pairs(self) -> dict[int, _Pairs]:
        return {}

    def pairs(self, enough: int) -> _Pairs:
        """The pairs of members of all sets; of a random part of them that has `enough` pairs."""
        count, sizes = len(self.sets), self.sets.sizes
        every = int((sizes * (sizes - 1)).sum()) // 2
        if every > enough:
            count = min(count, 1 << math.ceil(math.log2(count * enough / every)))
        if count not in self._pairs:
            self._pairs[count] = self._draw_pairs(count)
        return self._pairs[count]

    def _draw_pairs(self, count: int) -> _Pairs:
        sets, drawn = self.sets, np.zeros(len(self.sets), bool)
        drawn[np.random.default_rng(0).permutation(len(sets))[:count]] = True
        found = []
        for which, part in sets.by_size():
            k, m = np.triu_indices(int(part.sizes[0]), 1)
            which = which[drawn[which]]
            begin = sets.offsets[which][:, None]
            found.append((begin + k, begin + m, np.repeat(which, len(k))))
        left, right, of = (np.concatenate([f[i].ravel() for f in found]) for i in range(3))
        order = np.argsort(sets.indices[left], kind="stable")  # for the cache
        left, right, of = left[order], right[order], of[order]
        product = self.linear[0][left] * self.linear[0][right] * (len(sets) / count)
        first, second = (torch.from_numpy(sets.indices[x].astype(np.int32)) for x in (left, right))
        return _Pairs(first, second, torch.from_numpy(of), torch.from_numpy(product))

    def scale(self, shared: Tensor) -> float:
        """The scale of the targets."""
        assert isinstance(self.family, Normal)
        given = self.family.scale
        return math.exp(float(shared[0])) if isinstance(given, str) else float(given)

    @cached_property
    def unit_precision(self) -> Floats:
        """Weight over variance where the scale is 1 and there is no noise."""
        return self.weight / self.squares

    @cached_property
    def unit_logs(self) -> float:
        """Σ weight · log 2πv there."""
        return float((self.weight * np.log(2 * math.pi * self.squares)).sum())

    def least_squares(self, shared: Tensor) -> LeastSquares:
        unit = self.scale(shared) ** 2
        weight = self.weight * unit / (unit * self.squares + self.noise)
        return LeastSquares(self.matrix, self.y, weight)

    def gradient(self, raw: Tensor, shared: Tensor) -> FirstOrder:
        """Value and gradient: on a CPU a few lines of numpy, which is quicker to call."""
        if raw.device.type != "cpu":
            return super().gradient(raw, shared)
        a, sets = self.linear[0], self.sets
        loc = raw.detach().numpy()[:, 0]
        found = _Residuals(self, self.sums(a * loc[sets.indices]) - self.y, shared.detach())
        pull = np.repeat(found.pull, sets.sizes)
        at_rows = torch.from_numpy(np.bincount(sets.indices, a * pull, len(loc)))
        return FirstOrder(
            torch.tensor(found.value, dtype=torch.float64),
            at_rows.unsqueeze(1).to(raw.dtype),
            torch.full_like(shared, found.slope),
        )

    def at(self, raw: Tensor, shared: Tensor) -> Point:
        return _GaussianPoint(self, raw, shared)


class _Residuals:
    """With v = scale²·Σa² + noise and r = A·loc − y, the loss is ½ Σ w (r²/v + log 2πv).

    `pull` is its derivative in A·loc, `slope` and `bend` are those in the log scale.
    """

    def __init__(self, term: GaussianTerm, rest: Floats, shared: Tensor) -> None:
        self.scale = term.scale(shared)
        self.share: float | Floats = 1.0  # of the targets in the variance
        if term.noise == 0:
            self.precision = term.unit_precision / self.scale**2
            logs = term.unit_logs + 2 * term.total_weight * math.log(self.scale)
        else:
            own = self.scale**2 * term.squares
            variance = own + term.noise
            self.share = own / variance
            self.precision = term.weight / variance
            logs = float((term.weight * np.log(2 * math.pi * variance)).sum())
        self.pull: Floats = self.precision * rest
        each = rest * self.pull
        self.value = 0.5 * (float(each.sum()) + logs)
        self.slope = float((self.share * (term.weight - each)).sum())
        turn = 2 * self.share * (1 - self.share)  # the derivative of the share in the log scale
        self.bend = float((turn * (term.weight - each) + 2 * self.share**2 * each).sum())


class _GaussianPoint(Point):
    """Residuals, and what they are made of."""

    def __init__(self, term: GaussianTerm, raw: Tensor, shared: Tensor) -> None:
        self.term = term
        self.found = _Residuals(term, term.matrix @ raw[:, 0].numpy() - term.y, shared)
        self.value = self.found.value
        self.gradient = torch.from_numpy(term.transpose @ self.found.pull).unsqueeze(1)
        self.shared_gradient = torch.full_like(shared, self.found.slope)

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        term, found = self.term, self.found
        along = term.matrix @ raw[:, 0].numpy()
        member = found.precision * along
        out_shared = torch.zeros_like(self.shared_gradient)
        if len(out_shared):
            mixed = 2 * found.share * found.pull
            member = member - mixed * float(shared[0])
            out_shared[0] = found.bend * float(shared[0]) - float((mixed * along).sum())
        return torch.from_numpy(term.transpose @ member).unsqueeze(1), out_shared

    def shared_curvature(self) -> Tensor:
        return torch.full_like(self.shared_gradient, self.found.bend)

    def curvature(self) -> Tensor:
        if self.term.noise == 0:  # all precisions are proportional to 1 / scale²
            own = self.term.unit_curvature / self.found.scale**2
        else:
            own = self.term.squared @ self.found.precision
        return torch.from_numpy(own).unsqueeze(1)

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor:
        sets = self.term.sets
        if 0 < self.term.largest <= SMALL:
            # The diagonal is exact; from 50 pairs for each two leaves, the other elements are
            # known to a few percent of it, which is enough for the length of a step.
            pairs = self.term.pairs(PAIRS * n_leaves**2)
            short = torch.int16 if n_leaves < 180 else torch.int32  # holds the square
            pair = (leaf * n_leaves).to(short).index_select(0, pairs.first)
            pair += leaf.to(short).index_select(0, pairs.second)
            weight = pairs.product * torch.from_numpy(self.found.precision)[pairs.of]
            half = torch.bincount(pair, weight, n_leaves**2).double().reshape(n_leaves, -1)
            half.diagonal().add_(torch.bincount(leaf, self.curvature()[:, 0], n_leaves), alpha=0.5)
            return half + half.T
        at = sets.tensor("set_ids", leaf) * n_leaves + leaf.index_select(
            0, sets.tensor("indices", leaf)
        )
        a = torch.from_numpy(self.term.linear[0])
        share = torch.bincount(at, a, minlength=len(sets) * n_leaves).reshape(len(sets), -1)
        return share.T @ (share * torch.from_numpy(self.found.precision).unsqueeze(1))
