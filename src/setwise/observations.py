"""Observations: an aggregate, the sets it was taken of, and what was seen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from setwise._html import ObservationsHtml
from setwise.errors import check_each
from setwise.sets import Sets, chosen

if TYPE_CHECKING:
    from setwise.likelihood import Aggregate

__all__ = ["Observations"]


class Observations(ObservationsHtml):
    """What was seen of each set: `aggregate` of the members of `sets` gave `y`.

    `y` has one entry per set in the form that the aggregate needs (None for `Ranking`); `weight` is
    an optional non-negative number per set. Both are checked here. `by` says who labelled each set:
    what the aggregate has to learn ("learned") is then learned for each labeller.

    >>> import setwise as sw
    >>> sw.Observations(sw.Mean(), sw.Sets([[0, 1], [1, 2]]), [1.5, 2.5])
    Observations(Mean(), Sets(2 sets of 2 members))
    """

    aggregate: Aggregate
    sets: Sets
    y: NDArray[Any] | None
    weight: NDArray[np.float64] | None
    by: NDArray[Any] | None

    def __init__(
        self, aggregate: Aggregate, sets: Any, y: Any, weight: Any = None, by: Any = None
    ) -> None:
        self.aggregate = aggregate
        self.sets = sets if isinstance(sets, Sets) else Sets(sets)
        self.y = aggregate.check(self.sets, y)
        self.weight = None if weight is None else _weights(weight, len(self.sets))
        self.by = None if by is None else _labellers(aggregate, by, len(self.sets))

    @classmethod
    def from_groups(cls, aggregate: Aggregate, labels: Any, y: Any = None) -> Observations:
        """Observations of groups of rows: `labels` per row, `y` keyed by group label.

        `y` is a dict, a pandas Series or DataFrame whose index holds the labels, or a polars or
        pyarrow table whose first column does. Every group needs its y, and every y its group.

        >>> import setwise as sw
        >>> sw.Observations.from_groups(sw.Sum(), ["b", "a", "b"], {"a": 1.0, "b": 5.0}).y.tolist()
        [5.0, 1.0]
        """
        sets = Sets.from_groups(labels)
        if y is None:
            return cls(aggregate, sets, None)
        table = _keyed(y)
        assert sets.names is not None
        names = dict.fromkeys(sets.names.tolist())
        missing = [name for name in names if name not in table]
        if missing:
            raise ValueError(
                f"y has no entry for group {missing[0]!r} ({len(missing)} of {len(names)} groups "
                f"are missing); its keys look like {list(table)[:3]}"
            )
        extra = [name for name in table if name not in names]
        if extra:
            raise ValueError(
                f"y has an entry for group {extra[0]!r}, which has no rows ({len(extra)} such "
                f"entries): drop them or add the rows"
            )
        return cls(aggregate, sets, [table[name] for name in names])

    def __len__(self) -> int:
        return len(self.sets)

    def __repr__(self) -> str:
        more = "" if self.weight is None else ", weighted"
        more += "" if self.by is None else f", by {len(np.unique(self.by))} labellers"
        return f"Observations({self.aggregate!r}, {self.sets!r}{more})"

    @classmethod
    def _trusted(
        cls, aggregate: Aggregate, sets: Sets, y: Any, weight: Any, by: Any = None
    ) -> Observations:
        """Observations from valid parts, unchecked."""
        out = cls.__new__(cls)
        out.aggregate, out.sets, out.y, out.weight, out.by = aggregate, sets, y, weight, by
        return out

    def take(self, set_numbers: Any) -> Observations:
        """The observations of these set numbers (or of a boolean mask), in that order.

        A slice `begin:end` copies nothing.
        """
        which = chosen(set_numbers, len(self))
        y = None if self.y is None else self.y[which]
        weight = None if self.weight is None else self.weight[which]
        by, aggregate = None if self.by is None else self.by[which], self.aggregate.take(which)
        return Observations._trusted(aggregate, self.sets.take(which), y, weight, by)

    def over(self, indices: NDArray[np.int64]) -> Observations:
        """The same observations with other row numbers for the members, for another table."""
        sets = self.sets.over(indices)
        return Observations._trusted(self.aggregate, sets, self.y, self.weight, self.by)

    def _of(self, aggregate: Aggregate) -> Observations:
        """The same with another aggregate, of which y has been checked."""
        return Observations._trusted(aggregate, self.sets, self.y, self.weight, self.by)


def _labellers(aggregate: Aggregate, by: Any, n: int) -> NDArray[Any]:
    if not aggregate.learned:
        raise ValueError(
            f"by= says for whom to learn something, but {aggregate!r} has nothing to learn: leave "
            f'by= out, or let a number of it be "learned", as in Noisy(Rank(), flip="learned")'
        )
    array = np.asarray(by)
    if array.shape != (n,):
        raise ValueError(f"by= needs one labeller per set, {n} in all; got shape {array.shape}")
    return array


def _weights(weight: Any, n: int) -> NDArray[np.float64]:
    array = np.asarray(weight, np.float64)
    if array.shape != (n,):
        raise ValueError(f"one weight per set is expected, {n} in all; got shape {array.shape}")
    check_each(
        np.isfinite(array) & (array >= 0),
        lambda at: f"has weight {array[at]}: weights must be finite and at least 0",
    )
    return array


def _keyed(y: Any) -> dict[Any, Any]:
    """y as a dict from group label to value (a number, or a list for several columns)."""
    if isinstance(y, dict):
        return y
    if hasattr(y, "index") and hasattr(y, "to_numpy"):  # pandas: labels are the index
        keys, values = y.index.tolist(), y.to_numpy().tolist()
    else:
        import narwhals as nw

        table = nw.from_native(y, eager_only=True)
        if len(table.columns) < 2:
            raise ValueError(
                f"y needs a column of group labels and at least one column of values, got only "
                f"{table.columns}"
            )
        keys, *rows = (table.get_column(name).to_list() for name in table.columns)
        values = rows[0] if len(rows) == 1 else list(zip(*rows, strict=True))
    out = dict(zip(keys, values, strict=True))
    if len(out) < len(keys):
        twice, _ = Counter(keys).most_common(1)[0]
        raise ValueError(f"y has more than one entry for group {twice!r}")
    return out
