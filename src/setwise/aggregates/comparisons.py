"""Comparisons of the members' classes: of two (Similarity), or of two distances (Triplet)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical

from setwise._math.class_posterior import LOGS, Arithmetic, class_posterior
from setwise.likelihood import Aggregate, Label, Targets, likelihood
from setwise.likelihood.aggregate import Pairs
from setwise.numerics import chunked, logaddexp, logcumsumexp, logsumexp, segment_logsumexp
from setwise.sets import Sets

__all__ = ["Similarity", "Triplet"]


_SPOKEN = {
    **dict.fromkeys(("same", "similar", "alike", "equal", "match"), 1.0),
    **dict.fromkeys(("different", "dissimilar", "unlike", "unequal", "mismatch"), 0.0),
}


@dataclass(frozen=True)
class Similarity(Aggregate):
    """Whether two members are of the same class: y = 1 if z₁ = z₂, else 0.

    P(y = 1) = Σ_c p₁(c) p₂(c), and P(y = 0) = Σ_c p₁(c) (1 − p₂(c)), added up without subtracting.

    >>> Similarity().observe([0, 1, 1], [[0, 1], [1, 2]]).y.tolist()
    [0.0, 1.0]

    Hsu et al., "Multi-class classification without multi-class labels", ICLR 2019.
    """

    size = 2
    distinct = True

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        first, second = sets.columns(z)
        return (first == second).double()

    def outcome(self, targets: Targets, size: int | None) -> Label:
        return Label({0: "two classes", 1: "the same class"}, spoken=_SPOKEN)

    def alike(self, sets: Sets, y: NDArray[Any]) -> Pairs | None:
        return sets.indices.reshape(-1, 2), y == 1


def _similarity_joint(a: Arithmetic, own: Tensor, partner: Tensor, same: Tensor) -> Tensor:
    """P(class, y) of a member: the partner is of the same class, or of another."""
    return a.times(own, torch.where(same, partner, a.others(partner)))


def _similarity_posterior(
    aggregate: Similarity, distribution: Categorical, sets: Sets, y: Tensor
) -> tuple[Tensor, Tensor]:
    same = (y == 1)[:, None, None]

    def joint(a: Arithmetic, own: Tensor) -> Tensor:
        return _similarity_joint(a, own, own.flip(1), same)

    return class_posterior(joint, distribution.logits, 2)


@likelihood(Similarity, Categorical, class_posterior=_similarity_posterior)
def _similarity(aggregate: Similarity, distribution: Categorical, sets: Sets, y: Tensor) -> Tensor:
    """Sum over classes, O(C)."""
    pairs = sets.dense(distribution.logits)
    # On a CPU large intermediate results are slower than small ones that stay in the cache.
    size = len(pairs) if pairs.is_cuda else max(1, (1 << 18) // pairs.shape[-1])
    parts = []
    for pair, label in zip(pairs.split(size), y.split(size), strict=True):
        first, second = pair.unbind(1)
        parts.append(logsumexp(_similarity_joint(LOGS, first, second, label[:, None] == 1), -1))
    return torch.cat(parts)


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
        near, far = "closer to the second", "closer to the third"
        if self.three_way:
            meanings = {-1.0: far, 0.0: "equally far", 1.0: near}
            return Label(meanings, members=(None, 1.0, -1.0))
        return Label({0: f"not {near}", 1: near}, members=(None, 1.0, 0.0))

    def told_classes(self, y: Any) -> int | None:
        return None if self.distance is None else len(self.distance)

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        distance = np.random.default_rng(7).integers(0, 4, (n_classes, n_classes)).astype(float)
        return [cls(d, three) for d in (None, distance) for three in (False, True)]

    def alike(self, sets: Sets, y: NDArray[Any]) -> Pairs | None:
        # Of C classes of one size, "not closer" means "not alike" except once in C² − C + 1 times.
        if self.distance is not None:
            return None
        members = sets.indices.reshape(-1, 3)
        third = np.ones(len(y), bool) if self.three_way else y == 1  # y also says something of it
        pairs = np.concatenate([members[:, :2], members[third][:, [0, 2]]])
        return pairs, np.concatenate([y == 1, y[third] == -1])


def _triplet_joint(
    a: Arithmetic, p: Tensor, q: Tensor, not_q: Tensor, r: Tensor, not_r: Tensor, closer: Tensor
) -> Tensor:
    """P(class, y) of the first member, for two outcomes and the default distance [i ≠ j].

    Closer means z₂ = z₁ ≠ z₃. As that is symmetric in z₁ and z₂, p and q may change places.
    """
    rest = a.plus(not_q, a.times(q, r))
    return a.times(p, torch.where(closer, a.times(q, not_r), rest))


def _triplet_posterior(
    aggregate: Triplet, distribution: Categorical, sets: Sets, y: Tensor
) -> tuple[Tensor, Tensor] | None:
    """With two outcomes and the default distance; None otherwise."""
    if aggregate.distance is not None or aggregate.three_way:
        return None
    closer = (y == 1)[:, None]

    def joint(a: Arithmetic, own: Tensor) -> Tensor:
        (p, q, r), (not_p, not_q, not_r) = own.unbind(1), a.others(own).unbind(1)
        pair, apart = a.times(p, q), a.total(a.times(p, not_q))
        first = _triplet_joint(a, p, q, not_q, r, not_r, closer)
        second = _triplet_joint(a, q, p, not_p, r, not_r, closer)
        third = a.times(r, torch.where(closer, a.rest(pair), a.plus(apart, pair)))
        return torch.stack([first, second, third], 1)

    return class_posterior(joint, distribution.logits, 3)


@likelihood(Triplet, Categorical, class_posterior=_triplet_posterior)
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
    rule = _by_distance(matrix, p.device, aggregate.three_way)
    return chunked(rule, p, q, r, y, cost=8 * n * n)


def _same_class(p: Tensor, q: Tensor, r: Tensor, y: Tensor, three_way: bool) -> Tensor:
    """The default distance [i ≠ j]: closer means z₂ = z₁ ≠ z₃."""
    not_q, not_r = LOGS.others(q), LOGS.others(r)
    joint = _triplet_joint(LOGS, p, q, not_q, r, not_r, y == 1)
    if three_way:
        equal = logaddexp(q + r, not_q + not_r)
        rest = torch.where(y == 0, equal, not_q + r)
        joint = torch.where(y == 1, joint, p + rest)
    return logsumexp(joint, -1)


def _by_distance(
    matrix: NDArray[Any], device: torch.device, three_way: bool
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """log p(y), from the logits of the three members, for a matrix of distances."""
    c = len(matrix)
    by_distance = np.argsort(matrix, axis=1, kind="stable")
    ordered = np.take_along_axis(matrix, by_distance, 1)
    below, upto = (
        np.stack([np.searchsorted(ordered[i], matrix[i], side) for i in range(c)])
        for side in ("left", "right")
    )
    numbers = below + np.arange(c)[:, None] * c  # classes equally far from i share a cell
    order, lower, upper = (torch.as_tensor(a, device=device) for a in (by_distance, below, upto))
    cells = torch.as_tensor(numbers.reshape(-1), device=device)

    def log_probability(p: Tensor, q: Tensor, r: Tensor, y: Tensor) -> Tensor:
        n = len(r)
        ordered = r[:, order]
        edge = r.new_full((n, c, 1), -torch.inf)
        # nearer[..., m]: mass of the m nearest classes; farther[..., m]: of all but the m nearest
        nearer = torch.cat([edge, logcumsumexp(ordered, -1)], -1)
        farther = torch.cat([logcumsumexp(ordered.flip(-1), -1).flip(-1), edge], -1)

        def at(mass: Tensor, index: Tensor) -> Tensor:
            return mass.gather(-1, index.expand(n, c, c))

        choose = y[:, None, None]
        if three_way:
            flat = r[:, None, :].expand(n, c, c).reshape(n, c * c).T
            equal = segment_logsumexp(flat, cells, c * c)[cells].T.reshape(n, c, c)
            rest = torch.where(choose == 0, equal, at(nearer, lower))
        else:
            rest = at(nearer, upper)
        third = torch.where(choose == 1, at(farther, upper), rest)
        return logsumexp((p[:, :, None] + q[:, None, :] + third).reshape(n, -1), -1)

    return log_probability
