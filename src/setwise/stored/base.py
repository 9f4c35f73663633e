"""Rows that are read in batches, or a few by number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from setwise.frames import Encoded, Encoder

__all__ = ["Stored", "Table", "joined", "numbers"]

Table = Any  # rows in memory: `Encoded`, or an array
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Stored(ABC):
    """A table of features that is not in memory, as learners read it."""

    encoder: Encoder | None = None  # of its columns, where these have names
    shape: tuple[int, int]  # rows and columns
    memory = 10**9  # bytes that may be in memory at a time, about
    scratch: str | Path | None = None  # where copies go

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def batches(self) -> Iterator[Table]:
        """All rows in their order, a part that fits in memory at a time."""

    @property
    def width(self) -> int:
        """The columns of `numbers`."""
        return self.shape[1] if self.encoder is None else len(self.encoder.names(one_hot=True))

    def moments(self) -> tuple[Floats, Floats]:
        """Mean and deviation of each column of `numbers`; 1 for what does not vary."""
        count, mean, square = 0, np.zeros(self.width), np.zeros(self.width)
        for batch in self.batches():
            x = numbers(batch)
            own, total = x.mean(0), count + len(x)
            square += ((x - own) ** 2).sum(0) + (own - mean) ** 2 * (count * len(x) / total)
            mean += (own - mean) * (len(x) / total)
            count = total
        deviation = np.sqrt(square / max(count, 1))
        return mean, np.where(deviation > 1e-12 * np.abs(mean), deviation, 1.0)

    def only(self, rows: Ints) -> Stored:
        """A table of these rows, in ascending order."""
        return _Some(self, rows)

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


class _Some(Stored):
    """Some rows of another table."""

    def __init__(self, of: Stored, rows: Ints) -> None:
        self.of, self.rows = of, rows
        self.encoder, self.memory, self.scratch = of.encoder, of.memory, of.scratch
        self.shape = len(rows), of.shape[1]

    def batches(self) -> Iterator[Table]:
        begin = 0
        for batch in self.of.batches():
            end = begin + len(batch)
            here = self.rows[slice(*np.searchsorted(self.rows, [begin, end]))]
            if len(here):
                yield batch[here - begin]
            begin = end


def numbers(table: Table) -> Floats:
    """A table as plain numbers without missing values."""
    return table.dense() if isinstance(table, Encoded) else np.asarray(table, np.float64)


def joined(tables: Sequence[Table]) -> Table:
    """The rows of several tables of one kind, one table after another."""
    if len(tables) == 1:
        return tables[0]
    if isinstance(tables[0], Encoded):
        values = np.concatenate([table.values for table in tables])
        return Encoded(values, tables[0].encoder)
    return np.concatenate(tables)
