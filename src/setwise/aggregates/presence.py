"""Presence: which classes occur in the set (multi-instance multi-label)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical

from setwise._math.automaton import forward
from setwise.errors import SetError
from setwise.likelihood import Aggregate, PerClass, Targets, by_size, likelihood
from setwise.sets import Sets

__all__ = ["Presence"]

_MOST = 14


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
        return sets.max(torch.nn.functional.one_hot(z.long(), n_classes).double())

    def outcome(self, targets: Targets, size: int | None) -> PerClass:
        return PerClass("flag", self.n_classes)

    def expected(self, members: Any, sets: Sets) -> Tensor:
        absent = sets.sum(torch.log1p(-members.probs.clamp(max=1 - 1e-16)))
        return -torch.expm1(absent)

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return [cls(n_classes=n_classes)]

    def check_y(self, sets: Sets, y: Any) -> NDArray[Any]:
        array = self.outcome(Targets(), None).check(self, sets, y)
        bad = ~np.isin(array, (0, 1)).all(1)
        if bad.any():
            at = int(bad.argmax())
            raise SetError(at, f"has y = {array[at].tolist()}: each entry must be 0 or 1")
        present = array.sum(1)
        for wrong, why in (
            (present == 0, "every set holds at least one class"),
            (present > sets.sizes, "a set cannot hold more classes than members"),
            (present > _MOST, f"at most {_MOST} present classes are supported"),
        ):
            if wrong.any():
                at = int(wrong.argmax())
                raise SetError(at, f"({sets.sizes[at]} members) has {present[at]:g} classes: {why}")
        return array


@likelihood(Presence, Categorical)
@by_size
def _presence(aggregate: Presence, distribution: Categorical, sets: Sets, y: Tensor) -> Tensor:
    """Recursion over the subsets of classes seen so far, in logs."""
    n_classes = distribution.logits.shape[-1]
    if y.shape[1] != n_classes:
        raise ValueError(f"y has {y.shape[1]} columns, but there are {n_classes} classes")
    logits = sets.dense(distribution.logits)
    present = y.sum(1).long()
    first = y.argsort(dim=1, descending=True, stable=True)  # present classes come first
    pieces, numbers = [], []
    for m in present.unique().tolist():
        which = (present == m).nonzero()[:, 0]
        columns = first[which, None, :m].expand(-1, logits.shape[1], -1)
        letters = logits[which].gather(-1, columns)
        step = np.arange(2**m)[:, None] | (1 << np.arange(m))
        pieces.append(forward(letters, step, 0)[:, -1])
        numbers.append(which)
    return torch.cat(pieces)[torch.cat(numbers).argsort()]
