"""Where learners begin: the model without features that is most likely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize
from torch import Tensor

from setwise.distributions import Categorical, Count, Family
from setwise.errors import SetError
from setwise.likelihood import Targets
from setwise.observations import Observations

if TYPE_CHECKING:
    from setwise.objective.objective import Objective

__all__ = ["start"]


def start(objective: Objective, free: bool = True) -> tuple[Tensor, Tensor]:
    """Raw numbers that are the same for all rows, and shared ones, of largest likelihood.

    With `free=False` the shared ones stay at 0 (a scale of 1). An observation that is
    impossible whatever the parameters is an error.
    """
    raw, shared, unit = _guess(objective.family, objective.observations)
    packed = np.concatenate([raw, shared])
    if not free:
        packed[objective.n_outputs :], unit[objective.n_outputs :] = 0.0, 0.0

    def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        leaf = torch.from_numpy(packed + x * unit).requires_grad_()
        rows = leaf[: objective.n_outputs].expand(objective.n_rows, -1)
        value = objective.loss(rows, leaf[objective.n_outputs :])
        (gradient,) = torch.autograd.grad(value, leaf)
        scale = max(objective.total_weight, 1e-12)
        return float(value.detach()) / scale, gradient.numpy() * unit / scale

    with torch.no_grad():
        each = objective.per_set(
            torch.from_numpy(packed[: objective.n_outputs]).expand(objective.n_rows, -1),
            torch.from_numpy(packed[objective.n_outputs :]),
        )
    for o, values in zip(objective.observations, each, strict=True):
        bad = ~values.isfinite()
        if bad.any():
            at = int(bad.nonzero()[0, 0])
            y = None if o.y is None else np.asarray(o.y[at]).tolist()
            raise SetError(
                at,
                f"has y = {y}, which {objective.family!r} cannot give (log-likelihood "
                f"{float(values[at]):g}): check y, or choose another family",
                of=repr(o),
            )
    found = optimize.minimize(
        loss, np.zeros(len(packed)), jac=True, method="BFGS", options={"maxiter": 50}
    )
    best = packed + (found.x if np.isfinite(found.fun) else 0.0) * unit
    return torch.from_numpy(best[: objective.n_outputs]), torch.from_numpy(
        best[objective.n_outputs :]
    )


def _guess(
    family: Family, observations: Sequence[Observations]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Raw and shared numbers in the right region, and the unit in which each is to be varied."""
    found = [level for o in observations if (level := _level(o)) is not None]
    if not found or isinstance(family, Categorical):
        n, m = len(family.outputs), len(family.shared)
        return np.zeros(n), np.zeros(m), np.ones(n + m)
    weights = np.array([f[2] for f in found])
    mean = float(np.average([f[0] for f in found], weights=weights))
    deviation = float(np.average([f[1] for f in found], weights=weights))
    size = max(abs(mean), deviation)
    deviation = max(deviation, 1e-6 * size) or 1.0
    if family.positive or issubclass(family.kind, Count):
        mean = max(mean, 1e-3 * size, 1e-12)
    begin = family.start(mean, deviation)
    names = (*family.outputs, *family.shared)
    values, unit = np.array([begin.get(name, (0.0, 1.0)) for name in names]).T
    return values[: len(family.outputs)], values[len(family.outputs) :], unit.copy()


def _level(o: Observations) -> tuple[float, float, int] | None:
    """Mean and deviation of a target as far as y itself tells, and from how many numbers."""
    if o.y is None or not len(o):
        return None
    y: NDArray[Any] = o.y
    linear = o.aggregate.linear(o.sets)
    if linear is not None:
        starts = o.sets.offsets[:-1]
        total, square = (np.add.reduceat(a, starts) for a in (linear[0], linear[0] ** 2))
        some = float((total**2).sum())
        mean = float((total * y).sum()) / some if some > 1e-12 else 0.0
        return mean, float(np.sqrt(np.mean((y - total * mean) ** 2 / square))), len(y)
    if not (o.aggregate.identity_at_one or o.aggregate.outcome(Targets(), None).holds_targets):
        return None
    numbers = y[np.isfinite(y)]
    if not len(numbers):
        return None
    return float(numbers.mean()), float(numbers.std()), len(numbers)
