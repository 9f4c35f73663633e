"""Tables in files that may be larger than memory: Parquet, CSV, Feather, read with pyarrow."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from setwise._reductions import offsets_of
from setwise.sets import Sets
from setwise.stored.ranges import Ranges

__all__ = [
    "INDEX",
    "FileColumn",
    "Files",
    "bytes_of",
    "decoded",
    "tables_in",
    "whole_files",
]

FORMATS = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv", ".txt": "csv",
    ".feather": "feather", ".arrow": "feather", ".ipc": "feather", ".orc": "orc",
}  # fmt: skip
SEPARATORS = ",;\t|"
INDEX = re.compile(r"__index_level_\d+__")  # what pandas calls the index of a frame in files
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
BATCH = 1 << 16, 1 << 12  # rows that are read at a time, and of very many columns
CELLS = 1 << 22  # numbers that are read at a time, about


class Files:
    """Rows in files, of which only a part is in memory at any time.

    `source` is a folder, a file, a pattern such as "rows/*.csv", a list of files, or an address
    such as "s3://bucket/rows"; rows are counted through the files in the order of their names.
    Columns become features as those of a data frame do, from one pass over the rows. `rows["area"]`
    is a column, for `Sets.from_groups` and `Observations.from_groups`; `rows.drop("area")` has all
    others.

    `LightGBM` and `XGBoost` keep what trees need of each row in memory; `Linear` and `Network` read
    whole sets again and again, from a copy of the features in the folder `scratch` (else where
    temporary files go). `memory` is how much of it is in memory at a time, about.

    Args:
        source: Where the rows are.
        columns: Columns to read; all by default.
        categories: Columns of numbers that are categories.
        missing: Texts in CSV files that mean a missing value.
        memory: Bytes, or a text such as "2GB".
        scratch: A folder for copies that are deleted after a fit.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> folder = Path(tempfile.mkdtemp())
    >>> pq.write_table(pa.table({"area": ["a", "a", "b"], "age": [1, 2, 3]}), folder / "1.parquet")
    >>> rows = Files(folder)
    >>> len(rows), rows.names, rows.drop("area").names, rows["area"].sets().sizes.tolist()
    (3, ['area', 'age'], ['age'], [2, 1])
    """

    def __init__(
        self,
        source: Any,
        columns: Sequence[str] | None = None,
        *,
        categories: Collection[str] = (),
        missing: Sequence[str] = (),
        memory: int | float | str = "1GB",
        scratch: str | Path | None = None,
    ) -> None:
        self.source, self.categories, self.missing = source, categories, list(missing)
        self.memory, self.scratch = bytes_of(memory), scratch
        self._found, self.kind = tables_in(source)
        schema = self._dataset().schema
        every = list(schema.names)
        usual = [name for name in every if not INDEX.fullmatch(name)]
        self.names = usual if columns is None else [self._known(every, n) for n in columns]
        self._types = {name: schema.field(name).type for name in every}
        self._rows: int | None = None

    def _known(self, names: Sequence[str], name: str) -> str:
        if name not in names:
            raise ValueError(f"{self!r} has no column {name!r}; it has {list(names)[:12]}")
        return name

    def __repr__(self) -> str:
        return f"Files({str(self.source)!r})"

    def __len__(self) -> int:
        if self._rows is None:
            self._rows = int(self._dataset().count_rows())
        return self._rows

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns."""
        return len(self), len(self.names)

    @overload
    def __getitem__(self, which: str) -> FileColumn: ...
    @overload
    def __getitem__(self, which: list[str]) -> Files: ...
    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, str):
            return FileColumn(self, self._known(self.names, which))
        return self._of([self._known(self.names, name) for name in which])

    def drop(self, *names: str) -> Self:
        """The same rows without these columns."""
        for name in names:
            self._known(self.names, name)
        return self._of([name for name in self.names if name not in names])

    def _of(self, names: list[str]) -> Self:
        out = object.__new__(type(self))
        out.__dict__.update(self.__dict__, names=names)
        return out

    def read(self) -> Any:
        """All rows as a pyarrow table, in memory."""
        import pyarrow as pa

        for _ in whole_files(self._dataset(), self.names):
            pass
        try:
            table = self._dataset(whole=True).to_table(columns=self.names)
        except pa.ArrowInvalid:
            table = self._dataset().to_table(columns=self.names)
        return decoded(table)

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The rows as pyarrow tables of some thousand rows, one after another."""
        import pyarrow as pa

        names = self.names if columns is None else list(columns)
        size = int(np.clip(CELLS // max(len(names), 1), BATCH[1], BATCH[0]))
        waiting: list[Any] = []
        for piece in self._pieces(names):
            for batch in piece(columns=names, batch_size=size, batch_readahead=1):
                waiting.append(batch)
                if sum(part.num_rows for part in waiting) >= size:
                    yield decoded(pa.Table.from_batches(waiting))
                    waiting = []
        if sum(part.num_rows for part in waiting):
            yield decoded(pa.Table.from_batches(waiting))

    def lengths(self) -> Iterator[tuple[str, int]]:
        """Each file and the number of its rows, in the order in which rows are counted."""
        for file in self._dataset().get_fragments():
            yield file.path, file.count_rows()

    def _pieces(self, names: Sequence[str]) -> Iterator[Any]:
        """Readers of a file, or of a row group of one; pyarrow would read many of them ahead."""
        data = self._dataset()
        for file in whole_files(data, names):
            parts = file.split_by_row_group() if self.kind == "parquet" else [file]
            for part in parts:
                yield partial(part.to_batches, schema=data.schema)

    def _dataset(self, whole: bool = False) -> Any:
        """The files; of CSV, columns that begin with `whole` numbers are expected to go on so."""
        import pyarrow.csv as csv
        import pyarrow.dataset as ds

        kind: Any = self.kind
        if kind == "csv":
            nulls = [*csv.ConvertOptions().null_values, *self.missing]
            kind = ds.CsvFileFormat(
                parse_options=csv.ParseOptions(
                    delimiter=_separator(self._found[0]), newlines_in_values=True
                ),
                convert_options=csv.ConvertOptions(
                    null_values=nulls,
                    strings_can_be_null=True,
                    column_types={} if whole else self._csv_types(),
                ),
            )
        if isinstance(self._found, str):
            return ds.dataset(self._found, format=kind, partitioning="hive")
        base = str(self.source) if Path(str(self.source)).is_dir() else None
        hive = {"partitioning": "hive", "partition_base_dir": base} if base else {}
        return ds.dataset(self._found, format=kind, **hive)

    def _csv_types(self) -> dict[str, Any]:
        """Whole numbers at the beginning of a column may be followed by others."""
        import pyarrow as pa

        told = getattr(self, "_types", {})
        return {n: pa.float64() for n in told if n in self.names and pa.types.is_integer(told[n])}


class FileColumn:
    """A column of `Files`."""

    def __init__(self, files: Files, name: str) -> None:
        self.files, self.name = files._of([]), name

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        return f"{self.files!r}[{self.name!r}]"

    def parts(self) -> Iterator[Any]:
        """The values as pyarrow arrays, one after another."""
        for table in self.files.tables([self.name]):
            yield table.column(0).combine_chunks()

    def to_pylist(self) -> list[Any]:
        """All values."""
        return [value for part in self.parts() for value in part.to_pylist()]

    def to_numpy(self) -> NDArray[Any]:
        """All values as an array."""
        return np.concatenate([part.to_numpy(zero_copy_only=False) for part in self.parts()])

    def sets(self, missing: str = "drop") -> Sets:
        """A set for each distinct value, in first-seen order; missing ones belong to none.

        A set of consecutive rows takes up two numbers; otherwise all row numbers are in memory.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        values, lengths = [], []
        for part in self.parts():
            runs = pc.run_end_encode(part)
            values.append(runs.values)
            lengths.append(np.diff(runs.run_ends.to_numpy(), prepend=0).astype(np.int64))
        if not values:
            raise ValueError(f"{self!r} has no rows")
        coded = pa.chunked_array(values).combine_chunks().dictionary_encode()
        code = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        first = np.flatnonzero(np.diff(code, prepend=-2))  # runs go on through batches
        code, length = code[first], np.add.reduceat(np.concatenate(lengths), first)
        begin, known = np.cumsum(length) - length, code >= 0
        if missing == "error" and not known.all():
            raise ValueError(
                f"row {begin[known.argmin()]} has no group label (missing value): drop the row or "
                f"give it a label"
            )
        code, length, begin = code[known], length[known], begin[known]
        names = coded.dictionary.to_numpy(zero_copy_only=False)
        if len(code) == len(names):
            return Ranges.of(begin, length, names)
        order = np.argsort(code, kind="stable")
        sizes = np.bincount(code, length, len(names)).astype(np.int64)
        listed = Ranges.of(begin[order], length[order]).indices
        return Sets._trusted(listed, offsets_of(sizes), names=names)


def whole_files(data: Any, names: Sequence[str]) -> Iterator[Any]:
    """The files of a dataset, all of which must have those of these columns that the first has."""
    wanted: list[str] | None = None
    for file in data.get_fragments():
        own = file.physical_schema.names  # without columns that folders name
        wanted = [name for name in names if name in own] if wanted is None else wanted
        if absent := [name for name in wanted if name not in own]:
            raise ValueError(
                f"{file.path} has no column {absent[0]!r}, which the files before it have; it has "
                f"{own[:12]}"
            )
        yield file


def bytes_of(memory: int | float | str) -> int:
    """A number of bytes, from a text such as "2GB" or "500M".

    >>> bytes_of("1.5GB"), bytes_of(1000)
    (1500000000, 1000)
    """
    if isinstance(memory, int | float):
        return int(memory)
    found = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?)(i?B)?\s*", memory, re.IGNORECASE)
    if found is None:
        raise ValueError(f'memory is a number of bytes, or a text such as "2GB"; got {memory!r}')
    return int(float(found[1]) * UNITS[found[2].upper()])


def tables_in(source: Any) -> tuple[Any, str]:
    """The files, in the order of their names, or an address; and their format."""
    if isinstance(source, str) and "://" in source:
        suffixes = [s for s in FORMATS if s in source.lower()]
        return source, FORMATS[suffixes[0]] if suffixes else "parquet"
    if isinstance(source, list | tuple):
        files = [Path(path) for path in source]
    elif Path(source).is_dir():
        files = [p for p in Path(source).rglob("*") if _format(p) and p.name[0] not in "._"]
    elif any(c in str(source) for c in "*?["):
        anchor = Path(Path(source).anchor)
        files = [*anchor.glob(str(Path(source).relative_to(anchor)))]
    else:
        files = [Path(source)]
    missing = [path for path in files if not path.is_file()]
    if missing or not files:
        raise FileNotFoundError(
            f"{missing[0] if missing else source}: there is no such file, or no table in it; the "
            f"names of tables end in {', '.join(FORMATS)}"
        )
    kinds = {_format(path) for path in files}
    if len(kinds) > 1 or None in kinds:
        raise ValueError(
            f"{source}: files of one format are expected, whose names end in {', '.join(FORMATS)}; "
            f"got {sorted({path.suffix for path in files})}"
        )
    if empty := [path for path in files if not path.stat().st_size]:
        raise ValueError(f"{empty[0]}: the file is empty, without the names of columns even")
    ordered = files if isinstance(source, list | tuple) else sorted(files)
    return [str(path) for path in ordered], str(kinds.pop())


def _format(path: Path) -> str | None:
    suffixes = [s.lower() for s in path.suffixes if s.lower() != ".gz"]
    return FORMATS.get(suffixes[-1]) if suffixes else None


def _separator(path: str) -> str:
    import pyarrow as pa

    with pa.input_stream(path) as file:
        head = file.read(1 << 16).decode("utf-8", "replace").partition("\n")[0]
    return max(SEPARATORS, key=head.count)


def decoded(table: Any) -> Any:
    """The table with texts in place of codes for texts."""
    import pyarrow as pa

    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))
