"""y as the user gave it: an array, lists, a column or a frame of any library."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from setwise.errors import absent
from setwise.frames import is_frame

__all__ = ["Given", "given"]

Ints = NDArray[np.int64]


class Given(NamedTuple):
    """y as given: numbers in an array or in lists, or a list of anything, None where missing."""

    values: Any
    texts: bool = False  # whether there are texts among the values
    columns: tuple[str, ...] | None = None  # their names, where y was a frame
    order: tuple[Any, ...] | None = None  # of the categories, where they have one

    def listed(self, who: object) -> list[Any]:
        """The values as a list of one for each set."""
        if np.ndim(self.values) != 1:
            raise ValueError(f"{who!r} needs one y for each set, got {np.shape(self.values)}")
        return self.values.tolist() if hasattr(self.values, "tolist") else list(self.values)

    def take(self, numbers: Ints) -> Given:
        """The entries of these sets."""
        values = self.values
        some = values[numbers] if hasattr(values, "shape") else [values[i] for i in numbers]
        return self._replace(values=some)

    def same(self, i: int, j: int) -> bool:
        """Whether two sets have the same y."""
        return np.array_equal(np.asarray(self.values[i]), np.asarray(self.values[j]))


def given(y: Any) -> Given:
    """y from an array, a list, a column, or a frame of any library."""
    if isinstance(y, Given):
        return y
    if y is None or isinstance(y, Tensor):
        return Given(y)
    if is_frame(y):
        import narwhals as nw

        table: Any = nw.from_native(y, eager_only=True)
        columns = [given(table.get_column(name).to_native()) for name in table.columns]
        if len(columns) == 1:
            return columns[0]
        texts = any(column.texts for column in columns)
        kind = object if texts else np.float64
        stacked = np.column_stack([np.asarray(column.values, kind) for column in columns])
        return Given(stacked, texts, tuple(map(str, table.columns)))
    if isinstance(y, np.ndarray) and y.dtype.kind in "fiub":
        return Given(y)
    order = _order(y)
    for name in ("to_pylist", "to_list", "tolist"):
        if hasattr(y, name):
            y = getattr(y, name)()
            break
    values: list[Any] = list(y)
    if any(np.ndim(v) for v in values):  # lists of numbers
        return Given(values)
    values = [None if absent(v) else v for v in values]
    return Given(values, any(isinstance(v, str) for v in values), None, order)


def _order(column: Any) -> tuple[Any, ...] | None:
    """The categories of a column whose categories are in order."""
    kind: Any = getattr(column, "dtype", None)
    if getattr(kind, "ordered", False):  # pandas
        return tuple(kind.categories.tolist())
    if type(kind).__name__ == "Enum":  # polars
        return tuple(kind.categories.to_list())
    return None
