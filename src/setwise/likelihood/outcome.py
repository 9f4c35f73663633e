"""What kind of thing y is, for which targets, and for which sizes of set.

An aggregate declares its `Outcome`. Checks of y, flips, expected observations, plots and the
command line all follow from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Distribution

from setwise.distributions import Discrete, Family
from setwise.errors import check_each
from setwise.sets import Sets

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Targets:
    """What is known of the members' targets."""

    n_classes: int | None = None  # None where targets are not classes, or this is not known yet
    discrete: bool | None = None  # whether two targets can be equal; None where not known yet

    @classmethod
    def of(cls, what: Distribution | Family) -> Targets:
        """The targets of this distribution or family."""
        if isinstance(what, Family):
            classes = issubclass(what.distribution, Categorical)
            return cls(len(what.outputs) if classes else None, issubclass(what.kind, Discrete))
        if isinstance(what, Categorical):
            return cls(what.logits.shape[-1], True)
        return cls(None, isinstance(what, Discrete))


@dataclass(frozen=True)
class SetSizes:
    """How many members a set may have; `why` explains a limit.

    >>> print(SetSizes(2, 2), "|", SetSizes(3), "|", SetSizes(odd=True))
    2 members | at least 3 members | an odd number of members
    """

    least: int = 1
    most: int | None = None
    odd: bool = False
    why: str = ""

    def takes(self, sizes: Any) -> Any:
        """Whether sets of these sizes are allowed."""
        sizes = np.asarray(sizes)
        good = (sizes >= self.least) & (sizes <= (np.inf if self.most is None else self.most))
        return good & (sizes % 2 == 1) if self.odd else good

    def check(self, who: object, sets: Sets) -> None:
        """Raises where a set has another size."""
        why = f": {self.why}" if self.why else ""
        check_each(
            self.takes(sets.individuals),
            lambda at: f"has {sets.individuals[at]} members: {who!r} takes sets of {self}{why}",
        )

    def __str__(self) -> str:
        if self.least == self.most:
            return "1 member" if self.least == 1 else f"{self.least} members"
        limits = [f"at least {self.least}"] * (self.least > 1)
        limits += [f"up to {self.most}"] * (self.most is not None)
        number = " and ".join(limits) or ("an odd number of" if self.odd else "any number of")
        return f"{number} members"


class Outcome(ABC):
    """What y is for each set. The kinds are those of this file, and no others."""

    named: bool = False  # y is a name: it has a most probable value, but no meaningful mean
    holds_targets: ClassVar[bool] = False  # y consists of values or bounds of single targets
    instead: ClassVar[str] = ""  # where y has no expected value: what the user can do instead

    @property
    def values(self) -> Sequence[float] | None:
        """Every possible value of y, where they can be listed."""
        return None

    @property
    @abstractmethod
    def words(self) -> str:
        """What y is, in a few words."""

    @abstractmethod
    def check(self, who: object, sets: Sets, y: Any) -> NDArray[Any] | None:
        """y as an array with one entry per set, or an error that names the first bad set."""

    def read(self, columns: Sequence[Floats]) -> tuple[Floats | None, NDArray[np.bool_]]:
        """y from columns of a table, where NaN is an empty field; and which sets have a y."""
        if len(columns) == 1:
            return columns[0], ~np.isnan(columns[0])
        y = np.column_stack(columns)
        return y, np.asarray(~np.isnan(y).any(1))


@dataclass(frozen=True)
class Number(Outcome):
    """One finite number; `values` lists all possible ones, where targets are classes."""

    values: Sequence[float] | None = None
    words = "a number"

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        return _numbers(who, sets, y)


@dataclass(frozen=True)
class Label(Outcome):
    """One of a few numbers, each with a meaning.

    `named` labels are names. Others have a mean: the share of ones, or the mean score.
    """

    meanings: Mapping[float, str]
    named: bool = False

    @property
    def values(self) -> Sequence[float]:
        return tuple(self.meanings)

    @property
    def words(self) -> str:
        return ", ".join(f"{value:g}: {meaning}" for value, meaning in self.meanings.items())

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        array = _numbers(who, sets, y)
        wanted = " or ".join(f"{v:g}" for v in self.meanings)
        return _expect(who, array, np.isin(array, self.values), wanted)


@dataclass(frozen=True)
class ClassLabel(Outcome):
    """One of the targets' classes, counted from 0; not `named` where the classes are ordered."""

    n_classes: int | None = None
    named: bool = True
    words = "a class"

    @property
    def values(self) -> Sequence[float] | None:
        return None if self.n_classes is None else range(self.n_classes)

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        array = _numbers(who, sets, y)
        if self.n_classes is None:
            return _whole(who, array)
        wanted = f"a class, 0 to {self.n_classes - 1}"
        return _expect(who, array, np.isin(array, range(self.n_classes)), wanted)


@dataclass(frozen=True)
class Position(Outcome):
    """The position of one member in its set, counted from 0."""

    size: int | None = None
    named = True
    words = "the position of a member, from 0"

    @property
    def values(self) -> Sequence[float] | None:
        return None if self.size is None else range(self.size)

    def check(self, who: object, sets: Sets, y: Any) -> NDArray[np.int64]:
        array = _whole(who, _numbers(who, sets, y))
        check_each(
            array < sets.sizes,
            lambda at: (
                f"has y = {array[at]:g}, but its members are at positions 0 to {sets.sizes[at] - 1}"
            ),
        )
        return array.astype(np.int64)


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

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        array = _floats(who, y)
        columns = array.shape[1] if array.ndim == 2 else None
        if columns is None and self.what == "flag":
            raise ValueError(f"{who!r} needs y of shape (n_sets, n_classes), got {array.shape}")
        if columns is not None and self.n_classes not in (None, columns):
            raise ValueError(f"{who!r} needs {self.n_classes} columns of y, got {columns}")
        _numbers(who, sets, array, columns)
        if self.noisy:
            return array
        if self.what == "flag":
            self._check_flags(who, sets, array)
        elif self.what == "count":
            wanted = "whole numbers from 0 on (for shares use Proportions)"
            _check_totals(sets, _whole(who, array, wanted), array)
        else:
            sizes = sets.individuals if columns is None else sets.individuals[:, None]
            _check_totals(sets, _counts_of(array, np.broadcast_to(sizes, array.shape)), array)
        return array

    def _check_flags(self, who: object, sets: Sets, y: Floats) -> None:
        _expect(who, y, np.isin(y, (0, 1)), "0 or 1 for each class")
        present, most = y.sum(1), np.minimum(sets.sizes, self.most)
        check_each(
            (present >= 1) & (present <= most),
            lambda at: (
                f"has {present[at]:g} present classes: of {sets.sizes[at]} member(s) {who!r} "
                f"expects 1 to {most[at]:g}"
            ),
        )

    def read(self, columns: Sequence[Floats]) -> tuple[Floats | None, NDArray[np.bool_]]:
        y, known = super().read(columns)
        return (np.column_stack(columns) if self.what == "flag" else y), known


def _counts_of(y: Floats, sizes: NDArray[np.int64]) -> Floats:
    """The counts that shares of sets of these sizes stand for, rounded ones included."""
    counts = np.rint(y * sizes)
    good = np.abs(y * sizes - counts) <= 1e-3
    for decimals in range(2, 6):
        rounded = np.round(counts / sizes, decimals)
        good |= (np.abs(y - rounded) <= 1e-6) & (sizes < 10**decimals)

    def said(at: Any) -> str:
        size, nearest = sizes[at], int(np.clip(counts[at], 0, sizes[at]))
        return (
            f"has y = {y[at]:g}, which is no share of {size} member(s); the nearest is "
            f"{nearest}/{size} = {nearest / size:.6g}"
        )

    check_each(good & (y > -1e-6) & (y < 1 + 1e-6), said)
    return counts


def _check_totals(sets: Sets, counts: Floats, y: Floats) -> None:
    """Raises where the counts of all classes are not the size of the set, or one exceeds it."""
    flat = counts.ndim == 1
    total = counts if flat else counts.sum(1)
    what = "a count of" if flat else "counts that add up to"
    check_each(
        total <= sets.individuals if flat else total == sets.individuals,
        lambda at: (
            f"has {sets.individuals[at]} member(s) but {what} {total[at]:g} (y = {y[at].tolist()})"
        ),
    )


@dataclass(frozen=True)
class Order(Outcome):
    """Nothing: the members of each set are listed in the observed order."""

    instead: ClassVar[str] = "ask for pairs with Rank(), or for the best member with Choice()"
    words = "none: each set lists its members in order, best first"

    def check(self, who: object, sets: Sets, y: Any) -> None:
        if y is not None:
            raise ValueError(
                f"{who!r} takes y=None, got {type(y).__name__}: list the rows of each set in "
                f"their order, best first"
            )

    def read(self, columns: Sequence[Floats]) -> tuple[Floats | None, NDArray[np.bool_]]:
        raise ValueError("an order has no column of labels, its members are listed best first")


@dataclass(frozen=True)
class Bounds(Outcome):
    """Two numbers that a target lies between, (low, high), ±inf allowed."""

    holds_targets = True
    instead: ClassVar[str] = "ask for Direct(), or take the quantiles of predict_dist"
    words = "(low, high), ±inf allowed"

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        array = _numbers(who, sets, y, 2, infinite=True)
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
        if y is None or len(y) != len(sets):
            got = "None" if y is None else f"{len(y)} entries"
            raise ValueError(
                f"{who!r} needs the list of targets of each of {len(sets)} sets, got {got}"
            )
        rows = [_floats(who, row).reshape(-1) for row in y]
        rows = [row[~np.isnan(row)] for row in rows]
        lengths = np.array([len(row) for row in rows])
        check_each(
            lengths == sets.sizes,
            lambda at: (
                f"has {sets.sizes[at]} member(s) but {lengths[at]} target(s), NaN not counted: "
                f"{who!r} needs one for each member"
            ),
        )
        flat = np.concatenate([*rows, np.zeros(0)])
        check_each(np.isfinite(flat), lambda at: "has an infinite target in y", sets.set_ids)
        return padded(flat, sets.sizes)

    def read(self, columns: Sequence[Floats]) -> tuple[Floats | None, NDArray[np.bool_]]:
        y = np.column_stack(columns)
        return y, np.asarray(~np.isnan(y).all(1))


def padded(values: Floats, sizes: NDArray[np.int64]) -> Floats:
    """Lists of these sizes, given one after another, as the rows of an array filled with NaN."""
    width = int(sizes.max(initial=0))
    out = np.full((len(sizes), width), np.nan)
    out[np.arange(width) < sizes[:, None]] = values
    return out


def _floats(who: object, y: Any) -> Floats:
    if y is None:
        raise ValueError(f"{who!r} needs a y for each set, got None")
    try:
        return np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{who!r} needs numbers as y: {error}") from error


def _numbers(
    who: object, sets: Sets, y: Any, columns: int | None = None, infinite: bool = False
) -> Floats:
    """y as finite floats of shape (n_sets,) or (n_sets, columns)."""
    array = _floats(who, y)
    shape = (len(sets),) if columns is None else (len(sets), columns)
    if array.shape != shape:
        raise ValueError(f"{who!r} of {len(sets)} sets needs y of shape {shape}, got {array.shape}")
    good = ~np.isnan(array) if infinite else np.isfinite(array)
    return _expect(who, array, good, "finite numbers")


def _expect(who: object, array: Floats, good: NDArray[np.bool_], wanted: str) -> Floats:
    """y, or an error that names the first set whose y is not what is `wanted`."""
    check_each(good, lambda at: f"has y = {array[at]:g}: {who!r} expects {wanted}")
    return array


def _whole(who: object, array: Floats, wanted: str = "a whole number from 0 on") -> Floats:
    return _expect(who, array, (array >= 0) & (array == np.floor(array)), wanted)
