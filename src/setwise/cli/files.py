"""Files of tables: CSV, Parquet, Feather and JSON lines, read whole or in batches, and written.

Where a file is read there may be a folder, or a pattern such as rows/*.csv: several files, one
after another. An error about a file names its line and column.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from setwise.cli.common import Mistake, as_json
from setwise.frames import key

__all__ = [
    "UNREADABLE", "arrow", "batches", "csv_records", "explained", "floats", "format_of",
    "in_parts", "is_number", "is_numeric", "is_text", "json_lines", "names_in", "read_arrow",
    "some", "write_batches",
]  # fmt: skip

FORMATS = {
    ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".parquet": "parquet", ".pq": "parquet",
    ".feather": "feather", ".arrow": "feather", ".jsonl": "json", ".ndjson": "json",
    ".json": "json",
}  # fmt: skip
SEPARATORS = ",;\t|"
UNREADABLE = (OSError, EOFError, UnicodeDecodeError, csv.Error)


def arrow() -> Any:
    """pyarrow, which reads and writes all of these."""
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.dataset
        import pyarrow.json
    except ImportError:
        raise Mistake("tables need pyarrow and pandas: pip install 'setwise[cli]'") from None
    return pyarrow


def format_of(path: Path) -> str:
    """csv, parquet, feather or json, by the file's name; csv and json may end in .gz as well."""
    *_, inner, last = ("", "", *path.suffixes)
    packed = last.lower() == ".gz" and inner
    found = FORMATS.get((inner if packed else last).lower())
    if found is None or (packed and found not in ("csv", "json")):
        raise Mistake(f"{path}: the name of a table ends in one of {', '.join(FORMATS)}")
    return found


def is_number(text: Any) -> bool:
    """Whether a value is a number, or the text of one."""
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True


def is_numeric(kind: Any) -> bool:
    """Whether a pyarrow type is one of numbers."""
    types = arrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def is_text(kind: Any) -> bool:
    """Whether a pyarrow type is one of texts."""
    types = arrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def floats(column: Any) -> NDArray[np.float64]:
    """A column of numbers or flags as an array, NaN where a value is missing."""
    pa = arrow()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.array(values, dtype=np.float64)


def some(names: Sequence[str], most: int = 12) -> str:
    """The first of these names."""
    shown = ", ".join(names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


# ---- reading


def in_parts(path: Path) -> bool:
    """Whether this is a folder or a pattern, of several files."""
    return path.is_dir() or "*" in path.name


def _paths(path: Path) -> list[Path]:
    """The file, or the files of a folder or a pattern in the order of their names."""
    from setwise.stored.files import tables_in

    if not in_parts(path):
        return [path]
    try:
        return [Path(name) for name in tables_in(path)[0]]
    except (OSError, ValueError) as error:
        raise Mistake(str(error)) from None


def _dataset(path: Path, kind: Any, names: Sequence[str] = ()) -> Any:
    """The rows, in this format; folders may name columns, as in rows/year=2024/1.csv.

    No file may lack one of these columns that others have.
    """
    from setwise.stored.files import whole_files

    base: dict[str, Any] = {}
    if path.is_dir():
        base = {"partitioning": "hive", "partition_base_dir": str(path)}
    data = arrow().dataset.dataset(list(map(str, _paths(path))), format=kind, **base)
    try:
        for _ in whole_files(data, names) if names else ():
            pass
    except ValueError as error:
        if isinstance(error, arrow().ArrowException):
            raise
        raise Mistake(str(error)) from None
    return data


def names_in(path: Path) -> list[str]:
    """The names of a file's columns, without the index of a pandas frame."""
    from setwise.stored.files import INDEX

    kind = format_of(_paths(path)[0])
    for one in _paths(path):
        if not one.is_file():
            raise Mistake(f"{one}: there is no such file")
        if not one.stat().st_size:
            raise Mistake(f"{one}: the file is empty")
    with explained(path):
        if in_parts(path):
            names = _dataset(path, _format(path, {})).schema.names
        elif kind == "csv":
            names = next(csv_records(path), (1, []))[1]
        elif kind == "json":
            names = list(_json_record(path, *next(json_lines(path), (1, "{}"))))
        else:
            names = _dataset(path, kind).schema.names
    for name in names:
        if names.count(name) > 1:
            raise Mistake(f"{path}, line 1: the column {name!r} is there more than once")
    return [name for name in names if not INDEX.fullmatch(name)]


def read_arrow(path: Path, texts: Iterable[str], missing: Sequence[str]) -> Any:
    """The whole file as a pyarrow table; see `tables.read`."""
    pa, names = arrow(), names_in(path)
    with explained(path, missing=missing):
        types = {name: pa.string() for name in texts if name in names}
        kind = format_of(_paths(path)[0])
        if in_parts(path) or kind not in ("csv", "json"):
            data = _dataset(path, _format(path, types, missing), names).to_table(columns=names)
        elif kind == "csv":
            data = pa.csv.read_csv(path, **_csv_options(path, types, missing))
        else:
            data = pa.json.read_json(path)
        return _without_dictionaries(data)


def batches(
    path: Path, types: dict[str, Any], size: int, missing: Sequence[str] = ()
) -> Iterator[Any]:
    """Tables of these columns of a file, at most `size` rows each, however large the file is.

    `types` are the pyarrow types of the columns to read. Parquet and Feather files state the types
    of their columns themselves.
    """
    pa, names = arrow(), names_in(path)
    absent = [name for name in types if name not in names]
    if absent:
        raise Mistake(
            f"{path}: there is no column {some(absent)}, which the model needs; it has "
            f"{some(names)}"
        )
    with explained(path, types, missing):
        if format_of(_paths(path)[0]) == "json":
            yield from _json_batches(path, types, size)
            return
        wanted, ahead = list(types), {"fragment_readahead": 1}
        scanned = _dataset(path, _format(path, types, missing), wanted)
        for batch in scanned.to_batches(columns=wanted, batch_size=size, **ahead):
            if batch.num_rows:
                yield _without_dictionaries(pa.Table.from_batches([batch]))


def _without_dictionaries(table: Any) -> Any:
    """The table with texts in place of codes for texts.

    A damaged Feather file may point out of its memory, which only a full validation notices.
    """
    from setwise.stored.files import decoded

    table.validate(full=True)
    return decoded(table)


def _format(path: Path, types: dict[str, Any], missing: Sequence[str] = ()) -> Any:
    """The format of a file as pyarrow's datasets know it."""
    first = _paths(path)[0]
    if format_of(first) == "csv":
        return arrow().dataset.CsvFileFormat(**_csv_options(first, types, missing))
    return format_of(first)


def _csv_options(path: Path, types: dict[str, Any], missing: Sequence[str]) -> dict[str, Any]:
    options = arrow().csv
    return {
        "parse_options": options.ParseOptions(delimiter=_separator(path), newlines_in_values=True),
        "convert_options": options.ConvertOptions(
            null_values=_nulls(missing), strings_can_be_null=True, column_types=types
        ),
    }


def _json_batches(path: Path, types: dict[str, Any], size: int) -> Iterator[Any]:
    """Batches of JSON lines; numbers become texts where texts are wanted, which pyarrow refuses."""
    pa, lines = arrow(), json_lines(path)
    while part := [_json_record(path, *line) for line in islice(lines, size)]:
        columns = {}
        for name, kind in types.items():
            values = [record.get(name) for record in part]
            if is_text(kind):
                values = [None if v is None else key(v) for v in values]
            columns[name] = pa.array(values).cast(kind)
        yield pa.table(columns)


def _nulls(missing: Sequence[str]) -> list[str]:
    for text in missing:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Mistake(f"--missing {text!a}: this text is not UTF-8") from None
    return [*arrow().csv.ConvertOptions().null_values, *missing]


def _text(path: Path) -> TextIO:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _separator(path: Path) -> str:
    with _text(path) as file:
        header = file.readline()
    return max(SEPARATORS, key=header.count)


def csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line on which it begins, fields) of each record, the header first."""
    with _text(path) as file:
        reader, begin = csv.reader(file, delimiter=_separator(path)), 1
        for record in reader:
            if record:
                yield begin, record
            begin = reader.line_num + 1


def json_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, text) of each line that is not empty."""
    with _text(path) as file:
        yield from ((i, line) for i, line in enumerate(file, 1) if line.strip())


# ---- what is wrong with a file that cannot be read


@contextmanager
def explained(
    path: Path, types: dict[str, Any] | None = None, missing: Sequence[str] = ()
) -> Iterator[None]:
    """Turns errors of reading into mistakes, which name the line if there is one at fault."""
    try:
        yield
    except (arrow().ArrowException, *UNREADABLE) as error:
        for one in _paths(path):
            with suppress(*UNREADABLE):
                if format_of(one) == "csv":
                    _explain_csv(one, types or {}, missing)
                elif format_of(one) == "json":
                    _explain_json(one, types or {})
        first_line = str(error).partition("\n")[0][:300]
        raise Mistake(f"{path} cannot be read: {first_line}") from None


def _explain_csv(path: Path, types: dict[str, Any], missing: Sequence[str]) -> None:
    records, nulls = csv_records(path), {*_nulls(missing)}
    _, header = next(records, (1, []))
    numeric = [(i, n) for i, n in enumerate(header) if n in types and is_numeric(types[n])]
    for line, record in records:
        if len(record) != len(header):
            raise Mistake(
                f"{path}, line {line}: expected {len(header)} fields as in the header, got "
                f"{len(record)}"
            )
        for i, name in numeric:
            if record[i] not in nulls and not is_number(record[i]):
                raise _unexpected(path, line, name, "a number", record[i])


def _explain_json(path: Path, types: dict[str, Any]) -> None:
    """Without `types`, a column holds what its first value is: numbers or texts."""
    text = {name: is_text(kind) for name, kind in types.items() if is_numeric(kind)}
    for line, written in json_lines(path):
        for name, value in _json_record(path, line, written).items():
            found = isinstance(value, str)
            if value is not None and text.setdefault(name, found) != found:
                raise _unexpected(path, line, name, "a number" if found else "a text", value)


def _unexpected(path: Path, line: int, column: str, wanted: str, value: Any) -> Mistake:
    return Mistake(f"{path}, line {line}, column {column}: expected {wanted}, got {value!r}")


def _json_record(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Mistake(f"{path}, line {line}: this is not valid JSON: {error}") from None
    if not isinstance(record, dict):
        raise Mistake(f"{path}, line {line}: expected one object per line, got {text[:40]!r}")
    return record


# ---- writing


@dataclass
class _JsonWriter:
    file: TextIO

    def write(self, table: Any) -> None:
        self.file.writelines(as_json(record) + "\n" for record in table.to_pylist())

    def close(self) -> None:
        self.file.close()


def write_batches(tables: Iterator[Any], target: Any, kind: str) -> list[int]:
    """Writes tables with the same columns to a path (or a stream, for CSV); the rows of each."""
    sizes: list[int] = []
    first = next(tables, None)
    if first is None:
        return sizes
    with closing(_writer(target, kind, first.schema)) as writer:
        for table in chain([first], tables):
            writer.write(table)
            sizes.append(table.num_rows)
    return sizes


def _writer(target: Any, kind: str, schema: Any) -> Any:
    pa = arrow()
    if kind == "csv":
        quoting = pa.csv.WriteOptions(quoting_style="needed")
        return pa.csv.CSVWriter(target, schema, write_options=quoting)
    if kind == "parquet":
        from pyarrow.parquet import ParquetWriter

        return ParquetWriter(target, schema)
    if kind == "feather":
        return pa.ipc.new_file(str(target), schema)
    return _JsonWriter(open(target, "w", encoding="utf-8"))
