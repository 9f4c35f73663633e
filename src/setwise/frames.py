"""Data frames as learners read them: each column is a number, a flag, a date or one of some texts.

An `Encoder` remembers what the columns of a frame are; `encode` turns rows of any frame with these
columns into numbers. Each learner reads them in its own way: trees take codes of categories
and missing values, others take columns of 0 and 1, and medians in place of what is missing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from decimal import Decimal
from numbers import Real
from typing import Any, TypedDict

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from setwise._facts import checked
from setwise.errors import absent

__all__ = ["LARGEST", "Column", "ColumnError", "Encoded", "Encoder", "is_frame", "key"]

Floats = NDArray[np.float64]
DAY = 86_400_000_000  # microseconds
MOSTLY = 0.5  # a column of texts with a larger share of numbers is meant to hold numbers
SEVERAL = 20  # from so many rows on, a text that differs in most of them is a name of the row
LEVELS = 100  # at most so many categories, the most frequent ones, become columns of their own
LARGEST = 1e38  # trees read features as float32, which ends at 3.4e38
KINDS = ("number", "flag", "date", "category")
ZEROS = re.compile(r"\s*-?0\d")  # texts such as 007 are codes
ISO = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?")


class ColumnError(ValueError):
    """An error about one value of a frame, in row `row` of `column`; `said` is what is wrong."""

    def __init__(self, row: int, column: str, said: str) -> None:
        super().__init__(row, column, said)
        self.row, self.column, self.said = row, column, said

    def __str__(self) -> str:
        return f"X, row {self.row}, column {self.column!r}: {self.said}"


def is_frame(X: Any) -> bool:
    """Whether X is a data frame: its columns have names."""
    return hasattr(X, "columns") or hasattr(X, "column_names")


def key(value: Any) -> str:
    """A value as text, the same for 7, 7.0 and "7"."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


@dataclass(frozen=True)
class Column:
    """One feature: a number, or one of these categories, each of which has a share of the rows."""

    name: str
    kind: str
    fill: float = 0.0  # the median, in place of a number that is missing
    categories: Sequence[str] = ()  # those that become columns of their own first
    shares: Sequence[float] = ()

    def read(self, column: Any) -> Floats:
        """The values of a narwhals column as numbers or codes; NaN where missing or unknown."""
        kind, values = _plain(column)
        if self.kind == "category":
            if kind in ("number", "flag", "date"):
                values = [None if absent(v) else key(v) for v in column.to_list()]
            if values is None:
                raise self._wrong(column, 0)
            codes = {text: float(i) for i, text in enumerate(self.categories)}
            return np.array([codes.get(v, np.nan) for v in values])
        if kind == "text":
            numbers = [self._number(column, i, v) for i, v in enumerate(values)]
            return _finite(self.name, np.array(numbers, np.float64))
        fits = kind == self.kind or (kind in ("number", "flag") and self.kind != "date")
        if values is None or not (fits or np.isnan(values).all()):
            raise self._wrong(column, 0)
        return _finite(self.name, values)

    def _number(self, column: Any, row: int, text: str | None) -> float:
        try:
            if text is None:
                return np.nan
            if self.kind == "date":
                return float(_days([text])[0])
            if self.kind == "flag":
                return {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}[text.strip().lower()]
            return float(text)
        except (ValueError, KeyError):
            raise self._wrong(column, row) from None

    def _wrong(self, column: Any, row: int) -> ColumnError:
        return ColumnError(row, self.name, f"expected a {self.kind}, got {column[row]!r}")

    @property
    def own(self) -> slice:
        """The categories that become columns of 0 and 1: all but the first, or the frequent."""
        return slice(1, None) if len(self.categories) <= LEVELS else slice(0, LEVELS)

    def dense(self, values: Floats, missing: bool) -> Floats:
        """The output of `read` as one column of numbers, or several of 0 and 1.

        Missing or unknown values count as average: the median, or the shares of the categories.
        With `missing` it stays NaN in a column of numbers.
        """
        known = ~np.isnan(values)
        if self.kind != "category":
            return (values if missing else np.where(known, values, self.fill))[:, None]
        out = values[:, None] == np.arange(len(self.categories))[self.own]
        return np.where(known[:, None], out, np.array(self.shares)[self.own])


@dataclass(frozen=True)
class Encoded:
    """Rows of a frame in numbers: a line for each, NaN where missing; categories are codes."""

    values: Floats
    encoder: Encoder
    unknown: dict[str, int] = field(default_factory=dict)  # texts that the fit has not seen

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Encoded:
        return Encoded(self.values[rows], self.encoder)

    def dense(self, missing: bool = False) -> Floats:
        """Numbers only: categories as columns of 0 and 1; nothing is missing unless `missing`."""
        pairs = zip(self.encoder.columns, self.values.T, strict=True)
        return np.hstack([column.dense(values, missing) for column, values in pairs])

    def frame(self) -> Any:
        """A pandas frame, with categories as such."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("trees on a data frame need pandas: pip install pandas") from error
        out: dict[str, Any] = {}
        for column, values in zip(self.encoder.columns, self.values.T, strict=True):
            out[column.name] = values
            if column.kind == "category":
                codes = np.where(np.isnan(values), -1, values).astype(np.int64)
                out[column.name] = pd.Categorical.from_codes(codes, list(column.categories))
        return pd.DataFrame(out)


class Facts(TypedDict):
    """The saved form of an encoder."""

    columns: list[Column]
    left_out: dict[str, str]


class Encoder:
    """What the columns of a data frame are, so that later frames are read the same way.

    Numbers of any type (decimals, nullable ones, texts that are all numbers) are numbers, booleans
    become 0 and 1, dates the days since 1970; texts and categories are categories. Trees read
    these, and missing values, as they are. Other learners get a column of 0 and 1 for each category
    but the first (of more than 100 for the 100 most frequent), and what is missing or unknown
    counts as average. An estimator that is fitted to a frame makes an encoder, `encoder_`, and
    saves it.

    Attributes:
        columns: The features in their order.
        left_out: Columns that are of no use, and why.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": [30, None, 50], "job": ["clerk", "doctor", "clerk"]})
    >>> encoder = Encoder.of(frame)
    >>> encoder.names(one_hot=True)
    ['age', 'job=doctor']
    >>> encoder.encode(frame[["job", "age"]]).dense().tolist()
    [[30.0, 0.0], [40.0, 1.0], [50.0, 0.0]]
    """

    def __init__(self, columns: Iterable[Column], left_out: dict[str, str] | None = None) -> None:
        self.columns = list(columns)
        self.left_out = dict(left_out or {})

    @classmethod
    def of(cls, frame: Any, categories: Collection[str] = ()) -> Encoder:
        """The encoder of this frame; `categories` names columns of numbers that are categories."""
        table = _table(frame)
        return cls.found(
            {
                str(name): _column(str(name), table.get_column(name), name in categories)
                for name in table.columns
            }
        )

    @classmethod
    def found(cls, columns: Mapping[str, Column | str]) -> Encoder:
        """The encoder of these columns, by name: a feature, or why the column is of no use."""
        left_out = {name: why for name, why in columns.items() if isinstance(why, str)}
        if len(left_out) == len(columns):
            raise ValueError(
                f"X has no column that can be a feature: "
                f"{'; '.join(f'{n}: {why}' for n, why in left_out.items()) or 'it has none'}"
            )
        return cls((c for c in columns.values() if isinstance(c, Column)), left_out)

    def encode(self, frame: Any) -> Encoded:
        """The rows of a frame; columns may be in any order, and additional ones are ignored."""
        if isinstance(frame, Encoded):
            return frame
        table = _table(frame)
        names = {str(name): name for name in table.columns}
        self.check([*names])
        values = np.empty((len(table), len(self.columns)))
        unknown: dict[str, int] = {}
        for j, column in enumerate(self.columns):
            given = table.get_column(names[column.name])
            values[:, j] = column.read(given)
            if column.kind == "category":
                count = int(np.isnan(values[:, j]).sum()) - sum(map(absent, given.to_list()))
                unknown |= {column.name: count} if count else {}
        return Encoded(values, self, unknown)

    def check(self, names: Sequence[str]) -> None:
        """Raises unless a table with columns of these names has all that are needed."""
        if lost := [column.name for column in self.columns if column.name not in names]:
            raise ValueError(
                f"X has no column {lost[0]!r}, which the model was fitted with"
                + (f" ({len(lost)} columns are missing: {lost[:8]})" if len(lost) > 1 else "")
                + f"; it has {list(names)[:12]}"
            )

    @property
    def has_categories(self) -> bool:
        """Whether some columns are categories."""
        return any(column.kind == "category" for column in self.columns)

    def names(self, one_hot: bool = False) -> list[str]:
        """The names of the features, or of the columns of numbers that are made of them."""
        if not one_hot:
            return [column.name for column in self.columns]
        made = [
            [f"{c.name}={t}" for t in c.categories[c.own]] if c.kind == "category" else [c.name]
            for c in self.columns
        ]
        return [name for names in made for name in names]

    def facts(self) -> dict[str, Any]:
        """The encoder, ready for JSON."""
        columns = [asdict(c) for c in self.columns]
        for told in columns:
            told["categories"], told["shares"] = list(told["categories"]), list(told["shares"])
        return {"columns": columns, "left_out": self.left_out}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Encoder:
        """The encoder that `facts` describes; a ValueError if it describes none."""
        told: Facts = checked(facts, Facts, "the columns")
        columns, names = told["columns"], [column.name for column in told["columns"]]
        bad = [c.name for c in columns if c.kind not in KINDS or len(c.shares) != len(c.categories)]
        if bad or not columns or len({*names}) < len(names):
            raise ValueError(f"no description of columns: {bad[:5] or names[:5]}")
        return cls(columns, told["left_out"])


def _table(frame: Any) -> Any:
    names = frame.column_names if hasattr(frame, "column_names") else frame.columns
    twice = [name for name, count in Counter(map(str, names)).items() if count > 1]
    if twice:
        raise ValueError(f"X has more than one column {twice[0]!r}: each needs a name of its own")
    return nw.from_native(frame, eager_only=True)


def _column(name: str, column: Any, as_category: bool) -> Column | str:
    """The column, or why it is of no use."""
    kind, values = _plain(column)
    if values is None:
        return f"of type {kind}"
    if as_category and kind != "text":
        kind, values = "text", [None if absent(v) else key(v) for v in column.to_list()]
    if kind != "text":
        return column_of_numbers(name, kind, _finite(name, values)[~np.isnan(values)])
    found = Counter(v for v in values if v is not None)
    return column_of_texts(name, found, len(values), as_category, odd_texts(values))


def column_of_numbers(name: str, kind: str, known: Floats) -> Column | str:
    """The column with these values (missing ones left out), or why it is of no use."""
    if not len(known):
        return "every value is missing"
    return Column(name, kind, fill=0.0 if kind == "flag" else float(np.median(known)))


def odd_texts(values: Iterable[str | None]) -> tuple[int, int]:
    """The first rows with a text that is not a number, and with an infinite one; −1 if none."""
    finite = [
        True if v is None else math.isfinite(float(v)) if _is_number(v) else None for v in values
    ]
    return (
        next((i for i, f in enumerate(finite) if f is None), -1),
        next((i for i, f in enumerate(finite) if f is False), -1),
    )


def column_of_texts(
    name: str, found: Counter[str], rows: int, as_category: bool, odd: tuple[int, int]
) -> Column | str:
    """The column with these counts of texts, or why it is of no use; see `odd_texts`."""
    if not found:
        return "every value is missing"
    if not as_category:
        times = [*found.values()]
        if all(ISO.fullmatch(text) for text in found):
            return Column(name, "date", fill=float(np.median(np.repeat(_days([*found]), times))))
        numeric = sum(n for text, n in found.items() if _is_number(text))
        if MOSTLY * found.total() < numeric < found.total():
            text = next(text for text in found if not _is_number(text))
            raise ColumnError(
                odd[0], name, f"expected a number as in {numeric:,} other rows, got {text!r}"
            )
        if numeric == found.total() and not any(ZEROS.match(text) for text in found):
            if odd[1] >= 0:
                raise ColumnError(odd[1], name, "expected a finite number, got inf")
            known = np.repeat([float(text) for text in found], times)
            return Column(name, "number", fill=float(np.median(known)))
        if len(found) > MOSTLY * rows and rows >= SEVERAL:
            return f"{len(found):,} different texts in {rows:,} rows"
    most = sorted(text for text, _ in found.most_common(LEVELS))
    texts = (*most, *sorted(found.keys() - {*most}))
    return Column(name, "category", 0.0, texts, [found[text] / found.total() for text in texts])


def _plain(column: Any) -> tuple[str, Any]:
    """The kind of a column and its values: floats, or a list of texts; None for other things."""
    kind = column.dtype
    if kind.is_numeric():
        return "number", _floats(column)
    if kind == nw.Boolean:
        return "flag", _floats(column)
    if kind in (nw.Datetime, nw.Date):
        moments = column.cast(nw.Datetime("us")) if kind == nw.Date else column
        return "date", _floats(moments.dt.timestamp("us")) / DAY
    if kind not in (nw.String, nw.Categorical, nw.Enum, nw.Object, nw.Unknown):
        return str(kind), None
    values = [None if absent(v) else v for v in column.to_list()]
    known = [v for v in values if v is not None]
    if known and all(isinstance(v, bool | np.bool_) for v in known):
        return "flag", np.array([np.nan if v is None else float(v) for v in values])
    if known and kind not in (nw.Categorical, nw.Enum):
        if all(isinstance(v, Real | Decimal) for v in known):
            return "number", np.array([np.nan if v is None else float(v) for v in values])
        if all(isinstance(v, date | np.datetime64) for v in known):
            return "date", _days([None if v is None else str(v) for v in values])
    if not all(isinstance(v, str | Real | Decimal | date) for v in known):
        return type(next(v for v in known if not isinstance(v, str))).__name__, None
    return "text", [v if v is None or isinstance(v, str) else key(v) for v in values]


def _floats(column: Any) -> Floats:
    try:
        return np.array(column.cast(nw.Float64).to_numpy(), dtype=np.float64)
    except Exception:  # pyarrow refuses whole numbers that floats round
        values = column.to_list()
        return np.array([np.nan if absent(v) else float(v) for v in values], dtype=np.float64)


def _days(texts: Sequence[str | None]) -> Floats:
    """Days since 1970 of dates such as 2024-12-31 and 2024-12-31 23:59:59."""
    moments = np.array([t or "NaT" for t in texts], dtype="datetime64[us]")
    return np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / DAY)


def _finite(name: str, values: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        far = np.abs(values) > LARGEST
    if far.any():
        row = int(far.argmax())
        said = "a finite number" if np.isinf(values[row]) else f"a number of at most {LARGEST:g}"
        raise ColumnError(row, name, f"expected {said}, got {values[row]:g}")
    return values


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
