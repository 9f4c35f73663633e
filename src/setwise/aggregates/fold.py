"""Fold: any function of the members' classes that an automaton can compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical

from setwise._math.automaton import log_reach
from setwise.likelihood import Aggregate, Label, Targets, likelihood
from setwise.sets import Sets

__all__ = ["Fold"]


@dataclass(frozen=True, eq=False)
class Fold(Aggregate):
    """`output[state]` after running `state = step[state, z]` over the members, in their order.

    Many T on classes are folds: parity, the largest class, "at least two positives", "a 1 followed
    by a 2". `step` is (states, C), `output` one number per state, `start` the first state. P(y) is
    the probability of the states that output y.

    >>> parity = Fold(step=[[0, 1], [1, 0]], output=[0, 1])
    >>> parity.observe([1, 1, 0], [[0, 1], [0, 2]]).y.tolist()
    [0.0, 1.0]
    """

    step: Any
    output: Any
    start: int = 0

    symmetric = False

    def __post_init__(self) -> None:
        step, output = np.asarray(self.step), np.asarray(self.output)
        if step.ndim != 2 or step.dtype.kind not in "iu":
            raise ValueError(
                f"step must be an integer table (states, classes), got {step.dtype} of shape "
                f"{step.shape}"
            )
        if output.shape != (len(step),):
            raise ValueError(
                f"output must have one entry per state, {len(step)} in all; got {output.shape}"
            )
        if step.min() < 0 or step.max() >= len(step) or not 0 <= self.start < len(step):
            raise ValueError(f"states are 0 to {len(step) - 1}; step or start names another")

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        step, labels = np.asarray(self.step), z.long().numpy()
        if labels.max() >= step.shape[1] or labels.min() < 0:
            raise ValueError(f"{self!r} reads classes 0 to {step.shape[1] - 1}, got {labels.max()}")
        state = np.full(len(sets), self.start)
        for k in range(int(sets.sizes.max())):
            more = sets.sizes > k
            state[more] = step[state[more], labels[sets.offsets[:-1][more] + k]]
        return np.asarray(self.output, float)[state]

    def outcome(self, targets: Targets, size: int | None) -> Label:
        """The outputs; they are names unless they are only 0 and 1."""
        values: list[float] = np.unique(np.asarray(self.output, float)).tolist()
        return Label(dict.fromkeys(values, "an output"), named=not set(values) <= {0.0, 1.0})

    def told_classes(self, y: Any) -> int:
        return int(np.shape(self.step)[1])

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        step = np.random.default_rng(7).integers(0, 3, (3, n_classes))
        return [cls(step, [0, 1, 1]), cls(step, [0, 1, 2], start=1)]


@likelihood(Fold, Categorical)
def _fold(aggregate: Fold, distribution: Categorical, sets: Sets, y: Tensor) -> Tensor:
    """Forward pass of the automaton, O(K · states · C)."""
    step = np.asarray(aggregate.step, np.int64)
    n_classes = distribution.logits.shape[-1]
    if step.shape[1] != n_classes:
        raise ValueError(
            f"step has {step.shape[1]} columns, but there are {n_classes} classes: one column each"
        )
    wanted = torch.as_tensor(np.asarray(aggregate.output, float)).to(y) == y[:, None]
    return log_reach(distribution.logits, sets, step, aggregate.start, wanted).to(y.dtype)
