"""Which classes a set holds: one of them (AnyPositive), or each of them (Presence)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical
from torch.nn.functional import logsigmoid, one_hot

from setwise._math.automaton import log_reach
from setwise._math.padding import overhead, partition
from setwise.likelihood import Aggregate, Label, PerClass, Targets, likelihood
from setwise.likelihood.registry import in_parts
from setwise.numerics import gather, log1mexp, logsumexp
from setwise.sets import Sets

__all__ = ["AnyPositive", "Presence"]

Ints = NDArray[np.int64]

_MOST = 14


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

    default_n_classes = 2

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        return sets.max((z == self.positive).double())

    def outcome(self, targets: Targets, size: int | None) -> Label:
        return Label({0: "no member is positive", 1: "some member is"})

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return [cls(), cls(positive=0)]


@likelihood(AnyPositive, Categorical, counts=True)
def _any_positive(
    aggregate: AnyPositive, distribution: Categorical, sets: Sets, y: Tensor
) -> Tensor:
    """One minus the product of the members' negative probabilities, O(K)."""
    logits = distribution.logits
    n, positive = logits.shape[-1], aggregate.positive
    if not 0 <= positive < n:
        raise ValueError(f"{aggregate!r} needs class {positive}, but the classes are 0 to {n - 1}")
    if n == 2:
        of = logits.unbind(1)
        against = of[1 - positive] - of[positive]
    else:
        others = torch.cat([logits[:, :positive], logits[:, positive + 1 :]], 1)
        against = logsumexp(others, 1) - logits[:, positive]
    none = sets.sum(logsigmoid(against))
    holds = y == 1
    tiny = holds & (none > -(torch.finfo(none.dtype).tiny ** 0.75))
    out = torch.where(holds, log1mexp(torch.where(holds ^ tiny, none, -1.0)), none)
    if tiny.any():
        out = torch.where(tiny, sets.logsumexp(-against), out)
    return out


@dataclass(frozen=True)
class Presence(Aggregate):
    """Which classes occur among the members: y is a row of 0/1, one entry per class.

    The members must all be of present classes and hit each of them: an automaton whose state is the
    subset of classes seen so far, O(K · 2ᵐ · m) for m classes present, at most 14 of them.

    >>> Presence(n_classes=3).observe([0, 2, 2], [[0, 1], [1, 2]]).y.tolist()
    [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]

    Zhou et al., "Multi-instance multi-label learning", Artificial Intelligence 2012.
    """

    n_classes: int | None = None

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        n_classes = self.n_classes or max(int(z.max()) + 1, 2)
        return sets.max(one_hot(z.long(), n_classes).double())

    def outcome(self, targets: Targets, size: int | None) -> PerClass:
        return PerClass("flag", self.n_classes, most=_MOST)

    def expected(self, members: Any, sets: Sets) -> Tensor:
        absent = sets.sum(torch.log1p(-members.probs.clamp(max=1 - 1e-16)))
        return -torch.expm1(absent)

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return [cls(n_classes=n_classes)]


@likelihood(Presence, Categorical)
def _presence(aggregate: Presence, distribution: Categorical, sets: Sets, y: Tensor) -> Tensor:
    """Recursion over the subsets of classes seen so far."""
    logits = distribution.logits
    if y.shape[1] != logits.shape[-1]:
        raise ValueError(f"y has {y.shape[1]} columns, but there are {logits.shape[-1]} classes")
    first = y.argsort(dim=1, descending=True, stable=True)  # present classes come first
    present = y.sum(1).long()
    m = present.cpu().numpy()
    dense = None if sets.size is None else sets.dense(logits)

    def hits_all(which: Ints, part: Sets) -> Tensor:
        at = torch.as_tensor(which, device=logits.device)
        n, most = present[at], int(m[which].max())
        own = part.members(logits) if dense is None else gather(dense, at).flatten(0, 1)
        letters = own.gather(1, part.repeat(first[at, :most]))
        there = torch.arange(most, device=logits.device) < n[:, None]
        letters = letters.masked_fill(~part.repeat(there), -math.inf)
        step = np.arange(2**most)[:, None] | (1 << np.arange(most))
        wanted = torch.arange(2**most, device=logits.device) == 2**most - 1
        start = 2**most - 2**n  # classes that are not asked for count as seen
        return log_reach(letters, part.flat, step, start, wanted.expand(len(part), -1))

    parts = partition(m, lambda n: 2.0**n * (n + 1), sets.sizes, overhead(logits))
    if len(parts) == 1:
        return hits_all(parts[0], sets).to(logits.dtype)
    out = in_parts([(which, sets.take(which)) for which in parts], hits_all)
    return out.to(logits.dtype)
