"""Uncoupled: the targets of a set are known, but not which belongs to which member."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from setwise._math.class_counts import log_coefficient
from setwise.distributions import Continuous, Discrete, double, log_density, map_parameters
from setwise.likelihood import (
    Aggregate,
    SetSizes,
    Targets,
    Unordered,
    by_size,
    likelihood,
    padded,
)
from setwise.sets import Sets

__all__ = ["Uncoupled"]

MAX_SIZE = 16


@dataclass(frozen=True)
class Uncoupled(Aggregate):
    """All K targets of the set in unknown order, every one of the K! orders being equally likely.

    p(y) = (1/K!) Σ_π Π_k p_k(y_π(k)): the permanent of the matrix of densities, over K!. It takes
    K·2^K steps, for sets of up to 16 members. y is an array (n_sets, K) or a list of lists.

    >>> sorted(Uncoupled().observe([3.0, 1.0, 2.0], [[0, 1]], seed=0).y[0].tolist())
    [1.0, 3.0]

    Carpentier & Schlüter, "Learning relationships between data obtained independently", 2016.
    """

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> NDArray[np.float64]:
        order = np.lexsort((rng.random(len(z)), sets.set_ids))
        return padded(z.double().numpy()[order], sets.sizes)

    def outcome(self, targets: Targets, size: int | None) -> Unordered:
        return Unordered()

    def set_sizes(self, targets: Targets) -> SetSizes:
        return SetSizes(most=MAX_SIZE, why="all orders are summed over")


@likelihood(Uncoupled, Continuous)
@likelihood(Uncoupled, Discrete)
@by_size
def _uncoupled(aggregate: Uncoupled, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Permanent of the members' densities at the targets, by recursion over subsets; K·2^K."""
    assert sets.size is not None
    members = map_parameters(double(distribution), lambda t: t.unsqueeze(1))
    targets = sets.repeat(y[:, : sets.size].double())
    matrix = sets.dense(log_density(members, targets))
    permanent = log_coefficient(matrix, (1,) * sets.size)
    return (permanent - math.lgamma(sets.size + 1)).to(y.dtype)
