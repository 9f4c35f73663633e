"""Rows that are on the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from setwise.frames import Encoder, is_frame
from setwise.learners.inputs import as_table, n_rows
from setwise.stored import Stored, Table, joined
from setwise.stored.tally import Tally

__all__ = ["DaskRows", "of_dask"]

Ints = NDArray[np.int64]


def of_dask(X: Any) -> bool:
    """Whether X is a Dask collection, or a list of delayed parts or futures."""
    if isinstance(X, list | tuple):
        return bool(X) and all(of_dask(part) for part in X)
    return hasattr(X, "__dask_graph__") or type(X).__module__.startswith("distributed.")


class DaskRows(Stored):
    """Parts of a table, each of which some worker has; rows are counted in the order of the parts.

    Parts are data frames of the same columns, or arrays.
    """

    def __init__(self, client: Any, X: Any) -> None:
        self.client = client
        self.parts = _parts(client, X)
        told = client.gather(client.map(_told, self.parts, pure=False))
        ends = np.cumsum([0, *(n for n, _ in told)])
        self.begins, n = ends[:-1], int(ends[-1])
        widths = {width for _, width in told}
        if len(widths) > 1:
            raise ValueError(f"the parts of X have different numbers of columns: {sorted(widths)}")
        self.shape = n, widths.pop()
        tallies = client.gather(client.map(_tally, self.parts, self.begins.tolist(), pure=False))
        if tallies[0] is not None:
            self.encoder = reduce(Tally.add, tallies).encoder()
            self.shape = n, len(self.encoder.columns)

    def send(self, rows: Ints) -> list[Any]:
        """These rows, which ascend, as futures of tables that follow one another."""
        ends = np.append(self.begins, len(self))
        cuts = np.searchsorted(rows, ends)
        return [
            self.client.submit(_some, part, rows[a:b] - begin, self.encoder, pure=False)
            for part, begin, a, b in zip(self.parts, self.begins, cuts[:-1], cuts[1:], strict=True)
            if a < b
        ]

    def batches(self) -> Iterator[Table]:
        """A part at a time, brought here."""
        for part in self.parts:
            yield self.client.submit(_some, part, None, self.encoder, pure=False).result()

    def take(self, rows: Ints) -> Table:
        """These rows, brought here."""
        ascending, place = np.unique(rows, return_inverse=True)
        return joined(self.client.gather(self.send(ascending)))[place]


def _parts(client: Any, X: Any) -> list[Any]:
    """Futures of the parts, one after another."""
    if isinstance(X, list | tuple):
        return [future for part in X for future in _parts(client, part)]
    if not hasattr(X, "__dask_graph__"):
        return [X]
    if not hasattr(type(X), "to_delayed"):  # a Delayed itself, which has every attribute
        return [client.compute(X)]
    if len(getattr(X, "numblocks", ())) > 1:  # an array, whose lines must be whole
        X = X.rechunk({1: -1})
    return list(client.compute(np.ravel(X.to_delayed()).tolist()))


def _told(part: Any) -> tuple[int, int]:
    table = as_table(part)
    return n_rows(table), table.shape[1]


def _tally(part: Any, begin: int) -> Tally | None:
    return Tally().see(part, begin) if is_frame(part) else None


def _some(part: Any, rows: Ints | None, encoder: Encoder | None) -> Table:
    """Some rows of a part, or all, as learners read them."""
    table = np.asarray(part) if encoder is None else encoder.encode(part)
    return table if rows is None else table[rows]
