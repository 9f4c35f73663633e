"""From files of sets to observations: which rows each set holds, and what was seen of it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from setwise.cli.common import Mistake
from setwise.cli.config import SetsSpec
from setwise.cli.names import aggregate, parse
from setwise.cli.stored import StoredTable, by_group
from setwise.cli.tables import Table, read
from setwise.errors import SetError

if TYPE_CHECKING:
    from setwise._given import Given
    from setwise._matching import Unmatched
    from setwise.likelihood import Aggregate
    from setwise.sets import Sets

__all__ = ["Block", "class_numbers", "in_options", "members_file", "observe", "prepare"]

Ints = NDArray[np.int64]
# How errors speak of arguments in Python, and how the command line says the same. The first
# argument of AnyPositive(positive=1) is none of these: an aggregate is shown as it is.
SPOKEN = (
    (r"(?<!\()positive=['\"]?([^'\", ]+)['\"]?", r"--positive \1"),
    (r"positive= ", "--positive "),
    (r"AggregateClassifier\(3\) or .*\]\)\. Where .*", "--classes 3 or --classes a,b,c"),
    (r"Observations\(…, classes=\[(.*?)\]\)", r"--classes \1"),
    (r"classes=\[(.*?)\]", r"--classes \1"),
    (r"(?<!\()n_classes", "--classes"),
    (r"Rank\(tie_margin=…\)", "--observe rank:tie_margin=…"),
    (r'missing="(drop|error)"', r"--on-missing \1"),
    (r"use AggregateRegressor for numbers", "leave --classes out where targets are numbers"),
    (r"; ids of members: Observations.from_ids", ""),
)


def in_options(text: str) -> str:
    """A message of the library, with options in place of arguments."""
    for pattern, said in SPOKEN:
        text = re.sub(pattern, said, text)
    return re.sub(r"(--classes) ('[^ ]*'(?:, '[^ ]*')*)", _unquoted, text)


def _unquoted(found: re.Match[str]) -> str:
    return f"{found[1]} {found[2].replace(chr(39), '').replace(', ', ',')}"


@dataclass
class Block:
    """The observations of one file, and the number of the record that each set comes from."""

    spec: SetsSpec
    table: Table
    observations: Any
    records: Ints
    remarks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what the user should not miss

    def explain(self, error: Exception) -> Mistake:
        """An error of the library, with the line of the file in place of the set's number."""
        if not isinstance(error, SetError):
            return Mistake(f"{self.spec.file}: {in_options(str(error))}")
        column = self.spec.y[0] if len(self.spec.y) == 1 else None
        at = int(self.records[error.set])
        return self.table.wrong(at, column, in_options(f"the set {error.said}"))


def members_file(spec: SetsSpec) -> tuple[Path, dict[str, str]]:
    """The file of --members and the names of its columns."""
    path, options = spec.members, ""
    head, colon, tail = spec.members.rpartition(":")
    if colon and "=" in tail:
        path, options = head, tail
    names = {"set": "set", "row": "row", "weight": "", "count": ""}
    found = parse(f"members:{options}")[2]
    if set(found) - set(names):
        raise Mistake(
            f"--members {spec.members}: the columns are set=…, row=…, weight=… and count=…"
        )
    return Path(path), {**names, **{k: str(v) for k, v in found.items()}}


def prepare(spec: SetsSpec, missing: Sequence[str]) -> tuple[Any, Table]:
    """The aggregate of a file of sets, and its table."""
    spec.check()
    made = aggregate(spec.observe, spec.noise, spec.effect)
    texts = [*spec.group, *spec.rows_columns]
    if spec.members:
        texts.append(members_file(spec)[1]["set"])
    table = read(spec.file, texts, missing)
    for name in (*spec.y, *texts, *([spec.weight] if spec.weight else [])):
        table.column(name)
    return made, table


def observe(
    spec: SetsSpec,
    made: Any,
    table: Table,
    rows: Table,
    id_column: str,
    classes: Sequence[str] | None,
    on_missing: str = "",
) -> Block:
    """The observations of one file of sets; `classes` are the names of classes, if given."""
    import setwise as sw
    from setwise._matching import Mismatch, said, settle

    told, known, classes = _seen(spec, made, table, classes)
    if not known.any():
        raise Mistake(f"{spec.file}, column {', '.join(spec.y)}: no set has a label")
    block = Block(spec, table, None, np.flatnonzero(known))
    try:
        sets, block.records, left = _members(spec, table, rows, id_column, told, known, made.size)
        with warnings.catch_warnings(record=True) as lost:
            warnings.simplefilter("always")
            counts = settle(left, on_missing or None)
    except Mismatch as error:
        raise _mismatch(error, spec, table, rows) from None
    block.remarks += [f"left out: {said(counts)}"] if counts else []
    block.notes += [f"{spec.file}, {in_options(str(w.message))}" for w in lost]
    if told is not None:
        told = told.take(block.records)
        if spec.rows_columns:
            keys = [table.keys(name) for name in spec.rows_columns]
            lines = [[column[i] for column in keys] for i in block.records]
            try:
                told = made.pointed(told, lines, spec.rows_columns, rows.order(id_column))
            except SetError as error:
                raise block.explain(error) from None
    weight = _weights(block) if spec.weight else None
    try:
        block.observations = sw.Observations(
            made, sets, told, weight, positive=spec.positive or None, classes=classes
        )
    except (ValueError, TypeError) as error:
        raise block.explain(error) from None
    return block


def _mismatch(error: Any, spec: SetsSpec, table: Table, rows: Table) -> Mistake:
    """An error of matching names, with its place."""
    said, names = in_options(str(error)), ", ".join(spec.group or spec.rows_columns) or None
    if error.entry is not None:
        return table.wrong(error.entry, names, said)
    if error.row is not None:
        lines = read(members_file(spec)[0]) if spec.members else rows
        return lines.wrong(error.row, names, said)
    return Mistake(f"{spec.file}: {said}")


def _seen(
    spec: SetsSpec, made: Aggregate, table: Table, classes: Sequence[str] | None
) -> tuple[Given | None, NDArray[np.bool_], Sequence[str] | None]:
    """y from the file, which sets have one, and the class labels it may hold."""
    from setwise._given import Given
    from setwise.likelihood import ClassLabel, Label, Order, PerClass, Position, Targets

    outcome = made.outcome(Targets(2, discrete=True), None)  # what y is, if targets are classes
    if not spec.y:
        if isinstance(outcome, Order) or outcome.unsaid is not None:
            return None, np.ones(len(table), dtype=bool), None
        raise Mistake(
            f"name the column of {spec.file} with the labels, as in --y {table.names[-1]}"
        )
    try:
        if len(spec.y) == 1 and isinstance(outcome, Label | ClassLabel | Position):
            named = isinstance(outcome, ClassLabel) and classes is not None
            values = table.labels(spec.y[0], as_texts=named or bool(outcome.members))
            told, known = made.table(Given(values, isinstance(values, list)))
            return told, known, classes if named else None
        columns = [table.numbers(name) for name in spec.y]
        names = tuple(spec.y) if len(columns) > 1 else None
        if names == tuple(str(i) for i in range(len(columns))):
            names = None
        numbers = columns[0] if len(columns) == 1 else np.column_stack(columns)
        told, known = made.table(Given(numbers, columns=names))
        return told, known, classes if names and isinstance(outcome, PerClass) else None
    except ValueError as error:
        raise Mistake(f"{spec.file}: {in_options(str(error))}") from None


def _weights(block: Block) -> NDArray[np.float64]:
    """The weight of each set."""
    spec, table = block.spec, block.table
    out = table.numbers(spec.weight)[block.records]
    bad = ~((out >= 0) & (out < np.inf))
    if bad.any():
        at = int(bad.argmax())
        said = f"expected a weight of at least 0, got {out[at]:g}"
        raise table.wrong(int(block.records[at]), spec.weight, said)
    return out


def class_numbers(
    table: Table, column: str, names: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The numbers of the classes that a column names, and which records name one."""
    order = {name: float(i) for i, name in enumerate(names)}
    found = table.keys(column)
    for i, name in enumerate(found):
        if name is not None and name not in order:
            raise table.wrong(i, column, f"expected one of {', '.join(order)}, got {name!r}")
    y = np.array([np.nan if name is None else order[name] for name in found])
    return y, ~np.isnan(y)


# ---- members


def _members(
    spec: SetsSpec,
    table: Table,
    rows: Table,
    id_column: str,
    told: Given | None,
    known: NDArray[np.bool_],
    size: int | None,
) -> tuple[Sets, Ints, Unmatched]:
    """The sets, the record of each, and what does not match."""
    from setwise._by_name import grouped, listed_members

    if spec.rows_columns:
        keys = [table.keys(name) for name in spec.rows_columns]
        order = rows.order(id_column)
        if not id_column:
            _check_numbers(table, spec.rows_columns, keys, rows)
        return listed_members([*zip(*keys, strict=True)], order, known, size)
    if spec.group:
        names = spec.group
        if isinstance(rows, StoredTable):
            return by_group(rows, names, _joined(table, names), told, known)
        return grouped(_joined(rows, names), _joined(table, names), told, known)
    path, column = members_file(spec)
    listed = read(path, [column["set"], column["row"]], table.missing)
    members, order = listed.keys(column["row"]), rows.order(id_column)
    if not id_column:
        _check_numbers(listed, [column["row"]], [members], rows)
    weights, counts = (
        listed.numbers(column[name]) if column[name] else None for name in ("weight", "count")
    )
    keys_of_sets = _joined(table, [column["set"]])
    groups = _joined(listed, [column["set"]])
    return grouped(groups, keys_of_sets, told, known, members, order, weights, counts)


def _joined(table: Table, columns: Sequence[str]) -> list[Any]:
    """The keys of each record; those of several columns as a tuple, None where one is missing."""
    found = [table.keys(name) for name in columns]
    if len(found) == 1:
        return found[0]
    return [None if None in parts else parts for parts in zip(*found, strict=True)]


def _check_numbers(
    table: Table, names: Sequence[str], keys: Sequence[Sequence[str | None]], rows: Table
) -> None:
    """Raises where a member is no row number, as happens when rows have names."""
    order = rows.order("")
    for name, column in zip(names, keys, strict=True):
        for i, found in enumerate(column):
            if found is not None and found not in order:
                what = (
                    f"expected a row number from 0 to {len(rows) - 1:,}, got {found!r} (if rows "
                    f"have names, say which column holds them: --id)"
                )
                raise table.wrong(i, name, what)
