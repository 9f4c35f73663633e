"""Tables: columns as numbers or names, and the place of each value in its file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from setwise.cli.common import Mistake
from setwise.cli.files import (
    UNREADABLE,
    arrow,
    csv_records,
    floats,
    format_of,
    is_number,
    is_numeric,
    is_text,
    json_lines,
    read_arrow,
    some,
)
from setwise.frames import key

__all__ = ["Table", "read"]

DIGITS = 19  # of a row number, at most
MOSTLY = 0.5  # a column with a larger share of numbers is meant to hold numbers


@dataclass
class Table:
    """A table and the file that it came from."""

    path: Path
    data: Any  # pyarrow.Table
    missing: Sequence[str] = ()
    _orders: dict[str, dict[str | None, int]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return int(self.data.num_rows)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.data.column_names)

    def known(self, name: str) -> None:
        """Raises an error if there is no such column."""
        if name not in self.names:
            raise Mistake(f"{self.path}: there is no column {name!r}; it has {some(self.names)}")

    def column(self, name: str) -> Any:
        """A column, or an error that lists those that there are."""
        self.known(name)
        return self.data.column(name)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column of numbers, NaN where there is no value."""
        pa, column = arrow(), self.column(name)
        if is_text(column.type) or pa.types.is_null(column.type):
            values = column.to_pylist()
            for i, value in enumerate(values):
                if value is not None and not is_number(value):
                    raise self.wrong(i, name, f"expected a number, got {value!r}")
            column = pa.array([v if v is None else float(v) for v in values], pa.float64())
        elif not (is_numeric(column.type) or pa.types.is_boolean(column.type)):
            raise Mistake(f"{self.path}, column {name}: expected numbers, got {column.type}")
        return floats(column)

    def labels(self, name: str, as_texts: bool) -> NDArray[np.float64] | list[str | None]:
        """A column of labels: numbers if all entries are numbers and texts were not asked for."""
        column = self.column(name)
        if not (is_text(column.type) or as_texts):
            return self.numbers(name)
        found = self.keys(name)
        known = [v for v in found if v is not None]
        numeric = sum(map(is_number, known))
        if numeric == len(known) and not as_texts:
            return self.numbers(name)
        if len(known) > numeric > MOSTLY * len(known):
            at = next(i for i, v in enumerate(found) if v is not None and not is_number(v))
            raise self.wrong(at, name, f"expected a number, got {found[at]!r}")
        return found

    def keys(self, name: str) -> list[str | None]:
        """A column of names as texts: 7, 7.0 and "7" are the same name."""
        values = self.column(name).to_pylist()
        return [None if v is None or v != v else key(v) for v in values]

    def order(self, name: str) -> Mapping[str | None, int]:
        """The number of each row by its name in this column; without a column, names are 0, 1, …"""
        if not name:
            return _Numbers(len(self))
        if name not in self._orders:
            out: dict[str | None, int] = {}
            for i, found in enumerate(self.keys(name)):
                if found is None:
                    raise self.wrong(i, name, "the row has no name")
                if found in out:
                    raise self.wrong(i, name, f"{found!r} names more than one row")
                out[found] = i
            self._orders[name] = out
        return self._orders[name]

    def wrong(self, record: int, column: str | None, what: str) -> Mistake:
        """The error for a record (counted from 0), naming file, line and column."""
        return Mistake(f"{self.where(record, column)}: {what}")

    def where(self, record: int, column: str | None = None) -> str:
        """File, line and column of a value."""
        lines = self._lines
        place = f"line {lines[record]}" if record < len(lines) else f"row {record + 1}"
        return f"{self.path}, {place}" + (f", column {column}" if column else "")

    @cached_property
    def _lines(self) -> list[int]:
        """The line of each record, as far as a file has lines and these can be read."""
        kind = format_of(self.path)
        out: list[int] = []
        with suppress(*UNREADABLE):
            if kind == "csv":
                out += (line for line, _ in islice(csv_records(self.path), 1, None))
            elif kind == "json":
                out += (line for line, _ in json_lines(self.path))
        return out


class _Numbers(Mapping[str | None, int]):
    """The numbers of rows by the names 0, 1, …: nothing is in memory for each of them."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[str]:
        return map(str, range(self.n))

    def __getitem__(self, name: str | None) -> int:
        if name is not None and name.isdecimal() and len(name) < DIGITS:
            number = int(name)
            if number < self.n and name == str(number):
                return number
        raise KeyError(name)


def read(path: Path, texts: Iterable[str] = (), missing: Sequence[str] = ()) -> Table:
    """The whole table; `texts` are columns of a CSV file to read as text, so that 007 is not 7."""
    data = read_arrow(path, texts, missing)
    if not data.num_rows:
        raise Mistake(f"{path}: there are no rows in it")
    return Table(path, data, missing)
