"""Sets whose members go by the ids of rows: pairs, triplets, lists of winners."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from setwise.errors import SetError, absent
from setwise.frames import is_frame

__all__ = ["ByIds", "column_values", "lines_of", "listed_rows", "places_of"]

Ints = NDArray[np.int64]


class ByIds:
    """The part of `Sets` that reads ids."""

    @classmethod
    def from_ids(cls, members: Any, ids: Any) -> Self:
        """Sets whose members are named by ids of any type, one set per line of `members`.

        `members` is a data frame whose columns hold ids (pandas, polars, pyarrow), an array, or a
        list of tuples of any lengths; `ids` are the ids of the rows, in the order of the rows: a
        list, an array, or a column. An empty field is no member.

        >>> import setwise as sw
        >>> sets = sw.Sets.from_ids([("Ann", "Bob"), ("Cem", "Ann")], ids=["Ann", "Bob", "Cem"])
        >>> sets[1].tolist()
        [2, 0]
        """
        place = places_of(ids)
        return cls([_places(i, names, place) for i, names in enumerate(lines_of(members))])  # type: ignore[call-arg]


def places_of(ids: Any) -> dict[Any, int]:
    """The row of each id."""
    place: dict[Any, int] = {}
    for row, name in enumerate(column_values(ids)):
        if absent(name):
            raise ValueError(f"row {row} has no id (missing value): give each row one")
        if place.setdefault(name, row) != row:
            raise ValueError(
                f"{name!r} is the id of row {place[name]} and of row {row}: an id names one row"
            )
    return place


def listed_rows(frame: Any) -> list[list[int]]:
    """Row numbers in the columns of a frame, line by line; an empty field is no member."""
    out = []
    for i, line in enumerate(lines_of(frame)):
        for value in line:
            if not isinstance(value, int | np.integer | float) or value != int(value):
                raise TypeError(
                    f"set {i} of this frame has {value!r} in place of a row number: where members "
                    f"have ids use Sets.from_ids(frame, ids), for a long table with a line per "
                    f"member Sets.from_frame(frame, set=…, row=…)"
                )
        out.append([int(value) for value in line])
    return out


def _places(number: int, names: list[Any], place: dict[Any, int]) -> list[int]:
    try:
        return [place[name] for name in names]
    except (KeyError, TypeError):
        lost = next(name for name in names if name not in place)
        like = ", ".join(map(repr, list(place)[:3]))
        raise SetError(
            number, f"names {lost!r}, which is the id of no row; ids look like {like}"
        ) from None


def lines_of(members: Any, empty: bool = False) -> list[list[Any]]:
    """The entries of each line, without those that are empty unless they are wanted as well."""
    if is_frame(members):
        import narwhals as nw

        table = nw.from_native(members, eager_only=True)
        members = zip(*(table.get_column(name).to_list() for name in table.columns), strict=True)
    elif hasattr(members, "tolist"):
        members = members.tolist()
    lines = list(members)
    for i, line in enumerate(lines):
        if isinstance(line, str | bytes) or not hasattr(line, "__iter__"):
            raise TypeError(
                f"line {i} of members is {line!r}: expected several ids for each set, as in "
                f"[('Ann', 'Bob'), …] or frame[['winner', 'loser']]"
            )
    return [[name for name in line if empty or not absent(name)] for line in lines]


def column_values(column: Any) -> list[Any]:
    """A list, array, index or column as a list."""
    if is_frame(column):
        raise TypeError("ids are one column, such as frame['name'], got a whole frame")
    for name in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, name):
            return list(getattr(column, name)())
    return list(column)
