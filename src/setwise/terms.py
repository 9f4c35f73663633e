"""Terms of the loss: one for each `Observations`, with derivatives at the members added per row.

A *term* is a function of the rows' raw parameters and the shared ones; a *point* is all that is
known of it at one place: value, gradient, curvature and products with the Hessian.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from setwise.distributions import Categorical, Family, Normal
from setwise.likelihood import evaluate
from setwise.observations import Observations

__all__ = ["Gaussian", "General", "Point", "Term", "Together"]

SMALL = 8  # up to this set size whole blocks of the Hessian are computed
PAIRS = 100  # of members, for each two leaves, that a leaf Hessian is added up from
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
        if isinstance(self.term.family, Categorical):
            return self._class_curvature()
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

    def _class_curvature(self) -> Tensor:
        """p(1 − p) − r(1 − r): variances before and after y, with r = p + ∂ log p(y)/∂ logit."""
        weight = self.term.sets.repeat(torch.from_numpy(self.term.weight)).to(self.leaf)[:, None]
        p = self.leaf.detach().softmax(-1)
        change = -self.slopes[0].detach() / torch.where(weight > 0, weight, 1.0)
        return self._rows(weight * change * (change + 2 * p - 1))


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

    def pairs(self, enough: int) -> _Pairs:
        """The pairs of members of all sets; of a random part of them that has `enough` pairs."""
        sizes = self.sets.sizes
        total = int((sizes * (sizes - 1)).sum()) // 2
        count = len(self.sets)
        if total > enough:
            count = min(count, 1 << math.ceil(math.log2(count * enough / total)))
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
        if len(sets.indices) and int(sets.sizes.max()) <= SMALL:
            # The leaves' own curvature is exact; what ties them is, at 100 pairs for each two
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

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor | None:
        total = torch.zeros(n_leaves, n_leaves, dtype=torch.float64)
        for point in self.points:
            one = point.leaf_hessian(leaf, n_leaves)
            if one is None:
                return None
            total += one
        return total
