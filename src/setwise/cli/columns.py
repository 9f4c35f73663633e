"""The feature columns of a model, and how rows of a file become the table that its learner takes.

They are kept beside the model, so that files may list their columns in any order.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from setwise._facts import checked
from setwise.cli.common import Mistake
from setwise.cli.config import FitSpec
from setwise.cli.files import arrow, floats, is_number, is_numeric, is_text, key
from setwise.cli.tables import Table
from setwise.io.persistence import notes_of

__all__ = ["Column", "Columns", "choose_columns"]

KEPT = "columns"  # what the notes of a saved model call them
Kind = Literal["number", "flag", "date", "category"]
DAY = 86_400_000_000  # microseconds
MOSTLY = 0.5  # a column of texts with a larger share of numbers is meant to hold numbers
SEVERAL = 20  # from so many rows on, a text that differs in most of them is a name of the row
LEVELS = 100  # at most so many categories, the most frequent ones, become columns of their own


@dataclass
class Column:
    """One feature: a number, flag or date, or one of these categories."""

    name: str
    kind: Kind
    categories: list[str] = field(default_factory=list)
    fill: float | None = None  # for a number that is missing, where the learner needs one

    @property
    def type(self) -> Any:
        """The pyarrow type to read the column as, from a file that does not state types."""
        pa = arrow()
        types = {"number": pa.float64(), "flag": pa.bool_(), "date": pa.timestamp("us")}
        return types.get(self.kind, pa.string())

    def numbers(self, column: Any) -> NDArray[np.float64]:
        """The values as numbers, NaN where missing; a date is the days since 1970."""
        pa = arrow()
        if self.kind == "date":
            return floats(column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())) / DAY
        if self.kind == "flag" and is_text(column.type):
            column = column.cast(pa.bool_())
        return floats(column)

    def codes(self, column: Any) -> NDArray[np.int64]:
        """The number of each value's category; −1 where it is missing or unknown."""
        pa = arrow()
        found = pa.compute.index_in(texts(column), value_set=pa.array(self.categories, pa.string()))
        return np.array(found.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


def texts(column: Any) -> Any:
    """A column as texts; whole numbers without a decimal point."""
    pa = arrow()
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        values = column.to_pylist()
        return pa.array([None if v is None or v != v else key(float(v)) for v in values])
    return column.cast(pa.string())


@dataclass
class Columns:
    """The features of a model in their order, and what else `predict` needs to know."""

    features: list[Column]
    one_hot: bool = False  # categories as columns of 0 and 1, and no missing numbers
    id: str | None = None
    missing: list[str] = field(default_factory=list)

    @property
    def types(self) -> dict[str, Any]:
        """The columns to read from a file, with their types."""
        return {column.name: column.type for column in self.features}

    def encode(self, data: Any, path: Path) -> tuple[Any, dict[str, int]]:
        """Rows as a pandas frame for the learner, and how many values are unknown categories."""
        pa = arrow()
        import pandas as pd

        out: dict[str, Any] = {}
        unknown: dict[str, int] = {}
        for column in self.features:
            values = data.column(column.name)
            if column.kind != "category":
                try:
                    numbers = column.numbers(values)
                except pa.ArrowException as error:
                    raise Mistake(
                        f"{path}, column {column.name}: expected a {column.kind}, got "
                        f"{values.type} ({str(error).splitlines()[0]})"
                    ) from None
                if self.one_hot:
                    numbers = np.where(np.isnan(numbers), column.fill or 0.0, numbers)
                out[column.name] = numbers
                continue
            codes = column.codes(values)
            lost = int((codes < 0).sum()) - values.null_count
            if lost > 0 and not (self.one_hot and len(column.categories) == LEVELS):
                unknown[column.name] = lost
            if self.one_hot:
                for i, name in enumerate(column.categories):
                    out[f"{column.name}={name}"] = (codes == i).astype(np.float64)
            else:
                out[column.name] = pd.Categorical.from_codes(codes, column.categories)
        return pd.DataFrame(out), unknown

    def notes(self) -> dict[str, Any]:
        """Itself, to be kept beside a model."""
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


def choose_columns(
    rows: Table, spec: FitSpec, others: Collection[str], one_hot: bool
) -> tuple[list[Column], list[str]]:
    """The feature columns, and a remark for each column that is left out because it is of no use.

    By default, all columns but `others` are features.
    """
    for name in (*spec.features, *spec.drop, *spec.categories):
        rows.column(name)
    wanted = spec.features or [n for n in rows.names if n not in others or n in spec.categories]
    out: list[Column] = []
    remarks: list[str] = []
    for name in wanted:
        if name in spec.drop:
            continue
        column = _column(rows, name, name in spec.categories, LEVELS if one_hot else None)
        if isinstance(column, Column):
            out.append(column)
        elif name in spec.features:
            raise Mistake(f"{rows.path}, column {column}")
        else:
            remarks.append(column)
    if not out:
        raise Mistake(f"{rows.path}: no feature is left; its columns are {', '.join(rows.names)}")
    return out, remarks


def _column(rows: Table, name: str, as_category: bool, most: int | None) -> Column | str:
    """The column, with its `most` frequent categories, or a remark why it is of no use."""
    pa = arrow()
    values = rows.column(name)
    kind = values.type
    if values.null_count == len(rows):
        return f"{name}: every value is missing"
    if not as_category:
        if pa.types.is_boolean(kind):
            return Column(name, "flag", fill=0.0)
        is_date = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        if is_date or is_numeric(kind):
            made = Column(name, "date" if is_date else "number")
            numbers = made.numbers(values)
            infinite = np.isinf(numbers)
            if infinite.any():
                raise rows.wrong(int(infinite.argmax()), name, "expected a finite number, got inf")
            made.fill = float(np.nanmedian(numbers)) if not np.isnan(numbers).all() else 0.0
            return made
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return f"{name}: of type {kind}"
    found = Counter(v for v in texts(values).to_pylist() if v is not None)
    total = sum(found.values())
    if not as_category:
        numeric = sum(count for text, count in found.items() if is_number(text))
        if MOSTLY * total < numeric < total:
            listed = values.to_pylist()
            at = next(i for i, v in enumerate(listed) if v is not None and not is_number(v))
            raise rows.wrong(
                at, name,
                f"expected a number as in {numeric:,} other rows, got {listed[at]!r} (if that "
                f"means a missing value: --missing {listed[at]!r}; if these are categories: "
                f"--categories {shlex.quote(name)})",
            )  # fmt: skip
        if len(found) > MOSTLY * len(rows) and len(rows) >= SEVERAL:
            return f"{name}: {len(found):,} different texts in {len(rows):,} rows"
    return Column(name, "category", sorted(text for text, _ in found.most_common(most)))
