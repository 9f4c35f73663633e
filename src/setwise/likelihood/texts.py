"""y as people write it, in numbers: yes and no, win, loss and tie, names of classes.

What a text means follows from the outcome that an aggregate declares, so that all aggregates read
the same words. What is not clear is an error that shows how to say it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from setwise.errors import SetError, absent
from setwise.frames import is_frame, key

__all__ = ["TIES", "Given", "against", "class_codes", "given", "spoken_numbers", "words_of"]

Ints = NDArray[np.int64]

YES_NO = {
    **dict.fromkeys(("yes", "true", "positive", "y", "t", "pos", "present"), 1.0),
    **dict.fromkeys(("no", "false", "negative", "n", "f", "neg", "absent"), 0.0),
}
TIES = ("tie", "draw", "equal", "tied", "drawn", "even", "=", "1/2-1/2", "½-½")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


class Given(NamedTuple):
    """y as it came: numbers in an array or in lists, or a list of anything, None where missing."""

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
        """Those of these sets."""
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


# ---- labels with two values, or three


def words_of(values: Sequence[float], own: Mapping[str, float], members: Any) -> dict[str, float]:
    """Every word that is clear: its own, those that point at a member, and yes and no.

    >>> words_of([0.0, 0.5, 1.0], {"win": 1.0}, (1.0, 0.0))["b"]
    0.0
    """
    out = dict(own)
    pointing = [(j, value) for j, value in enumerate(members) if value is not None]
    for j, value in pointing:
        out |= {"abcdefgh"[j]: value, ORDINALS[j]: value}
    if len(members) == 2:
        out |= dict(zip(("left", "right"), members, strict=True))
    if {0.0, 1.0} <= {*values} <= {0.0, 0.5, 1.0}:
        out |= {word: value for word, value in YES_NO.items() if word not in out}
    if len(values) == 3:
        out |= dict.fromkeys(TIES, sorted(values)[1])
    return out


def spoken_numbers(
    who: object,
    values: Sequence[Any],
    words: Mapping[str, float],
    unclear: Callable[[Any, Mapping[str, float]], str],
) -> list[float]:
    """Numbers in place of words; `unclear` says what to do about a value that is none of them."""
    found = Counter(v for v in values if v is not None)
    meant = {value: _meant(value, words) for value in found}
    for value, number in meant.items():
        if number is None:
            raise ValueError(
                f"{who!r}: y is {_listed(found)}, and what {value!r} means is not clear: "
                f"{unclear(value, words)}"
            )
    return [math.nan if v is None else meant[v] for v in values]  # type: ignore[misc]


def _meant(value: Any, words: Mapping[str, float]) -> float | None:
    """The number that a value stands for, None where that is not clear."""
    if isinstance(value, str):
        word = value.strip().casefold()
        if word in words:
            return words[word]
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def against(
    who: object, values: Sequence[Any], positive: Any, numbers: Sequence[float]
) -> list[float]:
    """The largest of the numbers for `positive`, the smallest for the other value that there is.

    Where there are three numbers, a tie is the one between.
    """
    found = Counter(v for v in values if v is not None)
    wanted = key(positive).casefold()
    out, others = {}, []
    for value in found:
        word = key(value).casefold()
        if word == wanted:
            out[value] = numbers[-1]
        elif word in TIES and len(numbers) == 3:
            out[value] = numbers[1]
        else:
            out[value] = numbers[0]
            others.append(word)
    if numbers[-1] not in out.values():
        raise ValueError(f"{who!r}: positive={positive!r} does not occur in y, {_listed(found)}")
    if len({*others}) > 1:
        raise ValueError(
            f"{who!r}: with positive={positive!r} one other label is expected, but y is "
            f"{_listed(found)}: leave the others out, or write them as one"
        )
    return [math.nan if v is None else float(out[v]) for v in values]


def _listed(found: Counter[Any]) -> str:
    """The most frequent values, and how often they occur."""
    shown = [f"{v!r} ({f'{n:,} times' if n > 1 else 'once'})" for v, n in found.most_common(4)]
    return ", ".join(shown) + (f" and {len(found) - 4:,} more" if len(found) > 4 else "")


# ---- classes


def class_codes(who: object, values: Sequence[Any], classes: Sequence[Any]) -> list[float]:
    """The numbers of the classes that the values name."""
    order = {label: float(i) for i, label in enumerate(classes)}
    if len(order) < len(classes):
        raise ValueError(f"classes= needs distinct labels, got {list(classes)[:20]}")
    out = []
    for i, value in enumerate(values):
        number = np.nan if value is None else order.get(value)
        if number is None:
            raise SetError(i, f"has y = {value!r}: {who!r} expects one of {list(classes)[:20]}")
        out.append(number)
    return out
