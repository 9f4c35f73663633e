"""The term of linear observations that share normal targets: their joint likelihood."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from setwise._math.joint_blocks import Blocks, Product, directions
from setwise._math.joint_normal import Directions, Infeasible
from setwise.distributions import Family, Normal
from setwise.distributions.links import exp_link
from setwise.objective.majorant import Majorant, smallest
from setwise.objective.terms import FirstOrder, Floats, LeastSquares, Point, Term
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["JointGaussianTerm"]

MARGIN = 1.2  # above a ratio that iterations found, and that moves with the scale
MOVES = 0.1  # of the log scale, after which it is found again


class JointGaussianTerm(Term):
    """y ~ N(A·loc, scale²·AAᵀ + noise), over all the sets of several `Observations`.

    It is computed in directions that are independent at every scale (`Directions`). The likelihood
    of a set is that of its own direction: without noise, that of its y given the y of the sets
    before it, disjoint ones first. A y that the others determine adds nothing. The sum over the
    sets is the joint likelihood.
    """

    quadratic: ClassVar[bool] = True
    adds_up: ClassVar[bool] = False

    def __init__(
        self,
        family: Family,
        parts: Sequence[Observations],
        n_rows: int,
        known: Directions | Blocks | Product | None = None,
        part: bool = False,
    ) -> None:
        self.family, self.n_rows = family, n_rows
        self._parts = list(parts)
        self._directions = known
        self._part = part  # of a joint term, for which the product will do where it must
        self._ratio: tuple[float, float] | None = None  # at a log scale, of `_steepest`

    @classmethod
    def suits(cls, family: Family, observations: Observations) -> bool:
        return False  # it is about several: `join` decides

    # ---- what it is about

    @property
    def parts(self) -> list[Observations]:
        return self._parts

    def located(self, number: int) -> tuple[Observations, int]:
        """The part that a set belongs to, and its number there."""
        for o in self._parts:
            if number < len(o):
                break
            number -= len(o)
        return o, number

    @cached_property
    def sets(self) -> Sets:
        """The sets of all parts, one after another."""
        sizes = np.concatenate([o.sets.sizes for o in self._parts])
        return Sets._trusted(
            np.concatenate([o.sets.indices for o in self._parts]),
            np.concatenate([[0], np.cumsum(sizes)]),
        )

    @cached_property
    def weight(self) -> Floats:
        return np.ones(len(self.sets))

    @cached_property
    def total_weight(self) -> float:
        return float(len(self.sets))

    def weighted(self, each: Tensor) -> Tensor:
        return each

    @cached_property
    def _linear(self) -> tuple[Floats, Floats, Floats]:
        """The members' coefficients, and the y and the noise's variance of each set."""
        found = [(o, o.aggregate.linear(o.sets)) for o in self._parts]
        told = [(o.y, of[0], np.full(len(o), of[1])) for o, of in found if of and o.y is not None]
        y, coefficients, noise = (np.concatenate(part) for part in zip(*told, strict=True))
        return coefficients, y.astype(np.float64), noise

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The rows that the sets name."""
        named = np.zeros(self.n_rows, bool)
        named[self.sets.indices] = True
        return np.flatnonzero(named)

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """The coefficients A, (sets, rows named)."""
        place = np.empty(self.n_rows, np.int64)
        place[self.rows] = np.arange(len(self.rows))
        members = place[self.sets.indices]
        shape = len(self.sets), len(self.rows)
        return sparse.csr_array((self._linear[0], members, self.sets.offsets), shape)

    @cached_property
    def directions(self) -> Directions | Blocks | Product:
        """The observations, made independent; an error where they cannot be."""
        if self._directions is None:
            try:
                self._directions = directions(self.matrix, *self._linear[1:])
            except Infeasible:
                if not self._part:
                    raise
                self._directions = Product(self.matrix, *self._linear[1:])
        return self._directions

    @property
    def separable(self) -> bool:
        return not self.directions.noise.any()

    def times_seen(self) -> Floats:
        """1 for each row in some set: together these describe its one target."""
        out = np.zeros(self.n_rows)
        out[self.rows] = 1.0
        return out

    def take(self, set_numbers: Any) -> Self:
        """The marginal likelihood of these sets; those of one part follow one another.

        Where that would cost too much, the product of their likelihoods.
        """
        which = np.arange(len(self.sets))[set_numbers]
        if np.array_equal(which, np.arange(len(self.sets))):
            return self
        ends = np.cumsum([len(o) for o in self._parts])
        of = np.searchsorted(ends, which, side="right")
        parts = [o.take(which[of == i] - (ends[i] - len(o))) for i, o in enumerate(self._parts)]
        kept = [o for o in parts if len(o)] or parts[:1]
        return type(self)(self.family, kept, self.n_rows, part=True)

    def over(self, place: NDArray[np.int64], n_rows: int) -> Self:
        parts = []
        for o in self._parts:
            moved = o.sets.moved(place[o.sets.indices])
            parts.append(Observations._trusted(o.aggregate, moved, o.y, o.weight))
        out = type(self)(self.family, parts, n_rows, self._directions, self._part)
        if self._directions is not None:
            out.__dict__["rows"] = place[self.rows]  # in the order that directions know
        return out

    # ---- value and derivatives

    def log_scale(self, shared: Tensor) -> Tensor:
        """The log scale of the targets."""
        assert isinstance(self.family, Normal)
        given = self.family.scale
        return (
            exp_link(shared[0]).log()
            if isinstance(given, str)
            else shared.new_tensor(math.log(given))
        )

    def log_likelihood(self, raw: Tensor, shared: Tensor) -> Tensor:
        d = self.directions
        found: Tensor = _Residual.apply(raw[:, 0], self)  # type: ignore[no-untyped-call]
        unit, noise, slot = (
            torch.from_numpy(x).to(found.device) for x in (d.unit, d.noise, d.slot)
        )
        variance = (2 * self.log_scale(shared).to(found)).exp() * unit + noise
        each = -0.5 * (found * found / variance + (2 * math.pi * variance).log())
        start = torch.full_like(each[:1], -d.constant / len(self.sets)).expand(len(self.sets))
        return start.index_add(0, slot, each)

    def gradient(self, raw: Tensor, shared: Tensor) -> FirstOrder:
        found = _Residuals(self, raw.detach().double().cpu(), shared.detach().double().cpu())
        return FirstOrder(
            torch.tensor(found.value, dtype=torch.float64, device=raw.device),
            found.gradient.to(raw),
            torch.full_like(shared, found.slope),
        )

    def at(self, raw: Tensor, shared: Tensor) -> Point:
        return _JointPoint(self, raw, shared)

    def least_squares(self, shared: Tensor) -> LeastSquares:
        d, unit = self.directions, math.exp(2 * float(self.log_scale(shared)))
        return LeastSquares(_Matrix(self), d.target, unit / (unit * d.unit + d.noise))

    def onto(self, each: Floats) -> Floats:
        """Values at the rows named, as values at all rows."""
        out = np.zeros(self.n_rows)
        out[self.rows] = each
        return out

    # ---- for minibatches

    def split(self, raw: Tensor, shared: Tensor) -> Term:
        """A term that is a sum over sets, or rows, and touches this one here from above.

        With u the derivative in A·loc, a set has the label a·loc − v·u/c, where v is its own
        variance and c is so large that the curvature is no less than that of the joint likelihood;
        a row has the label E[z | y] = loc − scale²·(Aᵀu). The less curved of the two is taken:
        sets, where there are few, or few of them overlap; rows, where sets tell most targets.
        """
        at = _Residuals(self, raw, shared)
        log_scale = float(self.log_scale(shared))
        unit = math.exp(2 * log_scale)
        loc = raw[:, 0].numpy()
        coefficients, _, noise = self._linear
        squares = np.add.reduceat(coefficients**2, self.sets.offsets[:-1])
        variance = unit * squares + noise
        most = math.inf
        if self.directions.by_sets:
            most = self._steepest(log_scale, at.variance, variance)
        if most * unit * float((squares / variance).sum()) < len(self.rows):
            step = variance / most
            u = np.zeros(len(self.sets))
            u[self.directions.slot] = self.directions.dual(at.pull)
            total = np.add.reduceat(coefficients * loc[self.sets.indices], self.sets.offsets[:-1])
            target = total - step * u
            best = Majorant(self.family, self.sets, self.n_rows, coefficients, target, 1 / step)
        else:
            ones = np.ones(len(self.rows))
            target = loc[self.rows] - unit * at.gradient[self.rows, 0].numpy()
            sets = Sets._trusted(self.rows, np.arange(len(self.rows) + 1), size=1)
            best = Majorant(self.family, sets, self.n_rows, ones, target, ones / unit)
        best.touch(loc, shared, at.value, at.slope, at.bend, self.total_weight)
        return best

    def _steepest(self, log_scale: float, along: Floats, variance: Floats) -> float:
        """The largest ratio of the joint curvature to that of the sets as if independent.

        `along` are the variances of the directions, which are orthogonal, of squared length `unit`.
        It is found once where there is no noise, and else after the scale has moved by a tenth.
        """
        d = self.directions
        if isinstance(d, Product):
            return 1.0
        told = d.unit > 1e-10 * d.unit.max()
        if self._ratio is not None and (self.separable or abs(log_scale - self._ratio[0]) < MOVES):
            return self._ratio[1]
        root = np.where(told, np.sqrt(along) / np.where(told, d.unit, 1.0), 0.0)

        def product(x: Floats) -> Floats:
            rows = self.matrix @ d.adjoint(root * x.ravel())
            out: Floats = root * d.forward(self.matrix.T @ (rows / variance))
            out[~told] = 1e10 * x.ravel()[~told]
            return out

        ratio = 1 / max(smallest(product, len(root)), 1e-12)
        self._ratio = log_scale, MARGIN * ratio
        return self._ratio[1]


class _Matrix:
    """Ã, to be multiplied by a table of the rows."""

    def __init__(self, term: JointGaussianTerm) -> None:
        self.term = term
        self.shape = len(term.directions), term.n_rows

    def __matmul__(self, rows: Any) -> Floats:
        return self.term.directions.forward(rows[self.term.rows])


class _Residual(torch.autograd.Function):
    """Ã·loc − ỹ, with derivatives of every order."""

    @staticmethod
    def forward(ctx: Any, loc: Tensor, term: JointGaussianTerm) -> Tensor:
        ctx.term, ctx.like = term, loc
        rows = loc.detach().double().cpu().numpy()[term.rows]
        found = term.directions.forward(rows) - term.directions.target
        return torch.from_numpy(found).to(loc.device)

    @staticmethod
    def backward(ctx: Any, along: Tensor) -> Any:
        rows: Tensor = _Adjoint.apply(along, ctx.term)  # type: ignore[no-untyped-call]
        return rows.to(ctx.like), None


class _Adjoint(torch.autograd.Function):
    """Ãᵀ."""

    @staticmethod
    def forward(ctx: Any, along: Tensor, term: JointGaussianTerm) -> Tensor:
        ctx.term = term
        found = term.onto(term.directions.adjoint(along.detach().cpu().numpy()))
        return torch.from_numpy(found).to(along.device)

    @staticmethod
    def backward(ctx: Any, rows: Tensor) -> Any:
        term = ctx.term
        found = term.directions.forward(rows.detach().cpu().numpy()[term.rows])
        return torch.from_numpy(found).to(rows.device), None


class _Residuals:
    """With t = Ã·loc − ỹ of variance v, the loss is ½ Σ (t²/v + log 2πv) + constant.

    `pull` is its derivative in t, `slope` and `bend` are those in the log scale, and `share` is
    that of the targets in the variance.
    """

    def __init__(self, term: JointGaussianTerm, raw: Tensor, shared: Tensor) -> None:
        self.term, d = term, term.directions
        self.rest = d.forward(raw[:, 0].numpy()[term.rows]) - d.target
        own = math.exp(2 * float(term.log_scale(shared))) * d.unit
        self.variance = own + d.noise
        self.share, self.precision = own / self.variance, 1 / self.variance
        self.pull: Floats = self.rest * self.precision
        each = self.rest * self.pull
        logs = float(np.log(2 * math.pi * self.variance).sum())
        self.value = 0.5 * (float(each.sum()) + logs) + d.constant
        self.slope = float((self.share * (1 - each)).sum())
        turn = 2 * self.share * (1 - self.share)
        self.bend = float((turn * (1 - each) + 2 * self.share**2 * each).sum())

    @cached_property
    def gradient(self) -> Tensor:
        """In the raw parameters of all rows."""
        term = self.term
        return torch.from_numpy(term.onto(term.directions.adjoint(self.pull))).unsqueeze(1)


class _JointPoint(Point):
    def __init__(self, term: JointGaussianTerm, raw: Tensor, shared: Tensor) -> None:
        self.term, self.found = term, _Residuals(term, raw, shared)
        self.value = self.found.value
        self.gradient = self.found.gradient
        self.shared_gradient = torch.full_like(shared, self.found.slope)

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        term, found = self.term, self.found
        along = term.directions.forward(raw[:, 0].numpy()[term.rows])
        each = found.precision * along
        out = torch.zeros_like(self.shared_gradient)
        if len(out):
            mixed = 2 * found.share * found.pull
            each = each - mixed * float(shared[0])
            out[0] = found.bend * float(shared[0]) - float(mixed @ along)
        rows = term.onto(term.directions.adjoint(each))
        return torch.from_numpy(rows).unsqueeze(1), out

    def shared_curvature(self) -> Tensor:
        return torch.full_like(self.shared_gradient, self.found.bend)

    def curvature(self) -> Tensor:
        own = self.term.directions.diagonal(self.found.precision)
        return torch.from_numpy(self.term.onto(own)).unsqueeze(1)

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor:
        term = self.term
        of, n = leaf.numpy()[term.rows], len(term.rows)
        leaves = sparse.csr_array((np.ones(n), of, np.arange(n + 1)), (n, n_leaves))
        share = term.directions.forward(leaves)
        return torch.from_numpy(share.T @ (share * self.found.precision[:, None]))
