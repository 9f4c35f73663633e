"""Observations: an aggregate, the sets it was taken of, and what was seen."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from setwise._by_name import ByName
from setwise._html import ObservationsHtml
from setwise._matching import said
from setwise.errors import check_each
from setwise.sets import Sets, chosen

if TYPE_CHECKING:
    from setwise.likelihood import Aggregate

__all__ = ["Observations"]


class Observations(ByName, ObservationsHtml):
    """What was seen of each set: `aggregate` of the members of `sets` gave `y`.

    `y` has one entry per set in the form that the aggregate needs, in a list, an array, a column or
    a frame (None for `Ranking`); `weight` is an optional non-negative number per set. Both are
    checked here. `by` says who labelled each set: what the aggregate has to learn ("learned") is
    then learned for each labeller.

    Texts are read where they are clear: yes and no, same and different, win, loss and tie, names of
    classes; the columns of a frame of counts are classes. `positive` says which of two texts is the
    1, `classes` which class labels there are, in order. `from_groups` and `from_ids` match names.

    Attributes:
        classes: The class labels that numbers in y stand for; None where y does not name classes.
        left_out: What did not match names, and how often.

    >>> import setwise as sw
    >>> sw.Observations(sw.Mean(), sw.Sets([[0, 1], [1, 2]]), [1.5, 2.5])
    Observations(Mean(), Sets(2 sets of 2 members))
    >>> slides = sw.Observations(sw.AnyPositive(), [[0, 1], [2]], ["ill", "well"], positive="ill")
    >>> slides.y.tolist()
    [1.0, 0.0]
    """

    aggregate: Aggregate
    sets: Sets
    y: NDArray[Any] | None
    weight: NDArray[np.float64] | None
    by: NDArray[Any] | None
    classes: tuple[Any, ...] | None

    def __init__(
        self,
        aggregate: Aggregate,
        sets: Any,
        y: Any = None,
        weight: Any = None,
        by: Any = None,
        *,
        positive: Any = None,
        classes: Sequence[Any] | None = None,
    ) -> None:
        self.aggregate = aggregate
        self.sets = sets if isinstance(sets, Sets) else Sets(sets)
        numbers, self.classes = aggregate.read(self.sets, y, positive, classes)
        self.y = aggregate.check(self.sets, numbers)
        self.left_out = {}
        self.weight = None if weight is None else _weights(weight, len(self.sets))
        self.by = None if by is None else _labellers(aggregate, by, len(self.sets))

    def __len__(self) -> int:
        return len(self.sets)

    def __repr__(self) -> str:
        more = "" if self.weight is None else ", weighted"
        more += "" if self.by is None else f", by {len(np.unique(self.by))} labellers"
        more += f"; left out: {said(self.left_out)}" if self.left_out else ""
        return f"Observations({self.aggregate!r}, {self.sets!r}{more})"

    @classmethod
    def _trusted(
        cls, aggregate: Aggregate, sets: Sets, y: Any, weight: Any, by: Any = None
    ) -> Observations:
        """Observations from valid parts, unchecked."""
        out = cls.__new__(cls)
        out.aggregate, out.sets, out.y, out.weight, out.by = aggregate, sets, y, weight, by
        out.classes, out.left_out = None, {}
        return out

    def _with(self, **parts: Any) -> Observations:
        """The same with other parts, unchecked."""
        out = copy.copy(self)
        out.left_out = {}
        out.__dict__.update(parts)
        return out

    def take(self, set_numbers: Any) -> Observations:
        """The observations of these set numbers (or of a boolean mask), in that order.

        A slice `begin:end` copies nothing.
        """
        which = chosen(set_numbers, len(self))
        each = {name: getattr(self, name) for name in ("y", "weight", "by")}
        some = {name: None if v is None else v[which] for name, v in each.items()}
        return self._with(aggregate=self.aggregate.take(which), sets=self.sets.take(which), **some)

    def over(self, indices: NDArray[np.int64]) -> Observations:
        """The same observations with other row numbers for the members, for another table."""
        return self._with(sets=self.sets.over(indices))

    def with_classes(self, labels: Sequence[Any], place: NDArray[np.int64]) -> Observations:
        """The same about these classes, where the class with number i becomes number place[i]."""
        return self._with(y=self.aggregate.in_order(self.y, place), classes=tuple(labels))

    def _of(self, aggregate: Aggregate) -> Observations:
        """The same with another aggregate, of which y has been checked."""
        return self._with(aggregate=aggregate)


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
