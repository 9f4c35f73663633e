"""Observations of sets identified by names: groups of rows, and lists of the ids of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from setwise._given import Given, given
from setwise._ids import column_values, lines_of, places_of
from setwise._matching import (
    NO_Y,
    SHORT,
    UNKNOWN_ID,
    WITHOUT_GROUP,
    Mismatch,
    Unmatched,
    match_groups,
    settle,
)
from setwise.errors import SetError, absent
from setwise.frames import is_frame
from setwise.sets import Sets

if TYPE_CHECKING:
    from setwise.likelihood import Aggregate

__all__ = ["ByName", "grouped", "listed_members"]

Ints = NDArray[np.int64]


class ByName:
    """The part of `Observations` that matches names.

    Attributes:
        left_out: What did not match, and how often.
    """

    left_out: dict[str, int]

    @classmethod
    def from_groups(
        cls,
        aggregate: Aggregate,
        labels: Any,
        y: Any = None,
        *,
        rows: Any = None,
        ids: Any = None,
        weights: Any = None,
        counts: Any = None,
        positive: Any = None,
        classes: Sequence[Any] | None = None,
        missing: str | None = None,
    ) -> Self:
        """Observations of groups of rows: `labels` per row, `y` keyed by group label.

        `labels` are a list, an array or a column; of groups with names of several parts a frame, or
        tuples. `y` is a dict, a pandas Series or DataFrame whose index holds the labels, or a
        polars or pyarrow table whose first column does. Where rows are in several groups, give a
        long table with a line per member: `labels` and `rows` are its columns, and `rows` are
        numbers of rows, or with `ids` (one for each row of X) their ids. `weights` and `counts` of
        members are arranged as `labels` are.

        Rows without a group, groups without rows and groups without y are left out, repeated lines
        count once, and `left_out` has the numbers; a y that is lost gives a warning.
        `missing="drop"` leaves out silently, with `missing="error"` nothing may be missing. Two
        different y of one group are always an error.

        >>> import setwise as sw
        >>> sw.Observations.from_groups(sw.Sum(), ["b", "a", "b"], {"a": 1.0, "b": 5.0}).y.tolist()
        [5.0, 1.0]
        >>> means = sw.Observations.from_groups(
        ...     sw.Mean(), ["a", "b", None], {"a": 1.0, "b": 5.0, "c": 2.0}, missing="drop"
        ... )
        >>> means.left_out
        {'rows without a group': 1, 'groups without rows': 1}
        """
        stored = labels.sets() if rows is None and hasattr(labels, "sets") else None
        groups = _groups(labels) if stored is None else stored.names.tolist()
        told, known = None, np.zeros(0, dtype=bool)
        if y is None:
            keys: list[Any] = [*dict.fromkeys(name for name in groups if not absent(name))]
            known = np.ones(len(keys), dtype=bool)
        else:
            keys, table = _keyed(y)
            told, known = aggregate.table(given(table))
        if stored is not None:  # whose groups are sets already
            which, entries, left = match_groups(
                groups, keys, lambda i, j: told is None or told.same(i, j), known
            )
            if lost := len(labels) - int(stored.offsets[-1]):
                left.counts[WITHOUT_GROUP] = lost
            sets = stored.take(np.flatnonzero(which >= 0))
            for name, each in (("weights", weights), ("counts", counts)):
                if each is not None:
                    sets = Sets(sets, **{name: np.asarray(column_values(each))[sets.indices]})
            some = None if told is None else told.take(entries)
            return cls._made(aggregate, sets, some, settle(left, missing), positive, classes)
        place = None if ids is None else places_of(ids)
        listed = None if rows is None else column_values(rows)
        sets, entries, left = grouped(groups, keys, told, known, listed, place, weights, counts)
        some = None if told is None else told.take(entries)
        return cls._made(aggregate, sets, some, settle(left, missing), positive, classes)

    @classmethod
    def from_ids(
        cls,
        aggregate: Aggregate,
        members: Any,
        ids: Any,
        y: Any = None,
        weight: Any = None,
        by: Any = None,
        *,
        positive: Any = None,
        classes: Sequence[Any] | None = None,
        missing: str | None = None,
    ) -> Self:
        """Observations of sets that list the ids of their rows: pairs, triplets, rankings.

        `members` and `ids` are those of `Sets.from_ids`, and `y` has one entry for each line. Where
        y points at a member (`Rank`, `Choice`, `Triplet`), it may be the member's id, or the name
        of the column that has it. Where that and a number are both possible, it is an error; so is
        an id of a row that is not in its set. Without y, `Rank` takes the first for the winner.

        Sets without y, with an empty field or with an id of no row are left out, see `from_groups`.

        >>> import setwise as sw
        >>> games, people = [("Ann", "Bob"), ("Cem", "Ann"), ("Bob", "Cem")], ["Ann", "Bob", "Cem"]
        >>> sw.Observations.from_ids(sw.Rank(), games, people, ["Bob", "Cem", "tie"]).y.tolist()
        [0.0, 1.0, 0.5]
        """
        place = places_of(ids)
        lines, columns = lines_of(members, empty=True), _columns(members)
        told, known = (None, np.ones(len(lines), bool)) if y is None else aggregate.table(given(y))
        if len(known) != len(lines):
            raise ValueError(f"y has {len(known)} entries for {len(lines)} lines of members")
        sets, kept, left = listed_members(lines, place, known, aggregate.size)
        some = None if told is None else told.take(kept)
        if some is not None:
            some = _pointed(aggregate, some, lines, kept, columns, place)
        counts = settle(left, missing)
        weight, by = (None if v is None else np.asarray(v)[kept] for v in (weight, by))
        return cls._made(aggregate, sets, some, counts, positive, classes, weight, by)

    @classmethod
    def _made(
        cls,
        aggregate: Aggregate,
        sets: Sets,
        y: Any,
        left_out: dict[str, int],
        positive: Any,
        classes: Sequence[Any] | None,
        weight: Any = None,
        by: Any = None,
    ) -> Self:
        out: Any = cls(aggregate, sets, y, weight, by, positive=positive, classes=classes)  # type: ignore[call-arg]
        out.left_out = left_out
        made: Self = out
        return made


def _pointed(
    aggregate: Aggregate,
    y: Given,
    lines: Sequence[Sequence[Any]],
    kept: Ints,
    columns: Sequence[str],
    place: Mapping[Any, int],
) -> Given:
    """y of the lines that are kept, with numbers where it points at members."""
    try:
        return aggregate.pointed(y, [lines[i] for i in kept], columns, place)
    except SetError as error:
        raise SetError(int(kept[error.set]), error.said) from None


def grouped(
    groups: Sequence[Any],
    keys: Sequence[Any],
    told: Given | None,
    known: NDArray[np.bool_],
    rows: Sequence[Any] | None = None,
    place: Mapping[Any, int] | None = None,
    weights: Any = None,
    counts: Any = None,
) -> tuple[Sets, Ints, Unmatched]:
    """The sets of groups that have a y, the entry of y of each, and what is left out."""
    which, entries, left = match_groups(
        groups, keys, lambda i, j: told is None or told.same(i, j), known
    )
    order = np.argsort(which, kind="stable")
    order = order[which[order] >= 0]
    members = _numbers(rows, place, order, which, left)
    kept = np.ones(len(entries), dtype=bool)
    kept[which[order][members < 0]] = False
    order, members = (part[kept[which[order]]] for part in (order, members))
    sizes = np.bincount(which[order], minlength=len(kept))[kept]
    sets = Sets(
        np.split(members, np.cumsum(sizes)[:-1]),
        weights=None if weights is None else np.asarray(column_values(weights))[order],
        counts=None if counts is None else np.asarray(column_values(counts))[order],
        names=_names([keys[i] for i in entries[kept]]),
    )
    return sets, entries[kept], left


def listed_members(
    lines: Sequence[Sequence[Any]],
    place: Mapping[Any, int],
    known: NDArray[np.bool_],
    size: int | None,
) -> tuple[Sets, Ints, Unmatched]:
    """The sets of lines that can be used, the numbers of these lines, and what is left out."""
    left, kept = Unmatched(), []
    for i, line in enumerate(lines):
        names = [name for name in line if not absent(name)]
        lost = [name for name in names if name not in place]
        if not known[i]:
            left.add(NO_Y, line, entry=i)
        elif not names or (len(names) < len(line) and size):
            left.add(SHORT, line, entry=i)
        elif lost:
            left.add(UNKNOWN_ID, lost[0], entry=i)
        else:
            kept.append(i)
    if not kept and lines:
        raise Mismatch(
            f"no line of members can be used: the first is {list(lines[0])}, ids look like "
            f"{[*islice(place, 3)]}",
            left.first.entry if left.first else None,
        )
    listed = [[place[name] for name in lines[i] if not absent(name)] for i in kept]
    return Sets(listed), np.array(kept, np.int64), left


def _groups(labels: Any) -> list[Any]:
    """The name of each row's group; tuples from a frame, None where a part is missing."""
    if not is_frame(labels):
        return column_values(labels)
    lines = lines_of(labels, empty=True)
    return [None if any(map(absent, line)) else tuple(line) for line in lines]


def _columns(members: Any) -> list[str]:
    if not is_frame(members):
        return []
    return [str(n) for n in getattr(members, "column_names", members.columns)]


def _keyed(y: Any) -> tuple[list[Any], Any]:
    """The names of groups, and what was seen of them, as a list, a column or a frame."""
    if isinstance(y, dict):
        return list(y), list(y.values())
    if hasattr(y, "index") and hasattr(y, "to_numpy"):  # pandas: labels are the index
        return y.index.tolist(), y
    import narwhals as nw

    table = nw.from_native(y, eager_only=True)
    if len(table.columns) < 2:
        raise ValueError(
            f"y needs a column of group labels and at least one column of values, got only "
            f"{table.columns}"
        )
    first, *rest = table.columns
    return table.get_column(first).to_list(), table.select(rest).to_native()


def _numbers(
    listed: Sequence[Any] | None,
    place: Mapping[Any, int] | None,
    order: Ints,
    which: Ints,
    left: Unmatched,
) -> Ints:
    """The row of each member, −1 where there is none of this id."""
    if listed is None:
        return order
    if len(listed) != len(which):
        raise ValueError(f"rows has {len(listed)} entries, labels have {len(which)}")
    if place is None:
        return np.asarray(Sets([[listed[i] for i in order]]).indices)
    found = np.array([place.get(listed[i], -1) for i in order], np.int64)
    lost = order[found < 0]
    for number in dict.fromkeys(which[lost].tolist()):
        at = int(lost[which[lost] == number][0])
        left.add(UNKNOWN_ID, listed[at], row=at)
    return found


def _names(names: list[Any]) -> NDArray[Any]:
    if not any(isinstance(name, tuple) for name in names):
        return np.asarray(names)
    out = np.empty(len(names), dtype=object)
    out[:] = names
    return out
