"""Whole sets, some at a time, with the rows that they name, read from a copy of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from setwise.frames import Encoded
from setwise.sets import Sets
from setwise.stored import Scratch, Stored, Table, joined

__all__ = ["Parts", "Read"]

Ints = NDArray[np.int64]
AT_ONCE = 1 / 32  # of the memory that a table may take up, for a part of it: others are copies


class Read(NamedTuple):
    """Some rows in memory, the numbers of their sets, and the places of the members."""

    table: Table
    numbers: Ints
    members: Ints


class Parts:
    """Sets in parts of about as many members, one after another.

    The rows of each part are kept as numbers in a file of its own, since sets may name any rows of
    a table that is only read from its beginning to its end. The files go with this object.
    """

    def __init__(self, X: Stored, sets: Sets) -> None:
        self.X, self.sets = X, sets
        most = max(1000, int(AT_ONCE * X.memory / (8 * max(X.width, 1))))
        offsets = sets.offsets
        cuts = np.searchsorted(offsets, np.arange(most, offsets[-1], most), side="left")
        self.cuts: Ints = np.unique(np.concatenate([[0], cuts, [len(sets)]]))

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def numbers(self, which: Sequence[int]) -> Ints:
        """The numbers of the sets in these parts."""
        return np.concatenate([np.arange(self.cuts[j], self.cuts[j + 1]) for j in which])

    def _members(self, part: int) -> Ints:
        return self.sets.take(slice(self.cuts[part], self.cuts[part + 1])).indices

    def read(self, which: Sequence[int]) -> Read:
        """Some of the parts."""
        tables, members, begin = [], [], 0
        for j in which:
            values = np.fromfile(self._copies.path / str(j)).reshape(-1, self.X.shape[1])
            named = self._members(j)
            members.append(begin + np.searchsorted(_distinct(named), named))
            encoder = self.X.encoder
            tables.append(values if encoder is None else Encoded(values, encoder))
            begin += len(values)
        return Read(joined(tables), self.numbers(which), np.concatenate(members))

    @cached_property
    def _copies(self) -> Scratch:
        """The folder of the files, which are made in one pass."""
        made = Scratch(self.X.scratch)
        ends = [(int(m.min()), int(m.max())) for m in map(self._members, range(len(self)))]
        waiting = sorted(range(len(self)), key=lambda j: ends[j][0], reverse=True)
        active: dict[int, Ints] = {}
        begin = 0
        for batch in self.X.batches():
            values = np.asarray(batch.values if isinstance(batch, Encoded) else batch, np.float64)
            end = begin + len(values)
            while waiting and ends[waiting[-1]][0] < end:
                j = waiting.pop()
                active[j] = _distinct(self._members(j))
            for j in [*active]:
                a, b = np.searchsorted(active[j], [begin, end])
                with (made.path / str(j)).open("ab") as file:
                    values[active[j][a:b] - begin].tofile(file)
                if ends[j][1] < end:
                    del active[j]
            begin = end
            if not (waiting or active):
                break
        return made


def _distinct(members: Ints) -> Ints:
    """The distinct rows of some members in ascending order."""
    return members if (np.diff(members) > 0).all() else np.unique(members)
