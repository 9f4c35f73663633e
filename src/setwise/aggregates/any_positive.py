"""AnyPositive: whether a set holds a positive (multiple-instance learning)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.nn.functional import logsigmoid

from setwise.likelihood import Aggregate, Label, Targets, likelihood
from setwise.numerics import logsumexp
from setwise.sets import Sets

__all__ = ["AnyPositive"]


@dataclass(frozen=True)
class AnyPositive(Aggregate):
    """Whether the set holds a member of class `positive`: y = 1 if it does, else 0.

    P(y = 0) = Π_k (1 − p_k). With t = −Σ_k log(1 − p_k), P(y = 1) = 1 − exp(−t), which keeps its
    digits however small the p_k are; where t itself underflows, log t = log Σ_k p_k.

    >>> AnyPositive().observe([0, 0, 1], [[0, 1], [1, 2]]).y.tolist()
    [0.0, 1.0]

    Dietterich et al., "Solving the multiple instance problem with axis-parallel rectangles", 1997.
    """

    positive: int = 1

    classes_if_unsaid = 2

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        return sets.max((z == self.positive).double())

    def outcome(self, targets: Targets, size: int | None) -> Label:
        return Label({0: "no member is positive", 1: "some member is"})

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return [cls(), cls(positive=0)]


@likelihood(AnyPositive, Categorical)
def _any_positive(
    aggregate: AnyPositive, distribution: Categorical, sets: Sets, y: Tensor
) -> Tensor:
    """One minus the product of the members' negative probabilities, O(K)."""
    logits = distribution.logits
    n, positive = logits.shape[-1], aggregate.positive
    if not 0 <= positive < n:
        raise ValueError(f"{aggregate!r} needs class {positive}, but the classes are 0 to {n - 1}")
    if n == 2:
        negative = logits[:, 1 - positive]
    else:
        negative = logsumexp(torch.cat([logits[:, :positive], logits[:, positive + 1 :]], 1), 1)
    odds = logits[:, positive] - negative
    t = -sets.sum(logsigmoid(-odds))
    holds = y == 1
    tiny = t < torch.finfo(t.dtype).tiny ** 0.75
    out = torch.where(holds, (-torch.expm1(-torch.where(holds & ~tiny, t, 1.0))).log(), -t)
    if (holds & tiny).any():
        out = torch.where(holds & tiny, sets.logsumexp(odds), out)
    return out
