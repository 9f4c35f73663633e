"""Similarity: whether two members are of one class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical

from setwise.likelihood import Aggregate, label_values, likelihood
from setwise.numerics import log_others, logsumexp, others
from setwise.sets import Sets

__all__ = ["Similarity"]

FEW = 64  # classes up to which products of matrices are the quicker way


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

    def check_y(self, sets: Sets, y: Any) -> NDArray[Any]:
        return label_values(self, sets, y, (0, 1))

    def alike(
        self, sets: Sets, y: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
        return sets.indices.reshape(-1, 2), y == 1

    def class_posterior(self, logits: Tensor, sets: Sets, y: Tensor) -> tuple[Tensor, Tensor]:
        """log p(y), and the probability of each member's class once y is known.

        `logits` are the members' normalised ones; a learner that needs no second derivative saves
        the time of automatic differentiation.
        """
        own = logits.reshape(len(sets), 2, -1)
        same = (y == 1)[:, None, None]
        if own.shape[-1] <= FEW:  # all terms are positive: nothing is lost by adding them up
            probs = own.exp()
            joint = probs * torch.where(same, probs, others(probs)).flip(1)
            total = joint[:, :1].sum(-1, keepdim=True)
            if bool((total > torch.finfo(total.dtype).tiny ** 0.9).all()):
                return total[:, 0, 0].log(), (joint / total).flatten(0, 1)
        joint = own + torch.where(same, own, log_others(own)).flip(1)
        each = logsumexp(joint, -1, keepdim=True)
        return each[:, 0, 0], (joint - each).exp().flatten(0, 1)

    def outcomes(self, size: int, n_classes: int | None, discrete: bool) -> Sequence[float]:
        return (0, 1)


@likelihood(Similarity, Categorical)
def _similarity(aggregate: Similarity, distribution: Categorical, sets: Sets, y: Tensor) -> Tensor:
    """Sum over classes, O(C)."""
    pairs = sets.dense(distribution.logits)
    # On a CPU large intermediate results are slower than small ones that stay in the cache.
    size = len(pairs) if pairs.is_cuda else max(1, (1 << 18) // pairs.shape[-1])
    parts = []
    for pair, label in zip(pairs.split(size), y.split(size), strict=True):
        first, second = pair.unbind(1)
        other = torch.where(label[:, None] == 1, second, log_others(second))
        parts.append(logsumexp(first + other, -1))
    return torch.cat(parts)
