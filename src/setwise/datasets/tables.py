"""Tables of columns: reading and writing compressed CSV, one-hot encoding; idx image files."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from setwise.datasets.folders import ChecksumError

__all__ = ["Columns", "encode", "labels_of", "read_idx", "read_table", "write_table"]

Columns = dict[str, NDArray[Any]]
"""Column name -> float array where every value is a number (blank: NaN), else array of str."""


def read_table(path: Path) -> Columns:
    """The columns of a .csv.gz file with a header row."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
            header = next(csv.reader(stream))
            try:  # the fast way, for tables of numbers only
                values = np.loadtxt(stream, delimiter=",", comments=None, ndmin=2)
                return {name: values[:, c] for c, name in enumerate(header)}
            except ValueError:
                stream.seek(0)
            rows = csv.reader(stream)
            next(rows)
            return columns(header, rows)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ChecksumError(
            f"{path} has been altered or is incomplete ({error}): remove it and load again"
        ) from error


def columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Columns:
    """Columns from rows of strings."""
    values = list(zip(*rows, strict=True))
    return {name: column(v) for name, v in zip(header, values, strict=True)}


def column(values: Iterable[str]) -> NDArray[Any]:
    """A float array if every value is a number or blank, and an array of str otherwise."""
    given = list(values)
    try:
        return np.array([v or "nan" for v in given], dtype=np.float64)
    except ValueError:
        return np.array(given, dtype=object)


def write_table(stream: IO[bytes], table: Columns) -> None:
    """Writes columns as compressed CSV; numbers read back exactly."""
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
    ):
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*(v.tolist() for v in table.values()), strict=True))


def encode(
    table: Columns, categorical: Sequence[str] = ()
) -> tuple[NDArray[np.float64], list[str]]:
    """One float array of all columns: those of str, and those named, become one-hot columns.

    >>> encode({"a": np.array(["u", "v", "u"]), "b": np.array([1.0, 2.0, 3.0])})[1]
    ['a=u', 'a=v', 'b']
    """
    blocks: list[NDArray[np.float64]] = []
    names: list[str] = []
    for name, values in table.items():
        if name in categorical or values.dtype.kind not in "fiu":
            levels, codes = np.unique(values, return_inverse=True)
            blocks.append(np.eye(len(levels))[codes])
            names += [f"{name}={label}" for label in labels_of(levels)]
        else:
            blocks.append(values[:, None])
            names.append(name)
    return np.ascontiguousarray(np.hstack(blocks), dtype=np.float64), names


def labels_of(values: NDArray[Any]) -> list[str]:
    """Values as texts: 1.0 is "1"."""
    numbers = values.dtype.kind in "fiu"
    return [f"{v:g}" if numbers else str(v) for v in values.tolist()]


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in a compressed idx file of bytes: two zeros, the type 8, the number of axes."""
    raw = gzip.decompress(path.read_bytes())
    if raw[:3] != b"\0\0\x08":
        raise ChecksumError(f"{path} is not an idx file of bytes: it begins with {raw[:4]!r}")
    shape = np.frombuffer(raw, ">u4", raw[3], 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape).copy()
