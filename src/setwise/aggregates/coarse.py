"""Coarse: the class is known only up to a subset of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical

from setwise.likelihood import Aggregate, Label, Targets, likelihood
from setwise.numerics import logsumexp
from setwise.sets import Sets

__all__ = ["Coarse"]


@dataclass(frozen=True)
class Coarse(Aggregate):
    """The index of a label subset that holds the class: partial, complementary, superclass labels.

    `cells` lists the subsets, e.g. `[(0, 1), (2,)]`. A class that is in m cells is reported as each
    of them with probability 1/m, so P(y) = Σ_{c ∈ cells[y]} p(c) / m(c) adds up to one also for
    overlapping cells (complementary labels: m = C − 1).

    >>> Coarse([(0, 1), (2,)]).observe([0, 1, 2], [[0], [1], [2]]).y.tolist()
    [0.0, 0.0, 1.0]
    """

    cells: Sequence[Sequence[int]]

    size = 1

    def __post_init__(self) -> None:
        for i, cell in enumerate(self.cells):
            if (
                not len(cell)
                or any(c != int(c) or c < 0 for c in cell)
                or len(set(cell)) < len(cell)
            ):
                raise ValueError(
                    f"cell {i} is {cell!r}: a cell is a non-empty list of distinct class numbers"
                )

    def weights(self, n_classes: int) -> NDArray[np.float64]:
        """P(y = cell | z = class), as a matrix (cells, classes)."""
        top = max(max(cell) for cell in self.cells)
        if top >= n_classes:
            raise ValueError(
                f"{self!r} names class {top}, but the classes are 0 to {n_classes - 1}"
            )
        holds = np.zeros((len(self.cells), n_classes))
        for i, cell in enumerate(self.cells):
            holds[i, list(cell)] = 1
        total = holds.sum(0)
        if (total == 0).any():
            raise ValueError(
                f"class {int((total == 0).argmax())} is in no cell of {self!r}: each needs one"
            )
        out: NDArray[np.float64] = holds / total
        return out

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        labels = z.long().numpy()
        n_classes = max(int(labels.max()), *(max(cell) for cell in self.cells)) + 1
        chance = self.weights(n_classes)[:, labels].cumsum(0)
        return (rng.random(len(labels)) > chance).sum(0).clip(max=len(self.cells) - 1)

    def outcome(self, targets: Targets, size: int | None) -> Label:
        said = {float(i): f"one of {list(cell)}" for i, cell in enumerate(self.cells)}
        return Label(said, named=True)

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        complementary = [tuple(k for k in range(n_classes) if k != i) for i in range(n_classes)]
        return [cls([(0,), tuple(range(1, n_classes))]), cls(complementary)]


@likelihood(Coarse, Categorical)
def _coarse(aggregate: Coarse, distribution: Categorical, sets: Sets, y: Tensor) -> Tensor:
    """Sum of the class probabilities within the cell."""
    logits = distribution.logits
    weights = torch.as_tensor(aggregate.weights(logits.shape[-1])).to(logits)
    return logsumexp(logits + weights.log()[y.long()], -1)
