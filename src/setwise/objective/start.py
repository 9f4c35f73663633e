"""Where learners begin: the model without features that is most likely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize
from torch import Tensor

from setwise.aggregates import Interval, Uncoupled
from setwise.distributions import Categorical, Family
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
            raise ValueError(
                f"set {at} of {o!r} has y = {y}, which {objective.family!r} cannot give "
                f"(log-likelihood {float(values[at]):g}): check y, or choose another family"
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
    positive = max(mean, 1e-3 * size, 1e-12)
    variance = deviation**2
    excess = max(variance / positive - 1.0, 0.1)  # of a count's variance over its mean
    values = {
        "loc": mean,
        "log_scale": math.log(deviation),
        "log_mean": math.log(positive),
        "log_rate": math.log(positive)
        if "log_rate" in family.outputs and "log_concentration" not in family.outputs
        else math.log(positive / variance),
        "log_concentration": math.log(positive**2 / variance),
        "log_total_count": math.log(positive / excess),
        "logits": math.log(excess),
    }
    raw = np.array([values.get(name, 0.0) for name in family.outputs])
    shared = np.array([values.get(name, 0.0) for name in family.shared])
    names = (*family.outputs, *family.shared)
    return raw, shared, np.array([deviation if name == "loc" else 1.0 for name in names])


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
    if not (o.aggregate.identity_at_one or isinstance(o.aggregate, Interval | Uncoupled)):
        return None
    numbers = y[np.isfinite(y)]
    if not len(numbers):
        return None
    return float(numbers.mean()), float(numbers.std()), len(numbers)
