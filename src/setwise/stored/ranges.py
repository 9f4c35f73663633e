"""Sets of rows that follow one another: two numbers each, however many rows they have."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from setwise._reductions import chosen, offsets_of
from setwise.sets import Sets

__all__ = ["Ranges"]

Ints = NDArray[np.int64]


class Ranges(Sets):
    """Set i has the rows from `begins[i]` on; row numbers are listed when they are asked for.

    >>> sets = Ranges.of([0, 5], [3, 2])
    >>> len(sets.take(slice(1, 2))), sets.n_rows, sets.indices.tolist()
    (1, 7, [0, 1, 2, 5, 6])
    """

    begins: Ints

    @classmethod
    def of(cls, begins: Any, sizes: Any, names: Any = None) -> Self:
        """Sets of these sizes that begin at these rows."""
        out = cls.__new__(cls)
        out.begins, out.offsets = np.asarray(begins, np.int64), offsets_of(sizes)
        out.weights = out.counts = None
        out.names = None if names is None else np.asarray(names)
        return out

    @cached_property
    def indices(self) -> Ints:  # type: ignore[override]
        """The rows of all sets."""
        return np.repeat(self.begins - self.offsets[:-1], self.sizes) + np.arange(self.offsets[-1])

    @cached_property
    def n_rows(self) -> int:
        """The least number of rows that a table must have."""
        return int((self.begins + self.sizes).max(initial=0))

    def take(self, set_numbers: Any) -> Self:
        """The sets of these numbers (or of a boolean mask), in that order."""
        which = chosen(set_numbers, len(self))
        names = None if self.names is None else self.names[which]
        return self.of(self.begins[which], self.sizes[which], names)

    def moved(self, indices: Ints) -> Sets:  # type: ignore[override]
        """The same sets with other row numbers, which need not be ranges."""
        return Sets._trusted(indices, self.offsets, None, None, self.size)
