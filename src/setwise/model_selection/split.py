"""Observations in two parts: to learn from, and to judge by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from setwise.observations import Observations
from setwise.validation.folds import SetKFold

__all__ = ["train_test_split"]

Some = Observations | list[Observations]


def train_test_split(
    X: Any,
    observations: Observations | Sequence[Observations],
    test_size: float = 0.25,
    *,
    disjoint: str = "rows",
    shuffle: bool = True,
    random_state: Any = None,
) -> tuple[Some, Some]:
    """(train, test): observations to learn from, and others to judge by; X stays as it is.

    Each part is what was given, one `Observations` or a list of several kinds. The test part is one
    of 2, 3, 4, … folds of `SetKFold`, whichever share is nearest to `test_size`; no row is in both
    parts, unless `disjoint="sets"` allows it.

    >>> import numpy as np, setwise as sw
    >>> z = np.arange(100.0)
    >>> means = sw.Mean().observe(z, np.arange(100).reshape(20, 5))
    >>> train, test = train_test_split(z[:, None], means, test_size=0.2, random_state=0)
    >>> len(train), len(test)
    (16, 4)
    """
    if not 0 < test_size <= 0.5:
        raise ValueError(
            f"test_size is a share of the sets, more than 0 up to 0.5; got {test_size}"
        )
    folds = SetKFold(
        max(2, round(1 / test_size)), shuffle=shuffle, random_state=random_state, disjoint=disjoint
    )
    train, test = next(folds.split(X, observations))
    return (train[0], test[0]) if isinstance(observations, Observations) else (train, test)
