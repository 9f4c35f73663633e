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

__all__ = ["Block", "Labels", "class_numbers", "members_file", "observe", "prepare"]

Ints = NDArray[np.int64]


@dataclass
class Block:
    """The observations of one file, and the number of the record that each set comes from."""

    spec: SetsSpec
    table: Table
    observations: Any
    records: Ints
    remarks: list[str] = field(default_factory=list)

    def explain(self, error: Exception) -> Mistake:
        """An error of the library, with the line of the file in place of the set's number."""
        if not isinstance(error, SetError):
            return Mistake(f"{self.spec.file}: {error}")
        column = self.spec.y[0] if len(self.spec.y) == 1 else None
        return self.table.wrong(int(self.records[error.set]), column, f"the set {error.said}")


@dataclass
class Labels:
    """The class labels in order; None where targets are numbers."""

    names: list[str] | None
    given: bool = False  # the user named them, so that y may hold these names


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
    block = Block(spec, table, None, np.flatnonzero(known))
    if not known.any():
        raise Mistake(f"{spec.file}, column {', '.join(spec.y)}: no set has a label")
    if not known.all():
        block.remarks.append(f"{int((~known).sum()):,} without a label are left out")
    indices, sizes, weights = _members(block, rows, id_column)
    set_weight = None
    if spec.weight:
        set_weight = table.numbers(spec.weight)[known]
        bad = ~((set_weight >= 0) & (set_weight < np.inf))
        if bad.any():
            at = int(bad.argmax())
            said = f"expected a weight of at least 0, got {set_weight[at]:g}"
            raise table.wrong(int(block.records[at]), spec.weight, said)
    try:
        sets = sw.Sets(np.split(indices, np.cumsum(sizes)[:-1]), weights=weights)
        block.observations = sw.Observations(
            made, sets, None if y is None else y[known], set_weight
        )
    except (ValueError, TypeError) as error:
        raise block.explain(error) from None
    return block


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
    of_classes = made.outcome(Targets(len(labels.names or ()) or None), None)
    if labels.given and labels.names and isinstance(of_classes, ClassLabel):
        return class_numbers(table, spec.y[0], labels.names)
    try:
        return outcome.read([table.numbers(name) for name in spec.y])
    except ValueError as error:
        raise Mistake(f"{spec.file}: {error}") from None


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
    block: Block, rows: Table, id_column: str
) -> tuple[Ints, Ints, NDArray[np.float64] | None]:
    """Row numbers of all members, set after set; sizes; weights of the members."""
    spec, table, records = block.spec, block.table, block.records
    if spec.rows_columns:
        return (*_listed(spec, table, rows, id_column, records), None)
    weights = None
    if spec.group:
        names, keys, members = spec.group, _joined(rows, spec.group), np.arange(len(rows))
        number = _numbers(table, names, records)
        empty = f"no row of {rows.path} has this {', '.join(names)}"
    else:
        path, column = members_file(spec)
        names, listed = [column["set"]], read(path, [column["set"], column["row"]], table.missing)
        number, keys = _numbers(table, names, records), listed.keys(column["set"])
        unknown = {*keys} - {*table.keys(column["set"])}
        if unknown:
            block.remarks.append(f"{len(unknown):,} sets of {path} are not in {spec.file}")
        wanted = np.array([k in number for k in keys])
        members = _row_numbers(listed, column["row"], rows, id_column, wanted)
        weights = listed.numbers(column["weight"]) if column["weight"] else None
        empty = f"{path} has no member of this set"
    which = np.array([number.get(k, -1) for k in keys], dtype=np.int64)
    order = np.argsort(which, kind="stable")
    order = order[which[order] >= 0]
    sizes = np.bincount(which[order], minlength=len(records))
    if not sizes.all():
        at = int(records[int((sizes == 0).argmax())])
        found = ", ".join(str(table.keys(n)[at]) for n in names)
        n_empty = int((sizes == 0).sum())
        more = f" ({n_empty:,} such sets)" if n_empty > 1 else ""
        said = f"{empty}: {found!r}{more}; remove the line or leave its label empty"
        raise table.wrong(at, ", ".join(names), said)
    return members[order], sizes, None if weights is None else weights[order]


def _joined(table: Table, columns: Sequence[str]) -> list[Any]:
    """The keys of each record; those of several columns as a tuple, None where one is missing."""
    found = [table.keys(name) for name in columns]
    if len(found) == 1:
        return found[0]
    return [None if None in parts else parts for parts in zip(*found, strict=True)]


def _numbers(table: Table, columns: Sequence[str], records: Ints) -> dict[Any, int]:
    """The number of each set that has a label, by its key; every key may occur only once."""
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
    given = [np.array([k is not None for k in table.keys(name)]) for name in spec.rows_columns]
    wanted = np.zeros(len(table), dtype=bool)
    wanted[records] = True
    members = np.column_stack(
        [
            _row_numbers(table, name, rows, id_column, wanted & there)[records]
            for name, there in zip(spec.rows_columns, given, strict=True)
        ]
    )
    there = np.column_stack(given)[records]
    sizes = there.sum(1)
    if not sizes.all():
        at = int(records[int((sizes == 0).argmax())])
        raise table.wrong(at, spec.rows_columns[0], "the set has no members")
    return members[there], sizes


def _row_numbers(
    table: Table, column: str, rows: Table, id_column: str, wanted: NDArray[np.bool_]
) -> Ints:
    """The row that each name stands for (−1 where it is not `wanted`)."""
    keys = table.keys(column)
    out: list[int] = [-1] * len(table)
    order = rows.order(id_column)
    for i in np.flatnonzero(wanted).tolist():
        found = order.get(keys[i])
        if found is None:
            what = f"{rows.path} has no row with {id_column} {keys[i]!r}"
            if not id_column:
                what = (
                    f"expected a row number from 0 to {len(rows) - 1:,}, got {keys[i]!r} (if rows "
                    f"have names, say which column holds them: --id)"
                )
            raise table.wrong(i, column, what)
        out[i] = found
    return np.array(out, dtype=np.int64)
