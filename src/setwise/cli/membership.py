"""From files of sets to observations: which rows each set holds, and what was seen of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from setwise.cli.common import Mistake
from setwise.cli.config import SetsSpec
from setwise.cli.names import aggregate, parse
from setwise.cli.tables import Table, read
from setwise.errors import SetError

if TYPE_CHECKING:
    from setwise.likelihood import Aggregate

__all__ = ["Block", "Labels", "members_file", "observe", "prepare"]

Ints = NDArray[np.int64]


@dataclass
class Block:
    """The observations of one file, and the record of the file that each set is on."""

    spec: SetsSpec
    table: Table
    observations: Any
    records: Ints
    remarks: list[str] = field(default_factory=list)

    def explain(self, error: Exception) -> Mistake:
        """An error of the library about a set, with the place in the file instead."""
        return _located(self.spec, self.table, self.records, error)


def _located(spec: SetsSpec, table: Table, records: Ints, error: Exception) -> Mistake:
    if not isinstance(error, SetError):
        return Mistake(f"{spec.file}: {error}")
    column = spec.y[0] if len(spec.y) == 1 else None
    return Mistake(f"{table.where(int(records[error.set]), column)}: the set {error.said}")


@dataclass
class Labels:
    """The class labels in order; none where targets are numbers."""

    names: list[str] | None
    given: bool = False  # by name, so that y may name them

    @property
    def number(self) -> int:
        """How many classes there are."""
        return len(self.names or ())


def members_file(spec: SetsSpec) -> tuple[Path, dict[str, str]]:
    """The file of --members and the names of its columns."""
    path, options = spec.members, ""
    head, colon, tail = spec.members.rpartition(":")
    if colon and "=" in tail:
        path, options = head, tail
    names = {"set": "set", "row": "row", "weight": ""}
    found = parse(f"members:{options}")[2]
    if set(found) - set(names):
        raise Mistake(f"--members {spec.members}: the columns are set=…, row=… and weight=…")
    return Path(path), {**names, **{k: str(v) for k, v in found.items()}}


def prepare(spec: SetsSpec, missing: Sequence[str]) -> tuple[Any, Table]:
    """The aggregate of a file of sets, and its table."""
    spec.check()
    made = aggregate(spec.observe, spec.noise or None)
    texts = [*spec.group, *spec.rows_columns]
    if spec.members:
        texts.append(members_file(spec)[1]["set"])
    table = read(spec.file, texts, missing)
    for name in (*spec.y, *texts, *([spec.weight] if spec.weight else [])):
        table.column(name)
    return made, table


def observe(
    spec: SetsSpec, made: Any, table: Table, rows: Table, id_column: str, labels: Labels
) -> Block:
    """The observations of one file of sets."""
    import setwise as sw

    y, known = _labels(spec, made, table, labels)
    remarks = []
    if not known.all():
        if not known.any():
            raise Mistake(f"{spec.file}, column {', '.join(spec.y)}: no set has a label")
        remarks.append(f"{int((~known).sum()):,} without a label are left out")
    records = np.flatnonzero(known)
    indices, sizes, weights = _members(spec, table, rows, id_column, records, remarks)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    set_weight = None
    if spec.weight:
        set_weight = table.numbers(spec.weight)[records]
        bad = ~(set_weight >= 0) | np.isinf(set_weight)
        if bad.any():
            at = int(bad.argmax())
            said = f"expected a weight of at least 0, got {set_weight[at]:g}"
            raise table.wrong(int(records[at]), spec.weight, said)
    try:
        sets = sw.Sets(_Csr(indices, offsets, weights))
        made = sw.Observations(made, sets, None if y is None else y[known], set_weight)
    except (ValueError, TypeError) as error:
        raise _located(spec, table, records, error) from None
    return Block(spec, table, made, records, remarks)


@dataclass
class _Csr:
    """What `Sets` asks of a sparse matrix; columns may repeat."""

    indices: Ints
    indptr: Ints
    data: Any

    def tocsr(self) -> _Csr:
        return self


def _labels(
    spec: SetsSpec, made: Aggregate, table: Table, labels: Labels
) -> tuple[NDArray[np.float64] | None, NDArray[np.bool_]]:
    """y, and which sets have one."""
    from setwise.likelihood import ClassLabel, Order, Targets

    outcome = made.outcome(Targets(), None)
    if isinstance(outcome, Order) and not spec.y:
        return None, np.ones(len(table), dtype=bool)
    if not spec.y:
        raise Mistake(
            f"name the column of {spec.file} with the labels, as in --y {table.names[-1]}"
        )
    of_classes = made.outcome(Targets(labels.number or None), None)
    if labels.given and labels.names and isinstance(of_classes, ClassLabel):
        return _class_numbers(table, spec.y[0], labels.names)
    try:
        return outcome.read([table.numbers(name) for name in spec.y])
    except ValueError as error:
        raise Mistake(f"{spec.file}: {error}") from None


def _class_numbers(
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
    spec: SetsSpec, table: Table, rows: Table, id_column: str, records: Ints, remarks: list[str]
) -> tuple[Ints, Ints, NDArray[np.float64] | None]:
    """Row numbers of all members, set after set; sizes; weights of the members."""
    if spec.rows_columns:
        return (*_listed(spec, table, rows, id_column, records), None)
    if spec.group:
        own = _joined(rows, spec.group)
        name = ", ".join(spec.group)
        number = _numbers(table, spec.group, records)
        which = np.array([number.get(k, -1) for k in own], dtype=np.int64)
        members, weights = np.arange(len(rows)), None
        source = f"no row of {rows.path} has this {name}"
    else:
        path, names = members_file(spec)
        table_of = read(path, [names["set"], names["row"]], table.missing)
        number = _numbers(table, [names["set"]], records)
        every = set(_joined(table, [names["set"]]))
        keys = _joined(table_of, [names["set"]])
        which = np.array([number.get(k, -1) for k in keys], dtype=np.int64)
        strange = {k for k in keys if k not in every}
        if strange:
            remarks.append(f"{len(strange):,} sets of {path} are not in {spec.file}")
        members = _row_numbers(table_of, names["row"], rows, id_column, which >= 0)
        weights = table_of.numbers(names["weight"]) if names["weight"] else None
        source, name = f"{path} has no member of this set", names["set"]
    order = np.argsort(which, kind="stable")
    order = order[which[order] >= 0]
    sizes = np.bincount(which[order], minlength=len(records))
    if not sizes.all():
        at = int(records[int((sizes == 0).argmax())])
        found = ", ".join(str(table.keys(n)[at]) for n in name.split(", "))
        empty = int((sizes == 0).sum())
        more = f" ({empty:,} such sets)" if empty > 1 else ""
        raise table.wrong(
            at, name, f"{source}: {found!r}{more}; remove the line or leave its label empty"
        )
    return members[order], sizes, None if weights is None else weights[order]


def _joined(table: Table, columns: Sequence[str]) -> list[Any]:
    """The keys of each record; those of several columns as a tuple, None where one is missing."""
    found = [table.keys(name) for name in columns]
    if len(found) == 1:
        return found[0]
    return [None if None in parts else parts for parts in zip(*found, strict=True)]


def _numbers(table: Table, columns: Sequence[str], records: Ints) -> dict[Any, int]:
    """The number of each set that has a label, by its key; every key may be there once only."""
    keys, name = _joined(table, columns), ", ".join(columns)
    first: dict[Any, int] = {}
    for i, found in enumerate(keys):
        if found is None:
            raise table.wrong(i, name, "the set has no name")
        if found in first:
            before = table.where(first[found]).rpartition(", ")[2]
            raise table.wrong(
                i, name, f"{found!r} was there before, on {before}: one line for each set"
            )
        first[found] = i
    return {keys[record]: i for i, record in enumerate(records.tolist())}


def _listed(
    spec: SetsSpec, table: Table, rows: Table, id_column: str, records: Ints
) -> tuple[Ints, Ints]:
    """Members named by columns of the sets file; an empty field is no member."""
    found, present = [], []
    for name in spec.rows_columns:
        given = np.array([k is not None for k in table.keys(name)])
        wanted = np.zeros(len(table), dtype=bool)
        wanted[records] = True
        found.append(_row_numbers(table, name, rows, id_column, wanted & given)[records])
        present.append(given[records])
    members, there = np.column_stack(found), np.column_stack(present)
    sizes = there.sum(1)
    if not sizes.all():
        at = int(records[int((sizes == 0).argmax())])
        raise table.wrong(at, spec.rows_columns[0], "the set has no members")
    return members[there], sizes


def _row_numbers(
    table: Table, column: str, rows: Table, id_column: str, wanted: NDArray[np.bool_]
) -> Ints:
    """The row that each name stands for (−1 where it is not asked for)."""
    keys = table.keys(column)
    out: list[int] = [-1] * len(table)
    order = rows.order(id_column)
    for i in np.flatnonzero(wanted).tolist():
        found = order.get(keys[i])
        if found is None:
            what = f"{rows.path} has no row with {id_column} {keys[i]!r}"
            if not id_column:
                what = (
                    f"expected a row number from 0 to {len(rows) - 1:,}, got {keys[i]!r} (to go by "
                    f"names of rows, say which column holds them: --id)"
                )
            raise table.wrong(i, column, what)
        out[i] = found
    return np.array(out, dtype=np.int64)
