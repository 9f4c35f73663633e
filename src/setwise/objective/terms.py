"""Terms of the loss: one for each `Observations`, with derivatives added up per row.

A *term* is a function of the rows' raw parameters and the shared ones. Networks use its *first
order*: `gradient`, on any device and in any dtype, of terms that are cut into minibatches without
being checked again. Trees, linear models and diagnoses use a *point*: all derivatives at one place,
up to products with the Hessian.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise._peers import ALONE, Peers
from setwise.distributions import Family
from setwise.likelihood import evaluate
from setwise.objective.lot import Lot
from setwise.objective.unknown import Slot
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = [
    "Beside",
    "FirstOrder",
    "LeastSquares",
    "Point",
    "SummedPoint",
    "Term",
    "added",
    "derivatives",
    "with_gradient",
]

Floats = NDArray[np.float64]
SMALL = 8  # up to this set size whole blocks of the Hessian are computed


class FirstOrder(NamedTuple):
    """The loss at one place, as a number on the device, and its gradient."""

    value: Tensor
    gradient: Tensor  # (rows, outputs)
    shared_gradient: Tensor  # (number of shared parameters,)


class LeastSquares(NamedTuple):
    """A quadratic loss, ½ Σ weight · (matrix @ raw − target)² / scale², up to a constant.

    `scale` is that of the targets, so that a weight of 1 is that of a target seen itself.
    """

    matrix: Any  # scipy sparse, (sets, rows)
    target: Floats
    weight: Floats


class Point(ABC):
    """A term of the loss at one place: its value, gradient, and products with its Hessian."""

    value: float
    gradient: Tensor  # (rows, outputs)
    shared_gradient: Tensor  # (number of shared parameters,)
    peers: Peers = ALONE  # who have the same point with other sets

    @abstractmethod
    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """The Hessian times a direction, of the same two shapes."""

    @abstractmethod
    def shared_curvature(self) -> Tensor:
        """The diagonal of the Hessian in the shared parameters."""

    @abstractmethod
    def curvature(self) -> Tensor:
        """The diagonal of the Hessian, (rows, outputs); negative where the loss is not convex.

        Exact for classes of independent members, for linear observations of normal targets and for
        sets of up to 16 members; in larger sets the members that were probed stand for the others.
        """

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor | None:
        """EᵀHE for the rows' leaves E of one output, or None where products are the cheaper way."""
        return None

    def part(self) -> Point:
        """A point with about the same Hessian, whose products cost less: that of some sets only."""
        return self


class Term(ABC):
    """−Σ weight · log p(y) over the sets of one `Observations`.

    The properties of a term are declared, so that learners need not know its class.
    """

    quadratic: ClassVar[bool] = False  # in raw, where `least_squares` gives it
    of_classes: ClassVar[bool] = False  # raw parameters are logits, where a loss flattens out
    adds_up: ClassVar[bool] = True  # over sets; else `split` gives what does, for minibatches
    fixed_steps: ClassVar[bool] = False  # of the gradient: none depends on numbers, or on the host
    slot: Slot | None = None  # where what is learned of the aggregate is; else `shared` has no more

    def __init__(self, family: Family, observations: Observations, n_rows: int) -> None:
        self.family, self.observations, self.n_rows = family, observations, n_rows

    @classmethod
    @abstractmethod
    def suits(cls, family: Family, observations: Observations) -> bool:
        """Whether this kind of term can hold these observations of targets of this family."""

    @property
    def separable(self) -> bool:
        """Whether the minimum in raw is the same for every value of the shared parameters."""
        return False

    # ---- facts

    @property
    def sets(self) -> Sets:
        """The sets that were observed."""
        return self.observations.sets

    @property
    def parts(self) -> list[Observations]:
        """What was observed, where that is of several kinds."""
        return [self.observations]

    def times_seen(self) -> Floats:
        """How many targets of its own each row has here, by weight: one in each of its sets."""
        return np.bincount(self.sets.indices, self.member_weight, self.n_rows).astype(np.float64)

    @cached_property
    def lot(self) -> Lot:
        """Which sets are drawn when a sample stands for all."""
        return Lot.of(self.sets.sizes)

    @cached_property
    def largest(self) -> int:
        """The size of the largest set."""
        return int(self.sets.sizes.max(initial=0))

    @cached_property
    def weight(self) -> Floats:
        """The weight of each set."""
        given = self.observations.weight
        return np.ones(len(self.sets)) if given is None else given

    @property
    def member_weight(self) -> Floats:
        """The weight of each member: that of its set, for each individual that it stands for."""
        of, counts = np.repeat(self.weight, self.sets.sizes), self.sets.counts
        return np.asarray(of if counts is None else of * counts)

    @cached_property
    def total_weight(self) -> float:
        """The sum of the sets' weights."""
        return float(self.weight.sum())

    def weighted(self, each: Tensor) -> Tensor:
        """weight · `each`, which has one entry per set."""
        given = self.observations.weight
        return each if given is None else each * torch.as_tensor(given).to(each)

    def take(self, set_numbers: Any) -> Self:
        """The term of these sets only: numbers, a mask, or a slice, which copies nothing."""
        out = type(self)(self.family, self.observations.take(set_numbers), self.n_rows)
        out.slot = None if self.slot is None else self.slot.take(set_numbers)
        return out

    def share(self, set_numbers: Any) -> Self:
        """`take` for one of several processes that have all sets together."""
        out = self.take(set_numbers)
        if self.adds_up:
            out.__dict__["lot"] = self.lot.take(set_numbers)
        return out

    def over(self, place: NDArray[np.int64], n_rows: int) -> Self:
        """The term over another table of `n_rows` rows, in which a row has the number `place`."""
        sets, o = self.sets, self.observations
        moved = sets.moved(place[sets.indices])
        out = type(self)(
            self.family, Observations._trusted(o.aggregate, moved, o.y, o.weight, o.by), n_rows
        )
        out.slot = self.slot
        out.__dict__ |= {k: v for k, v in self.__dict__.items() if k == "lot"}
        return out

    # ---- its value

    def at_members(self, members: Tensor, shared: Tensor) -> Tensor:
        """log p(y) of each set from the members' raw parameters, by the registered rule.

        Where each labeller has learned parameters, it includes the set's share of their prior.
        """
        o, d = self.told(shared), self.family(members, shared[: len(self.family.shared)])
        each = evaluate(o.aggregate, d, o.sets, o.y)
        return each if self.slot is None else each + self.slot.log_prior(shared)

    def told(self, shared: Tensor) -> Observations:
        """The observations, with the learned parameters of the aggregate taken from `shared`."""
        slot = self.slot
        return self.observations if slot is None else slot.bound(self.observations, shared)

    def log_likelihood(self, raw: Tensor, shared: Tensor) -> Tensor:
        """log p(y) of each set, differentiable."""
        return self.at_members(self.sets.members(raw), shared)

    # ---- its derivatives

    def gradient(self, raw: Tensor, shared: Tensor) -> FirstOrder:
        """Value and gradient, in the dtype and on the device of `raw`.

        Taken at the members and added up per row: beside a small network, a graph from the rows
        through the members would cost as much as another layer.
        """
        raw, shared = raw.detach(), shared.detach()
        with torch.enable_grad():
            leaf = self.sets.members(raw).detach().requires_grad_()
            own = shared.clone().requires_grad_()
            loss = -self.weighted(self.at_members(leaf, own)).sum()
        at_members, at_shared = derivatives(loss, (leaf, own))
        return FirstOrder(loss.detach(), self.sets.to_rows(at_members, len(raw)), at_shared)

    @abstractmethod
    def at(self, raw: Tensor, shared: Tensor) -> Point:
        """Everything of first and second order at these parameters (float64, CPU)."""

    def split(self, raw: Tensor, shared: Tensor) -> Term:
        """A sum over sets with the same value and gradient here, and no smaller elsewhere."""
        return self

    def least_squares(self, shared: Tensor) -> LeastSquares:
        """A `quadratic` term as a quadratic function of the first raw parameter."""
        raise TypeError(f"the term of {self.observations!r} is not quadratic")


def derivatives(
    value: Tensor, leaves: Sequence[Tensor], create_graph: bool = False
) -> tuple[Tensor, ...]:
    """The derivatives of a number in each of the leaves; zeros where it does not depend on one."""
    if not value.requires_grad:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    return torch.autograd.grad(
        value,
        leaves,
        create_graph=create_graph,
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )


def with_gradient(loss: Callable[[Tensor], Tensor]) -> Callable[[Floats], tuple[float, Floats]]:
    """A differentiable loss as scipy minimises it with `jac=True`."""

    def both(x: Floats) -> tuple[float, Floats]:
        leaf = torch.from_numpy(x).requires_grad_()
        value = loss(leaf)
        (gradient,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), gradient.numpy()

    return both


def added(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape; a single one as it is."""
    return reduce(torch.add, parts)


class Beside(Point):
    """The point of a term that takes only the first of the shared parameters."""

    def __init__(self, own: Point, n_shared: int) -> None:
        self.own, self.more = own, n_shared - len(own.shared_gradient)
        self.value, self.gradient = own.value, own.gradient
        self.shared_gradient = self._padded(own.shared_gradient)

    def _padded(self, shared: Tensor) -> Tensor:
        return torch.cat([shared, shared.new_zeros(self.more)])

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        at_rows, own = self.own.product(raw, shared[: len(shared) - self.more])
        return at_rows, self._padded(own)

    def shared_curvature(self) -> Tensor:
        return self._padded(self.own.shared_curvature())

    def curvature(self) -> Tensor:
        return self.own.curvature()

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor | None:
        return self.own.leaf_hessian(leaf, n_leaves)

    def part(self) -> Point:
        part = self.own.part()
        return self if part is self.own else Beside(part, len(self.shared_gradient))


class SummedPoint(Point):
    """The sum of several terms at one place."""

    def __init__(self, points: list[Point]) -> None:
        self.points = points
        self.value = sum(p.value for p in points)
        self.gradient = added([p.gradient for p in points])
        self.shared_gradient = added([p.shared_gradient for p in points])

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        found = [p.product(raw, shared) for p in self.points]
        return added([f[0] for f in found]), added([f[1] for f in found])

    def shared_curvature(self) -> Tensor:
        return added([p.shared_curvature() for p in self.points])

    def curvature(self) -> Tensor:
        return added([p.curvature() for p in self.points])

    def part(self) -> Point:
        parts = [p.part() for p in self.points]
        same = all(a is b for a, b in zip(parts, self.points, strict=True))
        return self if same else SummedPoint(parts)

    def leaf_hessian(self, leaf: Tensor, n_leaves: int) -> Tensor | None:
        found = [p.leaf_hessian(leaf, n_leaves) for p in self.points]
        known = [f for f in found if f is not None]
        return added(known) if len(known) == len(found) else None
