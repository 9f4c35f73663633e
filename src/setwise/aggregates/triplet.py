"""Triplet: is the first member closer to the second or to the third?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical

from setwise._math.class_posterior import LOGS, Arithmetic, class_posterior
from setwise.likelihood import Aggregate, Label, Targets, likelihood
from setwise.numerics import chunked, logaddexp, logcumsumexp, logsumexp, segment_logsumexp
from setwise.sets import Sets

__all__ = ["Triplet"]


@dataclass(frozen=True, eq=False)
class Triplet(Aggregate):
    """A comparison of distances between classes: y = 1 if d(z₁, z₂) < d(z₁, z₃), else 0.

    With `three_way=True`, y is 1 (closer to the second), −1 (closer to the third) or 0 (equally
    far). `distance` is a C×C matrix; by default d(i, j) = [i ≠ j]. Every probability is a sum of
    products of probabilities, taken in logs: nothing is subtracted, so nothing is lost.

    >>> Triplet().observe([0, 0, 1], [[0, 1, 2], [0, 2, 1]]).y.tolist()
    [1.0, 0.0]

    Cui et al., "Classification from triplet comparison data", Neural Computation 2020.
    """

    distance: Any = None
    three_way: bool = False

    size = 3
    symmetric = False

    def __post_init__(self) -> None:
        if self.distance is None:
            return
        matrix = np.asarray(self.distance, float)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or np.isnan(matrix).any():
            raise ValueError(
                f"distance must be a square matrix of numbers, one row and column per class; "
                f"got shape {matrix.shape}"
            )

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        first, second, third = (column.long().numpy() for column in sets.columns(z))
        if self.distance is None:
            near, far = first != second, first != third
        else:
            matrix = np.asarray(self.distance, float)
            near, far = matrix[first, second], matrix[first, third]
        closer = (near < far).astype(float)
        return closer - (near > far) if self.three_way else closer

    def outcome(self, targets: Targets, size: int | None) -> Label:
        if self.three_way:
            return Label({-1: "closer to the third", 0: "equally far", 1: "closer to the second"})
        return Label({0: "not closer to the second", 1: "closer to the second"})

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        distance = np.random.default_rng(7).integers(0, 4, (n_classes, n_classes)).astype(float)
        return [cls(d, three) for d in (None, distance) for three in (False, True)]

    def alike(
        self, sets: Sets, y: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
        """Of C classes of one size, "not closer" means "not alike" but once in C² − C + 1 times."""
        if self.distance is not None:
            return None
        members = sets.indices.reshape(-1, 3)
        told = np.ones(len(y), bool) if self.three_way else y == 1  # something of the third
        pairs = np.concatenate([members[:, :2], members[told][:, [0, 2]]])
        return pairs, np.concatenate([y == 1, y[told] == -1])


def _joint(
    a: Arithmetic, p: Tensor, q: Tensor, not_q: Tensor, r: Tensor, not_r: Tensor, closer: Tensor
) -> Tensor:
    """P(class, y) of the first member, for two outcomes and the default distance [i ≠ j].

    Closer means z₂ = z₁ ≠ z₃. As that is symmetric in z₁ and z₂, p and q may change places.
    """
    rest = a.plus(not_q, a.times(q, r))
    return a.times(p, torch.where(closer, a.times(q, not_r), rest))


def _class_posterior(
    aggregate: Triplet, distribution: Categorical, sets: Sets, y: Tensor
) -> tuple[Tensor, Tensor] | None:
    """With two outcomes and the default distance; None otherwise."""
    if aggregate.distance is not None or aggregate.three_way:
        return None
    closer = (y == 1)[:, None]

    def joint(a: Arithmetic, own: Tensor) -> Tensor:
        (p, q, r), (not_p, not_q, not_r) = own.unbind(1), a.others(own).unbind(1)
        pair, apart = a.times(p, q), a.total(a.times(p, not_q))
        first = _joint(a, p, q, not_q, r, not_r, closer)
        second = _joint(a, q, p, not_p, r, not_r, closer)
        third = a.times(r, torch.where(closer, a.rest(pair), a.plus(apart, pair)))
        return torch.stack([first, second, third], 1)

    return class_posterior(joint, distribution.logits, 3)


@likelihood(Triplet, Categorical, class_posterior=_class_posterior)
def _triplet(aggregate: Triplet, distribution: Categorical, sets: Sets, y: Tensor) -> Tensor:
    """Sum over classes, O(C); over pairs of classes sorted by distance, O(C²), for a matrix."""
    p, q, r = sets.columns(distribution.logits)
    if aggregate.distance is None:
        return _same_class(p, q, r, y[:, None], aggregate.three_way)
    matrix = np.asarray(aggregate.distance, float)
    n = p.shape[-1]
    if matrix.shape != (n, n):
        raise ValueError(
            f"the distance matrix is {matrix.shape[0]}×{matrix.shape[1]}, but there are {n} classes"
        )
    order = _DistanceOrder(matrix, p.device)

    def by_distance(p: Tensor, q: Tensor, r: Tensor, y: Tensor) -> Tensor:
        return order.log_probability(p, q, r, y, aggregate.three_way)

    return chunked(by_distance, p, q, r, y, cost=8 * n * n)


def _same_class(p: Tensor, q: Tensor, r: Tensor, y: Tensor, three_way: bool) -> Tensor:
    """The default distance [i ≠ j]: closer means z₂ = z₁ ≠ z₃."""
    not_q, not_r = LOGS.others(q), LOGS.others(r)
    joint = _joint(LOGS, p, q, not_q, r, not_r, y == 1)
    if three_way:
        equal = logaddexp(q + r, not_q + not_r)
        rest = torch.where(y == 0, equal, not_q + r)
        joint = torch.where(y == 1, joint, p + rest)
    return logsumexp(joint, -1)


class _DistanceOrder:
    """For each class i, the classes sorted by their distance from i."""

    def __init__(self, matrix: NDArray[Any], device: torch.device) -> None:
        n = len(matrix)
        order = np.argsort(matrix, axis=1, kind="stable")
        ordered = np.take_along_axis(matrix, order, 1)
        below = np.stack([np.searchsorted(ordered[i], matrix[i], "left") for i in range(n)])
        upto = np.stack([np.searchsorted(ordered[i], matrix[i], "right") for i in range(n)])
        cells = below + np.arange(n)[:, None] * n  # classes equally far from i share a cell

        def tensor(a: NDArray[Any]) -> Tensor:
            return torch.as_tensor(a, device=device)

        self.order, self.below, self.upto = tensor(order), tensor(below), tensor(upto)
        self.cells = tensor(cells.reshape(-1))

    def log_probability(self, p: Tensor, q: Tensor, r: Tensor, y: Tensor, three: bool) -> Tensor:
        n, c = r.shape
        ordered = r[:, self.order]
        edge = r.new_full((n, c, 1), -torch.inf)
        # nearer[..., m]: mass of the m nearest classes; farther[..., m]: of all but the m nearest
        nearer = torch.cat([edge, logcumsumexp(ordered, -1)], -1)
        farther = torch.cat([logcumsumexp(ordered.flip(-1), -1).flip(-1), edge], -1)

        def at(mass: Tensor, index: Tensor) -> Tensor:
            return mass.gather(-1, index.expand(n, c, c))

        choose = y[:, None, None]
        if three:
            flat = r[:, None, :].expand(n, c, c).reshape(n, c * c).T
            equal = segment_logsumexp(flat, self.cells, c * c)[self.cells].T.reshape(n, c, c)
            rest = torch.where(choose == 0, equal, at(nearer, self.below))
        else:
            rest = at(nearer, self.upto)
        third = torch.where(choose == 1, at(farther, self.upto), rest)
        return logsumexp((p[:, :, None] + q[:, None, :] + third).reshape(n, -1), -1)
