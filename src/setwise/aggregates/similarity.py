"""Similarity: whether two members are of one class."""

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
from setwise.numerics import logsumexp
from setwise.sets import Sets

__all__ = ["Similarity"]


@dataclass(frozen=True)
class Similarity(Aggregate):
    """Whether two members are of the same class: y = 1 if z₁ = z₂, else 0.

    P(y = 1) = Σ_c p₁(c) p₂(c), and P(y = 0) = Σ_c p₁(c) (1 − p₂(c)), added up without subtracting.

    >>> Similarity().observe([0, 1, 1], [[0, 1], [1, 2]]).y.tolist()
    [0.0, 1.0]

    Hsu et al., "Multi-class classification without multi-class labels", ICLR 2019.
    """

    size = 2

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        first, second = sets.columns(z)
        return (first == second).double()

    def outcome(self, targets: Targets, size: int | None) -> Label:
        return Label({0: "two classes", 1: "the same class"})

    def alike(
        self, sets: Sets, y: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
        return sets.indices.reshape(-1, 2), y == 1


def _joint(a: Arithmetic, own: Tensor, partner: Tensor, same: Tensor) -> Tensor:
    """P(class, y) of a member: the partner is of the same class, or of another."""
    return a.times(own, torch.where(same, partner, a.others(partner)))


def _class_posterior(
    aggregate: Similarity, distribution: Categorical, sets: Sets, y: Tensor
) -> tuple[Tensor, Tensor]:
    same = (y == 1)[:, None, None]

    def joint(a: Arithmetic, own: Tensor) -> Tensor:
        return _joint(a, own, own.flip(1), same)

    return class_posterior(joint, distribution.logits, 2)


@likelihood(Similarity, Categorical, class_posterior=_class_posterior)
def _similarity(aggregate: Similarity, distribution: Categorical, sets: Sets, y: Tensor) -> Tensor:
    """Sum over classes, O(C)."""
    pairs = sets.dense(distribution.logits)
    # On a CPU large intermediate results are slower than small ones that stay in the cache.
    size = len(pairs) if pairs.is_cuda else max(1, (1 << 18) // pairs.shape[-1])
    parts = []
    for pair, label in zip(pairs.split(size), y.split(size), strict=True):
        first, second = pair.unbind(1)
        parts.append(logsumexp(_joint(LOGS, first, second, label[:, None] == 1), -1))
    return torch.cat(parts)
