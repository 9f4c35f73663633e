"""Learned parameters of aggregates, such as how noisy labels are, for the chosen model.

A model that remembers the labels it has learned from explains their errors, which then seem rare.
Held-out sets show this, but they are few. So the values from all sets are corrected by the
difference between held-out sets and those that the same model has learned from, as far as it
exceeds chance: a difference d of variance v counts as d · max(0, 1 − v/d²).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from setwise.learners import Fitted, Task
from setwise.objective import Batch, Objective, judge, respread

__all__ = ["Split", "learned"]


class Split(NamedTuple):
    """The loss of the sets to learn from, and held-out sets with the rows they are about."""

    learn: Objective
    X: Any
    held: Batch


def learned(task: Task, done: Fitted, split: Split, part: Fitted, remembers: bool) -> Tensor:
    """Learned parameters of aggregates, from the last model and that of a part of the sets.

    They are not corrected where the model has too few parameters to remember labels. But they are
    those at the best spread, since a penalised model is not as sure of the labels as it could be.
    """
    own, _ = _numbers(task, task.objective, task.X, done)
    if not remembers:
        return own
    before, error = _numbers(task, split.learn, task.X, part)
    after, more = _numbers(task, split.held.objective, split.X, part)
    change, variance = after - before, error + more
    return own + change * (1 - (variance / change.square()).nan_to_num(1.0)).clamp_min(0.0)


def _numbers(task: Task, objective: Objective, X: Any, fitted: Fitted) -> tuple[Tensor, Tensor]:
    """The best values for these sets, at their best spread, and the variances of these values."""
    raw = torch.from_numpy(np.ascontiguousarray(fitted.model.raw(X)))
    shared = fitted.shared.detach().double().cpu()
    change = judge(objective, raw, shared, task.intercept).change
    raw, shared = respread(objective.family, raw, shared, change, task.intercept)
    shared = objective.fit_shared(raw, shared, free=False)
    curvature = objective.at(raw, shared).shared_curvature()
    which = objective.learned(free=False)
    return shared[which], curvature[which].clamp_min(1e-12).reciprocal()
