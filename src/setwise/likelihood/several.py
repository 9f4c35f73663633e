"""Kinds of y that hold several numbers for each set: per class, bounds, unordered lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from setwise._given import Given
from setwise.errors import check_each
from setwise.likelihood.numbers import (
    check_totals,
    counts_of,
    expect,
    floats,
    numbers,
    padded,
    whole,
)
from setwise.likelihood.outcome import Floats, Ints, Numbered, Outcome
from setwise.likelihood.texts import class_codes
from setwise.sets import Sets

__all__ = ["Bounds", "Order", "PerClass", "Unordered"]


@dataclass(frozen=True)
class PerClass(Outcome):
    """A count, a share or a flag (0 or 1) for each class; for class 1 of 2 one number is enough.

    Counts add up to the size of the set, of which shares are fractions. At most `most` flags are 1.
    To a `noisy` y noise was added: it is any finite numbers.
    """

    what: Literal["count", "share", "flag"]
    n_classes: int | None = None
    most: float = np.inf
    noisy: bool = False

    @property
    def words(self) -> str:
        one = "" if self.what == "flag" else f" (or the {self.what} of class 1 of 2)"
        return f"a {self.what} for each class{one}"

    def numbered(
        self, who: object, y: Given, positive: Any, classes: Sequence[Any] | None
    ) -> Numbered:
        values, _ = super().numbered(who, y, positive, None)
        if classes is None:
            return values, y.columns
        if y.columns is not None:
            values = values[:, [int(i) for i in class_codes(who, classes, y.columns)]]
        return values, tuple(classes)

    def told(self, y: Any) -> int | None:
        return y.shape[1] if y.ndim == 2 else 2

    def in_order(self, y: Any, place: Ints) -> Any:
        if y.ndim == 1 and (place != (0, 1)).any():
            raise ValueError("one number for class 1 of 2 does not suit other classes: give both")
        return y if y.ndim == 1 else y[:, np.argsort(place)]

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        array = floats(who, y)
        columns = array.shape[1] if array.ndim == 2 else None
        if columns is None and self.what == "flag":
            raise ValueError(f"{who!r} needs y of shape (n_sets, n_classes), got {array.shape}")
        if columns is not None and self.n_classes not in (None, columns):
            raise ValueError(f"{who!r} needs {self.n_classes} columns of y, got {columns}")
        numbers(who, sets, array, columns)
        if self.noisy:
            return array
        if self.what == "flag":
            self._check_flags(who, sets, array)
        elif self.what == "count":
            wanted = "whole numbers from 0 on (for shares use Proportions)"
            check_totals(sets, whole(who, array, wanted), array)
        else:
            sizes = sets.individuals if columns is None else sets.individuals[:, None]
            check_totals(sets, counts_of(array, np.broadcast_to(sizes, array.shape)), array)
        return array

    def _check_flags(self, who: object, sets: Sets, y: Floats) -> None:
        expect(who, y, np.isin(y, (0, 1)), "0 or 1 for each class")
        present, most = y.sum(1), np.minimum(sets.individuals, self.most)
        check_each(
            (present >= 1) & (present <= most),
            lambda at: (
                f"has {present[at]:g} present classes: of {sets.individuals[at]} member(s) {who!r} "
                f"expects 1 to {most[at]:g}"
            ),
        )

    def read(self, columns: Sequence[Floats]) -> tuple[Floats | None, NDArray[np.bool_]]:
        y, known = super().read(columns)
        return (np.column_stack(columns) if self.what == "flag" else y), known


@dataclass(frozen=True)
class Bounds(Outcome):
    """Two numbers that a target lies between, (low, high), ±inf allowed."""

    holds_targets = True
    instead: ClassVar[str] = "ask for Direct(), or take the quantiles of predict_dist"
    words = "(low, high), ±inf allowed"

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        array = numbers(who, sets, y, 2, infinite=True)
        low, high = array.T
        check_each(
            low <= high,
            lambda at: f"has y = ({low[at]:g}, {high[at]:g}): low must not exceed high",
        )
        return array

    def read(self, columns: Sequence[Floats]) -> tuple[Floats | None, NDArray[np.bool_]]:
        """An empty field is an open end."""
        if len(columns) != 2:
            raise ValueError("an interval has two ends, as in --y low,high")
        y = np.column_stack(columns)
        known = np.asarray(~np.isnan(y).all(1))
        return np.where(np.isnan(y), (-np.inf, np.inf), y), known


@dataclass(frozen=True)
class Unordered(Outcome):
    """One number for each member, in unknown order; shorter lists are filled up with NaN."""

    holds_targets = True
    instead: ClassVar[str] = (
        "ask for Min(), Median() and Max(), or for the members themselves with predict"
    )
    words = "a list of the members' targets, in any order"

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        if y is None:
            raise ValueError(f"{who!r} needs the list of targets of each of {len(sets)} sets")
        return padded(_listed(who, sets, y, "target"), sets.sizes)

    def read(self, columns: Sequence[Floats]) -> tuple[Floats | None, NDArray[np.bool_]]:
        y = _lists(columns)
        return y, np.asarray(~np.isnan(y).all(1))


@dataclass(frozen=True)
class Order(Outcome):
    """Nothing, where members are listed in the observed order; or a level for each member.

    Levels come as the number of better members plus one, in lists filled up with NaN. With `top`
    all members behind the first so many have the same level.
    """

    top: int | None = None
    instead: ClassVar[str] = "ask for pairs with Rank(), or for the best member with Choice()"
    words = "none: members are listed best first; or their levels, 1 for the best, equal for ties"

    def check(self, who: object, sets: Sets, y: Any) -> Floats | None:
        if y is None:
            return None
        level = _listed(who, sets, y, "level")
        if any(np.ndim(row) == 0 for row in y):
            raise ValueError(
                f"{who!r} takes y=None where members are listed in order, best first; or a list of "
                f"levels for each set, got {np.asarray(y).ravel()[0]}"
            )
        order = np.lexsort((level, sets.set_ids))
        known, place = level[order], np.arange(len(order))
        start = sets.offsets[:-1][sets.set_ids]
        new = (place == start) | (known != np.roll(known, 1))
        better = np.maximum.accumulate(np.where(new, place, 0)) - start
        if self.top is not None:  # the first of those that are too late begins the last group
            late = better >= self.top
            new &= ~late | (place == start) | ~np.roll(late, 1)
            better = np.maximum.accumulate(np.where(new, place, 0)) - start
        rank = np.empty(len(order))
        rank[order] = better + 1
        return padded(rank, sets.sizes)

    def read(self, columns: Sequence[Floats]) -> tuple[Floats | None, NDArray[np.bool_]]:
        y = _lists(columns)
        return y, np.asarray(~np.isnan(y).all(1))


def _lists(columns: Sequence[Any]) -> Floats:
    """Lists of numbers, in one column or spread over several, as rows filled up with NaN."""
    if len(columns) > 1 or not any(np.ndim(entry) for entry in columns[0]):
        return np.column_stack(columns)
    lists = [np.atleast_1d(np.asarray(entry, np.float64)) for entry in columns[0]]
    return padded(np.concatenate(lists), np.array([len(one) for one in lists]))


def _listed(who: object, sets: Sets, y: Any, what: str) -> Floats:
    """A number for each member, one after another, from lists for each set, NaN not counted."""
    if not hasattr(y, "__len__") or len(y) != len(sets):
        got = f"{len(y)} entries" if hasattr(y, "__len__") else repr(y)
        raise ValueError(
            f"{who!r} needs the list of {what}s of each of {len(sets)} sets, got {got}"
        )
    rows = [floats(who, row).reshape(-1) for row in y]
    rows = [row[~np.isnan(row)] for row in rows]
    lengths = np.array([len(row) for row in rows])
    check_each(
        lengths == sets.sizes,
        lambda at: (
            f"has {sets.sizes[at]} member(s) but {lengths[at]} {what}(s), NaN not counted: "
            f"{who!r} needs one for each member"
        ),
    )
    flat = np.concatenate([*rows, np.zeros(0)])
    check_each(np.isfinite(flat), lambda at: f"has an infinite {what} in y", sets.set_ids)
    return flat
