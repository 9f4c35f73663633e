"""Rows that are read in batches, or a few by number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from setwise.frames import Encoded, Encoder

__all__ = ["Stored", "Table", "joined"]

Table = Any  # rows in memory: `Encoded`, or an array
Ints = NDArray[np.int64]


class Stored(ABC):
    """A table of features somewhere else than in memory, as learners read it."""

    encoder: Encoder | None = None  # of its columns, where these have names
    shape: tuple[int, int]  # rows and columns

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def batches(self) -> Iterator[Table]:
        """All rows in their order, a part that fits in memory at a time."""

    def take(self, rows: Ints) -> Table:
        """These rows, in memory."""
        rows = np.asarray(rows, np.int64)
        order = np.argsort(rows, kind="stable")
        ascending, found, begin = rows[order], [], 0
        for batch in self.batches():
            end = begin + len(batch)
            here = slice(*np.searchsorted(ascending, [begin, end]))
            found.append(batch[ascending[here] - begin])
            begin = end
            if begin > ascending[-1]:
                break
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return joined(found)[place]


def joined(tables: Sequence[Table]) -> Table:
    """The rows of several tables of one kind, one table after another."""
    if len(tables) == 1:
        return tables[0]
    if isinstance(tables[0], Encoded):
        values = np.concatenate([table.values for table in tables])
        return Encoded(values, tables[0].encoder)
    return np.concatenate(tables)
