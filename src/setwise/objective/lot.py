"""Which sets are drawn when a sample of them stands for all.

Sets are put in one random order, and the first ones are drawn. A process that has only some of the
sets knows their places in the order of all, so that all processes together draw the same sample as
one would.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lot"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Lot(NamedTuple):
    """The places of sets in a random order of all, between 0 and 1, and the sizes of all.

    >>> lot = Lot.of(np.array([2, 2, 5, 2]))
    >>> int(lot.among_first(2).sum()), lot.sizes.tolist(), lot.counts.tolist()
    (2, [2, 5], [3, 1])
    """

    place: Floats
    sizes: Ints  # that occur among all sets
    counts: Ints  # how often each of them does

    @classmethod
    def of(cls, sizes: Ints) -> Self:
        """The lot of all sets, which have these sizes."""
        n = len(sizes)
        place = (np.random.default_rng(0).permutation(n) + 0.5) / max(n, 1)
        return cls(place, *np.unique(sizes, return_counts=True))

    def take(self, which: Any) -> Self:
        """The lot of some of the sets."""
        return self._replace(place=self.place[which])

    @property
    def n(self) -> int:
        """The number of all sets."""
        return int(self.counts.sum())

    @property
    def pairs(self) -> int:
        """The number of pairs of members of all sets."""
        return int((self.sizes * (self.sizes - 1)) @ self.counts) // 2

    def among_first(self, n: int) -> NDArray[np.bool_]:
        """Which of the sets are among the first n of all."""
        return self.place * self.n < n

    def chances(self, enough: float) -> Floats:
        """The chance of each size to be drawn, in proportion to it, for about `enough` sets.

        The largest ones are drawn for certain.
        """
        chance, sizes = np.ones(len(self.sizes)), self.sizes * self.counts
        for _ in range(5):
            chance = np.minimum(1.0, chance * self.sizes * (enough / (chance @ sizes)))
            chance = np.minimum(1.0, chance * (enough / (chance @ self.counts)))
        return chance
