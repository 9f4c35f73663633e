"""Rows in a folder, or in more files than fit in memory."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from setwise.cli.common import Mistake
from setwise.cli.config import FitSpec
from setwise.cli.files import explained
from setwise.cli.tables import Table
from setwise.frames import key

if TYPE_CHECKING:
    from setwise._given import Given
    from setwise._matching import Unmatched
    from setwise.sets import Sets
    from setwise.stored import FileRows, Files

__all__ = ["StoredTable", "by_group", "read_stored", "stored_columns"]


@dataclass
class StoredTable(Table):
    """A table of which a column at a time is in memory, where it is asked for."""

    files: Files | None = None

    def __len__(self) -> int:
        assert self.files is not None
        return len(self.files)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        assert self.files is not None
        return self.files.names

    def column(self, name: str) -> Any:
        """A column, read whole."""
        self.known(name)
        assert self.files is not None
        with _readable(self):
            return self.files[[name]].read().column(0)

    def where(self, record: int, column: str | None = None) -> str:
        """The file that holds the record, line and column."""
        assert self.files is not None
        for path, n in self.files.lengths():
            if record < n:
                return Table(Path(path), None).where(record, column)
            record -= n
        raise AssertionError(record)


@contextmanager
def _readable(rows: Table) -> Iterator[None]:
    """Turns what is wrong with a file into a mistake."""
    try:
        with explained(rows.path, missing=rows.missing):
            yield
    except ValueError as error:
        raise Mistake(str(error)) from None


def read_stored(spec: FitSpec) -> StoredTable:
    """The rows of a fit, of which only the names of columns are read here."""
    from setwise.stored import Files
    from setwise.stored.files import bytes_of

    assert spec.rows is not None
    try:
        memory = bytes_of(spec.memory or "1GB")
        files = Files(spec.rows, categories=spec.categories, missing=spec.missing, memory=memory)
    except (ValueError, OSError) as error:
        raise Mistake(str(error)) from None
    return StoredTable(spec.rows, None, spec.missing, files=files)


def stored_columns(
    rows: StoredTable, spec: FitSpec, others: Collection[str]
) -> tuple[FileRows, list[str]]:
    """The features, as one pass over the rows finds them, and what is left out."""
    from setwise.cli.columns import wanted
    from setwise.frames import ColumnError
    from setwise.stored import FileRows

    assert rows.files is not None
    try:
        with explained(rows.path, missing=rows.missing):
            X = FileRows(rows.files[wanted(rows, spec, others)])
    except ColumnError as error:
        help = f" (if these are categories: --categories {shlex.quote(error.column)})"
        raise rows.wrong(error.row, error.column, error.said + help) from None
    except ValueError as error:
        raise Mistake(f"{rows.path}: {str(error).removeprefix('X ')}") from None
    return X, [f"{name}: {why}" for name, why in X.encoder.left_out.items()]


def by_group(
    rows: StoredTable,
    names: Sequence[str],
    keys: Sequence[Any],
    told: Given | None,
    known: NDArray[np.bool_],
) -> tuple[Sets, NDArray[np.int64], Unmatched]:
    """The sets of rows with a value in a column, the record of each, and what does not match."""
    from setwise._matching import WITHOUT_GROUP, match_groups

    if len(names) != 1:
        raise Mistake(f"{rows.path}: of files, one column says the group; got {', '.join(names)}")
    assert rows.files is not None
    with _readable(rows):
        groups = rows.files[names[0]].sets()
    assert groups.names is not None
    found = [key(name) for name in groups.names.tolist()]
    which, entries, left = match_groups(
        found, keys, lambda i, j: told is None or told.same(i, j), known
    )
    if lost := len(rows) - int(groups.offsets[-1]):
        left.counts[WITHOUT_GROUP] = lost
    return groups.take(np.flatnonzero(which >= 0)), entries, left
