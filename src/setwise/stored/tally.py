"""What columns hold, from one pass over rows that do not fit in memory together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from setwise.errors import absent
from setwise.frames import (
    Column,
    Encoder,
    _finite,
    _plain,
    column_of_numbers,
    column_of_texts,
    key,
    odd_texts,
)

__all__ = ["Tally"]

Floats = NDArray[np.float64]
SAMPLED = 100_000  # rows, of whose numbers the medians are
NUMBERS = 10**7  # in that sample, where a row has many
TEXTS = 1_000_000  # different ones: a column of more names its rows


class Tally:
    """The columns of a table whose rows are read batch by batch.

    Everything is exact except the medians, which replace missing numbers: from 100 000 rows on they
    come from a sample.

    >>> import pandas as pd
    >>> tally = Tally().see(pd.DataFrame({"age": [30, 50]})).see(pd.DataFrame({"age": [None, 40]}))
    >>> tally.encoder().columns[0].fill, [x.tolist() for x in tally.moments()]
    (40.0, [[40.0], [7.0710678118654755]])
    """

    def __init__(self, categories: Collection[str] = ()) -> None:
        self.categories = frozenset(categories)
        self.rows = 0
        self.columns: dict[str, _Seen] = {}

    def see(self, frame: Any, begin: int | None = None) -> Tally:
        """Adds some rows, the first of which has the number `begin`."""
        table = nw.from_native(frame, eager_only=True)
        begin = self.rows if begin is None else begin
        luck = np.random.default_rng([begin, len(table)]).random(len(table))
        most = min(SAMPLED, max(1000, NUMBERS // max(len(table.columns), 1)))
        for name in table.columns:
            seen = _Seen(str(name), str(name) in self.categories, most)
            seen.see(table.get_column(name), luck, begin)
            self._add(seen)
        self.rows += len(table)
        return self

    def add(self, other: Tally) -> Tally:
        """Adds the rows of another tally."""
        for seen in other.columns.values():
            self._add(seen)
        self.rows += other.rows
        return self

    def _add(self, seen: _Seen) -> None:
        mine = self.columns.setdefault(seen.name, seen)
        if mine is not seen:
            mine.add(seen)

    def encoder(self) -> Encoder:
        """What the columns are."""
        return Encoder.found({name: seen.column() for name, seen in self.columns.items()})

    def missing(self, name: str) -> int:
        """How many rows have no value in a column."""
        return self.rows - self.columns[name].known

    def moments(self) -> tuple[Floats, Floats]:
        """Mean and deviation of `Encoded.dense()`; 1 for what does not vary."""
        found = [self.columns[c.name].moments(c, self.rows) for c in self.encoder().columns]
        mean, square = (np.concatenate(part) for part in zip(*found, strict=True))
        deviation = np.sqrt(square / max(self.rows, 1))
        return mean, np.where(deviation > 1e-12 * np.abs(mean), deviation, 1.0)


class _Seen:
    """One column: its kind, how often it has a value, and moments and a sample, or texts."""

    def __init__(self, name: str, as_category: bool, most: int) -> None:
        self.name, self.as_category, self.most = name, as_category, most
        self.kind, self.known, self.odd = "", 0, [-1, -1]
        self.mean = self.square = 0.0
        self.values = self.luck = np.zeros(0)
        self.texts: Counter[str] = Counter()
        self.of_rows = 0
        self.useless = ""

    def see(self, column: Any, luck: Floats, begin: int) -> None:
        """The rows of a batch."""
        self.of_rows = len(luck)
        kind, values = _plain(column)
        if values is None:
            self.useless = f"of type {kind}"
            return
        if self.as_category and kind != "text":
            kind, values = "text", [None if absent(v) else key(v) for v in column.to_list()]
        if kind == "text":
            self.texts.update(v for v in values if v is not None)
            self.known = self.texts.total()
            self.odd = [begin + row if row >= 0 else -1 for row in odd_texts(values)]
        else:
            numbers = _finite(self.name, values)
            have = ~np.isnan(numbers)
            self.values, self.luck, self.known = numbers[have], luck[have], int(have.sum())
            if self.known:
                self.mean = float(self.values.mean())
                self.square = float(((self.values - self.mean) ** 2).sum())
            self._draw()
        self.kind = kind if self.known else ""

    def add(self, other: _Seen) -> None:
        """The rows of a later batch."""
        if {self.kind, other.kind} == {"number", "flag"}:
            self.kind = other.kind = "number"
        if self.kind and other.kind and self.kind != other.kind:
            raise ValueError(
                f"column {self.name!r} is a {self.kind} in some rows and a {other.kind} in later "
                f"ones: give its type, or leave it out"
            )
        total = self.known + other.known
        if total:
            apart = other.mean - self.mean
            self.square += other.square + apart**2 * self.known * other.known / total
            self.mean += apart * other.known / total
        self.known, self.kind = total, self.kind or other.kind
        self.values = np.concatenate([self.values, other.values])
        self.luck = np.concatenate([self.luck, other.luck])
        self._draw()
        self.odd = [a if a >= 0 else b for a, b in zip(self.odd, other.odd, strict=True)]
        self.of_rows += other.of_rows
        self.useless = self.useless or other.useless
        self.texts.update(other.texts)
        if len(self.texts) > TEXTS:
            self.useless = f"more than {TEXTS:,} different texts"
            self.texts.clear()

    def _draw(self) -> None:
        if len(self.luck) > self.most:
            kept = np.argpartition(self.luck, self.most)[: self.most]
            self.values, self.luck = self.values[kept], self.luck[kept]

    def column(self) -> Column | str:
        """The column, or why it is of no use."""
        if self.useless:
            return self.useless
        if self.kind == "text":
            odd = self.odd[0], self.odd[1]
            return column_of_texts(self.name, self.texts, self.of_rows, self.as_category, odd)
        return column_of_numbers(self.name, self.kind, self.values)

    def moments(self, column: Column, rows: int) -> tuple[Floats, Floats]:
        """Mean, and sum of squares about it, of what `Column.dense` makes of the column."""
        if column.kind == "category":
            share = np.array(column.shares)[column.own]
            return share, self.known * share * (1 - share)
        known, mean, square = self.known, self.mean, self.square
        if self.kind == "text":
            days = column.read(nw.new_series("", [*self.texts], nw.String, backend="pyarrow"))
            times = np.array([*self.texts.values()])
            mean = float(np.average(days, weights=times))
            square = float(((days - mean) ** 2) @ times)
        missing = rows - known
        whole = (mean * known + column.fill * missing) / rows
        square += known * (mean - whole) ** 2 + missing * (column.fill - whole) ** 2
        return np.array([whole]), np.array([square])
