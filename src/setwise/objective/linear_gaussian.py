"""The term of linear observations of normal targets, in closed form."""

from __future__ import annotations

import math
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from setwise.distributions import Family, Normal
from setwise.distributions.links import exp_link
from setwise.objective.terms import SMALL, FirstOrder, Floats, LeastSquares, Point, Term
from setwise.observations import Observations

__all__ = ["GaussianTerm"]

PAIRS = 50  # of members, for each two leaves, that a leaf Hessian is added up from
SOME = 100  # sets for each leaf, where sets are large


class _Pairs(NamedTuple):
    """Pairs of members: their rows, their set and the product of their coefficients."""

    first: Tensor
    second: Tensor
    of: Tensor
    product: Tensor  # times the share of sets it stands for; without noise `unit_precision`


class _Part(NamedTuple):
    """Some of the sets, drawn in proportion to their sizes."""

    rows: Tensor  # of their members
    begins: Tensor  # for each member, its set times the number of leaves
    coefficients: Tensor | None  # of the members; None where all sets have the same one
    which: Tensor  # the sets' numbers
    times: Tensor  # how many sets each of them stands for


class GaussianTerm(Term):
    """Linear observations of normal targets: y ~ N(A·loc, scale²·Σa² + noise), in closed form.

    A member of n individuals has n·a in A, and n·a² in the variance.
    """

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
        """The members' coefficients in A, and the variance of the noise."""
        found = self.observations.aggregate.linear(self.sets)
        assert found is not None
        counts = self.sets.counts
        return found if counts is None else (found[0] * counts, found[1])

    @cached_property
    def even(self) -> float | None:
        """The coefficient of all members; None where they have their own."""
        a = self.linear[0]
        return float(a[0]) if len(a) and a.strides == (0,) else None

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
        if self.even is not None:
            return np.asarray(self.even**2 * self.sets.sizes, np.float64)
        a, counts = self.linear[0], self.sets.counts
        return self.sums(a * a if counts is None else a * a / counts)

    @cached_property
    def totals(self) -> Floats:
        """Σ a of each set."""
        if self.even is not None:
            return np.asarray(self.even * self.sets.sizes, np.float64)
        return self.sums(self.linear[0])

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """The coefficients, (sets, rows)."""
        sets, n = self.sets, self.n_rows
        # 32 bits halve the memory that products read
        short = np.int32 if max(len(sets.indices), n) < 2**31 else np.int64
        places = (part.astype(short, copy=False) for part in (sets.indices, sets.offsets))
        return sparse.csr_array((np.ascontiguousarray(self.linear[0]), *places), (len(sets), n))

    @cached_property
    def transpose(self) -> sparse.csr_array:
        """From sets to rows."""
        a = self.matrix
        if self.even is None:
            return a.T.tocsr()
        # Where all coefficients are the same, both matrices share them.
        places = sparse.csr_array((np.empty(a.nnz, np.int8), a.indices, a.indptr), a.shape)
        turned = places.T.tocsr()
        return sparse.csr_array((a.data, turned.indices, turned.indptr), turned.shape)

    @cached_property
    def squared(self) -> sparse.csr_array:
        """The coefficients squared, transposed."""
        a = self.transpose
        return sparse.csr_array((a.data**2, a.indices, a.indptr), a.shape)

    def squared_times(self, precision: Floats) -> Floats:
        """For each row, the sum of coefficient² · precision over its sets."""
        if self.even is not None:
            out: Floats = self.transpose @ precision
            out *= self.even
            return out
        return np.asarray(self.squared @ precision)

    @cached_property
    def unit_curvature(self) -> Floats:
        """The diagonal of the Hessian where the scale is 1 and there is no noise."""
        out = self.squared_times(self.unit_precision)
        self.__dict__.pop("squared", None)  # as large as the data, and not needed again
        return out

    @cached_property
    def _pairs(self) -> dict[int, _Pairs]:
        return {}

    @cached_property
    def _parts(self) -> dict[int, _Part]:
        return {}

    def some(self, n_leaves: int) -> _Part:
        """Enough sets to estimate the coupling of this many leaves to a few percent."""
        if n_leaves not in self._parts:
            self._parts[n_leaves] = self._draw_sets(n_leaves)
        return self._parts[n_leaves]

    def _draw_sets(self, n_leaves: int) -> _Part:
        """Draws sets in proportion to their sizes, the largest ones for certain.

        So many that covariances of the leaves' shares, and pairs of members, are enough.
        """
        sets, sizes, lot = self.sets, self.sets.sizes, self.lot
        enough = max(SOME * n_leaves, PAIRS * n_leaves**2 / max(lot.pairs / lot.n, 1.0))
        chance = np.ones(len(sets))
        if enough < 0.7 * lot.n:
            chance = lot.chances(enough)[np.searchsorted(lot.sizes, sizes)]
        which = np.flatnonzero(lot.place < chance)
        part = sets.take(which)
        coefficients = None
        if self.even is None:
            a, begins = self.linear[0], np.repeat(sets.offsets[which], part.sizes)
            place = np.arange(len(part.indices)) - np.repeat(part.offsets[:-1], part.sizes)
            coefficients = torch.from_numpy(a[begins + place])
        return _Part(
            torch.from_numpy(part.indices.astype(np.int32)),
            torch.from_numpy(part.set_ids * n_leaves),
            coefficients,
            torch.from_numpy(which),
            torch.from_numpy(1 / chance[which]),
        )

    def pairs(self, enough: int) -> _Pairs:
        """The pairs of members of all sets; of a random part of them that has `enough` pairs."""
        count, every = self.lot.n, self.lot.pairs
        if every > enough:
            count = min(count, 1 << math.ceil(math.log2(count * enough / every)))
        if count not in self._pairs:
            self._pairs[count] = self._draw_pairs(count)
        return self._pairs[count]

    def _draw_pairs(self, count: int) -> _Pairs:
        sets, drawn = self.sets, self.lot.among_first(count)
        found = []
        for which, part in sets.by_size():
            k, m = np.triu_indices(int(part.sizes[0]), 1)
            which = which[drawn[which]]
            begin = sets.offsets[which][:, None]
            found.append((begin + k, begin + m, np.repeat(which, len(k))))
        left, right, of = (np.concatenate([f[i].ravel() for f in found]) for i in range(3))
        order = np.argsort(sets.indices[left], kind="stable")  # for the cache
        left, right, of = left[order], right[order], of[order]
        product = self.linear[0][left] * self.linear[0][right] * (self.lot.n / count)
        if self.noise == 0:
            product *= self.unit_precision[of]
        first, second = (torch.from_numpy(sets.indices[x].astype(np.int32)) for x in (left, right))
        return _Pairs(first, second, torch.from_numpy(of), torch.from_numpy(product))

    def scale(self, shared: Tensor) -> float:
        """The scale of the targets."""
        assert isinstance(self.family, Normal)
        given = self.family.scale
        return float(exp_link(shared[0]) if isinstance(given, str) else given)

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

    def over(self, place: NDArray[np.int64], n_rows: int) -> Self:
        return super().over(place.astype(np.int32) if n_rows < 2**31 else place, n_rows)

    def log_likelihood(self, raw: Tensor, shared: Tensor) -> Tensor:
        """log p(y) of each set; where all rows have the same numbers, without their members."""
        if raw.stride(0) != 0 or raw.dtype != torch.float64 or raw.device.type != "cpu":
            return super().log_likelihood(raw, shared)
        assert isinstance(self.family, Normal)
        given = self.family.scale
        scale = (
            exp_link(shared[0]) if isinstance(given, str) else torch.tensor(float(given)).double()
        )
        variance = scale.square() * torch.from_numpy(self.squares) + self.noise
        rest = raw[0, 0] * torch.from_numpy(self.totals) - torch.from_numpy(self.y).double()
        return -0.5 * (rest * rest / variance + (2 * math.pi * variance).log())

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

    share: float | Floats  # of the targets in the variance

    def __init__(self, term: GaussianTerm, rest: Floats, shared: Tensor) -> None:
        self.term, self.scale = term, term.scale(shared)
        if term.noise == 0:
            self.share = 1.0
            self.pull: Floats = term.unit_precision * rest
            self.pull *= self.scale**-2
            squares = float(rest @ self.pull)
            logs = term.unit_logs + 2 * term.total_weight * math.log(self.scale)
            self.slope, self.bend = term.total_weight - squares, 2 * squares
        else:
            own = self.scale**2 * term.squares
            variance = own + term.noise
            self.share = own / variance
            self.pull = term.weight / variance * rest
            each = rest * self.pull
            squares = float(each.sum())
            logs = float((term.weight * np.log(2 * math.pi * variance)).sum())
            self.slope = float((self.share * (term.weight - each)).sum())
            turn = 2 * self.share * (1 - self.share)  # the share's derivative in the log scale
            bend = turn * (term.weight - each) + 2 * self.share**2 * each
            self.bend = float(bend.sum())
        self.value = 0.5 * (squares + logs)

    @cached_property
    def precision(self) -> Floats:
        """Weight over variance of each set."""
        term = self.term
        if term.noise == 0:
            return term.unit_precision / self.scale**2
        return term.weight / (self.scale**2 * term.squares + term.noise)


class _GaussianPoint(Point):
    """Residuals, and their parts."""

    def __init__(self, term: GaussianTerm, raw: Tensor, shared: Tensor) -> None:
        self.term = term
        rest: Floats = term.matrix @ raw[:, 0].numpy()
        rest -= term.y
        self.found = _Residuals(term, rest, shared)
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
            own = self.term.squared_times(self.found.precision)
        return torch.from_numpy(own).unsqueeze(1)

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor:
        """Its diagonal is exact but for the coupling of members of one leaf.

        What members of a set share is known to a few percent from some of the sets, which is
        enough for the length of a step.
        """
        small = 0 < self.term.lot.sizes.max(initial=0) <= SMALL
        half = self._by_pairs(leaf, n_leaves) if small else self._by_shares(leaf, n_leaves)
        if self.term.noise == 0:
            own = torch.bincount(leaf, torch.from_numpy(self.term.unit_curvature), n_leaves)
            own *= self.found.scale**-2
        else:
            own = torch.bincount(leaf, self.curvature()[:, 0], n_leaves)
        half.diagonal().add_(own, alpha=0.5)
        return half + half.T

    def _by_pairs(self, leaf: Tensor, n_leaves: int) -> Tensor:
        """Sums over pairs of members, by the leaves of both; each pair is in one place."""
        pairs = self.term.pairs(PAIRS * n_leaves**2)
        short = torch.int16 if n_leaves < 180 else torch.int32  # holds the square
        pair = leaf.index_select(0, pairs.first).to(short) * n_leaves
        pair += leaf.index_select(0, pairs.second).to(short)
        weight, factor = pairs.product, self.found.scale**-2
        if self.term.noise:
            weight, factor = weight * torch.from_numpy(self._precision(pairs.of)), 1.0
        half = torch.bincount(pair, weight, n_leaves**2).double().reshape(n_leaves, -1)
        return half.mul_(factor)

    def _by_shares(self, leaf: Tensor, n_leaves: int) -> Tensor:
        """The same by the leaves' shares of some sets, in halves: each pair is in two places."""
        part, n = self.term.some(n_leaves), n_leaves
        short = torch.uint8 if n_leaves <= 256 else torch.int32  # stays in the cache
        at = part.begins + leaf.to(short).index_select(0, part.rows)
        share = torch.bincount(at, part.coefficients, len(part.which) * n).double().reshape(-1, n)
        factor, squares = 1.0, part.coefficients
        if self.term.even is not None:
            factor = self.term.even**2
            own = share
        else:
            assert squares is not None
            own = torch.bincount(at, squares * squares, len(part.which) * n).reshape(-1, n)
        weight = factor * part.times * torch.from_numpy(self._precision(part.which))
        half = 0.5 * (share.T @ (share * weight.unsqueeze(1)))
        half.diagonal().sub_(weight @ own, alpha=0.5)
        return half

    def _precision(self, which: Tensor) -> Floats:
        """Weight over variance of these sets."""
        if self.term.noise:
            return np.asarray(self.found.precision[which.numpy()])
        out: Floats = self.term.unit_precision[which.numpy()]
        out *= self.found.scale**-2
        return out
