"""Random numbers from what users give as `random_state`."""

from __future__ import annotations

from typing import Any

from sklearn.utils import check_random_state

__all__ = ["seed_of"]


def seed_of(random_state: Any) -> int:
    """A seed from None, a whole number or a `RandomState`; an error that says so for the rest.

    >>> import numpy as np
    >>> seed_of(3) == seed_of(np.random.RandomState(3))
    True
    """
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except (TypeError, ValueError):
        raise ValueError(
            f"random_state is None, a whole number from 0 to {2**32 - 1} or a "
            f"numpy.random.RandomState, got {random_state!r}: give a number, as in random_state=0"
        ) from None
