"""Files of tables: CSV, Parquet, Feather and JSON lines, read in batches and written.

What is wrong with a file is said with its line and column.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from setwise.cli.common import Mistake

__all__ = [
    "Writer", "arrow", "batches", "csv_records", "format_of", "is_number", "is_numeric", "is_text",
    "json_lines", "key", "names_in", "read_arrow", "some",
]  # fmt: skip

FORMATS = {
    ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".parquet": "parquet", ".pq": "parquet",
    ".feather": "feather", ".arrow": "feather", ".jsonl": "json", ".ndjson": "json",
    ".json": "json",
}  # fmt: skip
SEPARATORS = ",;\t|"
BLOCK = 1 << 20  # bytes of a CSV file that are read at a time


def arrow() -> Any:
    """pyarrow, which reads and writes all of these."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.feather
        import pyarrow.json
        import pyarrow.parquet
    except ImportError:
        raise Mistake("tables need pyarrow and pandas: pip install 'setwise[cli]'") from None
    return pyarrow


def format_of(path: Path) -> str:
    """csv, parquet, feather or json, by the file's name; .gz may follow the first and the last."""
    names = path.suffixes[-2:]
    last = names[-1].lower() if names else ""
    inner = names[0].lower() if last == ".gz" and len(names) == 2 else last
    found = FORMATS.get(inner)
    if found is None or (inner != last and found not in ("csv", "json")):
        raise Mistake(f"{path}: the name of a table ends in one of {', '.join(FORMATS)}")
    return found


def key(value: Any) -> str:
    """A value as a text that equal values share."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def is_number(text: Any) -> bool:
    """Whether a value is a number, or the text of one."""
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True


def is_numeric(pa: Any, kind: Any) -> bool:
    """Whether a type is one of numbers."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def is_text(pa: Any, kind: Any) -> bool:
    """Whether a type is one of texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def some(names: Sequence[str], most: int = 12) -> str:
    """The first of these names."""
    shown = ", ".join(names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


# ---- reading


def read_arrow(path: Path, texts: Iterable[str], missing: Sequence[str]) -> Any:
    """The whole file as a pyarrow table; see `tables.read`."""
    pa, kind = arrow(), format_of(path)
    _check_file(path)
    try:
        if kind == "csv":
            names = _csv_header(path)
            types = {name: pa.string() for name in texts if name in names}
            with pa.input_stream(str(path), compression="detect") as stream:
                data = pa.csv.read_csv(
                    stream,
                    parse_options=_csv_parsing(pa, path),
                    convert_options=_csv_converting(pa, missing, types),
                )
        elif kind == "parquet":
            data = pa.parquet.read_table(path)
        elif kind == "feather":
            data = pa.feather.read_table(path)
        else:
            with pa.input_stream(str(path), compression="detect") as stream:
                data = pa.json.read_json(stream)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        _explain(path, {}, missing)
        raise Mistake(f"{path} cannot be read: {_first_line(error)}") from None
    _check_names(path, data.column_names)
    return data


def batches(
    path: Path, types: dict[str, Any], size: int, missing: Sequence[str] = ()
) -> Iterator[Any]:
    """These columns of a file, at most `size` rows at a time, whatever the size of the file.

    `types` are the pyarrow types of the columns that are wanted; a file that says itself what its
    columns are (Parquet, Feather) keeps its own.
    """
    pa, kind = arrow(), format_of(path)
    _need(path, names_in(path), types)
    try:
        for batch in _OPEN[kind](pa, path, types, size, missing):
            for begin in range(0, batch.num_rows, size):
                yield batch.slice(begin, size)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        _explain(path, types, missing)
        raise Mistake(f"{path} cannot be read: {_first_line(error)}") from None


def _csv_batches(pa: Any, path: Path, types: Any, size: int, missing: Sequence[str]) -> Any:
    options = _csv_converting(pa, missing, types)
    options.include_columns = list(types)
    with pa.input_stream(str(path), compression="detect") as stream:
        yield from pa.csv.open_csv(
            stream,
            read_options=pa.csv.ReadOptions(block_size=BLOCK),
            parse_options=_csv_parsing(pa, path),
            convert_options=options,
        )


def _parquet_batches(pa: Any, path: Path, types: Any, size: int, missing: Any) -> Any:
    with pa.parquet.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=size, columns=list(types))


def _feather_batches(pa: Any, path: Path, types: Any, size: int, missing: Any) -> Any:
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
        for i in range(file.num_record_batches):
            yield file.get_batch(i).select(list(types))


def _json_batches(pa: Any, path: Path, types: Any, size: int, missing: Any) -> Any:
    lines = json_lines(path)
    while part := list(islice(lines, size)):
        columns: dict[str, list[Any]] = {name: [] for name in types}
        for line, text in part:
            record = _json_record(path, line, text)
            for name, kind in types.items():
                value = record.get(name)
                columns[name].append(_json_value(pa, path, line, name, kind, value))
        arrays = {n: pa.array(values) for n, values in columns.items()}
        yield pa.RecordBatch.from_pydict({n: a.cast(types[n]) for n, a in arrays.items()})


def _json_value(pa: Any, path: Path, line: int, name: str, kind: Any, value: Any) -> Any:
    if value is None or not (is_numeric(pa, kind) or is_text(pa, kind)):
        return value
    if is_text(pa, kind):
        return key(value)
    if isinstance(value, bool | int | float):
        return float(value)
    raise Mistake(f"{path}, line {line}, column {name}: expected a number, got {value!r}")


_OPEN: dict[str, Callable[..., Iterator[Any]]] = {
    "csv": _csv_batches,
    "parquet": _parquet_batches,
    "feather": _feather_batches,
    "json": _json_batches,
}


def names_in(path: Path) -> list[str]:
    """The names of a file's columns, from its beginning."""
    pa, kind = arrow(), format_of(path)
    _check_file(path)
    try:
        if kind == "csv":
            return _csv_header(path)
        if kind == "json":
            return list(_json_record(path, *next(json_lines(path), (1, ""))))
        if kind == "parquet":
            return list(pa.parquet.read_schema(path).names)
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
            return list(file.schema.names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise Mistake(f"{path} cannot be read: {_first_line(error)}") from None


def _need(path: Path, names: Sequence[str], wanted: Iterable[str]) -> None:
    _check_names(path, names)
    lost = [name for name in wanted if name not in names]
    if lost:
        raise Mistake(
            f"{path}: there is no column {some(lost)}, which the model needs; it has {some(names)}"
        )


def _check_names(path: Path, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise Mistake(f"{path}, line 1: the column {twice[0]!r} is there more than once")


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise Mistake(f"{path}: there is no such file")
    if not path.stat().st_size:
        raise Mistake(f"{path}: the file is empty")


def _csv_parsing(pa: Any, path: Path) -> Any:
    return pa.csv.ParseOptions(delimiter=_separator(path), newlines_in_values=True)


def _csv_converting(pa: Any, missing: Sequence[str], types: dict[str, Any]) -> Any:
    return pa.csv.ConvertOptions(
        null_values=_nulls(missing), strings_can_be_null=True, column_types=types
    )


def _nulls(missing: Sequence[str]) -> list[str]:
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


def _csv_header(path: Path) -> list[str]:
    return next(csv_records(path), (1, []))[1]


def json_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, text) of each line that is not empty."""
    with _text(path) as file:
        yield from ((i, line) for i, line in enumerate(file, 1) if line.strip())


# ---- what is wrong with a file that cannot be read


def _explain(path: Path, types: dict[str, Any], missing: Sequence[str]) -> None:
    """Raises an error that names the line, where there is one to name."""
    try:
        if format_of(path) == "csv":
            _explain_csv(path, types, missing)
        elif format_of(path) == "json":
            _explain_json(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Mistake(f"{path} cannot be read: {_first_line(error)}") from None


def _explain_csv(path: Path, types: dict[str, Any], missing: Sequence[str]) -> None:
    pa, records = arrow(), csv_records(path)
    _, header = next(records)
    nulls = {*_nulls(missing)}
    numeric = [(i, n) for i, n in enumerate(header) if n in types and is_numeric(pa, types[n])]
    for line, record in records:
        if len(record) != len(header):
            raise Mistake(
                f"{path}, line {line}: expected {len(header)} fields as in the header, got "
                f"{len(record)}"
            )
        for i, name in numeric:
            if record[i] not in nulls and not is_number(record[i]):
                raise Mistake(
                    f"{path}, line {line}, column {name}: expected a number, got {record[i]!r}"
                )


def _explain_json(path: Path) -> None:
    first: dict[str, bool] = {}  # whether a column's values are texts
    for line, text in json_lines(path):
        for name, value in _json_record(path, line, text).items():
            is_text = isinstance(value, str)
            if value is not None and first.setdefault(name, is_text) != is_text:
                expected = "a number" if is_text else "a text"
                raise Mistake(
                    f"{path}, line {line}, column {name}: expected {expected} as before, got "
                    f"{value!r}"
                )


def _json_record(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise Mistake(f"{path}, line {line}: this is no JSON: {error}") from None
    if not isinstance(record, dict):
        raise Mistake(f"{path}, line {line}: expected one object per line, got {text[:40]!r}")
    return record


def _first_line(error: BaseException) -> str:
    return str(error).split("\n")[0][:300]


# ---- writing


@dataclass
class _JsonWriter:
    file: TextIO

    def write_batch(self, batch: Any) -> None:
        for record in batch.to_pylist():
            kept = {k: _finite(v) for k, v in record.items()}
            self.file.write(json.dumps(kept, ensure_ascii=False, default=str) + "\n")

    def close(self) -> None:
        self.file.close()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass
class Writer:
    """Writes batches to a file of the format that `name` tells; opened by the first of them."""

    name: Path
    target: Any  # a path, or a binary stream for CSV
    _open: Any = field(default=None, repr=False)

    def write(self, batch: Any) -> None:
        """One more batch; all have the same columns."""
        if self._open is None:
            pa, kind = arrow(), format_of(self.name)
            if kind == "csv":
                self._open = pa.csv.CSVWriter(
                    self.target,
                    batch.schema,
                    write_options=pa.csv.WriteOptions(quoting_style="needed"),
                )
            elif kind == "parquet":
                self._open = pa.parquet.ParquetWriter(self.target, batch.schema)
            elif kind == "feather":
                self._open = pa.ipc.new_file(str(self.target), batch.schema)
            else:
                self._open = _JsonWriter(open(self.target, "w", encoding="utf-8"))  # noqa: SIM115
        self._open.write_batch(batch)

    def close(self) -> None:
        """The file is whole."""
        if self._open is not None:
            self._open.close()
