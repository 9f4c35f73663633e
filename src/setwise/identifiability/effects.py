"""Whether sets tell how alike their members are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from setwise.distributions import Categorical, Family, Normal
from setwise.identifiability.principle import identify
from setwise.observations import Observations

__all__ = ["untold_effects"]

ADVICE = "Add sets of other sizes or a few `Direct` observations, or give the scale of the effect."


def untold_effects(family: Family, observations: Sequence[Observations]) -> list[str]:
    """Sentences about learned scales of effects that these sets do not tell from other spread.

    >>> import setwise as sw
    >>> means = sw.Observations(sw.RandomEffect(sw.Mean()), [[0, 1], [2, 3]], [1.0, 2.0])
    >>> len(untold_effects(sw.Normal(), [means])), untold_effects(sw.Normal(scale=1.0), [means])
    (1, [])
    """
    alike = [o.aggregate.shares and bool(o.aggregate.learned) for o in observations]
    if not any(alike):
        return []
    unsure = [o for o, one in zip(observations, alike, strict=True) if one]
    if family.located and all(identify(family, [o]).shift for o in unsure):
        return ["What members of a set share cancels out of every y: its scale is not told."]
    if not (family.n_spread or isinstance(family, Categorical)):
        return []
    if all(alike) and all((o.sets.individuals == 1).all() for o in observations):
        return [
            f"Every set has one member: what members of a set share cannot be told from what they "
            f"do not. {ADVICE}"
        ]
    parts = [_variances(o) for o in observations]
    if not isinstance(family, Normal) or any(part is None for part in parts):
        return []
    table = np.concatenate([part for part in parts if part is not None])
    own, shared = (table / np.abs(table).max(0).clip(1e-300)).T
    if np.linalg.matrix_rank(np.column_stack([own, shared]), 1e-9) == 2:
        return []
    return [
        f"In all of these sets the variance of y has the same shares of the scale of targets and "
        f"of that of the effect, as in means of equally many members: only their sum is told. "
        f"Predictions do not depend on it. {ADVICE}"
    ]


def _variances(o: Observations) -> NDArray[np.float64] | None:
    """Coefficients of the variance of targets, and of the effect, in that of y; None if neither."""
    inner = o.aggregate.aggregate if o.aggregate.shares else o.aggregate  # type: ignore[attr-defined]
    linear = inner.linear(o.sets)
    if linear is None:
        return None
    counts = np.ones(len(o.sets.indices)) if o.sets.counts is None else o.sets.counts
    parts = (counts * linear[0] ** 2, counts * linear[0])
    own, level = (np.add.reduceat(part, o.sets.offsets[:-1]) for part in parts)
    return np.column_stack([own, level**2 * o.aggregate.shares])
