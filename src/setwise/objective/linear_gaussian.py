"""The term of linear observations of normal targets, in closed form."""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from setwise.distributions import Normal
from setwise.objective.terms import SMALL, Point, Term
from setwise.observations import Observations

__all__ = ["Gaussian"]

PAIRS = 50  # of members, for each two leaves, that a leaf Hessian is added up from


class _Pairs(NamedTuple):
    """Pairs of members: their rows, their set and the product of their coefficients.

    `unit` is the Hessian between the two at scale 1, one number where all agree; `times` how many
    times as many sets there are as these pairs are of.
    """

    first: Tensor
    second: Tensor
    of: Tensor
    product: Tensor
    unit: Tensor
    times: float


class Gaussian(Term):
    """Linear observations of normal targets: y ~ N(A·loc, scale²·Σa² + noise), in closed form."""

    def __init__(
        self,
        family: Normal,
        observations: Observations,
        n_rows: int,
        linear: tuple[NDArray[np.float64], float],
    ) -> None:
        super().__init__(family, observations, n_rows)
        a, self.noise = linear
        sets = observations.sets
        short = np.int32 if max(len(a), n_rows) < 2**31 else np.int64  # half the memory to read
        places = (part.astype(short) for part in (sets.indices, sets.offsets))
        self.A = sparse.csr_array((a, *places), (len(sets), n_rows))
        self.squares = np.add.reduceat(a * a, sets.offsets[:-1]) if len(sets) else np.zeros(0)
        assert observations.y is not None
        self.y = observations.y
        self.fixed = None if isinstance(family.scale, str) else float(family.scale)
        self._pairs: dict[int, _Pairs] = {}

    @cached_property
    def transpose(self) -> sparse.csr_array:
        """From sets to rows."""
        return self.A.T.tocsr()

    @cached_property
    def squared(self) -> sparse.csr_array:
        """The coefficients squared, transposed."""
        a = self.transpose
        return sparse.csr_array((a.data**2, a.indices, a.indptr), a.shape)

    @cached_property
    def unit_curvature(self) -> NDArray[np.float64]:
        """The diagonal of the Hessian where the scale is 1 and there is no noise."""
        out: NDArray[np.float64] = self.squared @ self.unit_precision
        return out

    @cached_property
    def largest(self) -> int:
        """The size of the largest set."""
        return int(self.sets.sizes.max(initial=0))

    @cached_property
    def all_pairs(self) -> int:
        """The number of pairs of members of all sets."""
        sizes = self.sets.sizes
        return int((sizes * (sizes - 1)).sum()) // 2

    def pairs(self, enough: int) -> _Pairs:
        """The pairs of members of all sets; of a random part of them that has `enough` pairs."""
        count = len(self.sets)
        if self.all_pairs > enough:
            count = min(count, 1 << math.ceil(math.log2(count * enough / self.all_pairs)))
        if count not in self._pairs:
            self._pairs[count] = self._draw_pairs(count)
        return self._pairs[count]

    def _draw_pairs(self, count: int) -> _Pairs:
        sets, drawn = self.sets, np.ones(len(self.sets), bool)
        if count < len(sets):
            drawn = np.zeros(len(sets), bool)
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
        product = torch.from_numpy(self.A.data[left] * self.A.data[right])
        unit = product * torch.from_numpy(self.unit_precision[of])
        if len(unit) and bool((unit == unit[0]).all()):
            unit = unit[:1]
        first, second = (torch.from_numpy(sets.indices[x].astype(np.int32)) for x in (left, right))
        return _Pairs(first, second, torch.from_numpy(of), product, unit, len(sets) / count)

    def scale(self, shared: Tensor) -> float:
        """The scale of the targets."""
        return math.exp(float(shared[0])) if self.fixed is None else self.fixed

    @cached_property
    def total(self) -> float:
        """The sum of the sets' weights."""
        return float(self.weight.sum())

    @cached_property
    def unit_precision(self) -> NDArray[np.float64]:
        """Weight over variance where the scale is 1 and there is no noise."""
        return self.weight / self.squares

    @cached_property
    def even_precision(self) -> float | NDArray[np.float64]:
        """The same as one number, where it is the same for all sets."""
        each = self.unit_precision
        return float(each[0]) if len(each) and bool((each == each[0]).all()) else each

    @cached_property
    def unit_logs(self) -> float:
        """Σ weight · log 2πv there."""
        return float((self.weight * np.log(2 * math.pi * self.squares)).sum())

    def log_likelihood(self, raw: Tensor, shared: Tensor) -> Tensor:
        """log p(y) of each set, differentiable."""
        members = self.sets.members(raw[:, 0])
        a = torch.from_numpy(self.A.data).to(members)
        variance = torch.from_numpy(self.squares).to(members)
        if self.fixed is None:
            variance = variance * (2 * shared[0]).exp() + self.noise
        else:
            variance = variance * self.fixed**2 + self.noise
        y = torch.from_numpy(self.y).to(members)
        square = (y - self.sets.flat.sum(a * members)) ** 2
        return -0.5 * (square / variance + (2 * math.pi * variance).log())

    def at(self, raw: Tensor, shared: Tensor) -> Point:
        """Everything of first and second order at these parameters."""
        return GaussianPoint(self, raw, shared)


class GaussianPoint(Point):
    """With v = scale²·Σa² + noise and r = A·loc − y, the loss is ½ Σ w (r²/v + log 2πv)."""

    def __init__(self, term: Gaussian, raw: Tensor, shared: Tensor) -> None:
        self.term = term
        self.scale = term.scale(shared)
        rest = term.A @ raw[:, 0].numpy()
        rest -= term.y
        self.share: float | NDArray[np.float64] = 1.0  # of the targets in the variance
        self.precision: float | NDArray[np.float64]
        if term.noise == 0:
            self.precision = term.even_precision / self.scale**2
            logs = term.unit_logs + 2 * term.total * math.log(self.scale)
        else:
            own = self.scale**2 * term.squares
            variance = own + term.noise
            self.share = own / variance
            self.precision = term.weight / variance
            logs = float((term.weight * np.log(2 * math.pi * variance)).sum())
        self.pull = self.precision * rest
        size = float(np.einsum("i,i", rest, self.pull))  # a threaded dot product would cost more
        self.value = 0.5 * (size + logs)
        self.raw = torch.from_numpy(term.transpose @ self.pull).unsqueeze(1)
        self.shared = torch.zeros(0, dtype=torch.float64)
        if term.fixed is not None:
            return
        if term.noise == 0:
            first, self.second = term.total - size, 2 * size
        else:
            share, each = self.share, rest * self.pull
            first = float((share * (term.weight - each)).sum())
            slope = 2 * share * (1 - share)  # of the share in the log scale
            self.second = float((slope * (term.weight - each) + 2 * share**2 * each).sum())
        self.shared = torch.tensor([first], dtype=torch.float64)

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        term = self.term
        along = term.A @ raw[:, 0].numpy()
        member = self.precision * along
        out_shared = torch.zeros_like(self.shared)
        if term.fixed is None:
            member = member - 2 * self.share * self.pull * float(shared[0])
            cross = -float((2 * self.share * self.pull * along).sum())
            out_shared[0] = cross + self.second * float(shared[0])
        return torch.from_numpy(term.transpose @ member).unsqueeze(1), out_shared

    def shared_curvature(self) -> Tensor:
        return torch.full_like(self.shared, self.second)

    def curvature(self) -> Tensor:
        if self.term.noise == 0:  # all precisions are proportional to 1 / scale²
            own = self.term.unit_curvature / self.scale**2
        else:
            own = self.term.squared @ self.precision
        return torch.from_numpy(own).unsqueeze(1)

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor:
        sets = self.term.sets
        if 0 < self.term.largest <= SMALL:
            # The leaves' own curvature is exact; what ties them is, at 50 pairs for each two
            # leaves, known to a few percent of it, which is plenty for the length of a step.
            pairs = self.term.pairs(PAIRS * n_leaves**2)
            short = torch.int16 if n_leaves < 180 else torch.int32  # holds the square
            pair = (leaf * n_leaves).to(short).index_select(0, pairs.first)
            pair += leaf.to(short).index_select(0, pairs.second)
            factor, weight = pairs.times, pairs.unit
            if self.term.noise:
                weight = pairs.product * torch.as_tensor(self.precision).index_select(0, pairs.of)
            else:
                factor *= self.scale**-2
            if len(weight) == 1:
                half = torch.bincount(pair, minlength=n_leaves**2) * (factor * float(weight))
            else:
                half = torch.bincount(pair, weight, minlength=n_leaves**2) * factor
            half = half.reshape(n_leaves, -1)
            half.diagonal().add_(torch.bincount(leaf, self.curvature()[:, 0], n_leaves), alpha=0.5)
            return half + half.T
        at = sets.tensor("set_ids", leaf) * n_leaves + leaf.index_select(
            0, sets.tensor("indices", leaf)
        )
        a = torch.from_numpy(self.term.A.data)
        share = torch.bincount(at, a, minlength=len(sets) * n_leaves).reshape(len(sets), -1)
        return share.T @ (share * torch.as_tensor(self.precision).reshape(-1, 1))
