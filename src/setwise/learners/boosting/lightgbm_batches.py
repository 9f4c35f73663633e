"""LightGBM on rows that are not in memory: it reads them twice, and keeps a byte per number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from setwise.frames import Encoded, Encoder
from setwise.stored import Stored, Table

__all__ = ["categories_of", "in_sequence"]


def in_sequence(X: Stored) -> tuple[lightgbm.Sequence, list[int]]:
    """The rows as LightGBM takes them, and which columns are categories."""
    columns = [] if X.encoder is None else X.encoder.columns
    return _InOrder(X), [i for i, column in enumerate(columns) if column.kind == "category"]


def categories_of(encoder: Encoder) -> list[list[str]]:
    """The categories of each column that has some, as LightGBM keeps those of a pandas frame."""
    return [list(c.categories) for c in encoder.columns if c.kind == "category"]


class _InOrder(lightgbm.Sequence):
    """Rows by number. LightGBM asks for them in ascending order, first some and then all."""

    batch_size = 1 << 14

    def __init__(self, X: Stored) -> None:
        self.X = X
        self.coming: Iterator[Table] = iter(())
        self.begin, self.values = 0, np.zeros((0, X.shape[1]))
        self._restart()

    def _restart(self) -> None:
        self.coming, self.begin = iter(self.X.batches()), 0
        self.values = np.zeros((0, self.X.shape[1]))

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, which: Any) -> NDArray[np.float64]:
        if isinstance(which, slice):
            begin, end, _ = which.indices(len(self))
            return np.concatenate([*self._between(begin, end), self.values[:0]])
        if isinstance(which, list):
            return np.stack([self[i] for i in which])
        row: NDArray[np.float64] = next(self._between(int(which), int(which) + 1))[0]
        return row

    def _between(self, begin: int, end: int) -> Iterator[NDArray[np.float64]]:
        if begin < self.begin:
            self._restart()
        while begin < end:
            while begin >= self.begin + len(self.values):
                self.begin += len(self.values)
                batch = next(self.coming)
                self.values = np.asarray(batch.values if isinstance(batch, Encoded) else batch)
            a = begin - self.begin
            b = min(end - self.begin, len(self.values))
            yield self.values[a:b]
            begin += b - a
