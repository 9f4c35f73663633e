"""Rough values of the parameters, from y itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from setwise.distributions import Categorical, Count, Family
from setwise.likelihood import Targets
from setwise.observations import Observations

__all__ = ["guess"]


def guess(
    family: Family, observations: Sequence[Observations]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rough raw and shared numbers, and the unit in which each is varied."""
    names = (*family.outputs, *family.shared)
    found = [level for o in observations if (level := _level(o)) is not None]
    if not found or isinstance(family, Categorical):
        return np.zeros(len(names)), np.ones(len(names))
    weights = np.array([f[2] for f in found])
    mean = float(np.average([f[0] for f in found], weights=weights))
    deviation = float(np.average([f[1] for f in found], weights=weights))
    size = max(abs(mean), deviation)
    deviation = max(deviation, 1e-6 * size) or 1.0
    if family.positive or issubclass(family.kind, Count):
        mean = max(mean, 1e-3 * size, 1e-12)
    begin = family.start(mean, deviation)
    values, unit = np.array([begin.get(name, (0.0, 1.0)) for name in names]).T
    return values.copy(), unit.copy()


def _level(o: Observations) -> tuple[float, float, int] | None:
    """The mean and deviation of targets that y suggests, and from how many numbers."""
    if o.y is None or not len(o):
        return None
    y: NDArray[Any] = o.y
    linear = o.aggregate.bare.linear(o.sets)
    if linear is not None:
        starts, times = o.sets.offsets[:-1], 1 if o.sets.counts is None else o.sets.counts
        parts = linear[0] * times, linear[0] ** 2 * times
        total, square = (np.add.reduceat(part, starts) for part in parts)
        some = float((total**2).sum())
        mean = float((total * y).sum()) / some if some > 1e-12 else 0.0
        return mean, float(np.sqrt(np.mean((y - total * mean) ** 2 / square))), len(y)
    if not (o.aggregate.identity_at_one or o.aggregate.outcome(Targets(), None).holds_targets):
        return None
    numbers = y[np.isfinite(y)]
    if not len(numbers):
        return None
    return float(numbers.mean()), float(numbers.std()), len(numbers)
