"""The feature columns of a file: those of the model's own encoder, and what else `predict` needs.

What the model does not hold itself is kept beside it, as notes: the column of ids, texts that mean
a missing value, and fingerprints of some rows, by which rows of the fit are known again.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from setwise._facts import checked
from setwise.cli.common import Mistake
from setwise.cli.config import FitSpec
from setwise.cli.files import arrow
from setwise.cli.tables import Table
from setwise.frames import ColumnError, Encoded, Encoder
from setwise.io.persistence import notes_of

__all__ = ["Columns", "choose_columns", "encoded", "known_rows", "some_rows", "types", "wanted"]

KEPT = "columns"  # what the notes of a saved model call them
SOME = 256  # rows of the fit whose fingerprints are kept
DISTINCT = 0.9  # share of rows with features of their own, without which none are kept
ONE = np.uint64(1)  # a shift by it leaves numbers that any reader of JSON takes


@dataclass
class Columns:
    """What is known about the files of a model besides its features."""

    id: str | None = None
    missing: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # fingerprints

    def notes(self) -> dict[str, Any]:
        """These facts as notes, which are saved with a model."""
        return {KEPT: asdict(self)}

    @classmethod
    def load(cls, folder: Path) -> Columns:
        """What was kept beside a model."""
        try:
            notes = notes_of(folder)
            if KEPT not in notes:
                raise Mistake(
                    f"{folder}: setwise fit has not written this model: give one that it has"
                )
            found: Columns = checked(notes[KEPT], Columns, "columns")
        except ValueError as error:
            raise Mistake(str(error)) from None
        return found


def types(encoder: Encoder) -> dict[str, Any]:
    """The pyarrow types to read the columns as, from a file that does not state types."""
    pa = arrow()
    kinds = {"number": pa.float64(), "flag": pa.bool_(), "date": pa.timestamp("us")}
    return {column.name: kinds.get(column.kind, pa.string()) for column in encoder.columns}


def wanted(rows: Table, spec: FitSpec, others: Collection[str]) -> list[str]:
    """The names of the columns that are to be features: by default, all but `others`."""
    for name in (*spec.features, *spec.drop, *spec.categories):
        rows.known(name)
    chosen = spec.features or [n for n in rows.names if n not in others or n in spec.categories]
    chosen = [name for name in chosen if name not in spec.drop]
    if not chosen:
        raise Mistake(f"{rows.path}: no feature is left; its columns are {', '.join(rows.names)}")
    return chosen


def choose_columns(
    rows: Table, spec: FitSpec, others: Collection[str]
) -> tuple[Encoded, list[str]]:
    """The features in numbers, and a remark for each column that is left out as of no use."""
    try:
        encoder = Encoder.of(rows.data.select(wanted(rows, spec, others)), spec.categories)
    except ColumnError as error:
        value = rows.column(error.column)[error.row].as_py()
        help = ""
        if isinstance(value, str):
            help = (
                f" (if that means a missing value: --missing {value!r}; if these are categories: "
                f"--categories {shlex.quote(error.column)})"
            )
        raise rows.wrong(error.row, error.column, error.said + help) from None
    except ValueError as error:
        raise Mistake(f"{rows.path}: {str(error).removeprefix('X ')}") from None
    for name, why in encoder.left_out.items():
        if name in spec.features:
            raise Mistake(f"{rows.path}, column {name}: {why}")
    left_out = [f"{name}: {why}" for name, why in encoder.left_out.items()]
    return encoded(encoder, rows.data, rows), left_out


def encoded(encoder: Encoder, data: Any, rows: Table, first: int = 0) -> Encoded:
    """Some rows of a file in numbers; `first` is the number of the first of them."""
    try:
        return encoder.encode(data)
    except ColumnError as error:
        raise rows.wrong(first + error.row, error.column, error.said) from None


def fingerprints(rows: Table, id: str | None, X: Encoded) -> NDArray[np.uint64]:
    """A number that identifies each row: a hash of its name, or else of its features."""
    if id and id in rows.names:
        found = [hashlib.blake2b(str(k).encode(), digest_size=8).digest() for k in rows.keys(id)]
        return np.frombuffer(b"".join(found), np.uint64) >> ONE
    values = np.ascontiguousarray(X.values + 0.0)  # there are two zeros
    bits = np.where(np.isnan(values), ONE, values.view(np.uint64))
    odd = np.random.default_rng(0).integers(0, 2**63, bits.shape[1], np.uint64) * 2 + ONE
    mixed: NDArray[np.uint64] = ((bits ^ (bits >> np.uint64(29))) * odd).sum(1, dtype=np.uint64)
    return mixed >> ONE


def some_rows(rows: Table, id: str | None, X: Encoded, used: NDArray[np.int64]) -> list[int]:
    """Fingerprints of some rows in sets; none where features do not distinguish the rows."""
    every = fingerprints(rows, id, X)[used]
    if len(np.unique(every)) < DISTINCT * len(every):
        return []
    return sorted(np.random.default_rng(0).permutation(every)[:SOME].tolist())


def known_rows(columns: Columns, rows: Table, X: Encoded) -> float:
    """The share of the rows of the fit that are among these."""
    if not columns.rows:
        return 0.0
    return float(np.isin(columns.rows, fingerprints(rows, columns.id, X)).mean())
